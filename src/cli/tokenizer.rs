//! `kiln tokenizer`: trains a vocabulary, or looks at one.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use kiln_data::{Corpus, Example, Tokenizers};

use super::config_args::ConfigArgs;
use super::exit::Usage;
use crate::train::data::load_or_train;

/// Rows that are tokenized for the statistics.
const SAMPLE_ROWS: usize = 2000;

/// Trains a tokenizer, or checks one on text
///
/// The result is a Hugging Face tokenizer.json (or one each for source and target) and tokenizer_config.json. With
/// tokenizer.path set, that tokenizer is loaded and measured on the text instead.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kiln tokenizer en-it.train.jsonl --set tokenizer.vocab_size=16000 --out tokenizer/en-it
  kiln tokenizer en-it.train.jsonl --set tokenizer.kind=unigram --set tokenizer.joint=false --set model.tie_embeddings=output --out tokenizer/two
  kiln tokenizer en-it.dev.jsonl --set tokenizer.path=tokenizer/en-it/tokenizer.json")]
pub(super) struct Args {
    /// Text to train on: .jsonl, .tsv, or two parallel files joined by a comma [default: data.train]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    #[command(flatten)]
    config: ConfigArgs,

    /// Folder for the result
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(super) fn run(args: Args) -> Result<()> {
    let config = args.config.load(&args.files)?;
    if config.is_built_in_task() {
        return Err(Usage("there is no text: name files (kiln tokenizer FILE...) or set data.train".into()).into());
    }
    let corpus = Corpus::open(&config.data.train, &config.data.corpus)?;
    let tokenizers = match (&args.out, &config.tokenizer.path) {
        (None, None) => {
            return Err(Usage(
                "name a folder for the trained tokenizer with --out, or set tokenizer.path to check one".into(),
            )
            .into());
        }
        (None, Some(_)) => Tokenizers::load(&config.tokenizer)?,
        (Some(out), path) => {
            let tokenizers = load_or_train(&config.tokenizer, &corpus, out, &mut |line| eprintln!("{line}"))?;
            if path.is_some() {
                fs::create_dir_all(out).with_context(|| format!("{}: cannot make this folder", out.display()))?;
                tokenizers.save(out)?;
            }
            tokenizers
        }
    };
    let (examples, report) = corpus.read_all()?;
    eprintln!("{report}");
    print!("{}", statistics(&tokenizers, &examples[..examples.len().min(SAMPLE_ROWS)])?);
    Ok(())
}

/// Entries, and what the text looks like in tokens.
fn statistics(tokenizers: &Tokenizers, examples: &[Example]) -> Result<String> {
    let special = tokenizers.special();
    let mut text = format!(
        "{} source and {} target entries{}; pad {}, begin {}, end {}, unknown {}\n",
        tokenizers.source_vocab_size(),
        tokenizers.target_vocab_size(),
        if tokenizers.is_joint() { " (joint)" } else { "" },
        special.pad,
        special.bos,
        special.eos,
        special.unk
    );
    let sources: Vec<_> = examples.iter().map(|example| example.source.as_str()).collect();
    let targets: Vec<_> = examples.iter().map(|example| example.target.as_str()).collect();
    for (side, lines, rows) in [
        ("source", &sources, tokenizers.encode_sources(&sources)?),
        ("target", &targets, tokenizers.encode_targets(&targets)?),
    ] {
        let characters: usize = lines.iter().map(|line| line.chars().count()).sum();
        let tokens: usize = rows.iter().map(Vec::len).sum();
        let unknown = rows.iter().flatten().filter(|id| **id == special.unk).count();
        text += &format!(
            "{side}: {:.1} tokens a row, {:.2} characters a token, {:.3}% unknown (first {} rows)\n",
            tokens as f64 / rows.len().max(1) as f64,
            characters as f64 / tokens.max(1) as f64,
            100.0 * unknown as f64 / tokens.max(1) as f64,
            rows.len()
        );
    }
    Ok(text)
}
