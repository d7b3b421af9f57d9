//! A model of one's own: what its operations cost, whatever their size.
//!
//! A step that computes shrinks with its batch. A step that consists of many small operations, such as a loop over rows, does not: it
//! takes as long for rows of a quarter of the length. Where the loop goes over positions, it takes as long for a quarter of the rows.

use anyhow::Result;
use burn::tensor::FloatDType;
use burn_autodiff::NodeId;
use kiln_data::{BatchLayout, HostBatch, PairParts, Shape, TextParts};
use kiln_model::{Batch, DropoutStream};
use kiln_train::config::Capture;
use kiln_train::device::{is_cpu, upload};
use kiln_train::eval::Model;
use kiln_train::train::step::group_gradients;

use super::figures::{Calls, Figures};
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
    let mut loader = subject.loader(subject.window()?, 0)?;
    let steps = (0..subject.effort.steps)
        .map(|_| (0..subject.accumulated()).map(|_| Ok(loader.next_batch()?)).collect::<Result<Vec<_>>>())
        .collect::<Result<Vec<_>>>()?;
    let part = Calls::PART;

    let upload_all = |change: &dyn Fn(&HostBatch) -> HostBatch| -> Vec<Vec<Batch>> {
        let batches = |step: &Vec<HostBatch>| step.iter().map(|host| upload(&change(host), &subject.device)).collect();
        steps.iter().map(batches).collect()
    };
    let whole = upload_all(&HostBatch::clone);
    let n = count(subject, &whole[0])?;
    let (short, few) = (upload_all(&|host| shorter(host, part)), upload_all(&|host| fewer(host, part)));
    let times = in_turn(subject, [&whole, &short, &few])?;
    let [whole_ms, short_ms, few_ms] = times.each_ref().map(Times::fastest);
    let host_share = if is_cpu(&subject.device) { None } else { Some(host_share(subject, &whole)?) };
    let calls = Calls { n, whole_ms, short_ms, few_ms, host_share };
    let is_replayed = is_replayed(subject, &whole)?;
    // Batches of a row or a token cannot be made smaller.
    let positions = |change: &dyn Fn(&HostBatch) -> HostBatch| -> usize {
        steps.iter().flatten().map(|host| change(host).shape().padded_tokens()).sum()
    };
    let smaller = positions(&|host| shorter(host, part)).max(positions(&|host| fewer(host, part)));
    let is_small = positions(&HostBatch::clone) < 3 * smaller;
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
fn count<M: Model>(subject: &Subject<'_, M>, batches: &[Batch]) -> Result<u64> {
    let state = subject.state()?;
    let stream = DropoutStream::new(state.seed, 0, &state.device);
    let stream = Model::has_dropout(&state.model).then_some(&stream);
    // Autodiff numbers the result of each operation.
    let before = NodeId::new().value;
    let loss = state.model.loss(&batches[0], state.label_smoothing, stream).loss_sum;
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
fn in_turn<M: Model>(subject: &Subject<'_, M>, kinds: [&Vec<Vec<Batch>>; 3]) -> Result<[Times; 3]> {
    let state = subject.state()?;
    let once = Effort::new(1, 1);
    let mut times = kinds.map(|steps| Times(vec![Vec::new(); steps.len()]));
    for repeat in 0..subject.effort.warm_up + subject.effort.repeats {
        for step in 0..subject.effort.steps {
            for (steps, Times(times)) in kinds.iter().zip(&mut times) {
                let (pace, last) = pace(&subject.device, once, |_| {
                    let (_, gradients) = group_gradients(&state, &steps[step], 0);
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
fn host_share<M: Model>(subject: &Subject<'_, M>, steps: &[Vec<Batch>]) -> Result<f64> {
    let state = subject.state()?;
    let effort = Effort { steps: 1, ..subject.effort };
    let (pace, _) = pace(&subject.device, effort, |_| Ok(group_gradients(&state, &steps[0], 0).1))?;
    Ok((pace.host_ms / pace.ms.max(1e-9)).min(1.0))
}

/// Returns whether the run replays forward and backward.
fn is_replayed<M: Model>(subject: &Subject<'_, M>, steps: &[Vec<Batch>]) -> Result<bool> {
    if is_cpu(&subject.device) || subject.capture() == Capture::Off {
        return Ok(false);
    }
    let (mut state, mut captured) = (subject.state()?, subject.captured());
    for _ in 0..STEPS_TO_REPLAY {
        read(captured.step(&mut state, &steps[0]).loss_sum)?;
    }
    Ok(captured.n_recorded() > 0)
}

/// Returns the first rows, about one `part`th of them.
fn fewer(host: &HostBatch, part: usize) -> HostBatch {
    host.split(part).swap_remove(0)
}

/// Returns the first part of each row, about one `part`th of it.
fn shorter(host: &HostBatch, part: usize) -> HostBatch {
    let Shape { batch_size, source_len, target_len } = host.shape();
    let cut_to = |len: usize| len.div_ceil(part);
    let shape = Shape { batch_size, source_len: cut_to(source_len), target_len: cut_to(target_len) };
    let cut = |ids: &[i32], len: usize| -> Vec<i32> {
        ids.chunks(len.max(1)).flat_map(|row| &row[..cut_to(len)]).copied().collect()
    };
    let at_most = |lengths: &[i32], most: usize| lengths.iter().map(|len| (*len).min(most as i32)).collect();
    match host.layout {
        BatchLayout::Pairs => HostBatch::pairs(
            shape,
            PairParts {
                source: cut(host.source(), source_len),
                target_input: cut(host.target_input(), target_len),
                labels: cut(host.labels(), target_len),
                source_lengths: at_most(host.source_lengths(), shape.source_len),
                target_lengths: at_most(host.target_lengths(), shape.target_len),
            },
        ),
        BatchLayout::Text => {
            let parts = TextParts {
                input: cut(host.target_input(), target_len),
                labels: cut(host.labels(), target_len),
                positions: cut(host.positions(), target_len),
                documents: cut(host.documents(), target_len),
                lengths: at_most(host.lengths(), shape.target_len),
            };
            let (token_types, preference) = (host.token_types, host.preference);
            HostBatch { token_types, preference, ..HostBatch::text(shape, host.boundaries, parts) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cut_to_their_first_part() {
        let shape = Shape::text(2, 5);
        let ids = |first: i32| (first..first + 10).collect::<Vec<i32>>();
        let parts =
            TextParts { input: ids(0), labels: ids(20), positions: ids(40), documents: ids(60), lengths: vec![5, 1] };
        let host = HostBatch { token_types: true, ..HostBatch::text(shape, true, parts) };
        let cut = shorter(&host, 4);
        assert_eq!(cut.shape(), Shape::text(2, 2));
        assert_eq!((cut.target_input(), cut.labels()), (&[0, 1, 5, 6][..], &[20, 21, 25, 26][..]));
        assert_eq!((cut.positions(), cut.documents()), (&[40, 41, 45, 46][..], &[60, 61, 65, 66][..]));
        assert_eq!((cut.lengths(), cut.boundaries, cut.token_types), (&[2, 1][..], true, true));

        let shape = Shape { batch_size: 1, source_len: 8, target_len: 4 };
        let parts = PairParts {
            source: (0..8).collect(),
            target_input: vec![1, 2, 3, 4],
            labels: vec![2, 3, 4, 5],
            source_lengths: vec![8],
            target_lengths: vec![1],
        };
        let cut = shorter(&HostBatch::pairs(shape, parts), 4);
        assert_eq!((cut.source(), cut.target_input(), cut.labels()), (&[0, 1][..], &[1][..], &[2][..]));
        assert_eq!((cut.source_lengths(), cut.target_lengths()), (&[2][..], &[1][..]));
    }
}
