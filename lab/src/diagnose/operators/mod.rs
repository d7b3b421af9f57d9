//! Times each operator of a training step alone, at the sizes of a batch, and compares the time with the device's floor.
//!
//! Forward and backward of the batch say which operators they call ([`kiln_kernels::calls`]), so no list of them is kept and any
//! [`Model`] can be measured. The time of a forward pass or product is the time of one call. A backward pass is timed together with
//! its forward pass. The forward pass and the start of the gradient (a product with a random tensor and its own backward) are then
//! subtracted. Many calls are enqueued before the host waits for the device, so launches overlap with execution, as they do in a step.

mod alone;
mod attention;
mod baseline;
mod bench;
mod calls;
mod linear;
mod optimizer;
mod peaks;
mod rows;
mod timing;
mod work;

use anyhow::Result;
pub use baseline::{ComparedOperator, is_known, measure_compared};
use kiln_kernels::calls::Work;
use kiln_model::Batch;
use kiln_train::eval::Model;
use kiln_train::train::TrainState;
pub use peaks::measured_peaks;
pub use timing::Timed;
pub use work::{Peaks, rate};

use self::alone::Alone;
use self::bench::Bench;
pub use self::calls::Calls;

/// One line of the table.
#[derive(Debug, Clone, PartialEq)]
pub struct OperatorTime {
    /// The operator and the pass, as the call records itself, and what is computed with it.
    pub name: String,
    /// Its sizes.
    pub shape: String,
    /// Calls per step.
    pub calls: usize,
    /// The time of one call.
    pub time: Timed,
    /// The least work that a call can do.
    pub work: Work,
}

impl OperatorTime {
    /// Seconds per step.
    pub fn of_step(&self) -> f64 {
        self.calls as f64 * self.time.device
    }
}

/// The operators of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Operators {
    /// Those that were timed.
    pub timed: Vec<OperatorTime>,
    /// Calls that this module cannot make alone.
    pub others: Vec<Calls>,
}

/// Times the operators that a step of `state` on `batch` calls, `repeats` times each.
///
/// Calls say their sizes. What they do not say, such as the probability of dropout, is taken from the shape of the state.
///
/// # Errors
/// If the device fails.
pub fn measure<M: Model>(mut state: TrainState<M>, batch: &Batch, repeats: usize) -> Result<Operators> {
    let recorded = Calls::of_step(&state, batch)?;
    let bench = Bench::new(state.dtype, &state.device, repeats);
    let alone = Alone::new(&bench, &state, batch, &recorded);

    let (mut timed, mut others) = (Vec::new(), Vec::new());
    // The gradients are gathered below, by the optimizer's table.
    for calls in recorded.iter().filter(|calls| calls.operator != "flat gradients") {
        match alone.time(calls)? {
            Some(time) => {
                let (name, shape) = (alone.name(calls), calls.shape());
                timed.push(OperatorTime { name, shape, calls: calls.calls, time, work: calls.work });
            }
            None => others.push(calls.clone()),
        }
    }
    timed.extend(bench.optimizer(&mut state.optimizer)?);
    Ok(Operators { timed, others })
}
