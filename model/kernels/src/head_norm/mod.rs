//! Root mean square norms of the heads of queries and keys (QK norm: Henry et al. 2020, in Qwen 3 and Gemma 3), in the layout that
//! their projection wrote.

mod autodiff;
mod cpu;
#[cfg(feature = "cuda")]
mod gpu;
mod ops;
mod reference;
#[cfg(test)]
mod tests;

use burn::backend::Dispatch;
use burn::tensor::Tensor;
#[cfg(all(test, feature = "cuda"))]
pub(crate) use gpu::tests::offline_kernels;
use ops::{HeadNormOps, HeadNorms};

use crate::settings::runs_plain;

/// Normalizes each head of the queries and keys of a row, `x / sqrt(mean(x^2) + eps) * gamma`, and copies the rest (the values).
/// Computes in f32; the result has the dtype of `qkv`. The gradients of the scales are sums in a fixed order.
///
/// # Shapes
/// - `qkv`: `[M, N]`, heads side by side: of the queries, of the keys, and others
/// - `query_gamma`, `key_gamma`: `[K]`
/// - result: `[M, N]`
///
/// # Panics
/// If dtypes differ, the scales differ in length, `n_query_heads + n_key_heads` heads do not fit into a row, or N is not a
/// multiple of K.
pub fn norm_heads(
    qkv: Tensor<2>,
    query_gamma: Tensor<1>,
    key_gamma: Tensor<1>,
    [n_query_heads, n_key_heads]: [usize; 2],
    eps: f64,
) -> Tensor<2> {
    let ([_, columns], [head_dim]) = (qkv.dims(), query_gamma.dims());
    assert_eq!(key_gamma.dims(), [head_dim], "the scales of queries and keys");
    assert!(columns.is_multiple_of(head_dim), "{columns} columns are not heads of {head_dim}");
    let heads = columns / head_dim;
    assert!(n_query_heads + n_key_heads <= heads, "{n_query_heads} + {n_key_heads} of {heads} heads");
    assert!(
        [&query_gamma, &key_gamma].iter().all(|gamma| gamma.dtype() == qkv.dtype()),
        "scales in the dtype of {:?}",
        qkv.dtype()
    );
    let spec = HeadNorms { n_query_heads, n_key_heads, head_dim, eps: eps as f32 };
    if runs_plain(&qkv.device()) {
        return reference::norm_heads(qkv, [query_gamma, key_gamma], spec);
    }
    let [qkv, query_gamma, key_gamma] = [qkv.into_dispatch(), query_gamma.into_dispatch(), key_gamma.into_dispatch()];
    Tensor::from_dispatch(Dispatch::norm_heads(qkv, query_gamma, key_gamma, spec))
}
