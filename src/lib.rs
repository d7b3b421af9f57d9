//! Kiln trains Transformers in pure Rust on Burn, on a CPU or an NVIDIA GPU.
//!
//! # The map
//!
//! By layer, lowest first; a module imports only from layers below it:
//!
//! | layer | modules |
//! |---|---|
//! | 0 | [`config`] what a run is · [`files`] writing them whole · [`metrics`] what a run measures · [`units`] numbers as people read them |
//! | 1 | [`device`] where it computes · [`optim`] AdamW and its schedules · [`logging`] where numbers go |
//! | 2 | [`dataset`] vocabulary, corpora and caches · [`generate`] greedy and beam search, sampling · [`checkpoint`] complete or invisible · [`hugging_face`] folders of `transformers` |
//! | 3 | [`eval`] loss, masked-token accuracy, BLEU, chrF |
//! | 4 | [`train`] state, step and loop |
//! | 5 | [`run`] the life of a run: folder, lock, start, resume |
//! | 6 | [`diagnose`] how fast it is, and compared with what |
//! | 7 | [`cli`] one file per subcommand |
//!
//! Below them all stand the crates `kiln-data` (text -> host batches, never sees Burn), `kiln-model` (the Transformer) and
//! `kiln-kernels` (its operators). Data flows one way:
//!
//! ```text
//! text -> Example -> token ids -> cache -> HostBatch      kiln-data
//!                            HostBatch -upload-> Batch    device
//!                  Batch -Transformer-> hidden -> loss    kiln-model
//!   loss -> gradients -> accumulate -> clip -> AdamW      train, optim
//! ```
//!
//! # Invariants
//!
//! 1. The training step never reads a tensor; [`metrics::deferred`] is drained every `train.log_every` steps. That drain,
//!    validation and saving are the loop's only host syncs.
//! 2. Data order is a pure function of seed, epoch and position, whatever the number of workers.
//! 3. The learning rate is a pure function of the optimizer step.
//! 4. A loss is a sum over labels (non-padding targets, next tokens, masked tokens), divided once by their count over all
//!    micro-batches; the device counts them.
//! 5. Throughput is effective (non-padding) tokens per second, always beside the padding ratio.
//! 6. A checkpoint is complete or invisible, and resuming continues bit for bit on the CPU.
//! 7. Bad input is named: where, what was found, what to do. Nothing is silently truncated or dropped.

pub mod checkpoint;
pub mod cli;
pub mod config;
pub mod dataset;
pub mod device;
pub mod diagnose;
pub mod eval;
pub mod files;
pub mod generate;
pub mod hugging_face;
pub mod logging;
pub mod metrics;
pub mod optim;
pub mod run;
pub mod train;
pub mod units;

pub use config::Config;
pub use eval::Model;
pub use run::Run;
