//! Compares steps that are replayed as CUDA graphs with eager steps: bit for bit, and in speed.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use burn::tensor::{Device, FloatDType, Tensor, Transaction};
use kiln_train::config::Capture;
use kiln_train::device::reserved_bytes;
use kiln_train::eval::{Init, Model};
use kiln_train::metrics::deferred::Measures;
use kiln_train::optim::flat::FlatState;

use super::measure::{Effort, StepPace, Stepper};
use super::workload::Workload;

/// The result of a comparison that found no difference.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// Compared steps; every fourth has two micro-batches. After the last one, all weights and optimizer state were compared too.
    pub steps: usize,
    /// The pace of eager steps.
    pub eager: Pace,
    /// The pace of replayed steps.
    pub replayed: Pace,
}

/// The speed and memory of one way of training.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// The median over repeats of the mean step.
    pub step: Duration,
    /// Its host time: the median over single steps that begin with an empty queue.
    pub enqueue: Duration,
    /// Device memory that it reserved.
    pub added_bytes: Option<u64>,
}

/// Compares `steps` steps and times both ways.
///
/// # Errors
/// If anything differs, if nothing could be recorded (with the reason), or if the device fails.
pub fn compare<M: Model>(
    workload: &Workload,
    init: &Init<'_, M>,
    dtype: FloatDType,
    device: &Device,
    effort: Effort,
    steps: usize,
) -> Result<Comparison> {
    let eager = train(workload, init, dtype, device, effort, steps, Capture::Off);
    let replayed = train(workload, init, dtype, device, effort, steps, Capture::On);

    let ((wanted, eager, _), (found, replayed, obstacle)) = (eager?, replayed?);
    if let Err(obstacle) = obstacle {
        bail!("nothing was replayed: {obstacle}");
    }

    for (step, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
        let differing = found.iter().zip(wanted).filter(|(found, wanted)| found.to_bits() != wanted.to_bits()).count();
        let what = if step < steps { format!("step {}", step + 1) } else { "weights and optimizer state".to_string() };
        let first = |values: &[f32]| values.iter().take(4).copied().collect::<Vec<_>>();
        ensure!(
            differing == 0 && found.len() == wanted.len(),
            "{what}: {differing} of {} numbers differ between replayed and eager steps: {:?}... instead of {:?}...",
            wanted.len(),
            first(found),
            first(wanted)
        );
    }
    Ok(Comparison { steps, eager, replayed })
}

/// The numbers of each step, then of weights and optimizer state; the pace of the steps after that; and why nothing was replayed.
type Trained = (Vec<Vec<f32>>, Pace, Result<(), String>);

/// Trains one way.
fn train<M: Model>(
    workload: &Workload,
    init: &Init<'_, M>,
    dtype: FloatDType,
    device: &Device,
    effort: Effort,
    steps: usize,
    mode: Capture,
) -> Result<Trained> {
    let before = reserved_bytes(device);
    let _installed = workload.install();
    let mut stepper = Stepper::new(workload.state(init, dtype, device)?, workload.batches(device), mode);
    let mut numbers = Vec::new();
    for n in 0..steps {
        // Every fourth step has two micro-batches.
        let n_batches = if n % 4 == 3 { 2 } else { 1 };
        let Measures { loss_sum, nll_sum, target_tokens, numbers: of_step, .. } = stepper.step(n_batches);
        numbers.push(read(vec![loss_sum, nll_sum, target_tokens, of_step])?);
    }
    let FlatState { master, named, .. } = stepper.state.optimizer.state();
    numbers.push(read([master].into_iter().chain(named.iter().flatten()).cloned().collect())?);

    let StepPace { step, enqueue, .. } = stepper.pace(effort)?;
    let added_bytes = before.zip(reserved_bytes(device)).map(|(before, after)| after.saturating_sub(before));
    Ok((numbers, Pace { step, enqueue, added_bytes }, stepper.replayed()))
}

/// Reads numbers from the device (host sync).
fn read(tensors: Vec<Tensor<1>>) -> Result<Vec<f32>> {
    let read = tensors.into_iter().fold(Transaction::default(), Transaction::register).try_execute();
    let data = read.context("reading the numbers of a step")?;
    Ok(data.into_iter().flat_map(|data| data.try_into_vec::<f32>().expect("f32")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replayed_steps_equal_eager_steps_on_devices_with_graphs() {
        let workload = Workload::named("tiny").expect("a listed name");
        let effort = Effort::new(2, 1);
        let device = kiln_train::device::DeviceChoice::Auto.open().expect("at least the CPU");
        let compared = compare(&workload, &Init::transformer(), FloatDType::F32, &device, effort, 12);
        if kiln_train::device::is_cpu(&device) {
            let error = compared.expect_err("the CPU has no graphs").to_string();
            assert!(error.contains("nothing was replayed") && error.contains("CPU"), "{error}");
        } else {
            assert_eq!(compared.expect("the same bit for bit").steps, 12);
        }
    }
}
