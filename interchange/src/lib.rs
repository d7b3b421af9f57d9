//! Files of other programs: folders of `transformers` and `peft`, checkpoints of PyTorch, GGUF.
//!
//! The trainer and the command line use this crate. Its interface may change with every version.
//!
//! # The map
//!
//! By layer, lowest first; a module imports only from layers below it:
//!
//! | layer | modules |
//! |---|---|
//! | 0 | [`tensor_file`] files of tensors, written one by one |
//! | 1 | [`hugging_face`] folders of `transformers` and `peft` · [`gguf`] files of llama.cpp |

pub mod gguf;
pub mod hugging_face;
pub mod tensor_file;
