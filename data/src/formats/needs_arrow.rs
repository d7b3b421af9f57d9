//! Parquet and Arrow in a build that does not read them.

use std::path::Path;

use super::{Records, Wanted};
use crate::error::{Error, Result};

pub(super) fn open(path: &Path, _: &Wanted) -> Result<Box<dyn Records>> {
    Err(Error::corpus(path, "this build does not read Parquet and Arrow: build with --features arrow"))
}
