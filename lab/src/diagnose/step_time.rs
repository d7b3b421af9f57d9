//! The time of a real training step: forward, backward, clipping and AdamW on batches that are already on the device. As in a
//! long run, steps are replayed as CUDA graphs.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use burn::tensor::{Device, FloatDType};
use kiln_kernels::Settings;
use kiln_model::flops::{TrainSetting, train_bytes};
use kiln_ranks::Ranks;
use kiln_train::config::Capture;
use kiln_train::metrics::deferred::Measures;
use kiln_train::train::{CapturedSteps, TrainState, compile_step};

use super::pace::{Effort, time};
use super::workload::{Workload, effective_tokens};

/// A measured step.
#[derive(Debug, Clone)]
pub struct StepTime {
    /// The median over repeats of the mean step; each repeat ends with a device sync.
    pub step: Duration,
    /// The mean step of the fastest and of the slowest repeat.
    pub spread: [Duration; 2],
    /// Host time of a step: the median over single steps that begin with an empty queue.
    pub enqueue: Duration,
    /// The time from the first kernel to the end of the warm-up, in which kernels are compiled and tuned, and the step is
    /// recorded.
    pub warm_up: Duration,
    /// Whether the timed steps were replayed as a CUDA graph; the reason if they were not.
    pub replayed: Result<(), String>,
    /// Non-padding tokens per second.
    pub tokens_per_sec: f64,
    /// Model FLOPs utilization from 0 to 1, if the device's peak is known.
    pub mfu: Option<f64>,
    /// Device memory reserved at the end. It is the peak, because the allocator returns nothing.
    pub reserved_bytes: Option<u64>,
    /// Bytes of it per position of a batch, without weights, gradients, master weights and moments. They are activations,
    /// workspaces and the allocator's rounding.
    pub activation_bytes_per_position: Option<f64>,
    /// Mean loss per label of the first and of the last step.
    pub losses: [f64; 2],
    /// Steps that were taken in all.
    pub n_steps: usize,
}

/// Times `workload` on `device`, together with the other `ranks`: each takes a batch of its own, and the figures are this
/// rank's.
///
/// # Errors
/// If the device or another rank fails, or if the loss did not fall: a kernel launch that fails is fast.
pub fn measure(
    workload: &Workload,
    dtype: FloatDType,
    device: &Device,
    effort: Effort,
    ranks: &Ranks,
) -> Result<StepTime> {
    let batches = workload.batches(device);
    let tokens = batches.iter().map(effective_tokens).sum::<u64>() as f64 / batches.len() as f64;
    workload.config.train.kernels.install();
    let _installed = workload.config.train.f32_products.within(Settings::current()).install();
    let checkpointing = workload.checkpointing();
    let state = TrainState::new(&workload.config, &workload.model, dtype, device)?.with_checkpointing(checkpointing)?;
    let mut state = state.join(ranks, &workload.config, None)?;
    let started = Instant::now();
    // Without it, the first steps compile their kernels themselves.
    let _ = compile_step(&state, &batches[0], |_, _| ());
    // As in a long run, but a shape is recorded early.
    let mut captured = CapturedSteps::new(Capture::On, device);
    let mut at = 0;
    let mut step = || -> Measures {
        at += 1;
        captured.step(&mut state, std::slice::from_ref(&batches[at % batches.len()]))
    };

    let first = mean_loss(step())?;
    for _ in 0..2 * batches.len() + 3 {
        step();
    }
    wait(device)?;
    let warm_up = started.elapsed();
    ranks.share("beginning to measure", ())?;

    let mut last = None;
    let StepPace { step: time, spread, enqueue } = pace(device, effort, || last = Some(step()))?;
    let last = mean_loss(last.context("no step was taken")?)?;
    ensure!(last < first, "the loss went from {first:.3} to {last:.3}: the steps that were timed did not train");

    let peak = kiln_train::device::peak_flops_per_sec(device, dtype);
    let reserved_bytes = kiln_train::device::reserved_bytes(device);
    let kept = train_bytes(&workload.model, device, workload.shape(), &TrainSetting::plain(dtype)).state() as f64;

    Ok(StepTime {
        step: time,
        spread,
        enqueue,
        warm_up,
        replayed: match captured.n_recorded() {
            0 => Err(captured.take_notes().join("; ")),
            _ => Ok(()),
        },
        tokens_per_sec: tokens / time.as_secs_f64(),
        mfu: peak.map(|peak| workload.flops() / time.as_secs_f64() / peak),
        reserved_bytes,
        activation_bytes_per_position: reserved_bytes
            .map(|bytes| (bytes as f64 - kept) / workload.n_positions() as f64),
        losses: [first, last],
        n_steps: at,
    })
}

/// [`StepTime::step`], [`StepTime::spread`] and [`StepTime::enqueue`].
pub(super) struct StepPace {
    pub(super) step: Duration,
    pub(super) spread: [Duration; 2],
    pub(super) enqueue: Duration,
}

/// Measures the times of `step`: of many in a row, and of single ones that begin with an empty queue.
pub(super) fn pace(device: &Device, effort: Effort, mut step: impl FnMut()) -> Result<StepPace> {
    let mut call = |_| {
        step();
        Ok(())
    };
    let many = time(device, effort, || Ok(()), &mut call)?;
    let single = time(device, Effort { steps: 1, ..effort }, || Ok(()), &mut call)?;
    Ok(StepPace {
        step: Duration::from_secs_f64(many.device.median()),
        spread: many.device.spread().map(Duration::from_secs_f64),
        enqueue: Duration::from_secs_f64(single.host.median()),
    })
}

/// Waits for the device (host sync).
fn wait(device: &Device) -> Result<()> {
    device.clone().inner().sync().context("waiting for the device")
}

/// Reads the mean loss of one step (host sync).
fn mean_loss(measures: Measures) -> Result<f64> {
    let loss: f32 = (measures.loss_sum / measures.target_tokens).try_into_scalar().context("reading the loss")?;
    ensure!(loss.is_finite(), "the loss is {loss}");
    Ok(f64::from(loss))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_model_is_timed_on_the_cpu() {
        let workload = Workload::named("tiny").expect("a listed name");
        let effort = Effort::new(3, 3);
        let time = measure(&workload, FloatDType::F32, &Device::flex(), effort, &Ranks::alone()).expect("it runs");
        assert!(time.step > Duration::ZERO && time.enqueue > Duration::ZERO);
        assert!(time.spread[0] <= time.step && time.step <= time.spread[1], "{:?}", time.spread);
        assert!(time.losses[0] > time.losses[1], "{:?}", time.losses);
        assert!(time.tokens_per_sec > 0.0 && time.mfu.is_none());
        assert!(time.replayed.expect_err("the CPU replays nothing").contains("CPU"));
    }
}
