//! Trains a small translator from Rust and uses it. It takes seconds on a CPU:
//!
//! ```text
//! cargo run --release --example train_from_rust
//! ```

use kiln::device::DeviceChoice;
use kiln::{Config, Run};

fn main() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let dir = folder.path().join("numbers");

    // A preset and single keys on top of it. Without data.train, the run learns the built-in task: numbers in digits ->
    // English words. `validate` reports every mistake at once.
    let config = Config::preset("tiny")
        .set("model.d_model", 64)
        .set("model.d_ff", 128)
        .set("loader.batch_tokens", 512)
        .set("train.steps", 120)
        .set("optim.warmup_steps", 20)
        .set("train.log_every", 30)
        .set("train.validate_every", 60)
        .set("generate.max_new_tokens", 16)
        .validate()?;

    // The run folder gets the configuration, the token caches, the metrics and the checkpoints.
    let outcome = Run::create(&dir, config)?.on(DeviceChoice::Cpu).with_console().train()?;
    println!("{} steps, {:.0} tokens/s", outcome.step, outcome.throughput.tokens_per_sec);
    if let Some(best) = outcome.best {
        println!("best validation: loss {:.3} at step {}", best.loss, best.step);
    }

    // From here on, this could be another process.
    let run = Run::open(&dir)?.on(DeviceChoice::Cpu);
    let scores = run.evaluate()?;
    println!("nll {:.3} over {} tokens", scores.loss.nll, scores.loss.target_tokens);

    let numbers = ["7", "42"];
    for (number, words) in numbers.iter().zip(run.translate(&numbers)?) {
        println!("{number} -> {words}"); // a run this short has not learned much
    }
    Ok(())
}
