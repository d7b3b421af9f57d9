//! A small language model on real text: first with stock Burn, then with `kiln-kernels` and `kiln-data`.

mod fused;
mod memory;
mod model;
mod stock;
mod text;

use std::error::Error;
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use burn_optim::{AdamWConfig, GradientsParams};
use kiln_kernels::{F32Products, Settings};
use model::{Model, Shape};
use text::{Batch, Text};

/// Optimizer steps of each run, after the first ones.
const STEPS: usize = 20;
/// Steps before the clock starts: a GPU compiles and tunes its kernels.
const FIRST_STEPS: usize = 4;
/// Largest relative difference of two losses. Both runs compute in f32, but sum in different orders; a GPU multiplies in TF32.
const TOLERANCE: f32 = if cfg!(feature = "cuda") { 5e-3 } else { 1e-3 };

/// What a run of training shows.
struct Run {
    losses: Vec<f32>,
    /// Median time of a step.
    step: Duration,
    /// Memory at its peak, above what was in use before.
    peak_bytes: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).unwrap_or("small".into());
    let shape = Shape::named(&name)?;
    // Burn's products of f32 are TF32 on a GPU, so Kiln's are, too.
    let _installed = Settings { f32_products: F32Products::Tf32, ..Settings::current() }.install();
    let device = device();
    device.seed(1);
    let text = Text::read(shape)?;
    let model = Model::new(shape, &device);
    println!("{name}: {} parameters, {} tokens of text, on {device:?}", model.num_params(), text.n_tokens());

    let before = train(model.clone(), stock::batches(&text)?, stock::mean_loss, &device)?;
    let after = train(model, fused::batches(&text)?, fused::mean_loss, &device)?;

    let memory = if cfg!(feature = "cuda") { "GPU memory" } else { "peak heap" };
    println!("           {:>10} {memory:>12} {:>10} {:>10}", "step", "first loss", "last loss");
    for (name, run) in [("stock Burn", &before), ("with Kiln", &after)] {
        let (step_ms, peak_mib) = (1e3 * run.step.as_secs_f64(), run.peak_bytes as f64 / f64::from(1 << 20));
        let (first, last) = (run.losses[0], run.losses[run.losses.len() - 1]);
        println!("{name:<10} {step_ms:>7.1} ms {peak_mib:>8.1} MiB {first:>10.4} {last:>10.4}");
    }

    for (step, (before, after)) in before.losses.iter().zip(&after.losses).enumerate() {
        let difference = (before - after).abs() / before;
        if difference.is_nan() || difference > TOLERANCE {
            return Err(format!("step {}: loss {after} with Kiln, {before} with stock Burn", step + 1).into());
        }
    }
    println!("the losses of all {} steps agree", before.losses.len());
    Ok(())
}

/// The CPU, or with the feature `cuda` the first GPU.
fn device() -> Device {
    #[cfg(feature = "cuda")]
    let device = Device::cuda(0);
    #[cfg(not(feature = "cuda"))]
    let device = Device::flex();
    device.autodiff()
}

/// Trains with Burn's AdamW on the first batches.
fn train(
    mut model: Model,
    mut batches: impl FnMut() -> Result<Batch, Box<dyn Error>>,
    mean_loss: fn(&Model, &Batch, &Device) -> Tensor<1>,
    device: &Device,
) -> Result<Run, Box<dyn Error>> {
    let learning_rate = model.shape.learning_rate;
    let mut optimizer = AdamWConfig::new().with_weight_decay(0.01).init();
    let (mut losses, mut times) = (Vec::new(), Vec::new());
    let in_use = memory::in_use(device);

    for step in 0..FIRST_STEPS + STEPS {
        if step == FIRST_STEPS {
            memory::start(device);
        }
        let started = Instant::now();
        let loss = mean_loss(&model, &batches()?, device);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(learning_rate, model, gradients);
        losses.push(loss.into_scalar::<f32>());
        device.sync()?;
        times.push(started.elapsed());
    }

    let mut times = times.split_off(FIRST_STEPS);
    times.sort();
    Ok(Run { losses, step: times[STEPS / 2], peak_bytes: memory::peak(device).saturating_sub(in_use) })
}
