//! Compiles and chooses the kernels of a training step, so that later runs on this machine need not, or on others.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use burn::tensor::{Device, FloatDType};
use kiln_kernels::compilation::{AheadError, KernelCount, kernel_count};
use kiln_train::config::Capture;
use kiln_train::eval::{Init, Model};

use super::measure::{Stepper, Warmth, mean_loss};
use super::workload::Workload;

/// What a later run finds in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warmed {
    /// Kernels and choices of this workload that the process did not have before.
    pub kernels: KernelCount,
    /// Time from the initialization of the weights to the last step.
    pub elapsed: Duration,
    /// Why the kernels were compiled one after another, if they were.
    pub one_by_one: Option<AheadError>,
}

/// Compiles the kernels of `workload`, with the model that `init` makes, on all cores. Then takes the steps in which the backend chooses between kernels, and in
/// which a step is recorded. `show` gets the number of kernels that are done and of all.
///
/// # Errors
/// If the device fails, or if the loss is not finite.
pub fn warm<M: Model>(
    workload: &Workload,
    init: &Init<'_, M>,
    dtype: FloatDType,
    device: &Device,
    show: impl FnMut(usize, usize),
) -> Result<Warmed> {
    let started = Instant::now();
    let before = kernel_count().unwrap_or_default();
    let _installed = workload.install();
    let mut stepper = Stepper::new(workload.state(init, dtype, device)?, workload.batches(device), Capture::On);
    let Warmth { one_by_one, .. } = stepper.warm_up(show)?;

    // Two micro-batches are accumulated in f32, which other kernels do.
    mean_loss(stepper.step(2.min(stepper.batches.len())))?;
    let Stepper { state, batches, .. } = &stepper;
    let validated = state.model.valid().loss(&batches[0], state.label_smoothing, None);
    let loss: f32 = (validated.loss_sum / validated.n_labels).try_into_scalar().context("reading the loss")?;
    ensure!(loss.is_finite(), "{}: the loss is {loss}", workload.title);
    let kernels = kernel_count().unwrap_or_default().since(before);
    Ok(Warmed { kernels, elapsed: started.elapsed(), one_by_one })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_model_is_warmed_without_kernels_on_the_cpu() {
        let workload = Workload::named("tiny").expect("a listed name");
        let warmed = warm(&workload, &Init::transformer(), FloatDType::F32, &Device::flex(), |_, _| {
            panic!("the CPU compiles nothing")
        });
        assert_eq!(warmed.expect("it runs").kernels, KernelCount::default());
    }
}
