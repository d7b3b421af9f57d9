//! `kiln evaluate`: scores a checkpoint on raw text.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use kiln_data::{Packing, TextFormat};
use kiln_metrics::logging::print::{stderr_line, stdout_line, stdout_text};
use kiln_ranks::Ranks;
use kiln_train::config::task::{Reads, traits_of};
use kiln_train::dataset::text::Division;
use kiln_train::device::DeviceChoice;
use kiln_train::eval::{ClassScore, ClassScores, EntityScores, Init, Model, ValidationLoss, bleu, chrf};
use kiln_train::run::{Scores, Scoring, TrainedModel};
use serde_json::{Value, json};

use super::config_args::{GenerateArgs, key_of_data};
use super::error::Usage;
use super::lines::one_line;
use super::together::{DevicesArgs, Role};

/// Scores a checkpoint on raw text
///
/// Translation: loss, perplexity, BLEU and chrF2. The scores equal sacreBLEU's; the line below each score is its
/// signature. The text is translated greedily, unless the run's configuration or --beam says otherwise.
///
/// lm: loss, perplexity and bits per byte. A document that is cut at the end of a row continues in the next without what stands
/// before, which usually raises the perplexity. --packing sentences cuts only documents that are longer than a row.
///
/// mlm: loss and accuracy on masked tokens, next to the accuracy of always guessing the most frequent token. The masks
/// are the same every time. `kiln fill` fills in masks of your own.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kiln evaluate runs/numbers
  kiln evaluate runs/en-it --data en-it.test.jsonl --beam 5
  kiln evaluate runs/lm --data test.txt
  kiln evaluate runs/lm --data test.txt --packing sentences
  kiln evaluate runs/lm --data chats.jsonl --set data.text.format=chat")]
pub(super) struct Args {
    /// Run folder, or a checkpoint's folder
    #[arg(value_name = "RUN")]
    run: PathBuf,

    /// Text to score on, read as the run's data.corpus (pairs) or data.text says; may be repeated [default: the run's
    /// validation text]
    #[arg(long, value_name = "FILE")]
    data: Vec<PathBuf>,

    /// best, last, a step's number or its folder's name [default: best, or last without validation]
    #[arg(long, value_name = "NAME")]
    checkpoint: Option<String>,

    /// lm, mlm: how documents become rows: sentences, each in a row of its own, or documents or stream, in full rows [default: the
    /// run's data.text.packing]
    #[arg(long, value_name = "NAME", value_parser = packing)]
    packing: Option<Packing>,

    /// Reads the text in another way than the run's, for example data.corpus.source_field=en; keys of data.corpus, data.text and
    /// data.labels; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_of_data)]
    set: Vec<String>,

    #[command(flatten)]
    generate: GenerateArgs,

    /// Translation: writes the translations to FILE, one per line
    #[arg(long, value_name = "FILE")]
    hypotheses: Option<PathBuf>,

    /// Prints one JSON object instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    devices: DevicesArgs,
}

pub(super) fn run<M: Model>(args: Args, init: &Init<'_, M>) -> Result<ExitCode> {
    match args.devices.begin()? {
        Role::Launcher(code) => Ok(code),
        Role::Rank(part) => {
            let result = evaluate(&args, part.device, &Ranks::over_hosts(part.link.clone()), init);
            part.end(result)
        }
    }
}

/// Scores the checkpoint together with the other ranks. Rank 0 prints.
fn evaluate<M: Model>(args: &Args, device: DeviceChoice, ranks: &Ranks, init: &Init<'_, M>) -> Result<()> {
    let (device, mut run) = TrainedModel::find_and_open(&args.run, args.checkpoint.as_deref(), device)?;
    if args.data.is_empty() {
        run = run.with_split_rows();
    }
    // Keys that are set win over the names of the files.
    let own = run.config.data.train_files();
    let by_name = run.config.data.follow_names(&args.data, &own);
    run.config = run.config.with_keys(&args.set)?;
    let by_name = by_name.filter(|_| run.config.data.text.format == TextFormat::Auto);
    if let Some(packing) = args.packing {
        set_packing(&mut run, packing)?;
    }
    let reads = traits_of(run.config.task).reads;
    let scores_losses_alone = match reads {
        Reads::Text => Some("this run reads text"),
        Reads::Pairs => init.is_own().then_some("a model of a program's own gets its losses"),
    };
    if let Some(why) = scores_losses_alone
        && (args.hypotheses.is_some() || !args.generate.is_empty())
    {
        let what = if args.hypotheses.is_some() { "--hypotheses" } else { "an option that says how to generate" };
        return Err(Usage(format!("{what} applies to translations only, and {why}: leave it out")).into());
    }

    let generate = match reads {
        Reads::Pairs => args.generate.apply(&run.config.generate)?,
        Reads::Text => run.config.generate.clone(),
    };
    let note = |line: &str| {
        if ranks.is_first() {
            stderr_line!("{line}");
        }
    };
    by_name.iter().for_each(|line| note(&format!("note: {line}")));
    let scoring = Scoring { run: &run, generate, int8: args.generate.int8, device: &device, ranks };
    let scores = match init.is_own() {
        true => scoring.score_own(init, &args.data, &mut { note })?,
        false => scoring.score(&args.data, &mut { note })?,
    };
    ranks.finish()?;
    if !ranks.is_first() {
        return Ok(());
    }

    if let (Some(path), Some(translation)) = (&args.hypotheses, &scores.translation) {
        write_lines(path, &translation.hypotheses)?;
    }
    match args.json {
        true => stdout_line!("{}", as_json(&scores)),
        false => stdout_text!("{}", as_lines(&scores)),
    }
    if traits_of(run.config.task).hides_tokens && !init.is_own() {
        stderr_line!("to fill in words of your own: kiln fill {} '... [MASK] ...'", args.run.display());
    }
    Ok(())
}

fn packing(name: &str) -> Result<Packing, String> {
    serde_json::from_value(name.into()).map_err(|_| "use documents, stream or sentences".to_owned())
}

/// Reads the text with `packing`, if it is a text whose scores depend on it.
fn set_packing(run: &mut TrainedModel, packing: Packing) -> Result<()> {
    let traits = traits_of(run.config.task);
    let what = match traits.reads {
        Reads::Pairs => Some("pairs"),
        Reads::Text if traits.classes.is_some() => Some("labelled texts"),
        Reads::Text => run.config.data.text.is_chat().then_some("conversations"),
    };
    if let Some(what) = what {
        let text = format!(
            "--packing applies to plain text, and this run reads {what}, each scored as in a row of its own: leave it out"
        );
        return Err(Usage(text).into());
    }

    let name = serde_json::to_value(packing)?;
    run.config = run.config.with_keys(&[format!("data.text.packing={name}")])?;
    Ok(())
}

fn write_lines(path: &Path, lines: &[String]) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let mut file = std::io::BufWriter::new(fs::File::create(path)?);
        lines.iter().try_for_each(|line| writeln!(file, "{}", one_line(line)))?;
        file.flush()
    };
    write().with_context(|| format!("{}: cannot write the translations", path.display()))
}

fn as_lines(Scores { loss, n_bytes, division, translation, classes, figures, .. }: &Scores) -> String {
    if let Some(classes) = classes {
        return classes_as_lines(loss, classes);
    }

    let labels = match (translation, loss.masked) {
        (Some(_), _) => "target tokens",
        (None, Some(_)) => "masked tokens",
        (None, None) if loss.rewards.is_some() => "pairs",
        (None, None) => "tokens",
    };
    let mut text = format!(
        "loss {:.4}  nll {:.4}  perplexity {:.3}  ({} {labels})\n",
        loss.loss,
        loss.nll,
        loss.nll.exp(),
        loss.target_tokens
    );
    if let Some(division) = division {
        text += &division_as_line(division);
    }

    if let Some(scores) = translation {
        let why = if scores.bleu.has_no_four_grams() {
            "  0 because no translation has four words, and BLEU counts sequences of up to four: see chrF2 and exact match\n"
        } else {
            ""
        };
        text += &format!(
            "BLEU {}\n  {}\n{why}chrF2 {:.2}\n  {}\nexact match {:.2}%\n",
            scores.bleu,
            bleu::SIGNATURE,
            scores.chrf,
            chrf::SIGNATURE,
            100.0 * scores.exact_match
        );
    }
    if let Some(n_bytes) = *n_bytes {
        text += &format!("{:.4} bits per byte  ({n_bytes} bytes)\n", loss.bits_per_byte(n_bytes));
    }
    if let Some(rewards) = loss.rewards {
        text += &rewards.in_words();
    }
    if let Some(masked) = loss.masked {
        text += &format!(
            "masked-token accuracy {:.2}%  (always the most frequent token: {:.2}%)\n",
            100.0 * masked.model,
            100.0 * masked.unigram
        );
    }
    for (name, value) in figures {
        text += &format!("{name} {value:.4}\n");
    }
    text
}

/// Says what the model saw of a document when it predicted a token of it.
fn division_as_line(Division { packing, seq_len, n_documents, n_longer_than_row }: &Division) -> String {
    let (rows, then) = match packing {
        Packing::Documents => (format!("documents packed into rows of {seq_len} tokens, cut where a row ends"), ""),
        Packing::Stream => (format!("documents read as one text, cut into rows of {seq_len} tokens"), ""),
        Packing::Sentences => (format!("each document in a row of its own, of at most {seq_len} tokens"), ", so cut"),
    };
    let longer = match n_longer_than_row {
        0 => "none longer than a row".to_owned(),
        n => format!("{n} longer than a row{then}"),
    };
    format!("{rows}  (documents: {n_documents}, {longer})\n")
}

fn classes_as_lines(loss: &ValidationLoss, scores: &ClassScores) -> String {
    let percent = |value: f64| 100.0 * value;
    let mut text = format!(
        "loss {:.4}  nll {:.4}  ({} labels)\naccuracy {:.2}%  macro F1 {:.2}%  micro F1 {:.2}%\n",
        loss.loss,
        loss.nll,
        loss.target_tokens,
        percent(scores.accuracy),
        percent(scores.macro_f1),
        percent(scores.micro_f1)
    );
    if let Some(EntityScores { precision, recall, f1, support }) = scores.entities {
        let [precision, recall, f1] = [precision, recall, f1].map(percent);
        text +=
            &format!("entities: F1 {f1:.2}%  precision {precision:.2}%  recall {recall:.2}%  ({support} entities)\n");
    }

    let widths = scores.classes.iter().map(|class| class.name.chars().count());
    let width = widths.max().unwrap_or(0).max("class".len());
    text += &format!("{:<width$}  precision  recall      F1  support\n", "class");
    for ClassScore { name, precision, recall, f1, support } in &scores.classes {
        let [precision, recall, f1] = [*precision, *recall, *f1].map(percent);
        text += &format!("{name:<width$}  {precision:>8.2}%  {recall:>5.2}%  {f1:>5.2}%  {support:>7}\n");
    }
    text
}

fn as_json(Scores { step, loss, n_bytes, division, translation, classes, figures }: &Scores) -> Value {
    let mut json = json!({
        "step": step,
        "loss": loss.loss,
        "nll": loss.nll,
        "perplexity": loss.nll.exp(),
        "target_tokens": loss.target_tokens,
    });

    if let Some(scores) = translation {
        json["bleu"] = scores.bleu.score.into();
        json["bleu_signature"] = bleu::SIGNATURE.into();
        json["chrf"] = scores.chrf.into();
        json["chrf_signature"] = chrf::SIGNATURE.into();
        json["exact_match"] = scores.exact_match.into();
        json["generate_secs"] = scores.generate_secs.into();
    }

    if let Some(scores) = classes {
        json["accuracy"] = scores.accuracy.into();
        json["macro_f1"] = scores.macro_f1.into();
        json["micro_f1"] = scores.micro_f1.into();
        if let Some(entities) = &scores.entities {
            json["entity_precision"] = entities.precision.into();
            json["entity_recall"] = entities.recall.into();
            json["entity_f1"] = entities.f1.into();
        }
        let of_class = |class: &ClassScore| {
            json!({
                "name": class.name,
                "precision": class.precision,
                "recall": class.recall,
                "f1": class.f1,
                "support": class.support,
            })
        };
        json["classes"] = scores.classes.iter().map(of_class).collect();
    }
    if let Some(n_bytes) = *n_bytes {
        json["n_bytes"] = n_bytes.into();
        json["bits_per_byte"] = loss.bits_per_byte(n_bytes).into();
    }
    if let Some(division) = division {
        json["packing"] = serde_json::to_value(division.packing).expect("a name");
        json["seq_len"] = division.seq_len.into();
        json["n_documents"] = division.n_documents.into();
        json["n_longer_than_row"] = division.n_longer_than_row.into();
    }
    if let Some(rewards) = loss.rewards {
        json["reward_accuracy"] = rewards.accuracy.into();
        json["reward_margin"] = rewards.margin.into();
    }
    if let Some(masked) = loss.masked {
        json["masked_accuracy"] = masked.model.into();
        json["unigram_accuracy"] = masked.unigram.into();
    }
    if !figures.is_empty() {
        json["figures"] = json!(figures);
    }
    json
}

#[cfg(test)]
mod tests {
    use kiln_train::eval::{Evaluation, MaskedAccuracy};

    use super::*;

    fn of_loss(loss: ValidationLoss) -> Scores {
        let figures = Default::default();
        Scores { step: 7, loss, n_bytes: None, division: None, classes: None, translation: None, figures }
    }

    #[test]
    fn the_scores_are_printed_with_their_signatures() {
        let loss = ValidationLoss { loss: 1.5, nll: 1.0, target_tokens: 42, masked: None, rewards: None };
        let lines = ["the cat sat on the mat".to_owned()];
        let translation = Evaluation {
            bleu: bleu::corpus_bleu(&lines, &lines),
            chrf: chrf::corpus_chrf(&lines, &lines),
            exact_match: 1.0,
            hypotheses: lines.to_vec(),
            generate_secs: 0.5,
        };
        let scores = Scores { translation: Some(translation), ..of_loss(loss) };
        let text = as_lines(&scores);
        assert!(
            text.starts_with("loss 1.5000  nll 1.0000  perplexity 2.718  (42 target tokens)\nBLEU 100.00 100.0/"),
            "{text}"
        );
        assert!(text.contains("tok:13a|smooth:exp") && text.contains("nc:6|nw:0"), "{text}");
        assert!(text.ends_with("exact match 100.00%\n") && !text.contains("four words"), "{text}");
        let json = as_json(&scores);
        assert!((json["bleu"].as_f64().expect("a score") - 100.0).abs() < 1e-9);
        assert_eq!(json["step"], 7);

        let words = ["casa"];
        let short = Evaluation {
            bleu: bleu::corpus_bleu(&words, &words),
            ..scores.translation.clone().expect("a translation")
        };
        let text = as_lines(&Scores { translation: Some(short), ..scores.clone() });
        assert!(text.contains("BLEU 0.00 ") && text.contains("0 because no translation has four words"), "{text}");
    }

    #[test]
    fn each_task_shows_its_own_numbers() {
        let loss = ValidationLoss { loss: 1.0, nll: 1.0, target_tokens: 1000, masked: None, rewards: None };
        let lm = Scores { n_bytes: Some(2000), ..of_loss(loss) };
        let text = as_lines(&lm);
        assert!(text.contains("perplexity 2.718  (1000 tokens)") && text.contains("0.7213 bits per byte"), "{text}");
        assert!(!text.contains("masked"), "{text}");

        let masked = ValidationLoss { masked: Some(MaskedAccuracy { model: 0.5, unigram: 0.0421 }), ..loss };
        let mlm = Scores { loss: masked, n_bytes: None, ..lm.clone() };
        let text = as_lines(&mlm);
        assert!(text.contains("accuracy 50.00%  (always the most frequent token: 4.21%)"), "{text}");
        assert!(!text.contains("bits"), "{text}");
        assert_eq!(as_json(&mlm)["masked_accuracy"], 0.5);
        assert!(as_json(&Scores { n_bytes: None, ..lm }).get("bits_per_byte").is_none());
    }
}
