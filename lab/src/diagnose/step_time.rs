//! The time of a real training step: forward, backward, clipping and AdamW on batches that are already on the device. As in a
//! long run, steps are replayed as CUDA graphs.

use std::time::Duration;

use anyhow::{Result, ensure};
use burn::tensor::{Device, FloatDType};
use kiln_data::Shape;
use kiln_model::flops::{TrainSetting, train_bytes};
use kiln_ranks::Ranks;
use kiln_train::config::Capture;
use kiln_train::eval::{Init, Model};

use super::measure::{Effort, StepPace, Stepper, Warmth};
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
    /// Pairs, or rows of text, per second.
    pub samples_per_sec: f64,
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
pub fn measure<M: Model>(
    workload: &Workload,
    init: &Init<'_, M>,
    dtype: FloatDType,
    device: &Device,
    effort: Effort,
    ranks: &Ranks,
) -> Result<StepTime> {
    let _installed = workload.install();
    let batches = workload.batches(device);
    let tokens = batches.iter().map(effective_tokens).sum::<u64>() as f64 / batches.len() as f64;
    let state = workload.state(init, dtype, device)?.join(ranks, &workload.config, None)?;
    // As in a long run, but a shape is recorded early.
    let mut stepper = Stepper::new(state, batches, Capture::On);
    let Warmth { elapsed: warm_up, .. } = stepper.warm_up(|_, _| ())?;
    ranks.share("beginning to measure", ())?;
    let StepPace { step: time, spread, enqueue, losses: [last, first] } = stepper.pace(effort)?;
    ensure!(
        last < first,
        "the loss of a batch went from {first:.3} to {last:.3}: the steps that were timed did not train"
    );

    let peak = kiln_train::device::peak_flops_per_sec(device, dtype);
    let reserved_bytes = kiln_train::device::reserved_bytes(device);
    let [batch_size, source_len, target_len] = workload.shape();
    let shape = Shape { batch_size, source_len, target_len };
    let flops = match init.is_own() {
        true => stepper.state.model.train_flops(shape, workload.masked_share()),
        false => Some(workload.flops()),
    };
    // What is kept is known of a Transformer.
    let kept = train_bytes(&workload.model, device, workload.shape(), &TrainSetting::plain(dtype)).state() as f64;
    let known_bytes = reserved_bytes.filter(|_| !init.is_own());

    Ok(StepTime {
        step: time,
        spread,
        enqueue,
        warm_up,
        replayed: stepper.replayed(),
        tokens_per_sec: tokens / time.as_secs_f64(),
        samples_per_sec: workload.batch_size as f64 / time.as_secs_f64(),
        mfu: peak.zip(flops).map(|(peak, flops)| flops / time.as_secs_f64() / peak),
        reserved_bytes,
        activation_bytes_per_position: known_bytes.map(|bytes| (bytes as f64 - kept) / workload.n_positions() as f64),
        losses: [first, last],
        n_steps: stepper.n_steps(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_model_is_timed_on_the_cpu() {
        let workload = Workload::named("tiny").expect("a listed name");
        let effort = Effort::new(3, 3);
        let time = measure(&workload, &Init::transformer(), FloatDType::F32, &Device::flex(), effort, &Ranks::alone())
            .expect("it runs");
        assert!(time.step > Duration::ZERO && time.enqueue > Duration::ZERO);
        assert!(time.spread[0] <= time.step && time.step <= time.spread[1], "{:?}", time.spread);
        assert!(time.losses[0] > time.losses[1], "{:?}", time.losses);
        assert!(time.tokens_per_sec > 0.0 && time.mfu.is_none());
        let samples = time.samples_per_sec * time.step.as_secs_f64();
        assert!((samples - workload.batch_size as f64).abs() < 1e-6, "{samples} per step");
        assert!(time.replayed.expect_err("the CPU replays nothing").contains("CPU"));
    }
}
