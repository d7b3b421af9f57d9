//! Cross-entropy per row as a backend extension.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, backend_extension};
#[cfg(feature = "cuda")]
use burn::tensor::{DType, Shape};

use super::CrossEntropyConfig;

/// How the losses of rows are computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RowLoss {
    pub(crate) smoothing: f32,
    /// Rows with this label have no loss.
    pub(crate) ignored: i32,
    /// A bound `c` of the logits, which count as `c * tanh(logit / c)`.
    pub(crate) softcap: Option<f32>,
}

impl RowLoss {
    pub(crate) fn new(config: &CrossEntropyConfig, softcap: Option<f32>) -> Self {
        let ignored = i32::try_from(config.ignore_index).expect("an ignored label of 32 bits");
        Self { smoothing: config.label_smoothing as f32, ignored, softcap }
    }
}

#[backend_extension(Flex, Cube: cfg(feature = "cuda"), Fusion: cfg(feature = "cuda"), Autodiff)]
pub(crate) trait CrossEntropyOps: Backend {
    /// Returns `[3, M]`, f32: each row's loss, its negative log-likelihood (both 0 where the label is ignored), and
    /// the log of its sum of exponentials. Only the loss has a gradient.
    #[fusion(dtype = DType::F32, shape = Shape::new([3, logits[0]]))]
    fn cross_entropy_rows(logits: FloatTensor<Self>, labels: IntTensor<Self>, of: RowLoss) -> FloatTensor<Self>;

    /// Returns the gradient of the logits from the result of forward (`rows`) and its gradient (`drows`), both `[3,
    /// M]`.
    #[fusion(dtype = logits, shape = logits)]
    fn cross_entropy_rows_backward(
        logits: FloatTensor<Self>,
        labels: IntTensor<Self>,
        rows: FloatTensor<Self>,
        drows: FloatTensor<Self>,
        of: RowLoss,
    ) -> FloatTensor<Self>;
}
