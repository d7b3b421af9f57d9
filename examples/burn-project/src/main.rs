//! A small language model on real text: first with stock Burn, then with `kiln-kernels` and `kiln-data`.

mod fused;
mod memory;
mod model;
mod stock;
mod text;

use std::error::Error;
use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor};
use burn_optim::{AdamWConfig, GradientsParams};
use model::Model;
use text::{Batch, Text};

/// Optimizer steps of each run.
const STEPS: usize = 24;
const LEARNING_RATE: f64 = 2e-3;
/// Largest relative difference of two losses. Both runs compute in f32, but sum in different orders.
const TOLERANCE: f32 = 1e-3;

/// What a run of training shows.
struct Run {
    losses: Vec<f32>,
    /// Median time of a step.
    step: Duration,
    /// Heap memory at its peak, above what was in use before.
    peak_bytes: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::flex().autodiff();
    device.seed(1);
    let text = Text::read()?;
    let model = Model::new(text.vocab_size(), &device);
    println!("{} tokens in a vocabulary of {}", text.n_tokens(), text.vocab_size());

    let before = train(model.clone(), stock::batches(&text)?, stock::mean_loss, &device)?;
    let after = train(model, fused::batches(&text)?, fused::mean_loss, &device)?;

    println!("           {:>10} {:>12} {:>10} {:>10}", "step", "peak heap", "first loss", "last loss");
    for (name, run) in [("stock Burn", &before), ("with Kiln", &after)] {
        let (step_ms, peak_mib) = (1e3 * run.step.as_secs_f64(), run.peak_bytes as f64 / f64::from(1 << 20));
        let (first, last) = (run.losses[0], run.losses[STEPS - 1]);
        println!("{name:<10} {step_ms:>7.1} ms {peak_mib:>8.1} MiB {first:>10.4} {last:>10.4}");
    }

    for (step, (before, after)) in before.losses.iter().zip(&after.losses).enumerate() {
        let difference = (before - after).abs() / before;
        if difference > TOLERANCE {
            return Err(format!("step {}: loss {after} with Kiln, {before} with stock Burn", step + 1).into());
        }
    }
    println!("the losses of all {STEPS} steps agree");
    Ok(())
}

/// Trains with Burn's AdamW on the first batches.
fn train(
    mut model: Model,
    mut batches: impl FnMut() -> Result<Batch, Box<dyn Error>>,
    mean_loss: fn(&Model, &Batch, &Device) -> Tensor<1>,
    device: &Device,
) -> Result<Run, Box<dyn Error>> {
    let mut optimizer = AdamWConfig::new().with_weight_decay(0.01).init();
    let (mut losses, mut times) = (Vec::new(), Vec::new());
    let in_use = memory::start();

    for _ in 0..STEPS {
        let started = Instant::now();
        let loss = mean_loss(&model, &batches()?, device);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(LEARNING_RATE, model, gradients);
        losses.push(loss.into_scalar::<f32>());
        times.push(started.elapsed());
    }

    times.sort();
    Ok(Run { losses, step: times[STEPS / 2], peak_bytes: memory::peak() - in_use })
}
