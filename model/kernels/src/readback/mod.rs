//! Reading small tensors while the device goes on with later work.
//!
//! [`Tensor::into_data`] enqueues a copy to the host behind everything that was enqueued before and waits for it: the
//! device then has nothing left to do. [`Readback::begin`] only enqueues the copies. The host can enqueue more work and
//! ask for the numbers later; it then waits for the work before the copies alone, which has usually been done for long.

#[cfg(feature = "cuda")]
mod gpu;
mod ops;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::Dispatch;
use burn::tensor::{ExecutionError, Tensor};
use ops::ReadbackOps;

use crate::settings::has_kernels;

/// Tensors whose numbers travel to the host.
#[derive(Debug)]
pub struct Readback(Vec<(Tensor<1>, Slot)>);

impl Readback {
    /// Enqueues copies of `tensors` to the host and returns. The CPU, which has computed them already,
    /// copies nothing, and a device without [kernels](crate::has_kernels) copies when [`Self::finish`] asks.
    ///
    /// # Shapes
    /// - `tensors`: any number, each `[n]`, f32
    pub fn begin(tensors: impl IntoIterator<Item = Tensor<1>>) -> Self {
        let begun = tensors.into_iter().map(|tensor| {
            let slot = Slot::default();
            if !has_kernels(&tensor.device()) {
                return (tensor, slot);
            }
            (Tensor::from_dispatch(Dispatch::read_back(tensor.into_dispatch(), slot.clone())), slot)
        });
        let begun: Vec<_> = begun.collect();
        if let Some((first, _)) = begun.first() {
            // The backend's queue is lazy: without this the copies would begin with the next work. A failure shows in
            // `finish`.
            let _ = first.device().flush();
        }
        Self(begun)
    }

    /// Waits until the copies have arrived and returns the numbers of each tensor, in the order of [`Self::begin`].
    ///
    /// # Errors
    /// If the device has failed.
    pub fn finish(self) -> Result<Vec<Vec<f32>>, ExecutionError> {
        let read = |(tensor, slot): (Tensor<1>, Slot)| match slot.take() {
            Some(wait) => wait().map_err(ExecutionError::generic),
            None => Ok(tensor.try_into_data()?.iter::<f32>().collect()),
        };
        self.0.into_iter().map(read).collect()
    }
}

/// Waits for a copy and returns its numbers, or why there are none.
type Wait = Box<dyn FnOnce() -> Result<Vec<f32>, String> + Send>;

/// The place for a copy in progress: the backend fills it when it enqueues the copy.
#[derive(Clone, Default)]
pub(crate) struct Slot(Arc<Mutex<Option<Wait>>>);

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Slot")
    }
}

impl Slot {
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "GPUs copy"))]
    pub(crate) fn fill(&self, wait: Wait) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(wait);
    }

    fn take(&self) -> Option<Wait> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn the_numbers_are_those_of_the_moment_of_the_copy() {
        for (_, device) in testing::devices() {
            let tensor = |values: &[f32]| Tensor::<1>::from_data(values, &device);
            let mut one = tensor(&[1.0, -0.0, f32::NAN]);
            let two = tensor(&[3.5]) * 2.0;
            let readback = Readback::begin([one.clone(), two]);
            for _ in 0..100 {
                one = one + 1.0; // later work
            }
            let found = readback.finish().expect("the device answers");
            let bits: Vec<Vec<u32>> = found.iter().map(|values| values.iter().map(|x| x.to_bits()).collect()).collect();
            assert_eq!(bits, [vec![1f32.to_bits(), (-0f32).to_bits(), f32::NAN.to_bits()], vec![7f32.to_bits()]]);
            assert_eq!(one.into_data().iter::<f32>().next(), Some(101.0));
        }
        assert!(Readback::begin([]).finish().expect("nothing to read").is_empty());
    }
}
