//! `kiln export`: writes a checkpoint as a Hugging Face model folder.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kiln_model::hf::{self, Exported, TokenIds};
use serde_json::{Value, json};

use crate::config::task::traits_of;
use crate::dataset::Vocabulary;
use crate::hugging_face::{
    CONFIG_FILE, GENERATION_CONFIG_FILE, StoredType, TOKENIZER_CONFIG_FILE, TOKENIZER_FILE, TokenizerFile, write_folder,
};
use crate::run::TrainedModel;

/// Writes a checkpoint as a Hugging Face model folder
///
/// Chooses the family that computes the same: gpt2, llama, bert, bart or marian. In transformers, load the folder with
/// AutoModelForCausalLM, AutoModelForMaskedLM or AutoModelForSeq2SeqLM.from_pretrained, and its tokenizer with
/// AutoTokenizer. A model that none of the five families computes is refused with the reasons.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kiln export runs/lm models/lm
  kiln export runs/en-it models/en-it --checkpoint last --dtype bf16")]
pub(super) struct Args {
    /// Run folder, or a checkpoint's folder
    #[arg(value_name = "RUN")]
    run: PathBuf,

    /// Folder to write; it must not exist yet, or be empty
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// best, last, a step's number or its folder's name [default: best, or last without validation]
    #[arg(long, value_name = "NAME")]
    checkpoint: Option<String>,

    /// Type of the exported weights
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    dtype: StoredType,
}

pub(super) fn run(args: Args) -> Result<()> {
    let run = TrainedModel::find(&args.run, args.checkpoint.as_deref())?;
    let Exported { family, mut config, generation_config, tensors } =
        hf::export(&run.model, run.weights(), &token_ids(&run.vocabulary))
            .with_context(|| format!("exporting {}", run.path.display()))?;
    // Version 5 of transformers reads the first key, version 4 the second.
    config["dtype"] = json!(args.dtype.torch_name());
    config["torch_dtype"] = json!(args.dtype.torch_name());
    let mut files = vec![(CONFIG_FILE.to_owned(), text(&config))];
    files.extend(generation_config.map(|config| (GENERATION_CONFIG_FILE.to_owned(), text(&config))));
    files.extend(tokenizer_files(&run)?);
    let files: Vec<_> = files.iter().map(|(name, content)| (name.as_str(), content.clone())).collect();
    write_folder(&args.dir, &tensors, args.dtype, &files)?;
    eprintln!("exported step {} of {} as a {family} model", run.step, args.run.display());
    println!("{}", args.dir.display());
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

/// Returns the tokenizer's files. They are the run's own, plus the special tokens that the model saw around a text:
/// other programs then add these when they encode.
fn tokenizer_files(run: &TrainedModel) -> Result<Vec<(String, Vec<u8>)>> {
    let hides_tokens = traits_of(run.config.task).hides_tokens;
    let (before, behind) = match &run.vocabulary {
        Vocabulary::Pairs(tokenizers) => (Vec::new(), vec![tokenizers.special().eos]),
        Vocabulary::Text(tokenizer) if hides_tokens => tokenizer.around(),
        Vocabulary::Text(_) => (Vec::new(), Vec::new()),
    };
    let mut files = Vec::new();
    for name in tokenizer_names(&run.path)? {
        let path = run.path.join(&name);
        let content = if name == TOKENIZER_CONFIG_FILE {
            fs::read(&path).with_context(|| format!("{}: cannot be read", path.display()))?
        } else {
            TokenizerFile::read(&path)?.with_tokens_around(&before, &behind).into_bytes()
        };
        files.push((name, content));
    }
    Ok(files)
}

/// Returns the names of the tokenizer's files: `tokenizer_config.json` and one `tokenizer.json`, or one each for source
/// and target.
fn tokenizer_names(checkpoint: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(checkpoint).with_context(|| format!("{}: cannot be listed", checkpoint.display()))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(TOKENIZER_FILE) || name == TOKENIZER_CONFIG_FILE {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}
