//! Sizes in bytes, as users write them.

use std::fmt;
use std::num::NonZeroUsize;

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
/// A larger `train.exchange_mib` is a number of bytes.
const LARGEST_PIECE_MIB: usize = 1 << 20;

impl TrainConfig {
    /// Returns the bytes of the pieces in which gradients and weights travel between devices; `None` if they are not set.
    pub(crate) fn piece_bytes(&self) -> Option<NonZeroUsize> {
        NonZeroUsize::new(self.exchange_mib.saturating_mul(1 << 20))
    }

    /// Returns the bytes of `train.memory_limit`, if it is set.
    pub(crate) fn limit_bytes(&self) -> Option<u64> {
        self.memory_limit.as_ref().map(ByteSize::bytes)
    }
}

/// Returns what is wrong with `train.memory_limit` and `train.exchange_mib`.
pub(super) fn problems(train: &TrainConfig) -> Vec<String> {
    let limit = train.memory_limit.as_ref().filter(|limit| limit.bytes() < LEAST_LIMIT).map(|limit| {
        format!(
            "train.memory_limit {limit} is {} bytes, in which no model trains; write the unit, for example \"24GiB\"",
            limit.bytes()
        )
    });
    let piece = (train.exchange_mib > LARGEST_PIECE_MIB).then(|| {
        format!(
            "train.exchange_mib {} is in MiB and above {LARGEST_PIECE_MIB}; 24 is usual, 0 lets Kiln choose",
            train.exchange_mib
        )
    });
    limit.into_iter().chain(piece).collect()
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

    #[test]
    fn pieces_are_counted_in_mib() {
        let mut config = presets::numbers();
        assert_eq!(config.train.piece_bytes(), None);
        config.train.exchange_mib = 3;
        assert_eq!(config.train.piece_bytes(), NonZeroUsize::new(3 << 20));
        config.train.exchange_mib = usize::MAX;
        assert!(config.validate()[0].starts_with("train.exchange_mib "), "{:?}", config.validate());
    }
}
