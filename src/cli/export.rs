//! `kiln export`: writes a checkpoint as a Hugging Face model folder, or as a GGUF file.

mod generation;
mod pairs;
mod published;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kiln_data::files::read_file;
use kiln_data::{LabelledEncoder, TextTokenizer};
use kiln_interchange::gguf::{self, GgufType, TokenizerFiles, write_gguf};
use kiln_interchange::hugging_face::{
    ADAPTER_CONFIG_FILE, CONFIG_FILE, GENERATION_CONFIG_FILE, SENTENCEPIECE_FILE, StoredType, TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE, TokenizerFile, write_adapter, write_model,
};
use kiln_metrics::logging::print::{stderr_line, stdout_line};
use kiln_model::ClassHead;
use kiln_model::hf::{self, ExportPlan, ExportedAdapter, Family, TokenIds, ZeroStart};
use kiln_train::config::task::traits_of;
use kiln_train::dataset::Vocabulary;
use kiln_train::run::{TrainedModel, WhichWeights};
use serde_json::{Map, Value, json};

use super::error::Usage;

/// Writes a checkpoint as a Hugging Face model folder, or as a GGUF file for llama.cpp
///
/// Chooses the family that computes the same: gpt2, llama, mistral, qwen2, qwen3, gemma2, gemma3_text, bert, roberta, bart,
/// marian, pegasus, m2m_100 or t5. In transformers, load the folder with AutoModelForCausalLM, AutoModelForMaskedLM,
/// AutoModelForSequenceClassification or AutoModelForSeq2SeqLM.from_pretrained, and its tokenizer with AutoTokenizer: it gives the ids that Kiln gives. A translator
/// with a SentencePiece model for each language gets the files of OPUS-MT. A model that none of these families computes is
/// refused with the reasons.
///
/// If the name ends with .gguf, a file for llama.cpp is written: of a gpt2, llama, mistral, qwen2, qwen3, gemma2 or gemma3_text
/// model. Texts of a mistral model are limited to its sliding window, which llama.cpp does not have.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kiln export runs/lm models/lm
  kiln export runs/en-it models/en-it --checkpoint last --dtype bf16
  kiln export runs/tuned adapters/tuned --adapter
  kiln export runs/tuned models/tuned.gguf --dtype q8_0")]
pub(super) struct Args {
    /// Run folder, or a checkpoint's folder
    #[arg(value_name = "RUN")]
    run: PathBuf,

    /// Folder to write, which must not exist yet, or be empty; or file to write, which ends with .gguf
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// best, last, a step's number or its folder's name [default: best, or last without validation]
    #[arg(long, value_name = "NAME")]
    checkpoint: Option<String>,

    /// Weights of the last step, or their moving average [default: the run's train.use_ema]
    #[arg(long, value_name = "WHICH")]
    weights: Option<WhichWeights>,

    /// Write the adapters or the learned prompt alone, for peft: adapter_config.json and adapter_model.safetensors [default: adapters
    /// are merged into the model]
    #[arg(long)]
    adapter: bool,

    /// Type of the exported weights; q8_0 for GGUF files only
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    dtype: GgufType,
}

/// Returns the type of the weights of a folder.
fn in_folder(dtype: GgufType) -> Result<StoredType> {
    match dtype {
        GgufType::F32 => Ok(StoredType::F32),
        GgufType::Bf16 => Ok(StoredType::Bf16),
        GgufType::F16 => Ok(StoredType::F16),
        GgufType::Q8_0 => {
            let text =
                "--dtype q8_0 is for GGUF files: give the target a name that ends with .gguf, or take another type";
            Err(Usage(text.into()).into())
        }
    }
}

/// Endings of files that people may expect, and that an export does not write.
const OTHER_FORMATS: [&str; 7] = ["onnx", "pt", "pth", "bin", "safetensors", "ckpt", "ggml"];

pub(super) fn run(args: Args) -> Result<()> {
    let find = || TrainedModel::find_weights(&args.run, args.checkpoint.as_deref(), args.weights);
    if args.dir.extension().is_some_and(|extension| extension == gguf::EXTENSION) {
        if args.adapter {
            let text = "--adapter writes a folder for peft; without it, the adapters are merged into the GGUF file";
            return Err(Usage(text.into()).into());
        }
        return gguf_file(&args, &find()?);
    }
    if let Some(kind) =
        args.dir.extension().and_then(|kind| OTHER_FORMATS.iter().find(|other| kind.eq_ignore_ascii_case(other)))
    {
        let text = format!(
            "{}: kiln export writes a model folder, or a file that ends in .gguf, and no .{kind} file; name a folder",
            args.dir.display()
        );
        return Err(Usage(text).into());
    }
    let stored = in_folder(args.dtype)?;
    let run = find()?;
    if args.adapter {
        return adapter(&args, &run, stored);
    }

    let ZeroStart { plan, added } = pairs::start_with_zeros(&run, exported(&run)?)?;
    let ExportPlan { family, mut config, mut generation_config, tensors } = plan;
    if let Some(generation) = &mut generation_config {
        generation::describe(&run, generation);
    }

    // Version 5 of transformers reads the first key, version 4 the second.
    config["dtype"] = json!(stored.torch_name());
    config["torch_dtype"] = json!(stored.torch_name());
    name_classes(&run, &mut config);
    published::restore_ids(&run, &mut config, generation_config.as_mut())?;

    let mut files = vec![(CONFIG_FILE.to_owned(), text(&config))];
    files.extend(generation_config.map(|config| (GENERATION_CONFIG_FILE.to_owned(), text(&config))));
    let is_marian = family == Family::Marian;
    let layout = if is_marian { pairs::marian_files(&run.path, run.model.max_positions, added)? } else { None };
    files.extend(layout.map_or_else(|| tokenizer_files(&run, &config, added), Ok)?);
    published::note_several(&files);
    let files: Vec<_> = files.iter().map(|(name, content)| (name.as_str(), content.clone())).collect();
    write_model(&args.dir, &tensors, stored, &files)?;
    published::note_class(&args.dir)?;
    let averaged = if run.which == WhichWeights::Averaged { ", averaged weights," } else { "" };
    stderr_line!("exported step {}{averaged} of {} as a {family} model", run.step, args.run.display());
    stdout_line!("{}", args.dir.display());
    Ok(())
}

/// Returns the model as a family of `transformers` has it.
fn exported(run: &TrainedModel) -> Result<ExportPlan<'_>> {
    let mut tokens = token_ids(&run.vocabulary);
    if let Some(tokenizer) = classifying_decoder(run) {
        tokens.pad = tokenizer.padding_of_decoder();
        if tokens.pad.is_none() {
            stderr_line!(
                "note: the tokenizer has neither padding nor an end token, so that transformers takes one text at a time; set \
                 pad_token_id in {CONFIG_FILE} to a token that ends no text"
            );
        }
    }
    hf::plan_export(&run.model, run.tensors(), &tokens).with_context(|| format!("exporting {}", run.path.display()))
}

/// Returns the tokenizer of a decoder that predicts classes.
fn classifying_decoder(run: &TrainedModel) -> Option<&TextTokenizer> {
    run.vocabulary.text().filter(|_| run.model.class_head == ClassHead::Last)
}

/// Writes a file for llama.cpp.
fn gguf_file(args: &Args, run: &TrainedModel) -> Result<()> {
    let context = || format!("exporting {}", run.path.display());
    let Some(tokenizer) = run.vocabulary.text().filter(|_| traits_of(run.config.task).continues_text) else {
        return Err(Usage("a GGUF file is for models that continue text (task = \"lm\")".into()).into());
    };
    generation::note_spelled_end_for_llama(run, tokenizer);
    let model = exported(run)?;
    let family = model.family;
    let json: Value = serde_json::from_str(tokenizer.json()).with_context(context)?;
    let template = tokenizer.chat_template()?;
    let files = TokenizerFiles {
        tokenizer: &json,
        chat_template: (!template.is_default()).then(|| template.source()),
        end_of_turn: tokenizer.end_of_turn()?.and_then(|token| tokenizer.id(&token)),
        adds_bos: tokenizer.special().bos.is_some_and(|bos| tokenizer.before_prompt() == [bos]),
    };

    if model.config["activation_function"] == "gelu" {
        stderr_line!(
            "note: llama.cpp approximates GELU by tanh, this model does not: activations differ by up to 0.0005"
        );
    }
    if let Some(longest) = gguf::longest_same_text(&model) {
        stderr_line!(
            "note: llama.cpp has no sliding window for a {family} model (model.attention_window): it computes the same for texts up to \
             {longest} tokens, and the file limits them to that (context_length)"
        );
    }

    let name = args.dir.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    write_gguf(&args.dir, &name, model, &files, args.dtype).with_context(context)?;
    stderr_line!("exported step {} of {} as a {family} model for llama.cpp", run.step, args.run.display());
    stdout_line!("{}", args.dir.display());
    Ok(())
}

/// Adds the names of the classes to `config.json`.
fn name_classes(run: &TrainedModel, config: &mut Value) {
    let names = &run.config.data.labels.names;
    if run.model.class_head == ClassHead::None || names.len() != run.model.n_classes {
        return;
    }
    config["id2label"] = names.iter().enumerate().map(|(id, name)| (id.to_string(), json!(name))).collect();
    config["label2id"] = names.iter().enumerate().map(|(id, name)| (name.clone(), json!(id))).collect();
    if run.model.class_head != ClassHead::Tokens {
        config["problem_type"] = json!("single_label_classification");
    }
}

/// Writes the adapters alone.
fn adapter(args: &Args, run: &TrainedModel, stored: StoredType) -> Result<()> {
    if run.model.prompt_tokens == 0 && !matches!(run.model.class_head, ClassHead::None | ClassHead::Last) {
        let text = "--adapter would leave out the head for classes, which was trained with the adapters; export the merged model \
                    without --adapter";
        return Err(Usage(text.into()).into());
    }

    let (what, exported) = match run.model.prompt_tokens {
        0 => ("adapters", hf::export_adapter(&run.model, run.weights())),
        _ => ("learned prompt", hf::export_prompt(&run.model, run.weights())),
    };
    let ExportedAdapter { family, config, tensors } =
        exported.with_context(|| format!("exporting {}", run.path.display()))?;
    write_adapter(&args.dir, &tensors, stored, text(&config))?;

    stderr_line!(
        "exported the {what} of step {} of {}, for the {family} model of the training",
        run.step,
        args.run.display()
    );
    if run.model.has_classes() {
        stderr_line!(
            "note: {} has no place for the names of the {} classes; in transformers, load the model with id2label or num_labels",
            ADAPTER_CONFIG_FILE,
            run.model.n_classes
        );
    }
    stdout_line!("{}", args.dir.display());
    Ok(())
}

fn text(json: &Value) -> Vec<u8> {
    format!("{json:#}\n").into_bytes()
}

fn token_ids(vocabulary: &Vocabulary) -> TokenIds {
    match vocabulary {
        Vocabulary::Pairs(tokenizers) => {
            let special = tokenizers.special();
            TokenIds {
                pad: Some(special.pad),
                bos: Some(special.bos),
                eos: Some(special.eos),
                decoder_start: Some(special.bos),
            }
        }
        Vocabulary::Text(tokenizer) => {
            let special = tokenizer.special();
            TokenIds { pad: special.pad, bos: special.bos, eos: special.eos, decoder_start: None }
        }
    }
}

/// Returns the tokenizer's files. They are the run's own, plus the special tokens that Kiln puts around a text: other
/// programs then add these when they encode. `padding` is a token that the model has got.
fn tokenizer_files(run: &TrainedModel, model: &Value, padding: Option<u32>) -> Result<Vec<(String, Vec<u8>)>> {
    let row = traits_of(run.config.task);
    let hides_tokens = row.hides_tokens;
    let (before, behind) = match &run.vocabulary {
        Vocabulary::Pairs(tokenizers) => (tokenizers.before_source().to_vec(), vec![tokenizers.special().eos]),
        Vocabulary::Text(tokenizer) if run.model.class_head == ClassHead::Last => {
            let encoder = LabelledEncoder::for_decoder(tokenizer, usize::MAX)?;
            let (before, behind) = encoder.around_text();
            (before.to_vec(), behind.to_vec())
        }
        Vocabulary::Text(tokenizer) if hides_tokens || row.classes.is_some() => tokenizer.around(),
        Vocabulary::Text(tokenizer) => (tokenizer.before_prompt().to_vec(), Vec::new()),
    };

    let mut files = Vec::new();
    for name in tokenizer_names(&run.path)? {
        let path = run.path.join(&name);
        let content = if name == TOKENIZER_CONFIG_FILE {
            tokenizer_config(run, &path, &before, model, padding)?
        } else if name == SENTENCEPIECE_FILE {
            read_file(&path).with_context(|| format!("{}: cannot be read", path.display()))?
        } else {
            let mut file = TokenizerFile::read(&path)?;
            padding.into_iter().for_each(|id| file.add_padding(id));
            // A published tokenizer keeps its settings.
            let own = run.vocabulary.text().filter(|tokenizer| tokenizer.mask_settings().is_none());
            let mask = own.and_then(|tokenizer| tokenizer.special().mask);
            mask.filter(|_| hides_tokens).into_iter().for_each(|mask| file.let_mask_take_spaces(mask));
            let file = file.with_tokens_around(&before, &behind);
            file.with_context(|| path.display().to_string())?.into_bytes()
        };
        files.push((name, content));
    }
    Ok(files)
}

/// Reads a run's `tokenizer_config.json`.
fn token_names(path: &Path) -> Result<Map<String, Value>> {
    let bytes = read_file(path).with_context(|| format!("{}: cannot be read", path.display()))?;
    serde_json::from_slice(&bytes).with_context(|| path.display().to_string())
}

/// Returns the run's `tokenizer_config.json` as other programs read it. `before` are the tokens in front of a prompt.
///
/// `model` is the exported `config.json`, and `padding` a token that the model has got.
fn tokenizer_config(
    run: &TrainedModel,
    path: &Path,
    before: &[u32],
    model: &Value,
    padding: Option<u32>,
) -> Result<Vec<u8>> {
    let mut config = token_names(path)?;
    let published = published::take(&mut config, matches!(run.vocabulary, Vocabulary::Pairs(_)));
    config.remove("tokens_before_text");
    config.remove("tokens_before_target");

    if let Vocabulary::Text(tokenizer) = &run.vocabulary
        && traits_of(run.config.task).continues_text
    {
        // Read by version 4 of transformers for some families; version 5 reads the template.
        let bos = tokenizer.special().bos;
        config.insert("add_bos_token".to_owned(), json!(bos.is_some_and(|bos| before == [bos])));
        config.insert("add_eos_token".to_owned(), json!(false));
    }
    if let Some(padding) = classifying_decoder(run).and_then(TextTokenizer::padding_of_decoder) {
        let file = TokenizerFile::read(&path.with_file_name(TOKENIZER_FILE))?;
        let token = file.token(padding).with_context(|| format!("{}: no token {padding}", path.display()))?;
        config.insert("pad_token".to_owned(), json!(token));
        config.remove("add_bos_token");
    }
    // Longer texts are cut where a program asks for it, as Kiln cuts texts with classes.
    config.entry("model_max_length").or_insert_with(|| json!(run.model.max_positions - run.model.prompt_tokens));
    config.extend(published);
    pairs::name_padding(&mut config, padding.is_some(), model);
    published::name_inputs(model, &mut config);
    Ok(text(&Value::Object(config)))
}

/// Returns the names of the tokenizer's files: `tokenizer_config.json` and one `tokenizer.json`, or one each for source
/// and target; `tokenizer.model` if the tokenizer is a SentencePiece model.
fn tokenizer_names(checkpoint: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(checkpoint).with_context(|| format!("{}: cannot be listed", checkpoint.display()))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(TOKENIZER_FILE) || [TOKENIZER_CONFIG_FILE, SENTENCEPIECE_FILE].contains(&name.as_str()) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}
