//! A configuration from Rust: a preset, a file and single keys, as the command line has them.

use std::fmt::Display;
use std::path::PathBuf;

use super::{Config, ConfigError, Sources, load};

/// Collects settings. [`Self::validate`] reports everything that is wrong with them at once.
#[derive(Debug, Clone, Default)]
pub struct ConfigBuilder {
    sources: Sources,
}

impl Config {
    /// Starts from the preset called `name`, for example `tiny`; [`Preset`](super::Preset) lists them.
    pub fn preset(name: &str) -> ConfigBuilder {
        ConfigBuilder { sources: Sources { preset: Some(name.to_owned()), ..Sources::default() } }
    }

    /// Starts from a TOML file, which may name its preset with `preset = "..."`.
    pub fn file(path: impl Into<PathBuf>) -> ConfigBuilder {
        ConfigBuilder { sources: Sources { file: Some(path.into()), ..Sources::default() } }
    }
}

impl ConfigBuilder {
    /// Sets a key, for example `set("optim.lr", 3e-4)` or `set("data.train", "en-it.train.jsonl")`. A later value wins.
    pub fn set(mut self, key: &str, value: impl Display) -> Self {
        self.sources.set.push(format!("{key}={value}"));
        self
    }

    /// Returns the complete configuration.
    ///
    /// # Errors
    /// If the preset or a key is not known, if a value is impossible, or if values contradict each other: all of it at
    /// once.
    pub fn validate(self) -> Result<Config, ConfigError> {
        load(&self.sources)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_set_on_top_of_a_preset() {
        let config = Config::preset("tiny").set("train.steps", 500).set("optim.lr", 3e-4).set("data.train", "a.jsonl");
        let config = config.validate().expect("valid");
        assert_eq!((config.train.steps, config.optim.lr), (500, 3e-4));
        assert_eq!(config.data.train, [PathBuf::from("a.jsonl")]);
    }

    #[test]
    fn every_mistake_is_reported_at_once() {
        let config = Config::preset("tiny").set("train.step", 200).set("optim.lr", -1);
        let error = config.validate().expect_err("two mistakes").to_string();
        assert!(error.contains("train.steps") && error.contains("optim.lr"), "{error}");
        assert!(Config::preset("tinny").validate().expect_err("a typo").to_string().contains("tiny"));
    }
}
