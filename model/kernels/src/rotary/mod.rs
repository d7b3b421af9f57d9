//! Positions as rotations of queries and keys.

mod reference;
#[cfg(test)]
mod tests;

use burn::tensor::{Int, Tensor};

/// Rotary position embedding (Su et al. 2021, "RoFormer") in the layout that the projection wrote: the first
/// `n_rotated_heads` heads of each row are rotated, the rest (the values) is copied. Of a head of size K, features `i` and
/// `i + K / 2` form a pair ("rotate half", as in Hugging Face's Llama), turned by `position * theta^(-2 i / K)`.
///
/// Angles and products are computed in f32 whatever the dtype of `qkv`; the result has that dtype.
///
/// # Shapes
/// - `qkv`: `[M, N]`, heads side by side, the rotated ones first
/// - `positions`: `[M]`
/// - result: `[M, N]`
///
/// # Panics
/// If `head_dim` is odd, `positions` has not one number a row, or the rotated heads do not fit into a row.
pub fn rotary(
    qkv: Tensor<2>,
    positions: Tensor<1, Int>,
    n_rotated_heads: usize,
    head_dim: usize,
    theta: f64,
) -> Tensor<2> {
    let [rows, columns] = qkv.dims();
    assert!(head_dim.is_multiple_of(2), "heads of {head_dim} features do not split into pairs");
    assert_eq!(positions.dims(), [rows], "one position for each of {rows} rows");
    let rotated = n_rotated_heads * head_dim;
    assert!(rotated <= columns, "{n_rotated_heads} heads of {head_dim} do not fit into {columns} columns");
    if rotated == 0 {
        return qkv;
    }
    reference::rotary(qkv, positions, n_rotated_heads, head_dim, theta)
}
