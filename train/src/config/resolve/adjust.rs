//! The fourth stage: lets defaults follow the text and the keys that are set. A set key never changes, and a note names each change.

use super::choose::Base;
use super::merge::Merged;
use super::report::Report;
use super::sources::Sources;
use crate::config::give_way::give_way;
use crate::config::length::shorten;
use crate::config::set_keys::SetKeys;
use crate::config::spelling::spell;
use crate::config::{Config, DataConfig};

/// A configuration whose defaults suit the text and the set keys.
pub(super) struct Adjusted {
    pub(super) config: Option<Config>,
    pub(super) base: Base,
    pub(super) set: SetKeys,
    pub(super) report: Report,
}

/// Adjusts the defaults.
pub(super) fn adjust(merged: Merged, sources: &Sources) -> Adjusted {
    let Merged { mut config, mut defaults, mut base, set, mut report } = merged;
    if let Some(config) = &mut config {
        if let (Base::Chosen(chosen), Some(_), false) = (&mut base, sources.machine, report.has_problems()) {
            report.notes.extend(spell(config, &mut defaults, &set));
            chosen.shortened = shorten(config, &mut defaults, &set);
        }
        report.notes.extend(give_way(config, &defaults, &set));
        choose_length(config, &mut report);
        if sources.fine_tunes {
            let is_given = ["data.train", "data.text.format"].map(|key| report.origins.contains_key(key));
            if is_given == [true, false] {
                let files = config.data.train.clone();
                report.notes.extend(config.data.follow_names(&files, &defaults.data.train_files()));
            }
            let note = drop_unlike_validation(config, &defaults, |key| report.origins.contains_key(key));
            report.notes.extend(note);
            report.notes.extend(config.take_fine_tuning_rate(&set));
        }
    }
    Adjusted { config, base, set, report }
}

/// Lets `train.steps` and `train.epochs` replace each other, as `data.split` and `data.valid`: the command line wins over the file, and
/// both over a run to start from. Sets the warm-up that a ratio means.
fn choose_length(config: &mut Config, report: &mut Report) {
    let on_command_line = |key: &str| report.origins.get(key).filter(|origin| origin.line == usize::MAX).cloned();
    // The other one may come from a run to start from.
    let pairs = [("train.steps", "train.epochs"), ("data.split", "data.valid"), ("data.valid", "data.split")];
    let [only_steps, only_split, only_valid] =
        pairs.map(|(key, other)| report.origins.contains_key(key) && !report.origins.contains_key(other));
    let split = ["data.split", "data.valid"].map(on_command_line);
    match ["train.steps", "train.epochs"].map(on_command_line) {
        [Some(steps), Some(_)] if config.train.epochs > 0.0 => {
            report.problem(Some(&steps), "train.steps is set next to train.epochs; name one of the two".into());
        }
        [Some(_), None] => config.train.epochs = 0.0,
        _ if only_steps => config.train.epochs = 0.0,
        _ => {}
    }
    match split {
        [Some(_), None] => config.data.valid.clear(),
        [None, Some(_)] => config.data.split = 0.0,
        _ if only_split => config.data.valid.clear(),
        _ if only_valid => config.data.split = 0.0,
        _ => {}
    }
    choose_text(config, |key| report.origins.contains_key(key));
    config.take_warmup_ratio();
}

/// Lets training text that is given take the place of the text of the run to start from: files and a mixture replace each other.
fn choose_text(config: &mut Config, is_given: impl Fn(&str) -> bool) {
    let data = &mut config.data;
    match ["data.train", "data.mix"].map(&is_given) {
        [true, false] => {
            data.mix.clear();
            if !is_given("data.mix_temperature") {
                data.mix_temperature = None;
            }
        }
        [false, true] => {
            data.train.clear();
            if !is_given("data.split") {
                data.split = 0.0;
            }
            if !is_given("data.valid") && data.mix.iter().any(|source| !source.valid.is_empty()) {
                data.valid.clear();
            }
        }
        _ => {}
    }
}

/// Drops the validation text of the run to start from if the training text is another one that is read in another way. Returns a note.
fn drop_unlike_validation(config: &mut Config, run: &Config, is_given: impl Fn(&str) -> bool) -> Option<String> {
    let (now, before) = (&mut config.data, &run.data);
    let is_other_text = now.train != before.train || now.mix != before.mix;
    let is_inherited = !is_given("data.valid") && !now.valid.is_empty() && now.valid == before.valid;
    if !is_inherited || !is_other_text || is_read_alike(now, before) {
        return None;
    }
    let files = now.valid.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ");
    now.valid.clear();
    Some(format!(
        "--from: not validated on {files}, the text of that run, because the new text is read in another way (data.valid names \
         validation text, data.split takes some of the new text)"
    ))
}

/// Returns whether the same rows can be read by both.
fn is_read_alike(a: &DataConfig, b: &DataConfig) -> bool {
    let text = a.text.format == b.text.format && a.text.field == b.text.field;
    let (now, before) = (&a.corpus, &b.corpus);
    let pairs = now.format == before.format
        && (&now.source_field, &now.target_field) == (&before.source_field, &before.target_field)
        && (now.source_column, now.target_column) == (before.source_column, before.target_column);
    let (now, before) = (&a.labels, &b.labels);
    let labels = (&now.text_field, &now.label_field) == (&before.text_field, &before.label_field)
        && (&now.words_field, &now.tags_field) == (&before.words_field, &before.tags_field);
    text && pairs && labels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::presets;
    use crate::config::resolve::merge::read_over;
    use crate::config::resolve::read::read_assignments;

    #[test]
    fn files_and_a_mixture_of_another_run_replace_each_other() {
        let over = |run: &Config, assignment: &str| {
            let given = read_assignments(&[assignment.to_owned()]);
            let mut report = given.report;
            let mut config = read_over(run, &given.values, &mut report).expect("valid");
            choose_length(&mut config, &mut report);
            config
        };
        let mut run = presets::tiny();
        run.data.train = vec!["a.tsv".into()];
        (run.data.valid, run.data.split) = (vec!["v.tsv".into()], 0.0);
        let mut mixed = over(&run, "data.mix=[{ name = \"b\", train = \"b.tsv\", valid = \"w.tsv\" }]");
        let Config { data, .. } = &mixed;
        assert!(data.train.is_empty() && data.valid.is_empty() && data.mix.len() == 1, "{data:?}");
        assert_eq!(mixed.validate(), Vec::<String>::new());

        mixed.data.mix_temperature = Some(2.0);
        let files = over(&mixed, "data.train=c.tsv").data;
        assert_eq!((files.train, files.mix.len(), files.mix_temperature), (vec!["c.tsv".into()], 0, None));
    }

    #[test]
    fn a_file_changes_what_a_run_to_start_from_has() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("tune.toml");
        let over = |run: &Config, text: &str| {
            std::fs::write(&file, text).expect("writable");
            let sources =
                Sources { base: Some(run.clone()), fine_tunes: true, file: Some(file.clone()), ..Sources::default() };
            crate::config::resolve::resolve(&sources).map(|resolved| resolved.config)
        };
        let mut run = presets::gpt2_tiny();
        (run.data.train, run.data.valid, run.train.epochs) = (vec!["a.txt".into()], vec!["v.txt".into()], 3.0);
        let text = "[data]\ntrain = \"b.txt\"\nsplit = 0.1\n[train]\nsteps = 50\n[optim]\nlr = 0.5\n";
        let tuned = over(&run, text).expect("valid");
        assert_eq!((tuned.train.steps, tuned.train.epochs, tuned.optim.lr), (50, 0.0, 0.5));
        assert_eq!((tuned.data.split, tuned.data.valid.len(), &tuned.model), (0.1, 0, &run.model));
        assert_eq!(over(&run, &tuned.to_toml()).expect("its own file"), tuned);
        let error = over(&run, "preset = \"gpt2-tiny\"\n").expect_err("a preset").to_string();
        assert!(error.contains("preset = \"gpt2-tiny\" has no place next to --from"), "{error}");
    }

    #[test]
    fn validation_text_of_another_run_is_dropped_where_the_new_text_is_read_in_another_way() {
        let mut run = presets::gpt2_tiny();
        (run.data.train, run.data.valid) = (vec!["a.txt".into()], vec!["v.txt".into()]);
        let over = |set: &[&str]| {
            let set = set.iter().map(ToString::to_string).collect();
            let sources = Sources { base: Some(run.clone()), fine_tunes: true, set, ..Sources::default() };
            crate::config::resolve::resolve(&sources).expect("valid")
        };
        let dropped = over(&["data.train=b.jsonl", "data.text.format=chat"]);
        assert!(dropped.config.data.valid.is_empty());
        let note = dropped.notes.iter().find(|note| note.contains("not validated on v.txt")).expect("a note");
        assert!(note.contains("data.valid") && note.contains("data.split"), "{note}");

        let kept: [(&[&str], &str); 3] = [
            (&["data.train=b.txt"], "v.txt"),
            (&["optim.lr=1e-4"], "v.txt"),
            (&["data.train=b.jsonl", "data.text.format=chat", "data.valid=w.jsonl"], "w.jsonl"),
        ];
        for (set, valid) in kept {
            let kept = over(set);
            assert_eq!(kept.config.data.valid, [std::path::PathBuf::from(valid)], "{set:?}");
            assert!(!kept.notes.iter().any(|note| note.contains("not validated")), "{set:?}: {:?}", kept.notes);
        }
    }
}
