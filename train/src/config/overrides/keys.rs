//! Changes single keys of the configuration of a run that exists.

use super::{ConfigError, Layers};
use crate::config::Config;

impl Layers {
    /// Lets `train.steps` and `train.epochs` on the command line replace each other, and sets the warm-up that a ratio means.
    pub(super) fn choose_length(&mut self, config: Option<&mut Config>) {
        let Some(config) = config else { return };
        let on_command_line = |key: &str| self.origins.get(key).filter(|origin| origin.line == usize::MAX).cloned();
        let split = ["data.split", "data.valid"].map(on_command_line);
        match ["train.steps", "train.epochs"].map(on_command_line) {
            [Some(steps), Some(_)] if config.train.epochs > 0.0 => {
                self.report(Some(&steps), "train.steps is set next to train.epochs; name one of the two".into());
            }
            [Some(_), None] => config.train.epochs = 0.0,
            _ => {}
        }
        match split {
            [Some(_), None] => config.data.valid.clear(),
            [None, Some(_)] => config.data.split = 0.0,
            _ => {}
        }
        self.choose_text(config);
        config.take_warmup_ratio();
    }
}

impl Layers {
    /// Lets training text that is given take the place of the text of the run to start from: files and a mixture replace each other.
    fn choose_text(&self, config: &mut Config) {
        let is_given = |key: &str| self.origins.contains_key(key);
        let data = &mut config.data;
        match ["data.train", "data.mix"].map(is_given) {
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
}

impl Config {
    /// Returns the configuration with the keys that `set` names changed, each as `key=value`. Settings that an imported model brought
    /// are not judged again.
    ///
    /// # Errors
    /// If a key or value is wrong, or makes another setting wrong; the error lists all mistakes.
    pub fn with_keys(&self, set: &[String]) -> Result<Self, ConfigError> {
        let mut layers = Layers::default();
        set.iter().for_each(|assignment| layers.add_assignment(assignment));
        let config = layers.read_over(self);
        let before = self.validate();
        for problem in config.iter().flat_map(Self::validate).filter(|problem| !before.contains(problem)) {
            let key = problem.split([' ', ':', '=', ',']).next().unwrap_or_default();
            let origin = layers.origins.get(key).cloned();
            layers.report(origin.as_ref(), problem);
        }
        match config {
            Some(config) if layers.problems.is_empty() => Ok(config),
            _ => Err(ConfigError { problems: layers.problems.into_iter().map(|(_, problem)| problem).collect() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::presets;

    #[test]
    fn files_and_a_mixture_of_another_run_replace_each_other() {
        let mut run = presets::tiny();
        run.data.train = vec!["a.tsv".into()];
        (run.data.valid, run.data.split) = (vec!["v.tsv".into()], 0.0);
        let mix = "data.mix=[{ name = \"b\", train = \"b.tsv\", valid = \"w.tsv\" }]".to_owned();
        let mut layers = Layers::default();
        layers.add_assignment(&mix);
        let mut mixed = layers.read_over(&run).expect("valid");
        layers.choose_length(Some(&mut mixed));
        assert!(
            mixed.data.train.is_empty() && mixed.data.valid.is_empty() && mixed.data.mix.len() == 1,
            "{:?}",
            mixed.data
        );
        assert_eq!(mixed.validate(), Vec::<String>::new());

        mixed.data.mix_temperature = Some(2.0);
        let mut layers = Layers::default();
        layers.add_assignment("data.train=c.tsv");
        let mut files = layers.read_over(&mixed).expect("valid");
        layers.choose_length(Some(&mut files));
        assert_eq!(
            (files.data.train, files.data.mix.len(), files.data.mix_temperature),
            (vec!["c.tsv".into()], 0, None)
        );
    }

    #[test]
    fn keys_of_a_run_change_and_its_own_oddities_stay() {
        let mut bare = presets::bert_small();
        bare.model.mlm_head = false;
        assert!(!bare.validate().is_empty(), "a bare encoder, as imported");
        let set = |keys: &[&str]| bare.with_keys(&keys.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(set(&["data.text.field=body"]).expect("valid").data.text.field, "body");
        let error = set(&["data.text.field=", "data.text.filed=x"]).expect_err("two mistakes").to_string();
        assert!(error.contains("2 problems") && error.contains("did you mean data.text.field?"), "{error}");
    }
}
