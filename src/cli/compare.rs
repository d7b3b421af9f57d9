//! `kiln compare`: compares the training losses of several runs.

use std::path::PathBuf;

use anyhow::Result;

use crate::diagnose::compare::{Comparison, Losses, losses};

/// Compares the training losses of runs
///
/// Prints the mean loss of each run in ten windows over the steps that all runs took, and the mean and the largest
/// distance from the first run. To judge whether other operators, another device or another
/// precision change what a model learns, compare the distance of that run with the distance of a run with another seed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  kiln train --task lm --set train.steps=200 --run runs/fused
  kiln train --task lm --set train.steps=200 --run runs/reference --reference-operators
  kiln train --task lm --set train.steps=200 --run runs/seed --set seed=2
  kiln compare runs/fused runs/reference runs/seed")]
pub(super) struct Args {
    /// Run folders; the others are compared with the first
    #[arg(required = true, num_args = 2..)]
    runs: Vec<PathBuf>,
    /// Number of windows
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
