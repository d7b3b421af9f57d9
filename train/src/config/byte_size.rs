//! Sizes in bytes, as users write them.

use std::fmt;

use kiln_metrics::units::parse_size;
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::{Serialize, Serializer};

use super::TrainConfig;

/// A size in bytes, as the user wrote it (`50GB`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ByteSize {
    text: String,
    bytes: u64,
}

impl ByteSize {
    /// Reads `50GB`, `512MiB` or a number of bytes.
    ///
    /// # Errors
    /// A sentence that says what is expected.
    pub fn of(text: &str) -> Result<Self, String> {
        parse_size(text).map(|bytes| Self { text: text.into(), bytes })
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.text)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfText;

        impl Visitor<'_> for OfText {
            type Value = ByteSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"50GB\"")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<ByteSize, E> {
                ByteSize::of(text).map_err(E::custom)
            }

            fn visit_i64<E: Error>(self, bytes: i64) -> Result<ByteSize, E> {
                self.visit_str(&bytes.to_string())
            }

            fn visit_u64<E: Error>(self, bytes: u64) -> Result<ByteSize, E> {
                self.visit_str(&bytes.to_string())
            }
        }

        deserializer.deserialize_any(OfText)
    }
}

/// A smaller `train.memory_limit` is a number without its unit.
const LEAST_LIMIT: u64 = 1 << 20;

impl TrainConfig {
    /// Returns the bytes of `train.memory_limit`, if it is set.
    pub(crate) fn limit_bytes(&self) -> Option<u64> {
        self.memory_limit.as_ref().map(ByteSize::bytes)
    }
}

/// Returns what is wrong with `train.memory_limit`.
pub(super) fn problem(train: &TrainConfig) -> Option<String> {
    train.memory_limit.as_ref().filter(|limit| limit.bytes() < LEAST_LIMIT).map(|limit| {
        format!(
            "train.memory_limit {limit} is {} bytes, in which no model trains; write the unit, for example \"24GiB\"",
            limit.bytes()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, presets};

    #[test]
    fn a_limit_of_memory_is_kept_as_it_was_written_and_needs_its_unit() {
        let mut config = presets::numbers();
        assert!(!config.to_toml().contains("memory_limit") && config.train.limit_bytes().is_none());
        config.train.memory_limit = Some(ByteSize::of("24GiB").expect("a size"));
        assert_eq!((config.validate(), config.train.limit_bytes()), (Vec::new(), Some(24 << 30)));
        assert!(config.to_toml().contains("memory_limit = \"24GiB\""));
        assert_eq!(Config::from_toml(&config.to_toml()).expect("as written"), config);
        config.train.memory_limit = Some(ByteSize::of("24").expect("bytes"));
        let problems = config.validate();
        assert!(
            problems.len() == 1 && problems[0].starts_with("train.memory_limit \"24\" is 24 bytes"),
            "{problems:?}"
        );
        let error = Config::from_toml("[train]\nmemory_limit = \"all\"").expect_err("not a size").to_string();
        assert!(error.contains("24GiB"), "{error}");
    }
}
