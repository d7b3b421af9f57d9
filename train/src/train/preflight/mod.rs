//! Before the first step: compile the kernels, fit the largest batch into memory, check that steps are repeatable, and run
//! every shape once.
//!
//! Nothing here changes a weight, a counter or a random stream, so the run is the same with and without it.

mod ahead;
mod deterministic;
mod fit;
mod probe;
mod warm_up;

pub use ahead::compile_step;
#[cfg(test)]
pub(super) use warm_up::warm_up;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use burn::tensor::Device;
use kiln_data::BatchSource;
use kiln_kernels::{is_cpu, is_cuda};
use kiln_metrics::logging::{Activity, Logging};
use kiln_model::ActivationCheckpointing;
use kiln_ranks::{Phase, Ranks};

use self::fit::{Footprint, Freedom, fit};
use super::state::TrainState;
use crate::config::{Checkpointing, TrainConfig};
use crate::eval::Model;

/// What a preflight runs on.
pub(super) struct Preflight<'a> {
    pub(super) device: &'a Device,
    pub(super) train: &'a Arc<dyn BatchSource>,
    pub(super) valid: Option<&'a Arc<dyn BatchSource>>,
    /// The activations that the first attempt keeps.
    pub(super) checkpointing: ActivationCheckpointing,
    /// Whether `train.split_batches` may be raised until the largest batch fits into memory.
    pub(super) auto_micro_batch: bool,
    /// The processes that train together.
    pub(super) ranks: &'a Ranks,
}

impl Preflight<'_> {
    /// Returns the state to train with, made by `begin`. May raise `config.split_batches`.
    ///
    /// # Errors
    /// If the largest batch does not fit, if a deterministic run is not repeatable, or if the device fails.
    pub(super) fn run<M: Model>(
        &self,
        config: &mut TrainConfig,
        begin: impl Fn(ActivationCheckpointing) -> Result<TrainState<M>>,
        logging: &mut Logging,
    ) -> Result<TrainState<M>> {
        let Self { device, train, valid, checkpointing, auto_micro_batch, ranks } = *self;
        ranks.enter(Phase::Compile);
        let started = Instant::now();
        let accum = config.grad_accum_steps;

        // A CPU does not report that memory runs out, so its plan has compared an estimate with the memory, and trying a
        // batch would only delay the first step. Deterministic runs are tried on a CPU, too: they have to repeat.
        if is_cpu(device) && !auto_micro_batch && !config.deterministic {
            return begin(checkpointing);
        }
        let sources = [Some(train), valid];
        let first = begin(checkpointing)?;
        if is_cuda(device) {
            let counts = [accum, config.split_batches.max(1)];
            // Progress that cannot be shown does not stop a run; the next line that is logged fails, too.
            let show = |done, of| match of {
                0 => (),
                _ => drop(logging.preparing("compiling kernels", done, of)),
            };
            let compile = || Ok(ahead::compile_kernels(&first, sources, counts, config.warm_up, show));
            let compiled = ranks.first_then_others("compiling kernels", compile)?;
            compiled.map_or(Ok(()), |note| logging.note(&note))?;
        }
        let first = Cell::new(Some(first));
        let begin = |checkpointing| first.take().map_or_else(|| begin(checkpointing), Ok);

        logging.begin(Activity::Work("trying the largest batch"))?;
        let limit = config.memory_limit.clone();
        let attempt = |state: &_, splits| probe::try_within(limit.as_ref(), state, train, valid, [accum, splits]);
        let note = |note: &str| logging.note(note);
        let whole = Footprint { splits: config.split_batches, checkpointing };
        let is_auto = config.activation_checkpointing == Checkpointing::Auto;
        let freedom = Freedom { splits: auto_micro_batch, checkpointing: is_auto && M::HAS_CHECKPOINTING };
        let (state, Footprint { splits, .. }) = fit(device, whole, freedom, begin, attempt, note)?;
        // The same everywhere: the numbers of micro-batches depend on it.
        let splits = ranks.share("agreeing on train.split_batches", splits)?.into_iter().max().unwrap_or(splits);
        config.split_batches = splits;

        if config.deterministic {
            logging.note(&deterministic::ensure_repeatable(&state, train, splits)?)?;
        }

        // The CPU compiles nothing, and without kernels of Kiln's the shapes share their kernels.
        if config.warm_up && is_cuda(device) {
            let show = |done, of| logging.preparing("warming up", done, of);
            let warm_up = || warm_up::warm_up(&state, sources, [accum, splits], started, show);
            let warmed = ranks.first_then_others("compiling kernels", warm_up)?;
            logging.note(&warmed.to_string())?;
        }
        Ok(state)
    }
}
