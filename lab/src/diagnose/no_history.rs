//! Folders whose training cannot be looked at, with the reason.

use std::io;
use std::path::PathBuf;

use kiln_metrics::logging::METRICS_FILE;
use kiln_train::checkpoint::RUN_CONFIG_FILE;
use thiserror::Error;

/// A run without a history that can be read.
#[derive(Debug, Error)]
pub enum HistoryError {
    /// The path holds no run.
    #[error("{}: this folder holds no run (no {RUN_CONFIG_FILE}); name a run folder, kiln train makes runs/NAME", .0.display())]
    NoRun(PathBuf),
    /// The run never trained.
    #[error(
        "{}: this run has no {METRICS_FILE}, so it was never trained; imported and averaged models have none, see kiln evaluate",
        .0.display()
    )]
    NoMetrics(PathBuf),
    /// The run has not finished a step.
    #[error(
        "{}: no step has been logged yet; wait for the first line of metrics, or watch with kiln report --live",
        .0.display()
    )]
    NoSteps(PathBuf),
    /// The system refused to read the metrics.
    #[error("{}: cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}
