//! `kiln import`: makes a run of a Hugging Face model.

mod generation;
mod generation_keys;
mod languages;
mod made_from;
pub(super) mod tokenizer_settings;
mod tokenizers;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use generation::Rules;
use kiln_data::Packing;
use kiln_data::files::write_fresh;
use kiln_interchange::hugging_face::{
    AdapterFolder, CONFIG_FILE, Folder, FolderError, TOKENIZER_CONFIG_FILE, TOKENIZER_FILE, TokenizerFile,
};
use kiln_metrics::logging::print::{stderr_line, stdout_line};
use kiln_model::flops::n_params;
use kiln_model::hf::{self, ImportPlan, TokenIds};
use kiln_model::{ClassHead, TransformerConfig};
use kiln_train::checkpoint::{RUN_CONFIG_FILE, StoredFile};
use kiln_train::config::task::{Reads, TASKS, traits_of};
use kiln_train::config::{Config, Preset, Task};
use kiln_train::dataset::Vocabulary;
use kiln_train::generate::TokenRules;
use kiln_train::run::{NewRun, folder};
use languages::Languages;
use made_from::{MADE_FROM_FILE, is_made_from};
use serde_json::{Map, Value, json};
use tokenizer_settings::{PUBLISHED, published};
use tokenizers::{Roles, Tokenizers};

use super::error::Usage;
use super::lines::shell_path;

/// Makes a run from a Hugging Face model folder
///
/// Reads config.json, generation_config.json, model.safetensors or pytorch_model.bin (f64, f32, f16 or bf16; also shards with
/// an index) and tokenizer.json (OPUS-MT: source.spm, target.spm and vocab.json; M2M-100: sentencepiece.bpe.model and
/// vocab.json) of the families gpt2, llama, mistral, qwen2, qwen3, gemma2, gemma3_text, bert, roberta, bart, marian, pegasus,
/// m2m_100 (also NLLB) and t5 (also mt5). The run can be evaluated, generated from and exported; kiln train --from trains
/// it further. Of a pytorch_model.bin, no code is run.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kiln import models/gpt2
  kiln import models/opus-mt-en-it --out runs/en-it
  kiln import models/nllb-200 --source-lang eng_Latn --target-lang ita_Latn
  kiln import models/m2m100 --source-lang en --target-lang it
  kiln import models/gpt2 --adapter adapters/tuned --out runs/gpt2-tuned
  kiln train --from runs/gpt2 --set data.train=texts/ --run runs/tuned")]
pub(super) struct Args {
    /// Folder with config.json and model.safetensors or pytorch_model.bin
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// Folder of the new run [default: runs/ and the name of DIR]
    #[arg(long, value_name = "RUN")]
    out: Option<PathBuf>,

    /// Folder of adapters (LoRA) or of a learned prompt (prompt tuning) made by peft, which the run has next to the model's weights
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,

    /// A tokenizer.json to use instead of the folder's
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,

    #[command(flatten)]
    languages: Languages,
}

pub(super) fn run(args: Args) -> Result<()> {
    let out = import(args)?;
    stdout_line!("{}", out.display());
    Ok(())
}

/// Whether `dir` is a model folder of `transformers` and not a run.
pub(super) fn is_model_folder(dir: &Path) -> bool {
    dir.join(CONFIG_FILE).is_file() && !dir.join(RUN_CONFIG_FILE).is_file()
}

/// Returns the run that was imported from the model folder `dir` as it is now, or imports it.
///
/// # Errors
/// If a run has the folder's name and was made of something else.
pub(super) fn imported(dir: PathBuf) -> Result<PathBuf> {
    let name = dir.canonicalize().ok().and_then(|dir| Some(dir.file_name()?.to_string_lossy().into_owned()));
    let before = folder::default_for(name.as_deref().unwrap_or("imported"));
    if before.join(RUN_CONFIG_FILE).is_file() {
        if !is_made_from(&before, &dir)? {
            let (folder, other) = (shell_path(&dir), shell_path(&before.with_file_name("NAME")));
            return Err(Usage(format!(
                "{}: a model folder, and {} was not made of its files as they are now: kiln import {folder} --out {other}, then --from {other}",
                dir.display(),
                before.display()
            ))
            .into());
        }
        stderr_line!("{}: a model folder; taking {}, which was imported from it", dir.display(), before.display());
        return Ok(before);
    }
    stderr_line!("{}: a model folder; importing it into {}", dir.display(), before.display());
    import(Args { dir, out: None, adapter: None, tokenizer: None, languages: Languages::default() })
}

/// Keeps the languages that a tokenizer's settings name, if it is one `of_languages`.
fn keep_languages(names: &mut Value, config: &Value, of_languages: bool) {
    for key in ["source_lang", "target_lang"].into_iter().filter(|key| of_languages && config[key].is_string()) {
        names[key] = config[key].clone();
    }
}

/// Makes a run of a model folder. Returns the run's folder.
fn import(args: Args) -> Result<PathBuf> {
    let as_it_is = args.adapter.is_none() && args.tokenizer.is_none() && args.languages.are_default();
    let source = Folder::open(&args.dir)?;
    let name = args.dir.canonicalize().ok().and_then(|dir| Some(dir.file_name()?.to_string_lossy().into_owned()));
    let out = folder::for_import(args.out.as_deref(), name.as_deref().unwrap_or("imported"))?;
    let new = NewRun::begin(&out)?;
    let release = || source.release();
    let mut imported = hf::plan_import(source.config(), &source.tensors(), &release)
        .with_context(|| format!("importing {}", args.dir.display()))?;
    if let Some(dir) = &args.adapter {
        add_adapter(&mut imported, dir).with_context(|| format!("importing {}", dir.display()))?;
    }
    imported.notes.iter().for_each(|note| stderr_line!("note: {note}"));

    let ImportPlan { family, config: mut model, mut tokens, weights, .. } = imported;
    let task = task_of(&model);
    let rows = model.source_vocab_size.max(model.target_vocab_size);
    let tokenizers = Tokenizers::read(&args.dir, args.tokenizer, &source, task, &tokens, rows)?;
    tokenizers.check_size(rows)?;
    let (pads_left, of_languages) = (tokenizers.pads_left, tokenizers.of_languages);
    let Tokenizers { first: tokenizer, path: tokenizer_path, mut files, around, roles, named, .. } = tokenizers;
    let generation = source.generation_config()?;
    let rules = Rules::new(&args.dir, &generation, &tokenizer)?;
    tokens.decoder_start = tokens.decoder_start.or_else(|| rules.decoder_start());
    let tokenizer_config = source.tokenizer_config()?;
    let mut names = token_names(task, &tokenizer, &tokens, &roles, &tokenizer_path)?;
    keep_languages(&mut names, &tokenizer_config, of_languages);

    match traits_of(task).reads {
        Reads::Pairs => {
            let forced = rules.forced_first();
            let languages = args.languages.tokens(family, &tokenizer, around.as_ref(), forced, &tokenizer_path)?;
            if let Some([source, target]) = languages {
                (names["tokens_before_text"], names["tokens_before_target"]) = (json!([source]), json!([target]));
            } else {
                let before = tokens_before_text(&tokenizer, &tokens, around, forced, &tokenizer_path)?;
                if !before.is_empty() {
                    names["tokens_before_text"] = json!(before);
                }
            }
        }
        Reads::Text if traits_of(task).continues_text => {
            let template = kiln_data::chat_template_next_to(&args.dir.join(TOKENIZER_FILE))?;
            template.into_iter().for_each(|template| names["chat_template"] = json!(template));
            note_prompts(&tokenizer, around, &source.tokenizer_config()?, &mut names);
        }
        Reads::Text if model.class_head == ClassHead::Last => {
            name_padding(&tokenizer, &tokens, around.is_some(), &mut names);
        }
        Reads::Text => (),
    }

    let pairs = traits_of(task).reads == Reads::Pairs;
    tokenizer_settings::note_unsupported(&tokenizer_config, &tokenizer, pairs || traits_of(task).continues_text);
    names[PUBLISHED] = published(&tokenizer_config, &names, &tokens, (&tokenizer, pads_left), pairs);
    tokenizer_settings::keep_tokens_of_template(&mut names, &roles, named);
    files.push(StoredFile { name: TOKENIZER_CONFIG_FILE.to_owned(), bytes: format!("{names:#}\n").into_bytes() });
    let vocabulary = load_vocabulary(task, &files)
        .and_then(|vocabulary| vocabulary.complete(&mut model).map(|()| vocabulary))
        .with_context(|| format!("the tokenizer {} does not fit", tokenizer_path.display()))?;
    let mut config = run_config(task, &model);
    config.data.labels.names = class_names(source.config(), model.n_classes, &args.dir)?;
    match &vocabulary {
        Vocabulary::Pairs(tokenizers) => {
            let before = [&names["tokens_before_target"], &names["tokens_before_text"]];
            let n_first = before.into_iter().find_map(Value::as_array).map_or(0, Vec::len);
            rules.apply_to_pairs(&tokens, n_first, &TokenRules::of(tokenizers.special()), &mut config.generate)?;
        }
        Vocabulary::Text(tokenizer) if traits_of(task).continues_text => {
            let (limits, end) = (TokenRules::of_text(tokenizer), names["eos_token"].as_str());
            rules.apply_to_text(end, &limits, model.text_positions(), &mut config.generate)?;
        }
        Vocabulary::Text(_) => (),
    }
    files.extend(own_files(&config, as_it_is.then_some(&*args.dir))?);
    files.sort_by(|a, b| a.name.cmp(&b.name));
    new.finish_with(&weights, &model, &files)?;
    stderr_line!("imported a {family} model of {:.1} M parameters", n_params(&model).total() as f64 / 1e6);
    Ok(out)
}

/// Returns what Kiln adds to the files of a model folder: the configuration, and what `folder` held.
fn own_files(config: &Config, folder: Option<&Path>) -> Result<Vec<StoredFile>> {
    let config = StoredFile { name: RUN_CONFIG_FILE.to_owned(), bytes: config.to_toml().into_bytes() };
    let recorded = folder.map(made_from::record).transpose()?;
    let recorded = recorded.map(|bytes| StoredFile { name: MADE_FROM_FILE.to_owned(), bytes });
    Ok([Some(config), recorded].into_iter().flatten().collect())
}

/// Adds the adapters or the learned prompt of peft in `dir`.
fn add_adapter(imported: &mut ImportPlan<'_>, dir: &Path) -> Result<()> {
    let adapter = AdapterFolder::open(dir)?;
    let (settings, tensors) = (adapter.settings(), adapter.tensors());
    if hf::is_prompt(settings) {
        let (prompt_tokens, prompt) = hf::import_prompt(imported.family, &imported.config, settings, &tensors)?;
        imported.config.prompt_tokens = prompt_tokens;
        imported.weights.push(prompt.into());
    } else {
        hf::import_adapter(imported.family, &imported.config, settings, &tensors)?.add_to_plan(imported);
    }
    Ok(())
}

fn task_of(model: &TransformerConfig) -> Task {
    match model.class_head {
        ClassHead::Pooled | ClassHead::Dense | ClassHead::Last => Task::Classification,
        ClassHead::Tokens => Task::Tagging,
        ClassHead::None => {
            let task = TASKS.into_iter().find(|&task| traits_of(task).architecture.0 == model.architecture);
            task.expect("each architecture has a task")
        }
    }
}

/// Returns the names of the classes, which `config.json` has by their ids. Without names they are called as in `transformers`.
fn class_names(config: &Value, n_classes: usize, dir: &Path) -> Result<Vec<String>, FolderError> {
    let name = |id: usize| match &config["id2label"] {
        Value::Null => Ok(format!("LABEL_{id}")),
        names => names[id.to_string()].as_str().map(str::to_owned).ok_or_else(|| FolderError::BadFile {
            path: dir.join(CONFIG_FILE),
            reason: format!("id2label has no name for the class {id}; it needs one for each of 0 to {}", n_classes - 1),
        }),
    };
    let names = (0..n_classes).map(name).collect::<Result<Vec<_>, _>>()?;
    let twice = (1..names.len()).find(|id| names[..*id].contains(&names[*id]));
    twice.map_or(Ok(()), |id| {
        let reason = format!("id2label gives two classes the name {:?}", names[id]);
        Err(FolderError::BadFile { path: dir.join(CONFIG_FILE), reason })
    })?;
    Ok(names)
}

/// Returns the spellings of the special tokens, which Kiln stores next to a tokenizer. They come from the files of the folder, as
/// `roles`; for translation, ids in `config.json` determine the start and end tokens.
fn token_names(
    task: Task,
    tokenizer: &TokenizerFile,
    tokens: &TokenIds,
    roles: &Roles,
    path: &Path,
) -> Result<Value, FolderError> {
    let of_files = |role: &str| roles.get(role).filter(|token| tokenizer.has(token)).cloned();
    let of_id = |id: Option<u32>| id.and_then(|id| tokenizer.token(id)).map(str::to_owned);

    let mut names = Map::new();
    if traits_of(task).reads == Reads::Pairs {
        for (key, found, what) in [
            ("pad_token", of_id(tokens.pad), "pad_token_id"),
            ("bos_token", of_id(tokens.decoder_start.or(tokens.bos)), "decoder_start_token_id"),
            ("eos_token", of_id(tokens.eos), "eos_token_id"),
            ("unk_token", of_files("unk_token").or_else(|| tokenizer.unknown().map(str::to_owned)), "unk_token"),
        ] {
            let token = found.ok_or_else(|| FolderError::BadFile {
                path: path.to_path_buf(),
                reason: format!(
                    "has no token for {what}; set it in config.json (unk_token: in {TOKENIZER_CONFIG_FILE})"
                ),
            })?;
            names.insert(key.to_owned(), json!(token));
        }
    } else {
        for (key, id) in [
            ("pad_token", tokens.pad),
            ("bos_token", tokens.bos),
            ("eos_token", tokens.eos),
            ("unk_token", None),
            ("cls_token", None),
            ("sep_token", None),
            ("mask_token", None),
        ] {
            if let Some(token) = of_files(key).or_else(|| of_id(id)) {
                let settings = if key == "mask_token" { tokenizer.mask_settings(&token) } else { None };
                names.insert(key.to_owned(), settings.unwrap_or(json!(token)));
            }
        }
    }

    names.insert("tokenizer_class".to_owned(), json!("PreTrainedTokenizerFast"));
    Ok(Value::Object(names))
}

/// Returns the tokens in front of every source and target of a model that translates, which its tokenizer determines.
///
/// # Errors
/// If the model must begin its targets with another token.
fn tokens_before_text(
    tokenizer: &TokenizerFile,
    tokens: &TokenIds,
    around: Option<(Vec<u32>, Vec<u32>)>,
    forced_first: Option<u32>,
    path: &Path,
) -> Result<Vec<String>, FolderError> {
    let (before, behind) = around.unwrap_or_default();
    if forced_first.is_some_and(|forced| before != [forced]) {
        let reason = format!(
            "puts the ids {before:?} in front of a text, but forced_bos_token_id makes every translation begin with {}; Kiln \
             supports only the tokenizer's own",
            forced_first.unwrap_or_default()
        );
        return Err(FolderError::BadFile { path: path.to_path_buf(), reason });
    }

    let names: Vec<String> = before.iter().filter_map(|id| tokenizer.token(*id)).map(str::to_owned).collect();
    if !names.is_empty() && forced_first.is_none() {
        stderr_line!(
            "note: every translation begins with {}, as targets do in training; transformers lets the model choose, because \
             the folder has no forced_bos_token_id",
            names.join(" ")
        );
    }
    if behind.first() != tokens.eos.as_ref() || behind.len() != 1 {
        stderr_line!(
            "note: Kiln ends every source with the end token, but this tokenizer puts the ids {behind:?} behind a text"
        );
    }
    Ok(names)
}

/// Records in `names` which token pads the rows of a decoder with a head for classes, which reads the last token with another id, and
/// that nothing stands around a text if the tokenizer has no post-processor.
fn name_padding(tokenizer: &TokenizerFile, tokens: &TokenIds, has_post_processor: bool, names: &mut Value) {
    if let Some(pad) = tokens.pad.and_then(|id| tokenizer.token(id)) {
        names["pad_token"] = json!(pad);
    }
    if !has_post_processor {
        names["add_bos_token"] = json!(false);
    }
}

/// Says where Kiln's prompts differ from the prompts of other programs, and records in `names` that nothing stands in front of a
/// prompt if the tokenizer has no post-processor.
fn note_prompts(tokenizer: &TokenizerFile, around: Option<(Vec<u32>, Vec<u32>)>, config: &Value, names: &mut Value) {
    let has_post_processor = around.is_some();
    let (before, behind) = around.unwrap_or_default();
    let spelled = |ids: &[u32]| ids.iter().filter_map(|id| tokenizer.token(*id)).collect::<Vec<_>>().join(" ");
    if config["add_bos_token"].as_bool().is_some_and(|adds_bos| adds_bos == before.is_empty()) {
        let puts = if before.is_empty() { "nothing".to_owned() } else { spelled(&before) };
        stderr_line!(
            "note: {TOKENIZER_CONFIG_FILE} has add_bos_token = {}, but {TOKENIZER_FILE} puts {puts} in front of a text; Kiln \
             follows {TOKENIZER_FILE}, like version 5 of transformers",
            before.is_empty()
        );
    }
    if !has_post_processor {
        names["add_bos_token"] = json!(false);
    }
    if !behind.is_empty() {
        stderr_line!(
            "note: {TOKENIZER_FILE} puts {} behind a text; Kiln leaves it out of prompts, since the continuation follows them",
            spelled(&behind)
        );
    }
}

/// Loads the vocabulary as a run would, from a temporary folder.
fn load_vocabulary(task: Task, files: &[StoredFile]) -> Result<Vocabulary> {
    let dir = std::env::temp_dir().join(format!("kiln-import-{}", std::process::id()));
    let load = || -> Result<Vocabulary> {
        fs::create_dir_all(&dir)?;
        files.iter().try_for_each(|file| write_fresh(&dir.join(&file.name), &file.bytes))?;
        Ok(Vocabulary::load_dir(&dir, task)?)
    };
    let loaded = load();
    let _ = fs::remove_dir_all(&dir);
    loaded
}

/// Returns the configuration to train the model further: the usual one of its task, with batches that hold its longest
/// row.
fn run_config(task: Task, model: &TransformerConfig) -> Config {
    let mut config = Preset::usual_for(task, true).config();
    config.model = model.clone();
    config.data.corpus.max_source_len = 0;
    config.data.corpus.max_target_len = 0;
    config.data.text.seq_len = 0;
    if model.prompt_tokens > 0 {
        config.data.text.packing = Packing::Sentences;
    }
    let longest = model.max_positions.next_multiple_of(config.loader.bucket_multiple.max(1));
    config.loader.batch_tokens = config.loader.batch_tokens.max(longest);
    config
}
