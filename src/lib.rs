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
//! This crate is the command and the door: `cli` has one file per subcommand, and everything else comes from the crates below.
//! The modules that this page names belong to `kiln-train`.
//!
//! | crate | folder | holds |
//! |---|---|---|
//! | `kiln-lab` | `lab/` | `diagnose`: speed and precision · `report`: pages and pictures of runs |
//! | `kiln-train` | `train/` | configuration, data sets, optimizers, loop, checkpoints, runs |
//! | `kiln-metrics` | `metrics/` | the measurements of a run, and where they go |
//! | `kiln-ranks` | `ranks/` | several processes: who they are, their link, their launcher |
//! | `kiln-interchange` | `interchange/` | folders of `transformers`, files of llama.cpp |
//! | `kiln-model`, `kiln-kernels` | `model/` | the Transformers and their operators |
//! | `kiln-data` | `data/` | text to host batches, without Burn |
//!
//! Data flows one way:
//!
//! ```text
//! text -> Example -> token ids -> cache -> HostBatch      kiln-data
//!                            HostBatch -upload-> Batch    kiln-train, device
//!                  Batch -Transformer-> hidden -> loss    kiln-model
//!   loss -> gradients -> accumulate -> clip -> optimizer  kiln-train, train and optim
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

// What the binary and the tests need, too.
#[doc(hidden)]
pub mod cli;

// The interface.
#[doc(inline)]
#[cfg(feature = "burn-traits")]
pub use kiln_train::burn_traits;
#[doc(inline)]
pub use kiln_train::{Config, Model, Run, config, device, eval, generate, metrics, run, train};
// What the benches, the fuzz targets and the tests need, too.
#[doc(hidden)]
pub use kiln_interchange::{gguf, hugging_face};
#[doc(hidden)]
pub use kiln_lab::{diagnose, report};
#[doc(hidden)]
pub use kiln_metrics::logging;
#[doc(hidden)]
pub use kiln_ranks as distributed;
#[doc(hidden)]
pub use kiln_train::{checkpoint, dataset, optim};

/// Compiles the Rust code of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
