//! The life of a run: its folder and lock, the weights it starts from, resuming it, and using its checkpoints.

mod error;
pub mod folder;
mod lock;
mod trained_model;
mod weights;

pub use error::RunError;
pub(crate) use folder::write_config;
pub use lock::{LOCK_FILE, LockError, RunLock};
pub use trained_model::TrainedModel;
pub(crate) use weights::start_from;
pub use weights::write_run;
