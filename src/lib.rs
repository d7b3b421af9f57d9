//! Kiln trains Transformers in pure Rust on Burn, on a CPU or an NVIDIA GPU.
//!
//! [`Config`] and [`Run`] are the library's main interface: configure a run, train it, resume it, and use its checkpoints.
//! [`Model`] lets the trainer train a model of your own.
//!
//! ```no_run
//! use kiln::{Config, Run};
//!
//! let config = Config::preset("tiny").set("train.steps", 500).validate()?;
//! let outcome = Run::create("runs/a", config)?.train()?;
//! println!("step {}: {:?}", outcome.step, outcome.validation);
//!
//! let run = Run::open("runs/a")?;
//! println!("{}", run.translate(&["1074"])?[0]);
//! # Ok::<(), anyhow::Error>(())
//! ```
//!
//! The types of the public API are in [`config`], [`run`], [`train`] (the outcome and the trainer), [`eval`] (scores),
//! [`generate`] (continuations), [`metrics`] and [`device`]. The other modules are hidden here: the binary, the benches and the
//! tests use them, and they may change with every version.
//!
//! # The map
//!
//! By layer, lowest first. A module imports only from lower layers:
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `files` writing files safely · `units` numbers for people |
//! | 1 | [`config`] the settings of a run · [`metrics`] the measurements of a run |
//! | 2 | [`device`] CPU and GPUs, dtypes, uploads · `optim` optimizers and schedules · `logging` console, JSON lines, TensorBoard |
//! | 3 | `dataset` vocabulary, corpora and caches · [`generate`] greedy and beam search, sampling, masks · `checkpoint` saving and loading, atomically |
//! | 4 | [`eval`] the interface of a model; loss, masked-token accuracy, BLEU, chrF |
//! | 5 | [`train`] the loop, its steps and its state |
//! | 6 | [`run`] the life of a run: folder, lock, start, resume |
//! | 7 | `diagnose` speed and precision, compared with PyTorch and f32 |
//! | 8 | `report` pages and pictures of runs |
//! | 9 | `cli` one file per subcommand |
//!
//! The crates below: `kiln-data` (text -> host batches, without Burn), `kiln-model` (the Transformers) and
//! `kiln-kernels` (their operators). Data flows one way:
//!
//! ```text
//! text -> Example -> token ids -> cache -> HostBatch      kiln-data
//!                            HostBatch -upload-> Batch    device
//!                  Batch -Transformer-> hidden -> loss    kiln-model
//!   loss -> gradients -> accumulate -> clip -> optimizer  train, optim
//! ```
//!
//! # Invariants
//!
//! 1. The training step never reads a tensor; [`metrics::deferred`] is drained every `train.log_every` steps. The drain,
//!    validation and saving are the loop's only host syncs.
//! 2. Data order is a pure function of seed, epoch and position, whatever the number of workers.
//! 3. The learning rate is a pure function of the optimizer step.
//! 4. A loss is a sum over labels (non-padding targets, next tokens, masked tokens), divided once by their number over all
//!    micro-batches. The device counts the labels.
//! 5. Throughput is effective (non-padding) tokens per second, always reported with the padding ratio.
//! 6. A checkpoint is complete or invisible, and a resumed run continues bit for bit on the CPU.
//! 7. Errors name bad input: where it is, what was found, and what to do. Nothing is silently truncated or dropped.

// The interface.
pub mod config;
pub mod device;
pub mod eval;
pub mod generate;
pub mod metrics;
pub mod run;
pub mod train;

// What the binary, the benches, the fuzz targets and the tests need, too.
#[doc(hidden)]
pub mod checkpoint;
#[doc(hidden)]
pub mod cli;
#[doc(hidden)]
pub mod dataset;
#[doc(hidden)]
pub mod diagnose;
mod files;
#[doc(hidden)]
pub mod logging;
#[doc(hidden)]
pub mod optim;
#[doc(hidden)]
pub mod report;
mod units;

pub use config::Config;
pub use eval::Model;
#[doc(hidden)]
pub use kiln_interchange::{gguf, hugging_face};
#[doc(hidden)]
pub use kiln_ranks as distributed;
pub use run::Run;

/// Compiles the Rust code of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
