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
    config.take_warmup_ratio();
}
