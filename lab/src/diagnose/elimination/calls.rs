//! A model of one's own: what its operations cost, whatever their size.
//!
//! A step that computes shrinks with its batch. A step that consists of many small operations, such as a loop over rows, does not: it
//! takes as long for rows of a quarter of the length. Where the loop goes over positions, it takes as long for a quarter of the rows.

use std::sync::Arc;

use anyhow::Result;
use burn::tensor::FloatDType;
use burn_autodiff::NodeId;
use kiln_model::DropoutStream;
use kiln_train::config::Capture;
use kiln_train::device::is_cpu;
use kiln_train::eval::Model;
use kiln_train::train::feed::Group;
use kiln_train::train::step::group_gradients;

use super::altered::Altered;
use super::figures::{Calls, Figures};
use super::smaller::{Less, Smaller};
use super::subject::Subject;
use super::verdict::{Found, Verdict, percent};
use super::watch::{pace, read};
use crate::diagnose::measure::Effort;

/// Steps until a shape is replayed, and one more.
const STEPS_TO_REPLAY: usize = 5;

/// Times forward and backward of whole batches, of shorter rows and of fewer rows.
///
/// # Errors
/// If the device fails.
pub(super) fn run<M: Model>(subject: &Subject<'_, M>, figures: &mut Figures) -> Result<Found> {
    let is_own = subject.init.is_own();
    if !is_own && !is_cpu(&subject.device) {
        return Ok(Err(
            "Kiln's own models are replayed on this device: the test graphs measures what their calls cost".into(),
        ));
    }
    let window = subject.window()?;
    let smaller = |less| {
        let change = Smaller { less, part: Calls::PART };
        subject.groups(Arc::new(Altered { inner: window.clone(), change }))
    };
    let (whole, short, few) = (subject.groups(window.clone())?, smaller(Less::Length)?, smaller(Less::Rows)?);
    let n = count(subject, &whole[0])?;
    let times = in_turn(subject, [&whole, &short, &few])?;
    let [whole_ms, short_ms, few_ms] = times.each_ref().map(Times::fastest);
    let host_share = if is_cpu(&subject.device) { None } else { Some(host_share(subject, &whole[0])?) };
    let calls = Calls { n, whole_ms, short_ms, few_ms, host_share };
    let is_replayed = is_replayed(subject, &whole[0])?;
    // Batches of a row or a token cannot be made smaller.
    let positions = |groups: &[Group]| groups.iter().map(Group::padded_tokens).sum::<u64>();
    let is_small = positions(&whole) < 3 * positions(&short).max(positions(&few));
    figures.calls = (is_own && !is_replayed && !is_small).then_some(calls);

    let words = match is_small {
        true => "the batches are too small for a comparison".into(),
        false => format!("{} of the time does not shrink with the batch", percent(calls.fixed_share())),
    };
    let verdict = |what: &str, times: &Times, words: &str| {
        Verdict::new(what, times.fastest(), "ms", words).within([times.fastest(), times.slowest()])
    };
    let [of_whole, of_short, of_few] = &times;
    let of_count = match is_replayed {
        true => "in the first of a step's batches; steps are replayed as CUDA graphs, so that a call costs little",
        false => "in the first of a step's batches",
    };
    Ok(Ok(vec![
        Verdict::new("operations of a forward pass", n as f64, "calls", of_count),
        verdict("forward and backward, eager", of_whole, "the fastest repeats, because other processes only add time"),
        verdict("rows of a quarter of the length", of_short, "").against(whole_ms),
        verdict("a quarter of the rows", of_few, &words).against(whole_ms),
    ]))
}

/// Counts the operations on floating-point tensors in the loss of the first batch.
fn count<M: Model>(subject: &Subject<'_, M>, group: &Group) -> Result<u64> {
    let state = subject.state()?;
    let stream = DropoutStream::new(state.seed, 0, &state.device);
    let stream = Model::has_dropout(&state.model).then_some(&stream);
    // Autodiff numbers the result of each operation.
    let before = NodeId::new().value;
    let loss = state.model.loss(&group.batches[0], state.label_smoothing, stream).loss_sum;
    let n = NodeId::new().value - before - 1;
    // Its graph is freed by a backward pass.
    drop(loss.backward());
    Ok(n)
}

/// Milliseconds of each step, in its repeats.
#[derive(Debug, Clone, Default)]
struct Times(Vec<Vec<f64>>);

impl Times {
    /// Returns the mean of the fastest repeats of all steps.
    fn fastest(&self) -> f64 {
        self.mean(|repeats| repeats.iter().copied().fold(f64::INFINITY, f64::min))
    }

    /// Returns the mean of the slowest repeats of all steps.
    fn slowest(&self) -> f64 {
        self.mean(|repeats| repeats.iter().copied().fold(0.0, f64::max))
    }

    fn mean(&self, of: impl Fn(&Vec<f64>) -> f64) -> f64 {
        self.0.iter().map(of).sum::<f64>() / self.0.len().max(1) as f64
    }
}

/// Times forward and backward of three kinds of batches in turn, step by step.
fn in_turn<M: Model>(subject: &Subject<'_, M>, kinds: [&Vec<Group>; 3]) -> Result<[Times; 3]> {
    let state = subject.state()?;
    let once = Effort::new(1, 1);
    let mut times = kinds.map(|groups| Times(vec![Vec::new(); groups.len()]));
    for repeat in 0..subject.effort.warm_up + subject.effort.repeats {
        for step in 0..subject.effort.steps {
            for (groups, Times(times)) in kinds.iter().zip(&mut times) {
                let (pace, last) = pace(&subject.device, once, |_| {
                    let (_, gradients) = group_gradients(&state, &groups[step].batches, 0);
                    Ok(gradients.0.values.narrow(0, 0, 1).cast(FloatDType::F32))
                })?;
                // The first loss scales of fp16 may be too high.
                if subject.dtype != FloatDType::F16 {
                    read(last)?;
                }
                if repeat >= subject.effort.warm_up {
                    times[step].push(pace.ms);
                }
            }
        }
    }
    Ok(times)
}

/// Returns the fraction of the time of forward and backward after which the host has enqueued them, with an empty queue before.
fn host_share<M: Model>(subject: &Subject<'_, M>, group: &Group) -> Result<f64> {
    let state = subject.state()?;
    let effort = Effort { steps: 1, ..subject.effort };
    let (pace, _) = pace(&subject.device, effort, |_| Ok(group_gradients(&state, &group.batches, 0).1))?;
    Ok((pace.host_ms / pace.ms.max(1e-9)).min(1.0))
}

/// Returns whether the run replays forward and backward.
fn is_replayed<M: Model>(subject: &Subject<'_, M>, group: &Group) -> Result<bool> {
    if is_cpu(&subject.device) || subject.capture() == Capture::Off {
        return Ok(false);
    }
    let (mut state, mut captured) = (subject.state()?, subject.captured());
    for _ in 0..STEPS_TO_REPLAY {
        read(captured.step(&mut state, &group.batches).loss_sum)?;
    }
    Ok(captured.n_recorded() > 0)
}
