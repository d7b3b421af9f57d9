//! `kiln tokenizer`: trains a tokenizer, or measures one on text.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kiln_data::{CorpusConfig, Example, PairCorpus, PairTokenizers, TextConfig, TextCorpus, TextTokenizer};
use kiln_metrics::logging::print::{stderr_line, stdout_text};
use kiln_train::config::Config;
use kiln_train::config::task::{Reads, TASKS, traits_of};
use kiln_train::dataset::{check_rows, pairs, text};
use kiln_train::device::DeviceChoice;

use super::config_args::ConfigArgs;
use super::error::Usage;

/// Rows that the statistics are computed on.
const SAMPLE_ROWS: usize = 2000;

/// Trains a tokenizer, or checks one on text
///
/// Writes a Hugging Face tokenizer.json (or one each for source and target) and tokenizer_config.json. If
/// tokenizer.path is set, loads that tokenizer and measures it on the text instead.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kiln tokenizer en-it.train.jsonl --set tokenizer.vocab_size=16000 --out tokenizer/en-it
  kiln tokenizer en-it.train.jsonl --set tokenizer.kind=unigram --set tokenizer.joint=false --set model.tie_embeddings=output --out tokenizer/two
  kiln tokenizer --task lm texts/ --set tokenizer.vocab_size=8000 --out tokenizer/lm
  kiln tokenizer en-it.dev.jsonl --set tokenizer.path=tokenizer/en-it/tokenizer.json")]
pub(super) struct Args {
    /// Text to train on: .jsonl, .tsv, .csv, or two parallel files joined by a comma. With --task lm or mlm: plain text,
    /// .jsonl, or folders of them [default: data.train]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    #[command(flatten)]
    config: ConfigArgs,

    /// Folder of the result
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(super) fn run(args: Args) -> Result<()> {
    let config = args.config.load(&args.files, DeviceChoice::Auto)?;
    if config.is_built_in_task() {
        return Err(Usage("there is no text: name files (kiln tokenizer FILE...) or set data.train".into()).into());
    }
    if args.out.is_none() && config.tokenizer.path.is_none() {
        return Err(Usage(
            "name a folder for the trained tokenizer with --out, or set tokenizer.path to measure an existing one"
                .into(),
        )
        .into());
    }
    check_rows(&config, &config.data.train_files(), &TASKS)?;
    match traits_of(config.task).reads {
        Reads::Pairs => of_pairs(&config, args.out.as_deref()),
        Reads::Text => of_text(&config, args.out.as_deref()),
    }
}

fn of_pairs(config: &Config, out: Option<&Path>) -> Result<()> {
    let read_as = CorpusConfig { filter: config.train_filter()?, ..config.data.corpus.clone() };
    let corpus = PairCorpus::open(&config.data.train_files(), &read_as)?;
    corpus.notes().iter().for_each(|line| stderr_line!("{line}"));
    let tokenizers = match out {
        Some(out) => {
            pairs::load_or_train(&config.trained_tokenizer(), &corpus, out, &mut |line| stderr_line!("{line}"))?
        }
        None => PairTokenizers::load(&config.tokenizer)?,
    };
    save_loaded(config, out, |out| tokenizers.save(out))?;

    let (examples, report) = corpus.read_all()?;
    stderr_line!("{report}");
    stdout_text!("{}", statistics(&tokenizers, &examples[..examples.len().min(SAMPLE_ROWS)])?);
    Ok(())
}

fn of_text(config: &Config, out: Option<&Path>) -> Result<()> {
    let read_as = TextConfig { filter: config.train_filter()?, ..config.data.text.clone() };
    let corpus = TextCorpus::open(&config.data.train_files(), &read_as)?;
    corpus.notes().iter().for_each(|line| stderr_line!("{line}"));
    let tokenizer = match out {
        Some(out) => text::load_or_train(&config.tokenizer, &corpus, out, &mut |line| stderr_line!("{line}"))?,
        None => TextTokenizer::load(&config.tokenizer)?,
    };
    tokenizer.check(config.task)?;
    save_loaded(config, out, |out| tokenizer.save(out))?;

    let (documents, report) = corpus.read_all()?;
    stderr_line!("{report}");
    stdout_text!("{}", text_statistics(&tokenizer, &documents[..documents.len().min(SAMPLE_ROWS)])?);
    Ok(())
}

/// Saves a tokenizer that was loaded; a trained one is in its folder already.
fn save_loaded(config: &Config, out: Option<&Path>, save: impl FnOnce(&Path) -> kiln_data::Result<()>) -> Result<()> {
    let (Some(out), Some(_)) = (out, &config.tokenizer.path) else { return Ok(()) };
    fs::create_dir_all(out).with_context(|| format!("{}: cannot make this folder", out.display()))?;
    Ok(save(out)?)
}

/// Describes the vocabulary, and the length of documents in tokens.
fn text_statistics(tokenizer: &TextTokenizer, documents: &[String]) -> Result<String> {
    let special = tokenizer.special();
    let named = [
        ("pad", special.pad),
        ("begin", special.bos),
        ("end", special.eos),
        ("unknown", special.unk),
        ("mask", special.mask),
    ];
    let named = named.map(|(name, id)| format!("{name} {}", id.map_or("none".into(), |id| id.to_string())));

    let mut encoder = tokenizer.encoder();
    let (mut ids, mut n_tokens, mut n_unknown) = (Vec::new(), 0, 0);
    for document in documents {
        ids.clear();
        encoder.encode(document, &mut ids)?;
        n_tokens += ids.len();
        n_unknown += ids.iter().filter(|id| Some(**id) == special.unk).count();
    }

    let n_characters: usize = documents.iter().map(|document| document.chars().count()).sum();
    Ok(format!(
        "{} entries; {}\ntext: {:.1} tokens per document, {:.2} characters per token, {:.3}% unknown (first {} documents)\n",
        tokenizer.vocab_size(),
        named.join(", "),
        n_tokens as f64 / documents.len().max(1) as f64,
        n_characters as f64 / n_tokens.max(1) as f64,
        100.0 * n_unknown as f64 / n_tokens.max(1) as f64,
        documents.len()
    ))
}

/// Describes the vocabularies, and the length of sources and targets in tokens.
fn statistics(tokenizers: &PairTokenizers, examples: &[Example]) -> Result<String> {
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
            "{side}: {:.1} tokens per row, {:.2} characters per token, {:.3}% unknown (first {} rows)\n",
            tokens as f64 / rows.len().max(1) as f64,
            characters as f64 / tokens.max(1) as f64,
            100.0 * unknown as f64 / tokens.max(1) as f64,
            rows.len()
        );
    }
    Ok(text)
}
