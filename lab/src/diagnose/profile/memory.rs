//! The memory in use during a step, by category.
//!
//! The bytes in use are asked for before and after each call of an operator. What the run keeps from step to step is known from its
//! configuration; gradients follow from the calls that make them; the rest comes and goes within the step.

use std::collections::VecDeque;
use std::time::Instant;

use kiln_kernels::calls::Call;
use kiln_model::flops::TrainBytes;
use serde::{Deserialize, Serialize};

/// The memory in use during one step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryLine {
    /// The moment with most bytes in use.
    pub peak: MemoryPoint,
    /// All moments, in their order.
    pub(crate) points: Vec<MemoryPoint>,
}

/// Bytes in use at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPoint {
    /// Microseconds since the step began, on the host's clock.
    pub(crate) micros: u64,
    /// The operator that was about to begin or had returned.
    pub operator: String,
    /// The model's weights in the compute dtype, and the weights of a model that it is compared with.
    pub(crate) weights: u64,
    /// Master weights, optimizer state, and the average of the weights.
    pub(crate) optimizer: u64,
    /// What else was there when the step began: batches, tables, CUDA graphs; on the CPU also the data and the program.
    pub(crate) other: u64,
    /// Gradients of the parameters so far, and their sum for the optimizer.
    pub(crate) gradients: u64,
    /// Activations that backward needs, and everything else that the step has made.
    pub(crate) activations: u64,
}

impl MemoryPoint {
    /// The names of the categories, in the order of [`Self::parts`].
    pub const CATEGORIES: [&str; 5] = ["weights", "optimizer", "other", "gradients", "activations"];

    /// Returns the bytes by category.
    pub fn parts(&self) -> [u64; 5] {
        [self.weights, self.optimizer, self.other, self.gradients, self.activations]
    }

    /// Returns the bytes in use.
    pub fn total(&self) -> u64 {
        self.parts().iter().sum()
    }
}

/// What is known about a step whose memory was watched.
pub(super) struct Watched<'a> {
    pub(super) calls: &'a [Call],
    /// When it began, and the bytes in use then.
    pub(super) began: (Instant, u64),
    /// The bytes of the run, from its configuration.
    pub(super) predicted: &'a TrainBytes,
    /// Bytes of a number of the compute dtype.
    pub(super) size: usize,
}

impl Watched<'_> {
    /// Lays out the step; `None` if the memory was not known.
    pub(super) fn line(&self) -> Option<MemoryLine> {
        let predicted = self.predicted;
        // In f32 the model computes with the master weights.
        let (weights, master) = match predicted.weights {
            0 => (predicted.master, 0),
            weights => (weights, predicted.master),
        };
        let weights = weights + predicted.reference;
        let optimizer = master + predicted.optimizer_state + predicted.average;
        let (began, before) = self.began;
        let kept = (weights + optimizer).min(before);
        let other = before - kept;

        let mut gradients = Gradients::new(predicted, self.size);
        let mut points = Vec::new();
        for moment in moments(self.calls) {
            if let Some((call, is_outer)) = moment.ended {
                gradients.count(call, is_outer);
            }
            let within = moment.bytes.saturating_sub(kept + other);
            let of_gradients = gradients.bytes().min(within);
            points.push(MemoryPoint {
                micros: moment.at.saturating_duration_since(began).as_micros() as u64,
                operator: moment.operator.into(),
                weights: weights.min(kept),
                optimizer: kept.saturating_sub(weights),
                // Less than before, if what was there was freed.
                other: other.min(moment.bytes.saturating_sub(kept)),
                gradients: of_gradients,
                activations: within - of_gradients,
            });
        }
        let peak = points.iter().max_by_key(|point| point.total())?.clone();
        Some(MemoryLine { peak, points })
    }
}

/// A moment at which the memory in use is known.
struct Moment<'a> {
    at: Instant,
    bytes: u64,
    operator: &'static str,
    /// The call that has returned, and whether no call is around it.
    ended: Option<(&'a Call, bool)>,
}

/// Returns the begins and ends of `calls` in their order.
fn moments(calls: &[Call]) -> Vec<Moment<'_>> {
    let mut moments: Vec<Moment<'_>> = Vec::new();
    for call in calls {
        let Some([before, after]) = call.live_bytes else { continue };
        let operator = call.operator;
        moments.push(Moment { at: call.started, bytes: before, operator, ended: None });
        moments.push(Moment { at: call.ended, bytes: after, operator, ended: Some((call, call.depth == 0)) });
    }
    moments.sort_by_key(|moment| moment.at);
    moments
}

/// Adds up the gradients of the parameters, as the calls of a step make them.
struct Gradients {
    /// Of each parameter, since the last time that they were gathered.
    parts: u64,
    /// Gathered, end to end.
    flat: u64,
    /// The most bytes of each.
    most: [u64; 2],
    size: u64,
    /// Sizes of the products inside the call in progress: chunks add to one gradient.
    inside: VecDeque<Vec<usize>>,
}

impl Gradients {
    fn new(predicted: &TrainBytes, size: usize) -> Self {
        let most = [predicted.gradients, predicted.gradients.max(predicted.accumulator)];
        Self { parts: 0, flat: 0, most, size: size as u64, inside: VecDeque::new() }
    }

    fn bytes(&self) -> u64 {
        self.parts + self.flat
    }

    fn count(&mut self, call: &Call, is_outer: bool) {
        let product = |sizes: &[usize]| sizes.iter().map(|size| *size as u64).product::<u64>();
        let made = match (call.operator, call.sizes.as_slice()) {
            ("linear TN", [m, _, n]) if is_outer => product(&[*m, *n]) * self.size,
            // In f32, and once for all chunks.
            ("linear TN", [m, _, n]) if !self.inside.contains(&call.sizes) => {
                self.inside.push_back(call.sizes.clone());
                product(&[*m, *n]) * 4
            }
            ("embedding backward", [_, rows, d]) => product(&[*rows, *d]) * self.size,
            ("flat gradients", [len]) => {
                let size = if self.most[1] > self.most[0] { 4 } else { self.size };
                self.flat = (self.flat + *len as u64 * size).min(self.most[1]);
                self.parts = 0;
                0
            }
            _ => 0,
        };
        self.parts = (self.parts + made).min(self.most[0]);
        if is_outer {
            self.inside.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kiln_kernels::calls::Work;

    use super::*;

    fn call(operator: &'static str, sizes: &[usize], began: Instant, micros: [u64; 2], bytes: [u64; 2]) -> Call {
        let at = |micros| began + Duration::from_micros(micros);
        Call {
            operator,
            sizes: sizes.to_vec(),
            work: Work::default(),
            started: at(micros[0]),
            ended: at(micros[1]),
            own: Duration::ZERO,
            depth: 0,
            on_device: None,
            live_bytes: Some(bytes),
        }
    }

    #[test]
    fn bytes_are_of_the_run_of_gradients_or_of_the_step() {
        let began = Instant::now();
        let predicted =
            TrainBytes { weights: 200, master: 400, optimizer_state: 800, gradients: 200, ..TrainBytes::default() };
        let calls = [
            call("linear NN", &[8, 5, 10], began, [1, 2], [1500, 1660]),
            // Chunks: two products of one gradient, inside another call.
            Call { depth: 1, ..call("linear TN", &[5, 4, 10], began, [4, 5], [1700, 1900]) },
            Call { depth: 1, ..call("linear TN", &[5, 4, 10], began, [6, 7], [1900, 1900]) },
            call("output projection by chunks", &[8], began, [3, 8], [1660, 1900]),
            call("linear TN", &[5, 8, 10], began, [9, 10], [1900, 2000]),
            call("flat gradients", &[100], began, [11, 12], [1800, 1700]),
            call("AdamW", &[100], began, [13, 14], [1700, 1480]),
        ];
        let watched = Watched { calls: &calls, began: (began, 1500), predicted: &predicted, size: 2 };
        let line = watched.line().expect("memory");
        assert_eq!(line.points.len(), 14);
        assert!(line.points.iter().all(|point| point.weights == 200 && point.optimizer == 1200));

        let at = |micros| line.points.iter().find(|point| point.micros == micros).expect("a moment");
        let within = |micros| [at(micros).gradients, at(micros).activations, at(micros).other];
        assert_eq!(within(1), [0, 0, 100]);
        assert_eq!(within(2), [0, 160, 100]);
        assert_eq!(within(7), [200, 200, 100], "one gradient of 5 x 10 in f32");
        assert_eq!(within(10), [200, 300, 100], "not more than the parameters have");
        assert_eq!(within(12), [200, 0, 100], "gathered");
        assert_eq!(within(14), [0, 0, 80], "freed, and some of what was there before");
        assert_eq!((line.peak.micros, line.peak.total(), line.peak.operator.as_str()), (10, 2000, "linear TN"));
    }

    #[test]
    fn unknown_memory_is_no_line() {
        let began = Instant::now();
        let unknown = Call { live_bytes: None, ..call("norm forward", &[1], began, [0, 1], [0, 0]) };
        let watched = Watched { calls: &[unknown], began: (began, 10), predicted: &TrainBytes::default(), size: 4 };
        assert!(watched.line().is_none());
    }
}
