//! Changes single keys of the configuration of a run that exists.

use super::merge::read_over;
use super::read::read_assignments;
use super::report::ConfigError;
use crate::config::Config;

impl Config {
    /// Returns the configuration with the keys that `set` names changed, each as `key=value`. Settings that an imported model brought
    /// are not judged again.
    ///
    /// # Errors
    /// If a key or value is wrong, or makes another setting wrong; the error lists all mistakes.
    pub fn with_keys(&self, set: &[String]) -> Result<Self, ConfigError> {
        let given = read_assignments(set);
        let mut report = given.report;
        let config = read_over(self, &given.values, &mut report);
        let before = self.validate();
        for problem in config.iter().flat_map(Self::validate).filter(|problem| !before.contains(problem)) {
            report.problem_of_its_key(problem);
        }
        match config {
            Some(config) if !report.has_problems() => Ok(config),
            _ => Err(report.into_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::presets;

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
