//! Norms of heads in plain Burn operations.

use burn::tensor::Tensor;

use super::ops::HeadNorms;
use crate::norm::reference::rms_norm;

/// See [`super::norm_heads`].
pub(crate) fn norm_heads(qkv: Tensor<2>, [query_gamma, key_gamma]: [Tensor<1>; 2], spec: HeadNorms) -> Tensor<2> {
    let HeadNorms { n_query_heads, n_key_heads, head_dim, eps } = spec;
    let [rows, columns] = qkv.dims();
    let normed = |gamma: Tensor<1>, first: usize, n: usize| {
        let heads = qkv.clone().narrow(1, first * head_dim, n * head_dim).reshape([rows * n, head_dim]);
        rms_norm(heads, gamma, f64::from(eps)).reshape([rows, n * head_dim])
    };

    let normed_columns = (n_query_heads + n_key_heads) * head_dim;
    let mut parts = Vec::new();
    if n_query_heads > 0 {
        parts.push(normed(query_gamma, 0, n_query_heads));
    }
    if n_key_heads > 0 {
        parts.push(normed(key_gamma, n_query_heads, n_key_heads));
    }
    if columns > normed_columns {
        parts.push(qkv.clone().narrow(1, normed_columns, columns - normed_columns));
    }
    Tensor::cat(parts, 1)
}
