//! Cross-entropy per row as a backend extension.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, backend_extension};
#[cfg(feature = "cuda")]
use burn::tensor::{DType, Shape};

#[backend_extension(Flex, Cube: cfg(feature = "cuda"), Fusion: cfg(feature = "cuda"), Autodiff)]
pub(crate) trait CrossEntropyOps: Backend {
    /// Returns `[3, M]`, f32: each row's loss, its negative log-likelihood (both 0 where the label is `ignored`), and
    /// the log of its sum of exponentials. Only the loss has a gradient.
    #[fusion(dtype = DType::F32, shape = Shape::new([3, logits[0]]))]
    fn cross_entropy_rows(
        logits: FloatTensor<Self>,
        labels: IntTensor<Self>,
        smoothing: f32,
        ignored: i32,
    ) -> FloatTensor<Self>;

    /// Returns the gradient of the logits from the result of forward (`rows`) and its gradient (`drows`), both `[3,
    /// M]`.
    #[fusion(dtype = logits, shape = logits)]
    fn cross_entropy_rows_backward(
        logits: FloatTensor<Self>,
        labels: IntTensor<Self>,
        rows: FloatTensor<Self>,
        drows: FloatTensor<Self>,
        smoothing: f32,
        ignored: i32,
    ) -> FloatTensor<Self>;
}
