//! The same steps computed in another way: precision, graphs, reference operators, and a larger batch.

use anyhow::{Context, Result, ensure};
use burn::tensor::FloatDType;
use kiln_data::Shape;
use kiln_kernels::Settings;
use kiln_train::config::{Capture, F32Products, Precision};
use kiln_train::device::{compute_dtype, is_cpu, machine_of};
use kiln_train::eval::Model;
use kiln_train::run::need::Need;
use kiln_train::train::feed::Group;
use kiln_train::train::{CapturedSteps, train_step};

use super::figures::Figures;
use super::subject::Subject;
use super::verdict::{Found, Test, Verdict, percent};
use super::watch::{Pace, pace_loss, read};
use crate::diagnose::ledger::dtype_name;
use crate::diagnose::measure::{Prepared, Stepper};
use crate::diagnose::workload::{Workload, effective_tokens};

/// Steps whose losses are compared.
const COMPARED: usize = 4;
/// Rows of the larger batch, relative to the batch of the run.
pub(super) const LARGER: usize = 4;

/// Runs one of the tests of this file.
///
/// # Errors
/// If the device fails, or if ways of computing that must agree do not.
pub(super) fn run<M: Model>(test: Test, subject: &Subject<'_, M>, figures: &mut Figures) -> Result<Found> {
    match test {
        Test::Precision => precision(subject, figures),
        Test::Graphs => graphs(subject, figures),
        Test::Fused => fused(subject, figures).map(Ok),
        _ => batch(subject, figures),
    }
}

fn precision<M: Model>(subject: &Subject<'_, M>, figures: &mut Figures) -> Result<Found> {
    let half = match subject.dtype {
        FloatDType::F32 if is_cpu(&subject.device) => Err("not on this device: a CPU computes in f32".to_owned()),
        FloatDType::F32 => compute_dtype(Precision::Bf16, &subject.device)
            .or_else(|_| compute_dtype(Precision::Fp16, &subject.device))
            .map_err(|error| format!("not on this device: {error}")),
        half => Ok(half),
    };
    let half = match half {
        Ok(half) => half,
        Err(why) => return Ok(Err(why)),
    };

    let groups = subject.resident()?;
    let time = |dtype| -> Result<Pace> {
        let paced = super::steps::train(subject, &mut subject.state_in(dtype)?, &groups);
        subject.device.clone().inner().memory_cleanup();
        paced
    };
    let (full, fast) = (time(FloatDType::F32)?, time(half)?);
    figures.precision_ms = Some([full.ms, fast.ms]);
    let words = format!("{} is {:.2} x as fast as f32", dtype_name(half), full.ms / fast.ms);
    Ok(Ok(vec![
        Verdict::new("step in f32", full.ms, "ms", "").within(full.spread),
        Verdict::new(format!("step in {}", dtype_name(half)), fast.ms, "ms", words)
            .within(fast.spread)
            .against(full.ms),
    ]))
}

fn graphs<M: Model>(subject: &Subject<'_, M>, figures: &mut Figures) -> Result<Found> {
    if is_cpu(&subject.device) {
        return Ok(Err("not on this device: a CPU has no CUDA graphs".into()));
    }
    let groups = subject.resident()?;
    let train = |mode| -> Result<(Vec<f64>, Pace, CapturedSteps<M>)> {
        let (mut state, mut captured) = (subject.state()?, CapturedSteps::new(mode, &subject.device));
        let mut losses = Vec::new();
        // The fourth time, a shape is recorded.
        for _ in 0..4 {
            losses = losses_of(&groups, |group| captured.step(&mut state, &group.batches).loss_sum)?;
        }
        let (pace, _) = pace_loss(&subject.device, subject.effort, |step| {
            Ok(captured.step(&mut state, &groups[step].batches).loss_sum)
        })?;
        Ok((losses, pace, captured))
    };
    let (wanted, eager, _) = train(Capture::Off)?;
    subject.device.clone().inner().memory_cleanup();
    let (found, replayed, mut captured) = train(Capture::On)?;
    if captured.n_recorded() == 0 {
        return Ok(Err(format!("nothing was replayed: {}", captured.take_notes().join("; "))));
    }

    figures.graphs_differ = Some(difference(&found, &wanted));
    figures.graphs_ms = Some([eager.ms, replayed.ms]);
    let words = format!(
        "replay is {:.2} x as fast; the host needs {:.2} instead of {:.2} ms; losses are {}",
        eager.ms / replayed.ms,
        replayed.host_ms,
        eager.host_ms,
        if found == wanted { "equal bit for bit" } else { "NOT equal" }
    );
    Ok(Ok(vec![
        Verdict::new("eager step", eager.ms, "ms", "").within(eager.spread),
        Verdict::new("replayed step", replayed.ms, "ms", words).within(replayed.spread).against(eager.ms),
    ]))
}

fn fused<M: Model>(subject: &Subject<'_, M>, figures: &mut Figures) -> Result<Vec<Verdict>> {
    let groups = subject.resident()?;
    let train = |reference_operators| -> Result<(Vec<f64>, Pace)> {
        let _installed = Settings { reference_operators, ..Settings::current() }.install();
        let mut state = subject.state()?;
        let losses = losses_of(&groups, |group| train_step(&mut state, &group.batches).loss_sum)?;
        let (pace, _) = pace_loss(&subject.device, subject.effort, |step| {
            Ok(train_step(&mut state, &groups[step].batches).loss_sum)
        })?;
        drop(state);
        subject.device.clone().inner().memory_cleanup();
        Ok((losses, pace))
    };
    let (found, fused) = train(false)?;
    let (wanted, reference) = train(true)?;

    let differ = difference(&found, &wanted);
    figures.fused_differ = Some(differ);
    let is_exact = subject.dtype == FloatDType::F32 && subject.config.train.f32_products == F32Products::F32;
    figures.tolerance = if is_exact { 1e-3 } else { 2e-2 };
    let words = format!(
        "fused operators are {:.2} x as fast; the losses of {COMPARED} steps differ by {:.1e}",
        reference.ms / fused.ms,
        differ
    );
    Ok(vec![
        Verdict::new("step with reference operators", reference.ms, "ms", "").within(reference.spread),
        Verdict::new("step with fused operators", fused.ms, "ms", words).within(fused.spread).against(reference.ms),
    ])
}

/// The losses of the first steps.
fn losses_of(groups: &[Group], mut step: impl FnMut(&Group) -> burn::tensor::Tensor<1>) -> Result<Vec<f64>> {
    groups.iter().cycle().take(COMPARED).map(|group| read(step(group))).collect()
}

/// The largest difference, relative to the second list.
fn difference(found: &[f64], wanted: &[f64]) -> f64 {
    crate::diagnose::largest(found.iter().zip(wanted).map(|(found, wanted)| (found / wanted - 1.0).abs()))
}

fn batch<M: Model>(subject: &Subject<'_, M>, figures: &mut Figures) -> Result<Found> {
    let shapes: Vec<Shape> = subject.resident()?.iter().flat_map(|group| group.shapes().collect::<Vec<_>>()).collect();
    let rows = shapes.iter().map(|shape| shape.batch_size).sum::<usize>() / shapes.len().max(1);
    let len = shapes.iter().map(|shape| shape.source_len.max(shape.target_len)).max().context("a batch")?;
    ensure!(rows > 0, "the batches have no rows");

    let large = Shape { batch_size: LARGER * rows, ..subject.largest };
    let need = Need { dtype: subject.dtype, n_devices: 1, checkpointing: subject.checkpointing };
    let needed = need.of(subject.config, &subject.device, large).total();
    if subject.config.part_of(machine_of(&subject.device)).memory_bytes.is_some_and(|memory| needed > memory) {
        return Ok(Err(format!("a batch of {LARGER} times as many rows does not fit into the memory")));
    }

    let rate = |rows: usize| -> Result<f64> {
        let workload = Workload::of("batch", subject.config, Some(rows), Some(len))?;
        let batches = workload.batches(&subject.device);
        let tokens = batches.iter().map(effective_tokens).sum::<u64>() as f64 / batches.len() as f64;
        let (config, model, checkpointing) = (&workload.config, &workload.model, subject.checkpointing);
        let (vocabulary, dtype, device) = (None, subject.dtype, &subject.device);
        let state = Prepared { config, model, vocabulary, checkpointing, dtype, device }.state(subject.init)?;
        let mut stepper = Stepper::new(state, batches, subject.capture());
        let (pace, _) = pace_loss(device, subject.effort, |_| Ok(stepper.step(1).loss_sum))?;
        drop(stepper);
        subject.device.clone().inner().memory_cleanup();
        Ok(1e3 * tokens / pace.ms)
    };
    let (now, then) = (rate(rows)?, rate(LARGER * rows)?);
    figures.batch_rates = Some([now, then]);
    figures.batch_tokens = subject.config.loader.batch_tokens;
    let words =
        format!("{rows} rows of {len} positions keep {} of the speed of {} rows", percent(now / then), LARGER * rows);
    Ok(Ok(vec![Verdict::new("speed of a batch", now, "tokens per second", words).against(then)]))
}
