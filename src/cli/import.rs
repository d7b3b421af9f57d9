//! `kiln import`: makes a run of a Hugging Face model.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kiln_model::flops::n_params;
use kiln_model::hf::{self, Imported, TokenIds};
use kiln_model::{Architecture, TransformerConfig};
use serde_json::{Map, Value, json};

use crate::checkpoint::{RUN_CONFIG_FILE, StoredFile, Weights};
use crate::config::task::{Reads, TASKS, traits_of};
use crate::config::{Config, Preset, Task};
use crate::dataset::Vocabulary;
use crate::hugging_face::{Folder, FolderError, TOKENIZER_CONFIG_FILE, TOKENIZER_FILE, TokenizerFile};
use crate::run::{folder, write_run};

/// Makes a run from a Hugging Face model folder
///
/// Reads config.json, model.safetensors (f32, f16 or bf16; also shards with an index) and tokenizer.json of the
/// families gpt2, llama, bert, bart and marian. The run can be evaluated, generated from and exported; kiln train
/// --from trains it further. Python pickles (pytorch_model.bin) are not supported.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kiln import models/gpt2
  kiln import models/opus-mt-en-it --tokenizer tokenizer.json --out runs/en-it
  kiln train --from runs/gpt2 --set data.train=texts/ --run runs/tuned")]
pub(super) struct Args {
    /// Folder with config.json and model.safetensors
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// Folder of the new run [default: runs/ and the name of DIR]
    #[arg(long, value_name = "RUN")]
    out: Option<PathBuf>,

    /// A tokenizer.json to use instead of the folder's
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
}

pub(super) fn run(args: Args) -> Result<()> {
    let source = Folder::open(&args.dir)?;
    let name = args.dir.canonicalize().ok().and_then(|dir| Some(dir.file_name()?.to_string_lossy().into_owned()));
    let out = folder::for_import(args.out.as_deref(), name.as_deref().unwrap_or("imported"))?;
    let imported =
        hf::import(source.config(), &source.tensors()).with_context(|| format!("importing {}", args.dir.display()))?;
    imported.notes.iter().for_each(|note| eprintln!("note: {note}"));
    let tokenizer_path = args.tokenizer.or_else(|| source.tokenizer()).ok_or_else(|| no_tokenizer(&args.dir))?;
    let tokenizer = TokenizerFile::read(&tokenizer_path)?;
    check_size(&tokenizer, &tokenizer_path, imported.config.vocab_size())?;

    let Imported { family, config: mut model, tokens, weights, .. } = imported;
    let task = task_of(model.architecture);
    let names = token_names(task, &tokenizer, &tokens, &source.tokenizer_config()?, &tokenizer_path)?;
    let bytes = fs::read(&tokenizer_path).with_context(|| format!("{}: cannot be read", tokenizer_path.display()))?;
    let mut files = vec![
        StoredFile { name: TOKENIZER_FILE.to_owned(), bytes },
        StoredFile { name: TOKENIZER_CONFIG_FILE.to_owned(), bytes: format!("{names:#}\n").into_bytes() },
    ];
    load_vocabulary(task, &files)
        .and_then(|vocabulary| vocabulary.complete(&mut model))
        .with_context(|| format!("the tokenizer {} does not fit", tokenizer_path.display()))?;
    if traits_of(task).reads == Reads::Pairs
        && let Some(token) = tokenizer.first_token_around()
    {
        eprintln!(
            "note: transformers puts {token} in front of every text, but Kiln does not put it in front of sources; the model \
             adapts when it is trained further"
        );
    }
    let config = run_config(task, &model);
    files.push(StoredFile { name: RUN_CONFIG_FILE.to_owned(), bytes: config.to_toml().into_bytes() });
    files.sort_by(|a, b| a.name.cmp(&b.name));
    let n_params = n_params(&model).total();
    write_run(&out, &Weights { step: 0, weights, model, files })?;
    eprintln!("imported a {family} model of {:.1} M parameters", n_params as f64 / 1e6);
    println!("{}", out.display());
    Ok(())
}

fn no_tokenizer(dir: &Path) -> FolderError {
    FolderError::NotAModel {
        path: dir.to_path_buf(),
        reason: format!(
            "there is no {TOKENIZER_FILE} here; name one with --tokenizer, or make it with transformers: load the folder with \
             AutoTokenizer and save it with save_pretrained"
        ),
    }
}

/// Refuses a tokenizer with more ids than the embedding has rows. More rows than ids are usual, because sizes are
/// rounded up.
fn check_size(tokenizer: &TokenizerFile, path: &Path, rows: usize) -> Result<(), FolderError> {
    let n = tokenizer.n_ids();
    if n > rows {
        let reason = format!(
            "has ids up to {}, but the embedding of the model has {rows} rows; it belongs to another model",
            n - 1
        );
        return Err(FolderError::BadFile { path: path.to_path_buf(), reason });
    }
    if n < rows {
        eprintln!(
            "note: the embedding has {rows} rows and the tokenizer {n} ids; the other rows are kept but never used"
        );
    }
    Ok(())
}

fn task_of(architecture: Architecture) -> Task {
    let task = TASKS.into_iter().find(|&task| traits_of(task).architecture.0 == architecture);
    task.expect("each architecture has a task")
}

/// Returns the spellings of the special tokens, which Kiln stores next to a tokenizer. They come from the folder's
/// `tokenizer_config.json`; for translation, ids in `config.json` determine the start and end tokens.
fn token_names(
    task: Task,
    tokenizer: &TokenizerFile,
    tokens: &TokenIds,
    config: &Value,
    path: &Path,
) -> Result<Value, FolderError> {
    let of_config = |key: &str| {
        let value = &config[key];
        let text = value.as_str().or_else(|| value["content"].as_str());
        text.filter(|token| tokenizer.has(token)).map(str::to_owned)
    };
    let of_id = |id: Option<u32>| id.and_then(|id| tokenizer.token(id)).map(str::to_owned);

    let mut names = Map::new();
    if traits_of(task).reads == Reads::Pairs {
        for (key, found, what) in [
            ("pad_token", of_id(tokens.pad), "pad_token_id"),
            ("bos_token", of_id(tokens.decoder_start.or(tokens.bos)), "decoder_start_token_id"),
            ("eos_token", of_id(tokens.eos), "eos_token_id"),
            ("unk_token", of_config("unk_token").or_else(|| tokenizer.unknown().map(str::to_owned)), "unk_token"),
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
            if let Some(token) = of_config(key).or_else(|| of_id(id)) {
                names.insert(key.to_owned(), json!(token));
            }
        }
    }

    names.insert("tokenizer_class".to_owned(), json!("PreTrainedTokenizerFast"));
    Ok(Value::Object(names))
}

/// Loads the vocabulary as a run would, from a temporary folder.
fn load_vocabulary(task: Task, files: &[StoredFile]) -> Result<Vocabulary> {
    let dir = std::env::temp_dir().join(format!("kiln-import-{}", std::process::id()));
    let load = || -> Result<Vocabulary> {
        fs::create_dir_all(&dir)?;
        files.iter().try_for_each(|file| fs::write(dir.join(&file.name), &file.bytes))?;
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
    let longest = model.max_positions.next_multiple_of(config.loader.bucket_multiple.max(1));
    config.loader.batch_tokens = config.loader.batch_tokens.max(longest);
    config
}
