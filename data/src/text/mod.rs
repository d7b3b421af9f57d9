//! Plain text for language models: documents packed into rows.

mod config;

pub use config::{Packing, Task, TextConfig, TextFormat};
