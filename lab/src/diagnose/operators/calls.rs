//! The operators that a step calls, as they record themselves: which, how often, at which sizes, and with how much work.

use anyhow::{Context, Result};
use kiln_kernels::calls::{self, Call, Watch, Work};
use kiln_model::Batch;
use kiln_train::eval::Model;
use kiln_train::optim::FlatGradients;
use kiln_train::train::TrainState;
use kiln_train::train::step::group_gradients;

/// Calls of an operator that differ only in their place in the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Calls {
    /// The operator and its pass, for example `attention backward`.
    pub operator: &'static str,
    /// The sizes that its work depends on.
    pub(super) sizes: Vec<usize>,
    /// The work of one call, with the calls inside it.
    pub(super) work: Work,
    /// Calls of a step.
    pub calls: usize,
}

impl Calls {
    /// Takes forward and backward of `batch`, and returns the calls in the order of their first ones. The process must call no operators
    /// elsewhere meanwhile.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn of_step<M: Model>(state: &TrainState<M>, batch: &Batch) -> Result<Vec<Self>> {
        // What made the state does not belong to a step.
        state.device.clone().inner().sync().context("waiting for the device")?;
        calls::start(Watch::Host);
        let (_sums, FlatGradients(gradients)) = group_gradients(state, std::slice::from_ref(batch), state.micro_steps);
        // Reading keeps the backend from dropping what nobody needs.
        let read = gradients.values.narrow(0, 0, 1).try_into_data();
        let calls = calls::stop();
        read.context("reading what forward and backward have computed")?;
        Ok(Self::summed(&calls))
    }

    /// Sums up calls in the order in which they returned. Calls inside another one are work of that one.
    fn summed(calls: &[Call]) -> Vec<Self> {
        let mut sums: Vec<Self> = Vec::new();
        let mut inside = Work::default();
        for Call { operator, sizes, work, depth, .. } in calls {
            let work = Work { flops: inside.flops + work.flops, bytes: inside.bytes + work.bytes };
            if *depth > 0 {
                inside = work;
                continue;
            }
            inside = Work::default();
            let is_alike = |sum: &&mut Self| sum.operator == *operator && sum.sizes == *sizes && sum.work == work;
            match sums.iter_mut().find(is_alike) {
                Some(sum) => sum.calls += 1,
                None => sums.push(Self { operator, sizes: sizes.clone(), work, calls: 1 }),
            }
        }
        sums
    }

    /// `256 x 64 x 192`.
    pub(super) fn shape(&self) -> String {
        self.sizes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" x ")
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn call(operator: &'static str, sizes: [usize; 2], flops: f64, depth: usize) -> Call {
        let now = Instant::now();
        Call {
            operator,
            sizes: sizes.to_vec(),
            work: Work { flops, bytes: 1.0 },
            started: now,
            ended: now,
            own: Duration::ZERO,
            depth,
            on_device: None,
            live_bytes: None,
        }
    }

    #[test]
    fn calls_with_the_same_sizes_and_work_are_counted_and_calls_inside_are_work_of_the_outer_one() {
        let recorded = [
            call("linear NN", [8, 4], 2.0, 0),
            call("linear NN", [8, 4], 2.0, 0),
            // As many numbers, half of the products: a causal mask.
            call("linear NN", [8, 4], 1.0, 0),
            call("linear NT", [8, 16], 3.0, 1),
            call("linear TN", [8, 16], 5.0, 2),
            call("projection", [8, 2], 0.0, 0),
            call("linear NT", [8, 16], 3.0, 0),
        ];
        let found = Calls::summed(&recorded);
        let found: Vec<_> = found.iter().map(|sum| (sum.operator, sum.work.flops, sum.work.bytes, sum.calls)).collect();
        assert_eq!(
            found,
            [
                ("linear NN", 2.0, 1.0, 2),
                ("linear NN", 1.0, 1.0, 1),
                ("projection", 8.0, 3.0, 1),
                ("linear NT", 3.0, 1.0, 1)
            ]
        );
        assert_eq!(Calls::summed(&recorded)[2].shape(), "8 x 2");
    }
}
