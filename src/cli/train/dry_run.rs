//! `kiln train --dry-run`: everything except the training.

use std::fmt::Write;
use std::ops::Range;

use anyhow::Result;
use kiln_data::{HostBatch, Loader, LoaderConfig, Packing, Position, TextTokenizer, TokenizerConfig};
use kiln_metrics::logging::print::{stdout_line, stdout_text};
use kiln_metrics::logging::wrap::for_stdout;
use kiln_metrics::units::{counted, thousands};
use kiln_model::flops::{TrainBytes, n_params};
use kiln_model::hf::{HfError, adapter_problems, export_family};
use kiln_train::config::task::{Classes, traits_of};
use kiln_train::config::{Config, Preset};
use kiln_train::dataset::{RunData, Vocabulary};
use kiln_train::eval::{Init, Model, Part};
use kiln_train::run::Run;

/// Batches shown.
const N_BATCHES: usize = 3;
/// Tokens of the example shown.
const N_TOKENS: usize = 40;
/// Tags of the example shown.
const N_TAGS: usize = 20;

/// Prints a summary of the run. With `show_config` it is a comment in front of the configuration, so that the output is a
/// configuration file.
pub(super) fn print<M: Model>(run: &Run, resume: bool, show_config: bool, init: &Init<'_, M>) -> Result<()> {
    run.refuse_other_rows(resume)?;
    run.refuse_random_weights()?;
    let survey = run.survey(resume)?;
    // What is checked are the weights of a Transformer.
    let about_start = if resume || init.is_own() { Vec::new() } else { run.check_start(&survey)? };
    let (config, data, plan) = (&survey.config, &survey.data, &survey.plan);

    let mut summary = run.options.notes.join("\n");
    summary += if summary.is_empty() { "" } else { "\n" };
    for line in plan.data_lines() {
        writeln!(summary, "{line}")?;
    }
    if let Some(from) = &run.options.from {
        let path = from.path.display();
        writeln!(summary, "starting from the weights of {path}, with the settings of its run")?;
    }
    if !init.is_own() {
        writeln!(summary, "model: {}", plan.model_line())?;
    }
    summary.extend(vocabulary_line(config, &run.options.notes).map(|line| line + "\n"));
    let precision = format!("{:?}", plan.dtype).to_lowercase();
    writeln!(summary, "run folder {}, device {}, precision {precision}", run.dir().display(), plan.device)?;
    match init.is_own() {
        true => writeln!(summary, "{}", own_parameters(&init.parts(&config.model, config.seed)))?,
        false => writeln!(summary, "{}", parameters(config))?,
    }
    for line in about_start {
        writeln!(summary, "{line}")?;
    }
    if !init.is_own() {
        writeln!(summary, "{}: {}", plan.memory_line(), parts(&plan.bytes))?;
        writeln!(summary, "{}", export(config))?;
    }
    batches(config, data, survey.position, &mut summary)?;
    let config = survey.config.clone();
    if !resume && let Some(time) = run.time_ahead(survey, init)? {
        writeln!(summary, "time: {time}")?;
    }

    match show_config {
        true => {
            summary.lines().for_each(|line| stdout_line!("# {line}"));
            stdout_text!("\n{}", config.to_toml());
        }
        false => {
            summary.lines().for_each(|line| stdout_line!("{}", for_stdout(line)));
            stdout_line!("(--show-config prints the configuration; nothing was trained or kept)");
        }
    }
    Ok(())
}

/// Says which preset the size of the vocabulary comes from; `None` if the user or the text has decided it.
fn vocabulary_line(config: &Config, notes: &[String]) -> Option<String> {
    let TokenizerConfig { path, vocab_size, .. } = &config.tokenizer;
    let is_named = |preset: &Preset| notes.iter().any(|note| note.starts_with(&format!("preset {preset},")));
    let preset = Preset::ALL.into_iter().find(is_named).filter(|_| path.is_none() && !config.is_built_in_task())?;
    (preset.config().tokenizer.vocab_size == *vocab_size).then(|| {
        let size = thousands(*vocab_size as f64);
        format!("vocabulary: at most {size} entries, as the preset {preset} has it (--set tokenizer.vocab_size=... decides otherwise)")
    })
}

/// Counts the parameters by part, without parts that the model lacks.
fn parameters(config: &Config) -> String {
    let params = n_params(&config.model);
    let ties = config.model.tie_embeddings.ties_output();
    let parts = [
        (params.encoder, "encoder"),
        (params.decoder, "decoder"),
        (params.embeddings, "embeddings"),
        (params.positions, "positions"),
        (params.head, "head"),
        (params.output_projection, if ties { "output projection shared with embeddings" } else { "output projection" }),
    ];
    let parts = parts.into_iter().filter(|(n, _)| *n > 0);
    let parts: Vec<String> = parts.map(|(n, name)| format!("{name} {}", thousands(n as f64))).collect();
    format!("{} parameters: {}", thousands(params.total() as f64), parts.join(", "))
}

/// Counts the parameters of a model of the program's own, by part.
fn own_parameters(parts: &[Part]) -> String {
    let total: usize = parts.iter().map(|part| part.n_params).sum();
    let parts: Vec<String> =
        parts.iter().map(|part| format!("{} {}", part.name, thousands(part.n_params as f64))).collect();
    format!("{} parameters: {}", thousands(total as f64), parts.join(", "))
}

/// Says before a training that its model or its adapters cannot be exported, and what would change that.
pub(super) fn not_exportable(config: &Config) -> Option<String> {
    match export_family(&config.model) {
        Err(HfError::NotExpressible { family, problems }) => {
            Some(format!("kiln export will not be possible; the nearest family is {family}: {}", problems.join("; ")))
        }
        _ => match adapter_problems(&config.model).as_slice() {
            [] => None,
            problems => Some(format!("kiln export --adapter will not be possible: {}", problems.join("; "))),
        },
    }
}

/// Says as which family the model can be exported, or why it cannot.
fn export(config: &Config) -> String {
    match export_family(&config.model) {
        Ok(family) => match adapter_problems(&config.model).as_slice() {
            [] => format!("kiln export: as {family}"),
            problems => format!("kiln export: as {family}; --adapter: not possible: {}", problems.join("; ")),
        },
        Err(HfError::NotExpressible { family, problems }) => {
            format!("kiln export: not possible; nearest is {family}: {}", problems.join("; "))
        }
        Err(error) => format!("kiln export: not possible: {error}"),
    }
}

/// Shows the first batches and one decoded example.
fn batches(config: &Config, data: &RunData, position: Position, summary: &mut String) -> Result<()> {
    let inline = LoaderConfig { num_workers: 0, ..config.loader.clone() };
    let mut loader = Loader::new(data.train.clone(), &inline, config.seed, position)?;
    let shapes =
        loader.shapes().map_or(String::new(), |shapes| format!(" of {}", counted(shapes.len() as u64, "shape")));
    writeln!(summary, "{} per epoch{shapes}", counted(loader.batches_per_epoch(), "batch"))?;

    let is_packed = data.labels.is_empty() && config.data.text.packing != Packing::Sentences;
    let mut example = None;
    for number in 1..=N_BATCHES {
        let batch = loader.next_batch()?;
        writeln!(summary, "batch {number}: {} tokens, padding {:.0}%", batch.shape(), 100.0 * batch.padding_ratio())?;
        example = example.or_else(|| match data.vocabulary.text() {
            Some(tokenizer) if config.data.text.is_preferences() => Some(first_preference(&batch, tokenizer)),
            Some(tokenizer) if config.data.text.is_chat() => Some(first_conversation(&batch, tokenizer)),
            _ => {
                let row = first_row(&batch, &data.vocabulary, is_packed);
                Some(row.into_iter().chain(first_labels(&batch, data, config)).collect())
            }
        });
        loader.recycle(batch);
    }
    for line in example.into_iter().flatten() {
        writeln!(summary, "{line}")?;
    }
    Ok(())
}

/// Describes the first conversation of a batch: text, and what the model learns of it.
fn first_conversation(batch: &HostBatch, tokenizer: &TextTokenizer) -> Vec<String> {
    let places = conversation(batch, 0);
    vec![
        "the first conversation of a row, without special tokens:".to_owned(),
        format!("  text: {}", beginning(&batch.target_input()[places.clone()], tokenizer)),
        format!("  learned: {}", beginning(&batch.labels()[places], tokenizer)),
    ]
}

/// Describes the first two answers of a batch that the model learns to order.
fn first_preference(batch: &HostBatch, tokenizer: &TextTokenizer) -> Vec<String> {
    let answer = |row: usize| beginning(&batch.labels()[conversation(batch, row)], tokenizer);
    vec![
        "the first preference, without special tokens:".to_owned(),
        format!("  text: {}", beginning(&batch.target_input()[conversation(batch, 0)], tokenizer)),
        format!("  preferred: {}", answer(0)),
        format!("  rejected: {}", answer(1)),
    ]
}

/// Returns the places of the first conversation in a row.
fn conversation(batch: &HostBatch, row: usize) -> Range<usize> {
    let start = row * batch.target_len;
    let documents = &batch.documents()[start..start + batch.lengths()[row] as usize];
    let len = documents.iter().take_while(|document| Some(*document) == documents.first()).count();
    start..start + len
}

/// Returns the first tokens as text, without places that do not count.
fn beginning(ids: &[i32], tokenizer: &TextTokenizer) -> String {
    let ids: Vec<u32> = ids.iter().filter(|id| **id >= 0).map(|id| *id as u32).collect();
    let text = one_line(&tokenizer.decode(&ids[..ids.len().min(N_TOKENS)]).unwrap_or_default());
    if ids.len() > N_TOKENS { format!("{text} ...") } else { text }
}

/// Describes the first row of a batch: text, and the tokens that the model sees.
fn first_row(batch: &HostBatch, vocabulary: &Vocabulary, is_packed: bool) -> Vec<String> {
    let ids = |row: &[i32]| -> Vec<u32> { row.iter().map(|id| *id as u32).collect() };

    match vocabulary {
        Vocabulary::Pairs(tokenizers) => {
            let decode = |ids: &[u32]| tokenizers.decode(ids).unwrap_or_default();
            let source = ids(&batch.source()[..batch.source_len]);
            let target = ids(&batch.labels()[..batch.target_len]);
            let mut lines = vec!["the first example of the training data:".to_owned()];
            for (side, ids) in [("source", source), ("target", target)] {
                lines.push(format!("  {side}: {}", one_line(&decode(&ids))));
                lines.push(format!("    {}", tokens(&ids, decode)));
            }
            lines
        }
        Vocabulary::Text(tokenizer) => {
            let decode = |ids: &[u32]| tokenizer.decode(ids).unwrap_or_default();
            let mut row = ids(&batch.target_input()[..batch.target_len]);
            row.truncate(N_TOKENS);
            let text = if is_packed { divided(&row, tokenizer) } else { decode(&row) };
            vec![
                match is_packed {
                    true => {
                        "a row of the training data, which may begin anywhere in a text; // divides texts:".to_owned()
                    }
                    false => "a row of the training data:".to_owned(),
                },
                format!("  text: {}", one_line(&text)),
                format!("    {}", tokens(&row, decode)),
            ]
        }
    }
}

/// Describes what a model of classes learns of the first row: its class, or its words with their tags.
fn first_labels(batch: &HostBatch, data: &RunData, config: &Config) -> Option<String> {
    let name = |label: &i32| usize::try_from(*label).ok().and_then(|label| data.labels.get(label));
    match (traits_of(config.task).classes?, &data.vocabulary) {
        (Classes::OfTexts, _) => {
            batch.labels().iter().find_map(name).map(|name| format!("  class: {}", one_line(name)))
        }
        (Classes::OfWords, Vocabulary::Text(tokenizer)) => {
            let (row, labels) = (&batch.target_input()[..batch.target_len], &batch.labels()[..batch.target_len]);
            let piece = |id: &i32| tokenizer.decode(&[*id as u32]).unwrap_or_default();
            let tagged = row.iter().zip(labels).filter_map(|(id, label)| Some((piece(id), name(label)?)));
            // A word has its tag at its first token.
            let shown: Vec<String> =
                tagged.take(N_TAGS).map(|(piece, tag)| format!("{}/{tag}", piece.trim())).collect();
            Some(format!("  tags, at the first token of each word: {}", one_line(&shown.join(" "))))
        }
        _ => None,
    }
}

/// Stands between the documents of a row.
const BETWEEN: &str = " // ";

/// Returns the text of a row with a mark between its documents, which special tokens divide.
fn divided(row: &[u32], tokenizer: &TextTokenizer) -> String {
    let outside = tokenizer.ids_outside_text();
    let documents = row.split(|id| outside.contains(id)).filter(|ids| !ids.is_empty());
    documents.map(|ids| tokenizer.decode(ids).unwrap_or_default()).collect::<Vec<_>>().join(BETWEEN)
}

/// Lists tokens between bars. Special tokens, such as padding, decode to nothing and are left out.
fn tokens(ids: &[u32], decode: impl Fn(&[u32]) -> String) -> String {
    let pieces: Vec<String> = ids.iter().map(|id| decode(&[*id])).filter(|piece| !piece.is_empty()).collect();
    let more = pieces.len().saturating_sub(N_TOKENS);
    let more = if more > 0 { format!(" | and {more} more") } else { String::new() };
    let shown: Vec<&str> = pieces.iter().take(N_TOKENS).map(String::as_str).collect();
    format!("{}: {}{more}", counted(pieces.len() as u64, "token"), one_line(&shown.join(" | ")))
}

fn one_line(text: &str) -> String {
    text.replace('\n', "\\n").replace('\r', "\\r")
}

/// Lists what the memory is for, without parts below a MiB.
fn parts(bytes: &TrainBytes) -> String {
    let parts = [
        (bytes.weights, "weights"),
        (bytes.master, if bytes.weights == 0 { "weights" } else { "master weights" }),
        (bytes.optimizer_state, "optimizer state"),
        (bytes.gradients, "gradients"),
        (bytes.accumulator, "accumulated gradients"),
        (bytes.average, "average of the weights"),
        (bytes.reference, "model to compare with"),
        (bytes.exchange, "exchange"),
        (bytes.activations.total().max(bytes.flat_gradients), "activations"),
        (bytes.pools, "free blocks of memory pools"),
    ];
    let parts = parts.into_iter().map(|(bytes, name)| (bytes as f64 / f64::from(1 << 20), name));
    let parts: Vec<String> =
        parts.filter(|(mib, _)| *mib >= 0.5).map(|(mib, name)| format!("{name} {} MiB", thousands(mib))).collect();
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use kiln_model::TransformerConfig;
    use kiln_model::flops::ActivationBytes;

    use super::*;

    #[test]
    fn parts_that_are_missing_are_not_listed() {
        let mib = 1 << 20;
        let activations = ActivationBytes { residual: 1990 * mib, ..ActivationBytes::default() };
        let bytes = TrainBytes {
            weights: mib,
            gradients: 2 * mib,
            optimizer_state: 4 * mib,
            activations,
            flat_gradients: 2 * mib,
            ..TrainBytes::default()
        };
        assert_eq!(parts(&bytes), "weights 1 MiB, optimizer state 4 MiB, gradients 2 MiB, activations 1,990 MiB");
        let f32 = TrainBytes { weights: 0, master: 3 * mib, ..bytes };
        assert!(parts(&f32).starts_with("weights 3 MiB, optimizer state"), "{}", parts(&f32));

        let of = |preset: Preset| {
            let config = preset.config();
            parameters(&Config { model: config.model.with_vocab_size(1000), ..config })
        };
        let shared = of(Preset::FewPairs);
        assert!(!shared.contains("embeddings 0") && shared.contains("shared with embeddings 128,000"), "{shared}");
        assert!(of(Preset::Gpt2Mini).contains(", positions 196,608, "), "{}", of(Preset::Gpt2Mini));
    }

    #[test]
    fn every_preset_can_be_exported() {
        for preset in Preset::ALL {
            let text = export(&preset.config());
            // Only users who ask for this preset get it, and no family has such layers.
            let expected = if preset == Preset::Modern124m { "kiln export: not possible" } else { "kiln export: as " };
            assert!(text.starts_with(expected), "{preset}: {text}");
        }
        let base = Preset::Base.config();
        let other = Config { model: TransformerConfig { norm_eps: 1e-6, ..base.model.clone() }, ..base };
        let why = "kiln export: not possible; nearest is pegasus: model.norm_eps is 1e-6, but this family has 0.00001";
        assert_eq!(export(&other), why);
        assert!(not_exportable(&other).expect("it says so").contains("the nearest family is pegasus"));
    }

    #[test]
    fn adapters_that_peft_has_no_module_for_are_named_before_the_training() {
        let with_adapters = |preset: Preset| {
            let mut config = preset.config();
            config.model.lora.rank = 4;
            not_exportable(&config)
        };
        let why = with_adapters(Preset::Gpt2Mini).expect("queries, keys and values are one module there");
        assert!(why.starts_with("kiln export --adapter will not be possible: model.lora.targets has"), "{why}");
        assert_eq!(with_adapters(Preset::Llama125m), None);
    }

    #[test]
    fn documents_of_a_row_are_divided() {
        let words = ["one two", "three"].map(str::to_owned);
        let tokenizer =
            TextTokenizer::train_on_documents(&Preset::Gpt2Mini.config().tokenizer, &words, 1).expect("text");
        let (before, behind) = tokenizer.around();
        let row = [&before[..], &tokenizer.encode("one").expect("text"), &behind].concat();
        let next = tokenizer.encode("three").expect("text");
        assert_eq!(divided(&[&row[..], &next].concat(), &tokenizer).replace("  ", " "), "one // three");
        assert_eq!(divided(&[&next[..], &before, &behind].concat(), &tokenizer).trim(), "three");
    }

    #[test]
    fn tokens_are_listed_up_to_a_limit() {
        let ids: Vec<u32> = (0..=N_TOKENS as u32 + 1).collect();
        let text = tokens(&ids, |ids| if ids[0] == 0 { String::new() } else { "x\n".into() });
        assert!(text.starts_with("41 tokens: x\\n | x") && text.ends_with(" | and 1 more"), "{text}");
    }
}
