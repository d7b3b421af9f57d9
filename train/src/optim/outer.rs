//! The outer optimizer of local steps (DiLoCo, Douillard et al. 2023): SGD with Nesterov momentum on what the replicas have learned.
//!
//! Each replica sends the way that its weights have come, and all go the way that the outer optimizer makes of it. Both travel in few
//! bits; the weights that all replicas start from stay in f32 and have the same bits everywhere.

use burn::tensor::{FloatDType, Tensor};

use super::Slices;

/// The outer state of one rank.
#[derive(Debug, Clone)]
pub struct Outer {
    learning_rate: f32,
    momentum: f32,
    /// Dtype of what travels.
    dtype: FloatDType,
    /// The weights after the last synchronization, `[n]`, f32: the same on all ranks.
    anchor: Tensor<1>,
    /// Sum of the outer gradients of this rank's slice, `[slice]`, f32.
    velocity: Tensor<1>,
}

impl Outer {
    /// Starts from `master`, the weights that all replicas have, `[n]`, f32; with the `velocity` of an earlier run, `[n]`, f32, or none.
    /// What travels has `dtype`: bf16 for a model that computes in 16 bits, whatever they are, because f16 loses small changes.
    pub(crate) fn new(
        [learning_rate, momentum]: [f64; 2],
        dtype: FloatDType,
        master: &Tensor<1>,
        velocity: Option<&Tensor<1>>,
        slices: &Slices,
    ) -> Self {
        // Copies: the inner optimizer overwrites its weights.
        let own = |all: &Tensor<1>| all.clone().slice([slices.own()]) * 1.0;
        let anchor = master.clone() * 1.0;
        let velocity = velocity.map_or_else(|| own(&anchor.zeros_like()), own);
        let dtype = if dtype == FloatDType::F16 { FloatDType::BF16 } else { dtype };
        Self { learning_rate: learning_rate as f32, momentum: momentum as f32, dtype, anchor, velocity }
    }

    /// Returns the way back from this replica's weights `master`, `[n]`, to the weights that all started from: `[n]`, in the dtype that
    /// travels. It is the replica's outer gradient.
    pub(crate) fn gradient(&self, master: &Tensor<1>) -> Tensor<1> {
        (self.anchor.clone() - master.clone()).cast(self.dtype)
    }

    /// Makes an outer step for this rank's slice. Returns the change to subtract from the weights, `[slice]`, in the dtype that travels.
    ///
    /// ```text
    /// gradient = mean over replicas of their gradients
    /// velocity = momentum * velocity + gradient
    /// change   = learning_rate * (gradient + momentum * velocity)
    /// ```
    ///
    /// The replicas are summed in their order, in f32, so that a repeated run has the same bits.
    ///
    /// # Shapes
    /// - `gradients`: `[world size * slice]`: the slice of each replica, one behind the other
    pub(crate) fn step(&mut self, gradients: &Tensor<1>) -> Tensor<1> {
        let [slice] = self.velocity.dims();
        let n_replicas = gradients.dims()[0] / slice;
        assert_eq!(gradients.dims(), [n_replicas * slice], "a slice from each replica");
        let of = |replica: usize| gradients.clone().narrow(0, replica * slice, slice).cast(FloatDType::F32);
        let sum = (1..n_replicas).fold(of(0), |sum, replica| sum + of(replica));

        let gradient = sum / n_replicas as f32;
        self.velocity = self.velocity.clone() * self.momentum + gradient.clone();
        ((gradient + self.velocity.clone() * self.momentum) * self.learning_rate).cast(self.dtype)
    }

    /// Takes the step: subtracts `change`, `[n]`, the changes of all slices. Returns the weights that all replicas go on from, `[n]`, f32,
    /// in a buffer of their own.
    pub(crate) fn apply(&mut self, change: Tensor<1>) -> Tensor<1> {
        self.anchor = self.anchor.clone() - change.cast(FloatDType::F32);
        self.anchor.clone() * 1.0
    }

    /// Sum of the outer gradients of the slice, `[slice]`, f32.
    pub(crate) fn velocity(&self) -> &Tensor<1> {
        &self.velocity
    }
}

#[cfg(test)]
mod tests {
    use burn::module::Param;
    use burn::tensor::Device;

    use super::*;
    use crate::optim::ParamTable;

    /// Weights that need several chunks.
    const N: usize = 3 * 4096;

    fn tensor(seed: usize, scale: f32) -> Tensor<1> {
        let value = |i: usize| ((i * 7919 + seed * 104_729) % 65_537) as f32 / 32_768.0 * scale - scale;
        Tensor::from_data((0..N).map(value).collect::<Vec<_>>().as_slice(), &Device::flex())
    }

    fn read(tensor: &Tensor<1>) -> Vec<f32> {
        tensor.clone().into_data().try_into_vec().expect("f32")
    }

    /// One slice that holds everything: replicas are received whole.
    fn outer(factors: [f64; 2], dtype: FloatDType, start: &Tensor<1>, velocity: Option<&Tensor<1>>) -> Outer {
        let slices = Slices::new(&ParamTable::of(&Param::from_tensor(start.clone())), 0, 1, &Device::flex());
        Outer::new(factors, dtype, start, velocity, &slices)
    }

    /// Lets replicas with the weights `replicas` meet.
    fn meet(outer: &mut Outer, replicas: &[Tensor<1>]) -> Tensor<1> {
        let gradients = replicas.iter().map(|master| outer.gradient(master)).collect();
        let change = outer.step(&Tensor::cat(gradients, 0));
        outer.apply(change)
    }

    #[test]
    fn three_replicas_follow_the_definition_in_f64() {
        let (rate, momentum) = (0.7, 0.9);
        // What travels in bf16 is rounded to 8 bits: twice, of numbers up to 0.1.
        for (dtype, tolerance) in [(FloatDType::F32, 1e-6), (FloatDType::BF16, 1e-3), (FloatDType::F16, 1e-3)] {
            let start = tensor(0, 1.0);
            let mut outer = outer([rate, momentum], dtype, &start, None);
            let (mut anchor, mut velocity) =
                (read(&start).into_iter().map(f64::from).collect::<Vec<_>>(), vec![0.0; N]);
            let mut largest = 0.0_f64;

            for round in 0..4 {
                let replicas: Vec<_> = (0..3).map(|r| outer.anchor.clone() + tensor(7 * round + r, 0.01)).collect();
                // Exact differences: in f32 the anchors of both sides are the same up to rounding.
                let ways: Vec<_> =
                    replicas.iter().map(|replica| read(&(outer.anchor.clone() - replica.clone()))).collect();
                let found = read(&meet(&mut outer, &replicas));
                for i in 0..N {
                    let gradient = ways.iter().map(|way| f64::from(way[i])).sum::<f64>() / 3.0;
                    velocity[i] = momentum * velocity[i] + gradient;
                    anchor[i] -= rate * (gradient + momentum * velocity[i]);
                    largest = largest.max((f64::from(found[i]) - anchor[i]).abs());
                }
            }
            assert!(largest < tolerance, "{dtype:?}: {largest}");
            assert!(dtype == FloatDType::F32 || largest > 1e-6, "{dtype:?} was not rounded");
            assert!(velocity.iter().any(|v| v.abs() > 1e-3), "nothing moved");
        }
    }

    #[test]
    fn a_continued_run_has_the_same_state() {
        let mut first = outer([0.7, 0.9], FloatDType::BF16, &tensor(0, 1.0), None);
        let weights = meet(&mut first, &[tensor(1, 1.0), tensor(2, 1.0)]);
        let again = outer([0.7, 0.9], FloatDType::BF16, &weights, Some(first.velocity()));
        assert_eq!((read(&again.anchor), read(&again.velocity)), (read(&first.anchor), read(&first.velocity)));
    }

    #[test]
    fn without_momentum_and_with_rate_1_the_replicas_get_their_mean() {
        let mut outer = outer([1.0, 0.0], FloatDType::F32, &tensor(0, 1.0), None);
        let (one, other) = (tensor(1, 1.0), tensor(2, 1.0));
        let found = read(&meet(&mut outer, &[one.clone(), other.clone()]));
        for (found, wanted) in found.into_iter().zip(read(&((one + other) / 2.0))) {
            assert!((found - wanted).abs() < 1e-6, "{found} and {wanted}");
        }
    }
}
