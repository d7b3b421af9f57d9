//! The fourth stage: lets defaults follow the text and the keys that are set. A set key never changes, and a note names each change.

use super::choose::Base;
use super::merge::Merged;
use super::report::Report;
use super::sources::Sources;
use crate::config::Config;
use crate::config::give_way::give_way;
use crate::config::length::shorten;
use crate::config::set_keys::SetKeys;
use crate::config::spelling::spell;

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
            report.notes.extend(config.take_fine_tuning_rate(&set));
        }
    }
    Adjusted { config, base, set, report }
}

/// Lets `train.steps` and `train.epochs` on the command line replace each other, and sets the warm-up that a ratio means.
fn choose_length(config: &mut Config, report: &mut Report) {
    let on_command_line = |key: &str| report.origins.get(key).filter(|origin| origin.line == usize::MAX).cloned();
    let split = ["data.split", "data.valid"].map(on_command_line);
    match ["train.steps", "train.epochs"].map(on_command_line) {
        [Some(steps), Some(_)] if config.train.epochs > 0.0 => {
            report.problem(Some(&steps), "train.steps is set next to train.epochs; name one of the two".into());
        }
        [Some(_), None] => config.train.epochs = 0.0,
        _ => {}
    }
    match split {
        [Some(_), None] => config.data.valid.clear(),
        [None, Some(_)] => config.data.split = 0.0,
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
}
