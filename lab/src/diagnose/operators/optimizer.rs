//! The optimizer: gradients gathered into one flat tensor, and the step that uses them.

use anyhow::Result;
use burn::tensor::{DType, Tensor};
use kiln_kernels::calls::Work;
use kiln_kernels::optim::gather;
use kiln_train::optim::{FlatGradients, FlatOptimizer};

use super::OperatorTime;
use super::bench::Bench;

impl Bench {
    /// Times the gathering of gradients with the sum of their squares, and the step that uses them.
    pub(super) fn optimizer(&self, optimizer: &mut FlatOptimizer) -> Result<[OperatorTime; 2]> {
        let table = optimizer.table().clone();
        let places: Vec<_> = table.entries().iter().map(|entry| entry.place()).collect();
        let parts: Vec<Tensor<1>> = table.entries().iter().map(|entry| self.random([entry.len()])).collect();

        let (n, dtype) = (table.flat_len(), DType::from(self.dtype));
        let flatten = || {
            let parts = parts.iter().cloned().map(Into::into).collect();
            gather(parts, &places, n, dtype, &self.device, None)
        };
        let flattened = self.watch.time(self.bytes(n) as f64, flatten)?;

        let (flat, one) = (flatten(), Tensor::<1>::ones([1], (&self.device, DType::F32)));
        let step = || optimizer.step(FlatGradients(flat.clone()), one.clone(), one.clone());
        let stepped = self.watch.time(self.bytes(n) as f64, step)?;

        let shape = format!("{:.1} M in {} tensors", table.n_params() as f64 / 1e6, places.len());
        let row = |name: &str, time, bytes: usize| OperatorTime {
            name: name.into(),
            shape: shape.clone(),
            calls: 1,
            time,
            work: Work { flops: 0.0, bytes: bytes as f64 },
        };
        // Read: the gradient, master weights and state. Written: master weights, state and, unless they have the compute dtype, the
        // weights.
        let master = optimizer.state().master.dtype();
        let kept = 2 * master.size();
        let state: usize = optimizer.groups().slots(&table).iter().map(|slot| kept * slot.range.len()).sum();
        let weights = if dtype == master { 0 } else { self.bytes(1) };
        Ok([
            row("flat gradients", flattened, self.bytes(2 * n)),
            row("norm, clip, AdamW", stepped, n * (kept + self.bytes(1) + weights) + state),
        ])
    }
}
