//! The output projection and the cross-entropy of its logits in one operator (Hsu et al. 2024, Liger Kernel: fused
//! linear cross-entropy). It works on chunks of rows, so that `[rows, vocabulary]` never exists at once.
//!
//! In training a chunk's gradients are computed right after its losses, while its logits exist. The gradient of the
//! logits overwrites them, becomes the chunk's rows of the input gradient, and is accumulated into the f32 gradient of
//! the weight. Nothing is computed twice. Only the gradients are kept; backward multiplies them by the gradient of the
//! loss.
//!
//! This saves more memory than the logits themselves. CubeCL's pools make every page as large as the largest tensor so
//! far, so a single tensor of logits would make all other memory come in pages of that size, the last of which is
//! mostly empty.

mod autodiff;
mod cpu;
mod each_row;
#[cfg(feature = "cuda")]
mod launch;
mod ops;
#[cfg(test)]
mod tests;

use burn::backend::Dispatch;
use burn::tensor::{DType, Int, Tensor};
pub use each_row::row_losses;
use ops::{Head, LinearCrossEntropyOps};

use crate::cross_entropy::{CrossEntropy, CrossEntropyConfig, RowLoss, cross_entropy};
use crate::linear::{Layout, ProductKind, linear, linear_transposed};
use crate::maybe::Maybe;
use crate::settings::runs_plain;

/// The projection from hidden states to logits.
#[derive(Debug, Clone)]
pub struct Projection {
    /// `[D, V]`, or `[V, D]` if it is `transposed`.
    pub weight: Tensor<2>,
    /// Whether the weight has one row per vocabulary entry, as a tied embedding has.
    pub transposed: bool,
    /// `[V]`
    pub bias: Option<Tensor<1>>,
    /// A bound `c` of the logits, which become `c * tanh(logit / c)` (Gemma 2). Above 0. `None`: none.
    pub softcap: Option<f64>,
}

impl Projection {
    /// Returns the logits of `x`.
    ///
    /// # Shapes
    /// - `x`: `[M, D]`
    /// - result: `[M, V]`
    ///
    /// # Panics
    /// If the shapes or dtypes do not fit.
    pub fn logits(&self, x: Tensor<2>) -> Tensor<2> {
        let (weight, bias) = (self.weight.clone(), self.bias.clone());
        let logits = if self.transposed { linear_transposed(x, weight, bias) } else { linear(x, weight, bias) };
        match self.softcap {
            Some(cap) => {
                let dtype = logits.dtype();
                ((logits.cast(DType::F32) / cap).tanh() * cap).cast(dtype)
            }
            None => logits,
        }
    }

    fn layout(&self) -> Layout {
        if self.transposed { Layout::NT } else { Layout::NN }
    }
}

/// Returns the [`cross_entropy`] of `projection`'s logits of `x`, computed in chunks of `chunk_rows` rows; 0 means one
/// chunk.
///
/// # Shapes
/// - `x`: `[M, D]`
/// - `labels`: `[M]`, each in `0..V`; rows with `ignore_index` do not count
///
/// # Panics
/// If shapes or dtypes do not fit, or `x` has no rows.
pub fn linear_cross_entropy(
    x: Tensor<2>,
    projection: Projection,
    labels: Tensor<1, Int>,
    config: &CrossEntropyConfig,
    chunk_rows: usize,
) -> CrossEntropy {
    if chunk_rows == 0 || runs_plain(&x.device()) {
        return cross_entropy(projection.logits(x), labels, config);
    }

    let layout = projection.layout();
    let Projection { weight, bias, softcap, .. } = projection;
    let ([rows, _], [n_labels]) = (x.dims(), labels.dims());
    assert!(rows == n_labels && rows > 0, "{rows} rows of hidden states, but {n_labels} labels");
    layout.check(&x.dims(), &weight.dims());
    assert_eq!(x.dtype(), weight.dtype(), "a product of two dtypes");
    let head = Head {
        product: ProductKind::new(layout).without_fp8(),
        loss: RowLoss::new(config, softcap.map(|cap| cap as f32)),
        chunk_rows,
    };
    if let Some(bias) = &bias {
        assert_eq!(bias.dims(), [head.vocabulary(&weight.dims())], "a bias for each column");
        assert_eq!(bias.dtype(), x.dtype(), "a bias in the dtype of the product");
    }

    CrossEntropy::of_rows(Tensor::from_dispatch(Dispatch::linear_cross_entropy(
        x.into_dispatch(),
        weight.into_dispatch(),
        Maybe::from(bias.map(|bias| bias.into_dispatch())),
        labels.into_dispatch(),
        head,
    )))
}
