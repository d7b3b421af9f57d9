//! Parquet and Arrow in a build that does not read them.

use std::path::Path;

use super::{Format, Records, Wanted};
use crate::error::{Error, Result};

/// Parquet tables.
pub(super) struct Parquet;
/// Arrow tables.
pub(super) struct Arrow;

impl Format for Parquet {
    fn name(&self) -> &'static str {
        "parquet"
    }

    fn endings(&self) -> &'static [&'static str] {
        &["parquet"]
    }

    fn is_binary(&self) -> bool {
        true
    }

    fn open(&self, path: &Path, _: &Wanted) -> Result<Box<dyn Records>> {
        Err(missing(path))
    }
}

impl Format for Arrow {
    fn name(&self) -> &'static str {
        "arrow"
    }

    fn endings(&self) -> &'static [&'static str] {
        &["arrow", "feather"]
    }

    fn is_binary(&self) -> bool {
        true
    }

    fn open(&self, path: &Path, _: &Wanted) -> Result<Box<dyn Records>> {
        Err(missing(path))
    }
}

fn missing(path: &Path) -> Error {
    Error::corpus(path, "this build does not read Parquet and Arrow: build with --features arrow")
}
