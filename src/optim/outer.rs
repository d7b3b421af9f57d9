//! The outer optimizer of local steps (DiLoCo, Douillard et al. 2023): SGD with Nesterov momentum on what the replicas have learned.
//!
//! Each rank keeps the outer state of its slice of the weights alone.

use burn::tensor::Tensor;

use super::Slices;

/// The outer state of one rank's slice.
#[derive(Debug, Clone)]
pub struct Outer {
    learning_rate: f32,
    momentum: f32,
    /// The weights after the last synchronization, `[slice]`, f32.
    anchor: Tensor<1>,
    /// Sum of the outer gradients, `[slice]`, f32.
    velocity: Tensor<1>,
}

impl Outer {
    /// Starts from `master`, the weights that all replicas have, `[n]`, f32; with the `velocity` of an earlier run, `[n]`, f32, or none.
    pub fn new(
        [learning_rate, momentum]: [f64; 2],
        master: &Tensor<1>,
        velocity: Option<&Tensor<1>>,
        slices: &Slices,
    ) -> Self {
        // Copies: the inner optimizer overwrites its weights.
        let own = |all: &Tensor<1>| all.clone().slice([slices.own()]) * 1.0;
        let anchor = own(master);
        let velocity = velocity.map_or_else(|| anchor.zeros_like(), own);
        Self { learning_rate: learning_rate as f32, momentum: momentum as f32, anchor, velocity }
    }

    /// Takes an outer step. Returns the new weights of the slice, `[slice]`, f32.
    ///
    /// The outer gradient is the way back from the mean of the replicas' weights to the weights that they started from:
    ///
    /// ```text
    /// gradient = anchor - mean over replicas
    /// velocity = momentum * velocity + gradient
    /// anchor   = anchor - learning_rate * (gradient + momentum * velocity)
    /// ```
    ///
    /// The replicas are summed in their order, so that a repeated run has the same bits.
    ///
    /// # Shapes
    /// - `replicas`: `[world size * slice]`, f32: the slice of each replica, one behind the other
    pub fn step(&mut self, replicas: &Tensor<1>) -> Tensor<1> {
        let [slice] = self.anchor.dims();
        let n_replicas = replicas.dims()[0] / slice;
        assert_eq!(replicas.dims(), [n_replicas * slice], "a slice from each replica");
        let of = |replica: usize| replicas.clone().narrow(0, replica * slice, slice);
        let sum = (1..n_replicas).fold(of(0), |sum, replica| sum + of(replica));

        let gradient = self.anchor.clone() - sum / n_replicas as f32;
        self.velocity = self.velocity.clone() * self.momentum + gradient.clone();
        self.anchor = self.anchor.clone() - (gradient + self.velocity.clone() * self.momentum) * self.learning_rate;
        self.anchor.clone()
    }

    /// Sum of the outer gradients of the slice, `[slice]`, f32.
    pub fn velocity(&self) -> &Tensor<1> {
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

    #[test]
    fn three_replicas_follow_the_definition_in_f64() {
        let (rate, momentum) = (0.7, 0.9);
        let start = tensor(0, 1.0);
        let module = Param::from_tensor(start.clone());
        let slices = Slices::new(&ParamTable::of(&module), 0, 1, &Device::flex());
        // One slice holds everything: replicas are received whole.
        let mut outer = Outer::new([rate, momentum], &start, None, &slices);
        let (mut anchor, mut velocity) = (read(&start).into_iter().map(f64::from).collect::<Vec<_>>(), vec![0.0; N]);

        for round in 0..4 {
            let replicas: Vec<_> = (0..3).map(|r| outer.anchor.clone() + tensor(7 * round + r, 0.01)).collect();
            let found = read(&outer.step(&Tensor::cat(replicas.clone(), 0)));
            let replicas: Vec<_> = replicas.iter().map(read).collect();
            for i in 0..N {
                let mean = replicas.iter().map(|replica| f64::from(replica[i])).sum::<f64>() / 3.0;
                let gradient = anchor[i] - mean;
                velocity[i] = momentum * velocity[i] + gradient;
                anchor[i] -= rate * (gradient + momentum * velocity[i]);
                assert!(
                    (f64::from(found[i]) - anchor[i]).abs() < 1e-6,
                    "round {round}, {i}: {} and {}",
                    found[i],
                    anchor[i]
                );
            }
        }
        assert!(velocity.iter().any(|v| v.abs() > 1e-3), "nothing moved");
        let again = Outer::new([rate, momentum], &outer.anchor, Some(outer.velocity()), &slices);
        assert_eq!((read(&again.anchor), read(&again.velocity)), (read(&outer.anchor), read(&outer.velocity)));
    }

    #[test]
    fn without_momentum_and_with_rate_1_the_replicas_get_their_mean() {
        let module = Param::from_tensor(tensor(0, 1.0));
        let slices = Slices::new(&ParamTable::of(&module), 0, 1, &Device::flex());
        let mut outer = Outer::new([1.0, 0.0], &tensor(0, 1.0), None, &slices);
        let (one, other) = (tensor(1, 1.0), tensor(2, 1.0));
        let found = read(&outer.step(&Tensor::cat(vec![one.clone(), other.clone()], 0)));
        for (found, wanted) in found.into_iter().zip(read(&((one + other) / 2.0))) {
            assert!((found - wanted).abs() < 1e-6, "{found} and {wanted}");
        }
    }
}
