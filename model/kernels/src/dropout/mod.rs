//! Dropout (Srivastava et al. 2014) from a counter. No mask is stored: the same counter gives the same mask on every
//! backend, in every process, in forward and in backward.
//!
//! Bits come from Philox4x32-7 (Salmon et al. 2011) with key = seed and counter = (element / 8, site, draw). Each
//! element uses sixteen bits, which rounds the probability to a multiple of 2^-16.

mod autodiff;
#[cfg(feature = "cuda")]
pub(crate) mod kernel;
mod mask;
pub(crate) mod ops;
pub(crate) mod philox;
#[cfg(test)]
mod tests;

#[cfg(all(test, feature = "cuda"))]
pub(crate) use kernel::tests::offline_kernels;
use std::cell::{Cell, OnceCell};

use burn::backend::Dispatch;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
#[cfg(feature = "cuda")]
pub(crate) use mask::Dropping;
pub(crate) use mask::Mask;
#[cfg(feature = "cuda")]
pub(crate) use mask::MaskMetadata;
use ops::DropoutOps;

use crate::settings::has_kernels;

/// The random stream of one forward pass. Each call to [`dropout`] takes the next site of it. Seed and draw lie in a
/// device tensor, so that a captured step can be replayed with a new draw.
#[derive(Debug)]
pub struct DropoutStream {
    /// `[4]`: seed low and high, draw low and high, as the bits of 32-bit integers.
    state: Tensor<1, Int>,
    /// The same on the CPU, for a device without kernels: read once per stream.
    on_host: OnceCell<Tensor<1, Int>>,
    next_site: Cell<u32>,
}

impl DropoutStream {
    /// Creates the stream of draw number `draw` (a micro-step's index) under `seed`.
    pub fn new(seed: u64, draw: u64, device: &Device) -> Self {
        Self::over(Self::words(seed, draw, device))
    }

    /// Returns seed and draw on the device, `[4]`.
    pub fn words(seed: u64, draw: u64, device: &Device) -> Tensor<1, Int> {
        let words = [seed as u32, (seed >> 32) as u32, draw as u32, (draw >> 32) as u32].map(u32::cast_signed);
        if !has_kernels(device) {
            return Tensor::from_data(TensorData::from(words), (device, DType::I32));
        }
        let target = Tensor::<1, Int>::empty([4], (device, DType::I32));
        Tensor::from_dispatch(Dispatch::dropout_words(target.into_dispatch(), words))
    }

    /// Creates a stream that reads its [`Self::words`] from `state` whenever an operator runs. A captured step draws
    /// new numbers after [`overwrite`](crate::capture::overwrite).
    pub fn over(state: Tensor<1, Int>) -> Self {
        assert_eq!(state.dims(), [4], "seed and draw are four words");
        Self { state, on_host: OnceCell::new(), next_site: Cell::new(0) }
    }

    /// Creates a stream without autodiff that takes the same sites from here on.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self { state: self.state.clone().inner(), on_host: self.on_host.clone(), next_site: self.next_site.clone() }
    }

    pub(crate) fn device(&self) -> Device {
        self.state.device()
    }

    /// Goes on where `fork` has arrived.
    pub fn join(&self, fork: &Self) {
        self.next_site.set(fork.next_site.get());
    }

    /// Takes the next site. Returns it with seed and draw where random numbers are made: on the device, or on the CPU if the device has
    /// no kernels.
    pub(crate) fn take_for_numbers(&self) -> (u32, &Tensor<1, Int>) {
        let (site, state) = self.take();
        if has_kernels(&state.device()) {
            return (site, state);
        }
        let read = || Tensor::from_data(state.clone().inner().into_data(), (&Device::flex(), DType::I32));
        (site, self.on_host.get_or_init(read))
    }

    /// Takes the next site. Returns it with the device's copy of seed and draw.
    pub(crate) fn take(&self) -> (u32, &Tensor<1, Int>) {
        let site = self.next_site.get();
        self.next_site.set(site + 1);
        (site, &self.state)
    }
}

/// Zeroes each element with probability `p` and scales the rest by `1 / (1 - p)`.
///
/// # Shapes
/// - `x`, result: `[M, N]`
///
/// # Panics
/// If `p` is not in [0, 1) or `x` has more than 2^34 elements.
pub fn dropout(x: Tensor<2>, p: f64, stream: &DropoutStream) -> Tensor<2> {
    let mask = Mask::take(Some((p, stream)), x.shape().num_elements());
    mask.drop_out(x)
}

/// Returns the threshold of dropout: elements whose sixteen random bits are below it are dropped. It fits into sixteen
/// bits.
pub(crate) fn threshold_16(p: f32) -> u32 {
    (p * 65_536.0).round().min(65_535.0) as u32
}
