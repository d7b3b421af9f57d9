//! Resumes a run, if configuration, data and tokenizer are the same as before.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kiln_data::terminal::{shell_argument, shell_path};
use serde_json::Value;
use thiserror::Error;

use super::{CheckpointError, Checkpoints, NewestSound, RUN_CONFIG_FILE, Snapshot};
use crate::config::{Config, Schedule};

/// A checkpoint to resume from.
#[derive(Debug)]
pub struct Resume {
    /// Its folder.
    pub path: PathBuf,
    /// Its content.
    pub snapshot: Snapshot,
    /// The problems of newer, damaged checkpoints that were skipped. Show them to the user.
    pub damaged: Vec<CheckpointError>,
}

/// A field whose value differs from the checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// A key such as `optim.lr`, or `data` or `tokenizer` for their contents.
    pub field: String,
    /// Value in the checkpoint.
    pub saved: String,
    /// Value now.
    pub now: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} in the checkpoint, {} now", self.field, self.saved, self.now)
    }
}

/// The run differs from the one that was saved.
#[derive(Debug, Clone, Error)]
#[error(
    "cannot resume from {}, because the run differs from the saved one:\n{}\n{}",
    path.display(),
    list(differences, keys_of_data),
    remedy(differences, keys_of_data, path, [train, valid]) + late_split(*splits_late)
)]
pub struct NotTheSameRun {
    /// The checkpoint.
    pub path: PathBuf,
    /// The differences.
    pub differences: Vec<Difference>,
    /// The keys whose values make other training text, if it is another one.
    pub keys_of_data: Vec<Difference>,
    /// The training text now.
    pub train: Vec<PathBuf>,
    /// The validation text, if it is named otherwise than before.
    pub valid: Vec<PathBuf>,
    /// Whether `data.split` sets rows aside that the run was trained on.
    pub splits_late: bool,
}

/// Returns the folder of the run that a checkpoint is in.
pub(super) fn folder_of_run(checkpoint: &Path) -> &Path {
    checkpoint.ancestors().nth(2).unwrap_or(checkpoint)
}

fn list(differences: &[Difference], keys_of_data: &[Difference]) -> String {
    let lines = differences.iter().map(|difference| format!("  {difference}"));
    // The sources of a mixture are too long for a line.
    let of_data = |difference: &Difference| match difference.now.contains('{') || difference.saved.contains('{') {
        true => format!("    {}: other values than in the checkpoint", difference.field),
        false => format!("    {difference}"),
    };
    lines.chain(keys_of_data.iter().map(of_data)).collect::<Vec<_>>().join("\n")
}

fn remedy(differences: &[Difference], keys_of_data: &[Difference], path: &Path, text: [&[PathBuf]; 2]) -> String {
    let has = |part: &str| differences.iter().any(|difference| is_within(&difference.field, part));
    let mut answer = match has("model") {
        true => "Set these back, or start a new run in another folder: a run keeps its model.".to_owned(),
        false => "Set these back, accept single keys with --allow KEY, or start a new run in another folder.".into(),
    };
    if let Some(steps) = differences.iter().find(|difference| difference.field == "train.steps") {
        answer +=
            &format!("\nThe length of a run may change: --set train.steps={} says so, without --allow.", steps.now);
    }
    if has("data") {
        let named = |key: &str, files: &[PathBuf]| -> String {
            files.iter().map(|file| format!(" --set {key}={}", shell_path(file))).collect()
        };

        // Without files, the sources of a mixture.
        let train = if text[0].is_empty() { " --config FILE".into() } else { named("data.train", text[0]) };
        let valid = named("data.valid", text[1]);
        let run = shell_path(folder_of_run(path));
        answer += match keys_of_data {
            [] => "\nThe training text, its filters (data.filter) or its mixture (data.mix), is another one.",
            _ => "\nThe indented keys make other training text: --allow data accepts it.",
        };
        let flags: String = differences.iter().chain(keys_of_data).filter_map(flag).collect();
        answer += &format!(" To train these weights on it: kiln train --from {run}{train}{valid}{flags}");
    }
    answer
}

/// Returns why a split stays as it is.
fn late_split(splits_late: bool) -> &'static str {
    match splits_late {
        true => {
            "\ndata.split cannot be accepted: it sets rows aside that these weights were trained on. --set data.valid=FILE validates with \
             other rows, here and with --from."
        }
        false => "",
    }
}

/// Returns the flag that sets a key of a new run as it is now. Returns `None` for what `--from` keeps, and for values without a flag.
fn flag(Difference { field, now, .. }: &Difference) -> Option<String> {
    // With another split, validation rows would be rows that the run was trained on.
    let is_kept =
        ["data.train", "data.mix", "data.split", "model", "tokenizer"].iter().any(|kept| is_within(field, kept));
    if is_kept || field == "data" || now == "unset" || now == "null" || now.contains('{') {
        return None;
    }
    let is_name = |text: &str| {
        let is_other = ["true", "false", "inf", "nan"].contains(&text);
        text.starts_with(char::is_alphabetic)
            && !is_other
            && text.chars().all(|c| c.is_alphanumeric() || "_-/.".contains(c))
    };
    let name = serde_json::from_str::<String>(now).ok().filter(|text| is_name(text));
    Some(format!(" --set {}", shell_argument(&format!("{field}={}", name.as_ref().unwrap_or(now)))))
}

/// Keys that decide which training text a run has, and how it is read.
const OF_DATA: [&str; 5] = ["data.train", "data.mix", "data.filter", "data.corpus", "data.text"];

/// Fields that may change, because the weights do not depend on them. `data` and `tokenizer` are compared by fingerprints of
/// their contents instead.
const FREE: [&str; 34] = [
    // A resumed run keeps its own.
    "optim.decay_end",
    "data.train",
    "data.valid",
    "data.mix",
    "data.mix_temperature",
    "data.cache_dir",
    "data.filter",
    "data.cache_limit",
    "data.corpus",
    "data.text",
    "tokenizer",
    "loader.num_workers",
    "loader.prefetch_factor",
    // What it means is in the number of steps.
    "train.epochs",
    "train.max_minutes",
    "train.log_every",
    "train.profile_at",
    "train.validate_every",
    "train.translate_every",
    "train.best_metric",
    "train.patience",
    "train.min_improvement",
    "train.use_ema",
    "train.save_every",
    "train.keep_last",
    "train.activation_checkpointing",
    "train.memory_limit",
    "train.shard_optimizer",
    "train.exchange_mib",
    "train.warm_up",
    "train.capture",
    "train.non_finite",
    "train.max_non_finite_steps",
    "generate",
];

/// Finds the newest sound checkpoint of the run in `run_dir` and checks that it was saved with the same `config`, data and
/// tokenizer. `allowed` names fields (`optim.lr`, `optim`) that may differ.
pub fn find_resume(
    run_dir: &Path,
    config: &Config,
    data_fingerprint: &str,
    tokenizer_fingerprint: &str,
    allowed: &[String],
) -> Result<Resume> {
    let checkpoints = Checkpoints::of_run(run_dir);
    let NewestSound { found, damaged } = checkpoints.newest_sound()?;
    let Some((path, snapshot)) = found else {
        let mut damaged = damaged.into_iter();
        match damaged.next() {
            Some(error) => {
                return Err(error).context(format!("no sound checkpoint in {}", checkpoints.dir().display()));
            }
            None => {
                bail!(
                    "{} has no checkpoint to resume from; start the run without --resume",
                    checkpoints.dir().display()
                )
            }
        }
    };

    let saved_config = snapshot.file(RUN_CONFIG_FILE).map(String::from_utf8_lossy).unwrap_or_default();
    let saved_config = Config::from_toml(&saved_config)
        .with_context(|| format!("{} is not a configuration of this version", path.join(RUN_CONFIG_FILE).display()))?;

    let mut differences = config_differences(&saved_config, config);
    for (field, saved, now) in [
        ("data", snapshot.state.data_fingerprint.as_str(), data_fingerprint),
        ("tokenizer", &snapshot.state.tokenizer_fingerprint, tokenizer_fingerprint),
    ] {
        if saved != now {
            let short = |fingerprint: &str| format!("contents {}", fingerprint.get(..12).unwrap_or(fingerprint));
            differences.push(Difference { field: field.to_string(), saved: short(saved), now: short(now) });
        }
    }

    let skipped: Vec<String> = damaged.iter().map(|error| format!("skipped a damaged checkpoint: {error}")).collect();
    let splits_late = config.data.validates_trained_rows(&saved_config.data, false);
    let is_allowed = |field: &str| allowed.iter().any(|allowed| is_within(field, allowed));
    differences.retain(|Difference { field, .. }| !is_allowed(field) || (splits_late && field == "data.split"));
    if !differences.is_empty() {
        let is_other_text = differences.iter().any(|difference| difference.field == "data");
        let mut keys_of_data = if is_other_text { all_differences(&saved_config, config) } else { Vec::new() };
        keys_of_data.retain(|difference| OF_DATA.iter().any(|key| is_within(&difference.field, key)));
        let (train, mut valid) = (config.data.train.clone(), config.data.valid.clone());
        valid.retain(|file| !saved_config.data.valid.contains(file));
        let error = anyhow::Error::new(NotTheSameRun { path, differences, keys_of_data, train, valid, splits_late });
        return Err(if skipped.is_empty() { error } else { error.context(skipped.join("\n")) });
    }
    Ok(Resume { path, snapshot, damaged })
}

/// Lists differing fields of two configurations that affect the weights.
pub fn config_differences(saved: &Config, now: &Config) -> Vec<Difference> {
    // These two schedules depend on the step only, so the length of the run may change.
    let any_length = matches!(saved.optim.schedule, Schedule::Constant | Schedule::Noam);
    let is_free =
        |field: &str| FREE.iter().any(|free| is_within(field, free)) || (any_length && field == "train.steps");
    all_differences(saved, now).into_iter().filter(|difference| !is_free(&difference.field)).collect()
}

/// Lists the fields of a configuration with their values. Keys without a value may be absent.
pub fn fields(config: &Config) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    flatten("", &serde_json::to_value(config).expect("plain values"), &mut fields);
    fields
}

/// Lists the fields of a configuration that affect the weights, with their values. Batches of a step may be shared out over any number
/// of devices.
pub(crate) fn lasting_fields(config: &Config) -> BTreeMap<String, String> {
    let mut fields = fields(config);
    fields.retain(|field, _| field != "train.grad_accum_steps" && !FREE.iter().any(|free| is_within(field, free)));
    fields
}

/// Lists all differing fields of two configurations.
pub fn all_differences(saved: &Config, now: &Config) -> Vec<Difference> {
    let (saved_fields, now_fields) = (fields(saved), fields(now));
    let fields: BTreeSet<&String> = saved_fields.keys().chain(now_fields.keys()).collect();
    let value = |fields: &BTreeMap<String, String>, field| fields.get(field).cloned().unwrap_or("unset".into());
    fields
        .into_iter()
        .map(|field| (field, value(&saved_fields, field), value(&now_fields, field)))
        .filter(|(_, saved, now)| saved != now)
        .map(|(field, saved, now)| Difference { field: field.clone(), saved, now })
        .collect()
}

/// Whether `field` is `whole` or a part of it.
pub fn is_within(field: &str, whole: &str) -> bool {
    field.strip_prefix(whole).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Lists the leaves of `value`, including arrays. Keys without a value may be absent.
fn flatten(path: &str, value: &Value, leaves: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                flatten(&path, value, leaves);
            }
        }
        leaf => {
            leaves.insert(path.to_string(), leaf.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_that_matters_is_listed_and_no_other() {
        let saved = Config::default();
        let mut now = saved.clone();
        now.loader.num_workers += 3;
        now.train.max_minutes = 5.0;
        now.train.capture = crate::config::Capture::Off;
        now.generate.beam_size = 9;
        now.data.train = vec!["elsewhere.jsonl".into()];
        assert_eq!(config_differences(&saved, &now), []);
        now.optim.lr = 0.5;
        now.loader.batch_tokens = 1;
        now.train.steps += 1;
        now.model.dropout = 0.25;
        now.model.activation_dropout = Some(0.0);
        let differences = config_differences(&saved, &now);
        let fields: Vec<_> = differences.iter().map(|difference| difference.field.as_str()).collect();
        assert_eq!(
            fields,
            ["loader.batch_tokens", "model.activation_dropout", "model.dropout", "optim.lr", "train.steps"]
        );
        let lr = differences.iter().find(|difference| difference.field == "optim.lr").expect("listed");
        assert_eq!(lr.to_string(), format!("optim.lr: {} in the checkpoint, 0.5 now", saved.optim.lr));
    }

    #[test]
    fn keys_that_make_other_text_are_named_and_kept_by_the_command() {
        let difference = |field: &str, saved: &str, now: &str| Difference {
            field: field.into(),
            saved: saved.into(),
            now: now.into(),
        };
        let shown = |differences: &[Difference], keys_of_data: &[Difference]| {
            let path = "runs/a/checkpoints/step-00000010".into();
            let (differences, keys_of_data) = (differences.to_vec(), keys_of_data.to_vec());
            let (train, valid) = (vec!["a b.jsonl".into()], vec!["dev.jsonl".into()]);
            NotTheSameRun { path, differences, keys_of_data, train, valid, splits_late: false }.to_string()
        };
        let data = difference("data", "contents 1", "contents 2");
        let keys = [
            difference("data.text.learn", "\"answers\"", "\"last_answer\""),
            difference("data.text.field", "\"text\"", "\"a b\""),
            difference("data.filter.min_words", "2", "unset"),
            difference("data.mix", "[]", "[{\"name\":\"a\"}]"),
        ];

        let text = shown(&[data.clone(), difference("optim.lr", "0.1", "0.2")], &keys);
        assert!(text.contains("    data.text.learn: \"answers\" in the checkpoint, \"last_answer\" now"), "{text}");
        let command = "kiln train --from runs/a --set data.train='a b.jsonl' --set data.valid=dev.jsonl --set optim.lr=0.2 --set data.text.learn=last_answer \
                       --set 'data.text.field=\"a b\"'";
        assert!(text.contains("    data.mix: other values than in the checkpoint\n"), "{text}");
        assert!(text.contains("--allow data accepts it") && text.ends_with(command), "{text}");
        let text = shown(&[difference("train.steps", "150", "200")], &[]);
        assert!(text.contains("--set train.steps=200 says so, without --allow"), "{text}");
        let text = shown(&[data], &[]);
        assert!(text.contains("its mixture (data.mix), is another one"), "{text}");
    }

    #[test]
    fn a_schedule_without_an_end_may_be_continued() {
        let mut saved = Config::default();
        saved.optim.schedule = Schedule::Constant;
        let mut now = saved.clone();
        now.train.steps += 100;
        assert_eq!(config_differences(&saved, &now), []);
    }

    #[test]
    fn parts_of_a_name_are_not_parts_of_a_field() {
        assert!(is_within("optim.lr", "optim") && is_within("optim", "optim"));
        assert!(!is_within("optimism.x", "optim") && !is_within("optim", "optim.lr"));
    }
}
