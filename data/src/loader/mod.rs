//! Batches in a fixed order from a pool of worker threads.

mod config;

pub use config::LoaderConfig;
