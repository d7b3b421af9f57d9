//! Times each operator of a training step alone, at the shapes of a workload, and compares the time with the device's floor.
//!
//! Forward passes and products are called as the model calls them. A backward pass is timed together with its forward pass.
//! The forward pass and the start of the gradient (a product with a random tensor and its own backward) are then subtracted.
//! Many calls are enqueued before the host waits for the device, so launches overlap with execution, as they do in a step.

mod attention;
mod baseline;
mod bench;
mod calls;
mod linear;
mod optimizer;
mod peaks;
mod rows;
mod timing;
mod work;

use anyhow::Result;
pub use baseline::{ComparedOperator, is_known, measure_compared};
use bench::Bench;
use burn::tensor::{Device, FloatDType};
use calls::Calls;
use kiln_kernels::{CrossEntropyConfig, Settings};
pub use peaks::measured_peaks;
pub use timing::Timed;
pub use work::{Peaks, Work};

use super::workload::Workload;

/// One line of the table.
#[derive(Debug, Clone, PartialEq)]
pub struct OperatorTime {
    /// The operator and the pass: forward, or one of the backward products.
    pub name: String,
    /// Its shape.
    pub shape: String,
    /// Calls per step.
    pub calls: usize,
    /// The time of one call.
    pub time: Timed,
    /// The least work that a call can do.
    pub work: Work,
}

impl OperatorTime {
    /// Seconds per step.
    pub fn of_step(&self) -> f64 {
        self.calls as f64 * self.time.device
    }
}

/// Times the operators of `workload`'s step, `repeats` times each.
///
/// # Errors
/// If the device fails.
pub fn measure(workload: &Workload, dtype: FloatDType, device: &Device, repeats: usize) -> Result<Vec<OperatorTime>> {
    workload.config.train.kernels.install();
    let _installed = workload.config.train.f32_products.within(Settings::current()).install();
    let mut bench = Bench::new(dtype, device, repeats);
    let calls = Calls::of(workload, &bench.device);
    let (d_model, vocab_size) = (workload.model.d_model, workload.model.vocab_size());

    for product in &calls.products {
        bench.product(product)?;
        if let Some(activation) = product.activation {
            bench.activation(product.shape, product.calls, activation, calls.activation_dropout)?;
        }
    }
    for attention in &calls.attention {
        bench.attention(attention)?;
    }
    for (rows, n) in &calls.norms {
        bench.norm(*rows, *n, calls.dropout, &workload.model)?;
    }
    for (ids, table_rows) in calls.embeddings {
        bench.embedding(ids, [table_rows, d_model], calls.length, calls.dropout)?;
    }

    let (labels, ignored) = calls.labels;
    let config =
        CrossEntropyConfig { label_smoothing: workload.config.train.label_smoothing, ignore_index: i64::from(ignored) };
    bench.head(&labels, &workload.model, &config)?;
    bench.cross_entropy(labels, vocab_size, &config, calls.whole_head)?;
    bench.optimizer(workload)?;
    Ok(bench.rows)
}
