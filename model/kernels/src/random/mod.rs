//! Random integers from a counter, the same on every backend and in every process.
//!
//! Bits come from Philox4x32-7 (Salmon et al. 2011) with key = seed and counter = (element, site, draw), as for
//! [`dropout`](crate::dropout()).

mod autodiff;
#[cfg(feature = "cuda")]
mod kernel;
mod ops;
#[cfg(test)]
mod tests;

use burn::backend::Dispatch;
use burn::tensor::{DType, Int, Tensor};
#[cfg(all(test, feature = "cuda"))]
pub(crate) use kernel::tests::offline_kernels;
use ops::RandomOps;

use crate::dropout::DropoutStream;
use crate::settings::has_kernels;

/// Returns four independent words for each of `n` elements, uniform in 0..2^31 (31 bits, because integers are signed).
/// Takes one site of `stream`, like a call of [`dropout`](crate::dropout()).
///
/// # Shapes
/// - result: `[4, n]`, i32, on the stream's device
///
/// # Panics
/// If `n` is 0 or above 2^29.
pub fn random_words(n: usize, stream: &DropoutStream) -> Tensor<2, Int> {
    assert!((1..=1 << 29).contains(&n), "random words for {n} elements");
    let (site, state) = stream.take_for_numbers();
    let words = Tensor::<2, Int>::from_dispatch(Dispatch::random_words(state.clone().into_dispatch(), site, n));
    match stream.device() {
        device if has_kernels(&device) => words,
        device => Tensor::from_data(words.into_data(), (&device, DType::I32)),
    }
}
