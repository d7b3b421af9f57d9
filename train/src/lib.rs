//! The trainer of Kiln: what a run is, its data, its steps, its checkpoints and its life.
//!
//! [`Config`] and [`Run`] are the main interface; [`Model`] lets the trainer train a model of your own. Programs use this
//! crate through the crate `kiln`, under the same names. The hidden modules serve the command line and the crate `kiln-lab`,
//! and may change with every version.
//!
//! # The map
//!
//! By layer, lowest first. A module imports only from lower layers:
//!
//! | layer | modules |
//! |---|---|
//! | 0 | [`config`] the settings of a run · [`metrics`] the measurements of a run |
//! | 1 | [`device`] CPU and GPUs, dtypes, uploads · `optim` optimizers and schedules |
//! | 2 | `dataset` vocabulary, corpora and caches · [`generate`] greedy and beam search, sampling, masks · `checkpoint` saving and loading, atomically · `burn_traits` optimizers, schedules and data as Burn's traits (feature `burn-traits`) |
//! | 3 | [`eval`] the interface of a model; loss, masked-token accuracy, BLEU, chrF |
//! | 4 | [`train`] the loop, its steps and its state |
//! | 5 | [`run`] the life of a run: folder, lock, start, resume |

// The interface.
#[cfg(feature = "burn-traits")]
pub mod burn_traits;
pub mod config;
pub mod device;
pub mod eval;
pub mod generate;
pub mod metrics;
pub mod run;
pub mod train;

// What the command line and `kiln-lab` need, too.
#[doc(hidden)]
pub mod checkpoint;
#[doc(hidden)]
pub mod dataset;
#[doc(hidden)]
pub mod optim;

pub use config::Config;
pub use eval::Model;
pub use run::Run;

/// Compiles the programs of the page, and runs the first.
#[cfg(all(doctest, feature = "burn-traits"))]
#[doc = include_str!("burn_traits/burn.md")]
struct AtHomeInBurn;
