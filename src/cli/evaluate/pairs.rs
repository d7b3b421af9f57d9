//! Translation: loss, perplexity, BLEU and chrF.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use burn::tensor::{Device, FloatDType};
use kiln_data::built_in::numbers;
use kiln_data::{CorpusConfig, Example, OnePass, PairCorpus, PairSource, PairTokenizers};
use kiln_model::Transformer;
use serde_json::json;

use super::{Args, Scratch};
use crate::cli::error::Usage;
use crate::cli::lines::one_line;
use crate::dataset::{built_in, pairs::open_cache};
use crate::eval::{self, Evaluation, ValidationLoss, bleu, chrf, validation_loss};
use crate::generate::Translator;
use crate::run::TrainedModel;

pub(super) fn run(args: &Args, run: &TrainedModel, dtype: FloatDType, device: &Device) -> Result<()> {
    let config = args.generate.apply(&run.config.generate)?;
    let examples = examples(run, &args.data)?;
    let (model, tokenizers) = run.translation(dtype, device)?;
    eprintln!("scoring {} on {} pairs", run.path.display(), examples.len());
    let translator = Translator::new(&model, tokenizers.clone(), config)?;
    let loss = loss(run, &Transformer::EncoderDecoder(model), &tokenizers, &examples, device)?;
    let scores = eval::evaluate(&translator, &examples)?;
    if let Some(path) = &args.hypotheses {
        write_lines(path, &scores.hypotheses)?;
    }
    if args.json {
        println!("{}", as_json(run.step, &loss, &scores));
    } else {
        print!("{}", as_lines(&loss, &scores));
    }
    Ok(())
}

/// The named text, or the run's validation text.
fn examples(run: &TrainedModel, named: &[PathBuf]) -> Result<Vec<Example>> {
    let files = if named.is_empty() { &run.config.data.valid } else { named };
    if named.is_empty() && run.config.is_built_in_task() {
        return Ok(built_in::rows(&run.config)?.held_out);
    }
    if files.is_empty() {
        return Err(Usage("this run has no validation text; name text pairs with --data".into()).into());
    }
    let (examples, report) = PairCorpus::open(files, &run.config.data.corpus)?.read_all()?;
    if report.bad() > 0 {
        eprintln!("{report}");
    }
    Ok(examples)
}

/// The loss over `examples`, through a token cache of their own in the temporary folder.
fn loss(
    run: &TrainedModel,
    model: &Transformer,
    tokenizers: &PairTokenizers,
    examples: &[Example],
    device: &Device,
) -> Result<ValidationLoss> {
    let scratch = Scratch::new()?;
    let rows = scratch.path("rows.jsonl");
    numbers::write_jsonl(&rows, examples)?;
    let limits = run.config.data.corpus.resolved(run.model.max_positions);
    let corpus = CorpusConfig {
        max_source_len: limits.max_source_len,
        max_target_len: limits.max_target_len,
        max_bad_rows: limits.max_bad_rows,
        ..CorpusConfig::default()
    };
    let corpus = PairCorpus::open(&[rows], &corpus)?;
    let mut note = |_: &str| {};
    let cache = open_cache(&scratch.path("rows.tokens"), &corpus, tokenizers, &mut note)?;
    if cache.report().bad() > 0 {
        eprintln!("left out of the loss: {}", cache.report());
    }
    let source = Arc::new(PairSource::new(cache, tokenizers, &run.config.loader)?);
    let batches = OnePass::new(source, &run.config.loader)?;
    validation_loss(model, batches, run.config.train.label_smoothing, None, device)
}

fn write_lines(path: &Path, lines: &[String]) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let mut file = std::io::BufWriter::new(fs::File::create(path)?);
        lines.iter().try_for_each(|line| writeln!(file, "{}", one_line(line)))?;
        file.flush()
    };
    write().with_context(|| format!("{}: cannot write the translations", path.display()))
}

fn as_lines(loss: &ValidationLoss, scores: &Evaluation) -> String {
    format!(
        "loss {:.4}  nll {:.4}  perplexity {:.3}  ({} target tokens)\nBLEU {}\n  {}\nchrF2 {:.2}\n  {}\nexact match {:.2}%\n",
        loss.loss,
        loss.nll,
        loss.nll.exp(),
        loss.target_tokens,
        scores.bleu,
        bleu::SIGNATURE,
        scores.chrf,
        chrf::SIGNATURE,
        100.0 * scores.exact_match
    )
}

fn as_json(step: u64, loss: &ValidationLoss, scores: &Evaluation) -> serde_json::Value {
    json!({
        "step": step,
        "loss": loss.loss,
        "nll": loss.nll,
        "perplexity": loss.nll.exp(),
        "target_tokens": loss.target_tokens,
        "bleu": scores.bleu.score,
        "bleu_signature": bleu::SIGNATURE,
        "chrf": scores.chrf,
        "chrf_signature": chrf::SIGNATURE,
        "exact_match": scores.exact_match,
        "generate_secs": scores.generate_secs,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scores_are_printed_with_their_signatures() {
        let loss = ValidationLoss { loss: 1.5, nll: 1.0, target_tokens: 42, masked: None };
        let lines = ["the cat sat on the mat".to_owned()];
        let scores = Evaluation {
            bleu: bleu::corpus_bleu(&lines, &lines),
            chrf: chrf::corpus_chrf(&lines, &lines),
            exact_match: 1.0,
            hypotheses: lines.to_vec(),
            generate_secs: 0.5,
        };
        let text = as_lines(&loss, &scores);
        assert!(
            text.starts_with("loss 1.5000  nll 1.0000  perplexity 2.718  (42 target tokens)\nBLEU 100.00 100.0/"),
            "{text}"
        );
        assert!(text.contains("tok:13a|smooth:exp") && text.contains("nc:6|nw:0"), "{text}");
        assert!(text.ends_with("exact match 100.00%\n"), "{text}");
        let json = as_json(7, &loss, &scores);
        assert!((json["bleu"].as_f64().expect("a score") - 100.0).abs() < 1e-9);
        assert_eq!(json["step"], 7);
    }
}
