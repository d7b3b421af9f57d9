//! Data of a program's own, in place of the files of the configuration.

use std::fmt;
use std::sync::Arc;

use anyhow::Result;

use super::RunData;
use crate::config::Config;

/// Returns the data of a run, given its configuration.
type Make = dyn Fn(&Config) -> Result<RunData> + Send + Sync;

/// Makes the data of a program's own.
#[derive(Clone)]
pub struct OwnData(Arc<Make>);

impl OwnData {
    /// Takes the data from `make`, which gets the configuration of the run.
    pub fn new(make: impl Fn(&Config) -> Result<RunData> + Send + Sync + 'static) -> Self {
        Self(Arc::new(make))
    }

    /// Returns the data.
    ///
    /// # Errors
    /// If the program cannot make them.
    pub fn make(&self, config: &Config) -> Result<RunData> {
        (self.0)(config)
    }
}

impl fmt::Debug for OwnData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnData").finish_non_exhaustive()
    }
}
