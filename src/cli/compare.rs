//! `kiln compare`: the losses of several runs, side by side.

use std::path::PathBuf;

use anyhow::Result;

use crate::diagnose::compare::{Comparison, Losses, losses};

/// Compares the training losses of runs
///
/// Over the steps that all runs took: the mean loss of each in ten windows, how far the others are from the first, and the mean
/// and largest distance. Whether operators, a device or a precision change what is learned is seen when their distance is
/// put beside that of another seed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  kiln train --task lm --set train.steps=200 --run runs/fused
  kiln train --task lm --set train.steps=200 --run runs/reference --reference-operators
  kiln train --task lm --set train.steps=200 --run runs/seed --set seed=2
  kiln compare runs/fused runs/reference runs/seed")]
pub(super) struct Args {
    /// Run folders; the first is what the others are compared with
    #[arg(required = true, num_args = 2..)]
    runs: Vec<PathBuf>,
    /// Windows that the common steps are cut into
    #[arg(long, default_value_t = 10)]
    windows: usize,
}

pub(super) fn run(args: Args) -> Result<()> {
    let read: Vec<Losses> = args.runs.iter().map(|run| losses(run)).collect::<Result<_>>()?;
    let found = Comparison::of(&read, args.windows)?;
    let letter = |i: usize| char::from(b'A' + (i % 26) as u8);
    for (i, run) in args.runs.iter().enumerate() {
        println!("{} = {}", letter(i), run.display());
    }
    let mut head = format!("{:>15}  {:>9}", "steps", letter(0));
    for i in 1..args.runs.len() {
        head += &format!("  {:>9}  {:>9}", letter(i), format!("{} - A", letter(i)));
    }
    println!("{head}");
    for window in &found.windows {
        let [first, last] = window.steps;
        let mut line = format!("{:>15}  {:>9.4}", format!("{first}-{last}"), window.means[0]);
        for mean in &window.means[1..] {
            line += &format!("  {mean:>9.4}  {:>+9.4}", mean - window.means[0]);
        }
        println!("{line}");
    }
    for (i, distance) in found.distances.iter().enumerate() {
        println!(
            "{} is {:.4} nats from A in the mean of a window ({:.4} at most), {:.4} in a single step",
            letter(i + 1),
            distance.of_windows,
            distance.largest,
            distance.of_steps
        );
    }
    Ok(())
}
