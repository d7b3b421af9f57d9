//! Environment variables as numbers, ports and text, with errors that name them.

use super::{Launcher, WorldError};

/// More processes than any cluster starts, so that a typing error is found.
const MAX_SIZE: usize = 65_536;

/// Ports below those that Linux gives to outgoing connections.
const PORTS: std::ops::Range<u16> = 12_000..32_000;

/// Reads variables through the caller's function. An empty variable counts as unset.
pub(super) struct Reader<'a> {
    var: &'a dyn Fn(&str) -> Option<String>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(var: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self { var }
    }

    pub(super) fn text(&self, name: &str) -> Option<String> {
        (self.var)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    /// Returns a number, if the variable is set.
    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, WorldError> {
        self.text(name).map(|value| value.parse().map_err(|_| bad(name, &value, "a number"))).transpose()
    }

    /// Returns a port, if the variable is set.
    pub(super) fn port(&self, name: &str) -> Result<Option<u16>, WorldError> {
        let port = |value: String| match value.parse() {
            Ok(0) | Err(_) => Err(bad(name, &value, "a port, 1 to 65535")),
            Ok(port) => Ok(port),
        };
        self.text(name).map(port).transpose()
    }

    /// Returns a variable that a launcher must set, because it has set `found`.
    pub(super) fn wanted(
        &self,
        name: &str,
        launcher: Launcher,
        found: &str,
        remedy: &'static str,
    ) -> Result<String, WorldError> {
        self.text(name).ok_or_else(|| self.missing(name, launcher, found, remedy))
    }

    pub(super) fn missing(&self, name: &str, launcher: Launcher, found: &str, remedy: &'static str) -> WorldError {
        let found = format!("{found}={}", self.text(found).unwrap_or_default());
        WorldError::Missing { launcher, found, missing: name.to_owned(), remedy }
    }

    /// Parses a number of ranks.
    pub(super) fn size(&self, name: &str, value: String) -> Result<usize, WorldError> {
        let size = value.parse().ok().filter(|size| (1..=MAX_SIZE).contains(size));
        size.ok_or_else(|| bad(name, &value, &format!("a number of processes, 1 to {MAX_SIZE}")))
    }

    /// Parses a number below `end`, the value of the variable `of`.
    pub(super) fn below(&self, name: &str, value: String, end: usize, of: &str) -> Result<usize, WorldError> {
        let number = value.parse().ok().filter(|number| *number < end);
        number.ok_or_else(|| bad(name, &value, &format!("a number below {of} ({end})")))
    }
}

fn bad(name: &str, value: &str, wanted: &str) -> WorldError {
    WorldError::Value { variable: name.to_owned(), value: value.to_owned(), wanted: wanted.to_owned() }
}

/// Returns the port of a job: the same one for all its ranks, and usually another one for another job.
pub(super) fn port_of(job: &[u8]) -> u16 {
    let hash = blake3::hash(job);
    let [low, high, ..] = *hash.as_bytes();
    PORTS.start + u16::from_le_bytes([low, high]) % (PORTS.end - PORTS.start)
}
