//! The steps of `train.profile_at`: one number, or a list.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde::{Serialize, Serializer};

use super::TrainConfig;

/// The steps of a run that are profiled, in ascending order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProfileSteps(Vec<u64>);

impl ProfileSteps {
    /// Returns the steps.
    pub fn steps(&self) -> &[u64] {
        &self.0
    }
}

impl<const N: usize> From<[u64; N]> for ProfileSteps {
    /// 0 stands for no step.
    fn from(steps: [u64; N]) -> Self {
        steps.into_iter().collect()
    }
}

impl FromIterator<u64> for ProfileSteps {
    fn from_iter<I: IntoIterator<Item = u64>>(steps: I) -> Self {
        let mut steps: Vec<u64> = steps.into_iter().filter(|step| *step > 0).collect();
        steps.sort_unstable();
        steps.dedup();
        Self(steps)
    }
}

impl Serialize for ProfileSteps {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ProfileSteps {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMany;

        impl<'de> Visitor<'de> for OneOrMany {
            type Value = ProfileSteps;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a step such as 500, or steps such as [500, 5000]")
            }

            fn visit_i64<E: Error>(self, step: i64) -> Result<ProfileSteps, E> {
                let wanted = || E::invalid_value(serde::de::Unexpected::Signed(step), &self);
                u64::try_from(step).map(|step| [step].into()).map_err(|_| wanted())
            }

            fn visit_u64<E: Error>(self, step: u64) -> Result<ProfileSteps, E> {
                Ok([step].into())
            }

            fn visit_f64<E: Error>(self, step: f64) -> Result<ProfileSteps, E> {
                match (0.0..1e15).contains(&step) && step.fract() == 0.0 {
                    true => Ok([step as u64].into()),
                    false => Err(E::invalid_value(serde::de::Unexpected::Float(step), &self)),
                }
            }

            /// Text of the command line: `--set train.profile_at=500,5000`.
            fn visit_str<E: Error>(self, text: &str) -> Result<ProfileSteps, E> {
                let step = text.trim().parse::<u64>();
                step.map(|step| [step].into()).map_err(|_| E::invalid_value(serde::de::Unexpected::Str(text), &self))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<ProfileSteps, A::Error> {
                let mut steps = Vec::new();
                while let Some(ProfileSteps(more)) = seq.next_element()? {
                    steps.extend(more);
                }
                Ok(steps.into_iter().collect())
            }
        }

        deserializer.deserialize_any(OneOrMany)
    }
}

/// Returns what is wrong with `train.profile_at`. How many steps `train.epochs` are is known with the data only.
pub(super) fn problem(train: &TrainConfig) -> Option<String> {
    let beyond = *train.profile_at.steps().last().filter(|step| **step > train.steps && train.epochs == 0.0)?;
    Some(format!(
        "train.profile_at {beyond} is above train.steps {}, so the run would end before it; name a step of the run, or set \
         train.profile_at=0",
        train.steps
    ))
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Sources, presets, resolve};

    #[test]
    fn steps_are_read_as_a_number_or_a_list_and_written_as_a_list() {
        let read = |text: &str| Config::from_toml(&format!("[train]\nprofile_at = {text}"));
        for (text, wanted) in [
            ("500", &[500][..]),
            ("[9, 3, 9, 0]", &[3, 9]),
            ("0", &[]),
            ("[]", &[]),
            ("1e3", &[1000]),
            ("[\"4\", 2]", &[2, 4]),
        ] {
            let config = read(text).expect(text);
            assert_eq!(config.train.profile_at.steps(), wanted, "{text}");
            assert_eq!(Config::from_toml(&config.to_toml()).expect("as written"), config);
        }
        for text in ["-1", "0.5", "\"soon\"", "true", "[[\"x\"]]", "[-4]"] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains("a step such as 500, or steps such as [500, 5000]"), "{text}: {error}");
        }
        assert!(Config::default().to_toml().contains("profile_at = []"));
    }

    #[test]
    fn steps_of_the_command_line_need_no_brackets() {
        for set in ["train.profile_at=20,40", "train.profile_at=[40, 20]", "train.profile_at=40, 20"] {
            let sources = Sources { set: vec![set.into()], preset: Some("numbers".into()), ..Sources::default() };
            let config = resolve(&sources).expect(set).config;
            assert_eq!(config.train.profile_at.steps(), [20, 40], "{set}");
        }
    }

    #[test]
    fn a_step_behind_the_last_one_is_refused_unless_epochs_count() {
        let mut config = presets::numbers();
        config.train.profile_at = [1, config.train.steps].into();
        assert_eq!(config.validate(), Vec::<String>::new());
        config.train.profile_at = [1, config.train.steps + 1].into();
        let problems = config.validate();
        assert!(problems.len() == 1 && problems[0].starts_with("train.profile_at "), "{problems:?}");
        config.train.epochs = 2.0;
        assert_eq!(config.validate(), Vec::<String>::new());
        let refused = Config::preset("numbers").set("train.profile_at", 1_000_000).validate();
        assert!(refused.expect_err("too late").to_string().contains("train.profile_at=0"));
    }
}
