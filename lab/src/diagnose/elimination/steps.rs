//! Parts of a step on batches that are already on the device: inference, forward, forward and backward, the whole step.

use anyhow::{Context, Result};
use burn::tensor::{FloatDType, Tensor};
use kiln_model::{Batch, DropoutStream};
use kiln_train::device::{is_cpu, peak_flops_per_sec};
use kiln_train::eval::Model;
use kiln_train::train::feed::Group;
use kiln_train::train::step::{group_gradients, update};
use kiln_train::train::{TrainState, compile_step, train_step};

use super::figures::Figures;
use super::subject::Subject;
use super::verdict::{Found, Test, Verdict, percent};
use super::watch::{Pace, pace, pace_loss, read};

/// Runs one of the tests of this file.
///
/// # Errors
/// If the device fails, or if a loss is not finite.
pub(super) fn run<M: Model>(test: Test, subject: &Subject<'_, M>, figures: &mut Figures) -> Result<Found> {
    let groups = subject.resident()?;
    Ok(Ok(match test {
        Test::First => first(subject, &groups)?,
        Test::Inference => vec![inference(subject, &groups)?],
        Test::Forward => {
            let pace = forward(subject, &groups)?;
            vec![verdict("forward", pace, "forward as training computes it, with dropout and what backward needs")]
        }
        Test::Backward => {
            let pace = forward_backward(subject, &groups)?;
            vec![verdict("forward and backward", pace, "with the gradients in one flat tensor, without the update")]
        }
        Test::Step => whole(subject, &groups, figures)?,
        _ => phases(subject, &groups)?,
    }))
}

fn verdict(what: &str, pace: Pace, words: &str) -> Verdict {
    Verdict::new(what, pace.ms, "ms", words).within(pace.spread)
}

/// Non-padding tokens of a group.
fn tokens<M: Model>(group: &Group, state: &TrainState<M>) -> u64 {
    group.facts(state).tokens
}

fn inference<M: Model>(subject: &Subject<'_, M>, groups: &[Group]) -> Result<Verdict> {
    let state = subject.state()?;
    let model = state.model.valid();
    let (pace, _) = pace_loss(&subject.device, subject.effort, |step| {
        let losses = groups[step].batches.iter().map(|batch| {
            let masked = masked(&state, batch, step);
            model.loss(masked.as_ref().unwrap_or(batch), state.label_smoothing, None).loss_sum
        });
        losses.reduce(|sum, loss| sum + loss).context("a group has a batch")
    })?;
    let rate = groups.iter().map(|group| tokens(group, &state)).sum::<u64>() as f64 / groups.len() as f64 / pace.ms;
    let words = format!("forward without dropout and gradients: {:.0} tokens per second", 1e3 * rate);
    Ok(verdict("inference", pace, &words))
}

/// The batch with hidden tokens, for masked language modelling.
fn masked<M: Model>(state: &TrainState<M>, batch: &Batch, step: usize) -> Option<Batch> {
    let masking = state.masking.as_ref()?;
    Some(masking.mask(batch, &DropoutStream::new(state.seed, step as u64, &state.device)))
}

fn forward<M: Model>(subject: &Subject<'_, M>, groups: &[Group]) -> Result<Pace> {
    let state = subject.state()?;
    let has_dropout = Model::has_dropout(&state.model);
    let loss = |batch: &Batch, step: usize| -> Tensor<1> {
        let stream = DropoutStream::new(state.seed, step as u64, &state.device);
        let masked = masked(&state, batch, step);
        let dropout = has_dropout.then_some(&stream);
        without_graph(state.model.loss(masked.as_ref().unwrap_or(batch), state.label_smoothing, dropout).loss_sum)
    };
    let (pace, _) = pace_loss(&subject.device, subject.effort, |step| {
        let losses = groups[step].batches.iter().map(|batch| loss(batch, step));
        losses.reduce(|sum, loss| sum + loss).context("a group has a batch")
    })?;
    Ok(pace)
}

/// Returns `loss`, and lets the backend free its graph. The backend looks for what nobody holds at the end of a backward pass, and only
/// in the graph of that pass: here, a leaf that joins the graph and needs no other part of it.
fn without_graph(loss: Tensor<1>) -> Tensor<1> {
    let leaf = Tensor::<1>::ones([1], &loss.device()).require_grad();
    drop(loss.clone() + leaf.clone());
    let value = loss.inner();
    drop(leaf.sum().backward());
    value
}

fn forward_backward<M: Model>(subject: &Subject<'_, M>, groups: &[Group]) -> Result<Pace> {
    let state = subject.state()?;
    let (pace, last) = pace(&subject.device, subject.effort, |step| {
        let (_, gradients) = group_gradients(&state, &groups[step].batches, 0);
        // One element is enough to hold the result.
        Ok(gradients.0.values.narrow(0, 0, 1).cast(FloatDType::F32))
    })?;
    // The first loss scales of fp16 may be too high.
    if subject.dtype != FloatDType::F16 {
        read(last)?;
    }
    Ok(pace)
}

/// Times whole steps, as a long run takes them.
///
/// # Errors
/// If the device fails, or if a loss is not finite.
pub(super) fn train<M: Model>(subject: &Subject<'_, M>, state: &mut TrainState<M>, groups: &[Group]) -> Result<Pace> {
    let mut captured = subject.captured();
    let (pace, _) =
        pace_loss(&subject.device, subject.effort, |step| Ok(captured.step(state, &groups[step].batches).loss_sum))?;
    Ok(pace)
}

fn whole<M: Model>(subject: &Subject<'_, M>, groups: &[Group], figures: &mut Figures) -> Result<Vec<Verdict>> {
    let mut state = subject.state()?;
    let pace = train(subject, &mut state, groups)?;
    (figures.step_ms, figures.host_ms) = (Some(pace.ms), Some(pace.host_ms));

    let n: u64 = groups.iter().map(|group| tokens(group, &state)).sum();
    let per_sec = n as f64 / groups.len() as f64 / pace.ms * 1e3;
    let flops = state.flops(groups.iter().flat_map(Group::shapes));
    let peak = peak_flops_per_sec(&subject.device, subject.dtype);
    figures.mfu = flops.zip(peak).map(|(flops, peak)| flops / groups.len() as f64 / (pace.ms / 1e3) / peak);
    let mfu = figures.mfu.map_or(String::new(), |mfu| format!(", MFU {}", percent(mfu)));

    let mut found = vec![verdict("whole step", pace, &format!("{per_sec:.0} non-padding tokens per second{mfu}"))];
    if !is_cpu(&subject.device) {
        let is_bound = pace.host_ms >= 0.9 * pace.ms;
        let words = if is_bound { "the device waits for the host" } else { "the host is ahead of the device" };
        found.push(Verdict::new("host's time to enqueue a step", pace.host_ms, "ms", words).against(pace.ms));
    }
    Ok(found)
}

fn phases<M: Model>(subject: &Subject<'_, M>, groups: &[Group]) -> Result<Vec<Verdict>> {
    let forward = forward(subject, groups)?.ms;
    let both = forward_backward(subject, groups)?.ms;
    let mut state = subject.state()?;
    let (whole, _) =
        pace_loss(&subject.device, subject.effort, |step| Ok(train_step(&mut state, &groups[step].batches).loss_sum))?;

    // A difference of two medians can be negative by noise.
    let parts =
        [("forward", forward), ("backward", (both - forward).max(0.0)), ("optimizer", (whole.ms - both).max(0.0))];
    let sum = parts.iter().map(|(_, ms)| ms).sum::<f64>().max(1e-9);
    Ok(parts
        .map(|(what, ms)| {
            let words = format!("{} of an eager step", percent(ms / sum));
            Verdict::new(format!("{what} by itself"), ms, "ms", words).against(whole.ms)
        })
        .into())
}

fn first<M: Model>(subject: &Subject<'_, M>, groups: &[Group]) -> Result<Vec<Verdict>> {
    let started = std::time::Instant::now();
    let mut state = subject.state()?;
    // As before a run: without it, the first steps compile their kernels themselves.
    let _ = compile_step(&state, &groups[0].batches[0], |_, _| ());
    let prepared = started.elapsed().as_secs_f64();

    let started = std::time::Instant::now();
    let (sums, gradients) = group_gradients(&state, &groups[0].batches, 0);
    let n = groups[0].n_numbers;
    read(update(&mut state, n, sums, gradients)?.loss_sum)?;
    let first = 1e3 * started.elapsed().as_secs_f64();

    let steady = train(subject, &mut state, groups)?;
    let words = format!(
        "the first step is {:.1} x a later one; weights and kernels took {prepared:.1} s before it",
        first / steady.ms.max(1e-9)
    );
    Ok(vec![Verdict::new("first step", first, "ms", words).against(steady.ms)])
}

#[cfg(test)]
mod tests {
    use super::super::Growth;
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn forward_passes_leave_no_graph() {
        const NUMBERS: usize = 1 << 20;
        let device = Device::flex().autodiff();
        let weights = [0, 1].map(|_| Tensor::<1>::ones([NUMBERS], &device).require_grad());
        let growth = Growth::over(&Device::flex(), 20, |_| {
            let loss = weights.iter().fold(Tensor::ones([1], &device), |x, weight| (x + weight.clone()).exp()).sum();
            read(without_graph(loss)).map(drop)
        });
        let Some(growth) = growth.expect("a loss that is finite") else { return };
        // Other tests of this process allocate, too.
        assert!(growth.per_step() < NUMBERS as f64, "{growth:?}");
    }
}
