//! Conversations to ids, through the chat template of a model.
//!
//! A template is a Jinja program that writes a conversation as one text. The environment is the one of `transformers`:
//! `trim_blocks`, `lstrip_blocks`, loop controls, `tojson`, `raise_exception`, `strftime_now`, `{% generation %}`, and
//! Python's string methods.

mod apart;
mod encode;
mod python;
mod read;
mod template;

pub use encode::SpecialEncoder;
pub(crate) use encode::{ChatEncoder, Encoded, FLAG};
pub use read::{chat_template_next_to, read_chat_template};
pub use template::{ChatTemplate, TemplateError};

#[cfg(test)]
mod tests;
