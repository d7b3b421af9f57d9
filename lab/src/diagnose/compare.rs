//! Compares the training losses of several runs over the steps that all of them took.
//!
//! Kernels round differently from the reference operators, so losses soon differ. The useful question is whether a run with one
//! set of operators stays closer to a run with the other than two runs with different seeds stay to each other.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

use super::largest;

/// The training loss of each step of a run, nats per label.
pub type Losses = BTreeMap<u64, f64>;

/// Consecutive steps that all runs took.
#[derive(Debug, Clone, PartialEq)]
pub struct Window {
    /// The first and the last step.
    pub steps: [u64; 2],
    /// The mean loss of each run.
    pub means: Vec<f64>,
}

/// The distance of a run from the first one, in nats per label.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Distance {
    /// The mean absolute difference of the losses of one step. Between different seeds it includes the difference between
    /// batches.
    pub of_steps: f64,
    /// The mean absolute difference of the window means.
    pub of_windows: f64,
    /// The largest difference of window means.
    pub largest: f64,
}

/// The losses of several runs over the same steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// Windows in the order of their steps.
    pub windows: Vec<Window>,
    /// The distance of each further run from the first.
    pub distances: Vec<Distance>,
}

impl Comparison {
    /// Compares `runs` over the steps that all have, cut into at most `n_windows` equal windows.
    ///
    /// # Errors
    /// If there are fewer than two runs, or no step that all of them took.
    pub fn of(runs: &[Losses], n_windows: usize) -> Result<Self> {
        let [first, others @ ..] = runs else { anyhow::bail!("nothing to compare: give at least two runs") };
        ensure!(!others.is_empty(), "nothing to compare: give at least two runs");
        let steps: Vec<u64> =
            first.keys().copied().filter(|step| others.iter().all(|run| run.contains_key(step))).collect();
        ensure!(!steps.is_empty(), "the runs have no step in common");

        let len = steps.len().div_ceil(n_windows.max(1));
        let mean = |run: &Losses, steps: &[u64]| steps.iter().map(|step| run[step]).sum::<f64>() / steps.len() as f64;
        let windows: Vec<Window> = steps
            .chunks(len)
            .map(|steps| Window {
                steps: [steps[0], steps[steps.len() - 1]],
                means: runs.iter().map(|run| mean(run, steps)).collect(),
            })
            .collect();

        let distances = (1..runs.len()).map(|i| {
            let apart: Vec<f64> = windows.iter().map(|window| (window.means[i] - window.means[0]).abs()).collect();
            Distance {
                of_steps: steps.iter().map(|step| (runs[i][step] - first[step]).abs()).sum::<f64>()
                    / steps.len() as f64,
                of_windows: apart.iter().sum::<f64>() / apart.len() as f64,
                largest: largest(apart),
            }
        });
        Ok(Self { distances: distances.collect(), windows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(loss: impl Fn(u64) -> f64) -> Losses {
        (1..=10).map(|step| (step, loss(step))).collect()
    }

    #[test]
    fn runs_are_compared_over_the_steps_that_all_took() {
        let mut long = run(|step| 10.0 - step as f64);
        long.insert(11, 100.0);
        let near = run(|step| 10.0 - step as f64 + if step % 2 == 0 { 0.5 } else { -0.5 });
        let far = run(|step| 11.0 - step as f64);
        let found = Comparison::of(&[long, near, far], 5).expect("comparable");
        assert_eq!(found.windows.len(), 5);
        assert_eq!(found.windows[0], Window { steps: [1, 2], means: vec![8.5, 8.5, 9.5] });
        assert_eq!(found.distances[0], Distance { of_steps: 0.5, of_windows: 0.0, largest: 0.0 });
        assert_eq!(found.distances[1], Distance { of_steps: 1.0, of_windows: 1.0, largest: 1.0 });
    }

    #[test]
    fn a_loss_of_nan_makes_the_distance_nan() {
        let found = Comparison::of(&[run(|_| 1.0), run(|step| if step == 3 { f64::NAN } else { 1.0 })], 5);
        let distance = found.expect("comparable").distances[0];
        assert!(distance.largest.is_nan() && distance.of_steps.is_nan(), "{distance:?}");
    }

    #[test]
    fn runs_that_cannot_be_compared_are_an_error() {
        let late = Losses::from([(20, 1.0)]);
        for (runs, wanted) in [(vec![run(|_| 1.0)], "two runs"), (vec![run(|_| 1.0), late], "no step in common")] {
            assert!(Comparison::of(&runs, 5).expect_err(wanted).to_string().contains(wanted));
        }
    }
}
