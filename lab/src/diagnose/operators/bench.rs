//! The bench on which operators are timed: a device, a stopwatch and random tensors.

use anyhow::Result;
use burn::tensor::{DType, Device, Distribution, FloatDType, Int, Tensor, TensorData};
use kiln_kernels::DropoutStream;

use super::timing::{Stopwatch, Timed};

/// A pass that is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    Forward,
    Backward,
}

pub(super) struct Bench {
    pub(super) watch: Stopwatch,
    pub(super) device: Device,
    pub(super) dtype: FloatDType,
    /// Bytes per element.
    element: usize,
    pub(super) stream: DropoutStream,
}

impl Bench {
    pub(super) fn new(dtype: FloatDType, device: &Device, repeats: usize) -> Self {
        let device = device.clone().inner();
        Self {
            watch: Stopwatch::new(&device, repeats),
            element: DType::from(dtype).size(),
            stream: DropoutStream::new(1, 0, &device),
            device,
            dtype,
        }
    }

    /// A tensor without gradients.
    pub(super) fn random<const D: usize>(&self, shape: [usize; D]) -> Tensor<D> {
        let sampled: Tensor<D> = Tensor::random(shape, Distribution::Normal(0.0, 1.0), (&self.device, DType::F32));
        sampled.cast(self.dtype)
    }

    /// Returns `n` numbers below `end`, of which few are equal.
    pub(super) fn numbers(&self, n: usize, end: usize) -> Tensor<1, Int> {
        let numbers: Vec<i32> = (0..n).map(|i| (i * 7919 % end) as i32).collect();
        Tensor::from_data(TensorData::new(numbers, [n]), (&self.device, DType::I32))
    }

    /// A leaf of the autodiff graph whose gradient is computed.
    pub(super) fn leaf<const D: usize>(&self, shape: [usize; D]) -> Tensor<D> {
        Tensor::from_inner(self.random(shape)).require_grad()
    }

    /// A constant of the autodiff graph.
    pub(super) fn constant<const D: usize>(&self, shape: [usize; D]) -> Tensor<D> {
        Tensor::from_inner(self.random(shape))
    }

    /// Dropout with probability `p`, or none.
    pub(super) fn dropout(&self, p: f64) -> Option<(f64, &DropoutStream)> {
        (p > 0.0).then_some((p, &self.stream))
    }

    /// Bytes of `n` elements.
    pub(super) fn bytes(&self, n: usize) -> usize {
        n * self.element
    }

    /// Times one pass of `run`, whose result has `shape`. Backward is timed together with forward, which is then subtracted.
    pub(super) fn pass(&self, pass: Pass, shape: [usize; 2], run: impl Fn() -> Tensor<2>) -> Result<Timed> {
        let forward = self.watch.time(2.0 * self.bytes(shape[0] * shape[1]) as f64, &run)?;
        Ok(match pass {
            Pass::Forward => forward,
            Pass::Backward => self.with_backward(shape, run)?.without(forward),
        })
    }

    /// Times forward and backward of `run`, whose result has `shape`, from a random gradient. The time that it takes to make
    /// that gradient is subtracted.
    pub(super) fn with_backward(&self, shape: [usize; 2], run: impl Fn() -> Tensor<2>) -> Result<Timed> {
        let direction = self.constant(shape);
        let kept = 8.0 * self.bytes(shape[0] * shape[1]) as f64;
        let both = self.watch.time(kept, || {
            let y = run();
            let root = y.clone() * direction.clone();
            let gradients = root.backward();
            (y, root, gradients)
        })?;

        let leaf = self.leaf(shape);
        let seed = self.watch.time(kept, || {
            let root = leaf.clone() * direction.clone();
            let gradients = root.backward();
            (root, gradients)
        })?;
        Ok(both.without(seed))
    }
}
