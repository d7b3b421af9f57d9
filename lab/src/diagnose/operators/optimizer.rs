//! The optimizer: gradients gathered into one flat tensor, and AdamW.

use anyhow::Result;
use burn::tensor::{DType, Tensor};
use kiln_kernels::optim::gather;
use kiln_train::optim::FlatGradients;
use kiln_train::train::TrainState;

use super::bench::Bench;
use super::work::Work;
use crate::diagnose::workload::Workload;

impl Bench {
    /// Times the gathering of gradients with the sum of their squares, and the step that uses them.
    pub(super) fn optimizer(&mut self, workload: &Workload) -> Result<()> {
        let TrainState { mut optimizer, .. } =
            TrainState::new(&workload.config, &workload.model, self.dtype, &self.device)?;
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
        self.row("flat gradients", shape.clone(), 1, flattened, Work::moved(self.bytes(2 * n)));
        // Read: the gradient, f32 master weights and state. Written: master weights, state and, unless the compute dtype
        // is f32, the rounded weights.
        let state: usize = optimizer.groups().slots(&table).iter().map(|slot| 8 * slot.range.len()).sum();
        let weights = if dtype == DType::F32 { 0 } else { self.element };
        self.row("norm, clip, AdamW", shape, 1, stepped, Work::moved(n * (8 + self.element + weights) + state));
        Ok(())
    }
}
