//! Attention of a single query per row, for decoding: each row reads the keys and values of its positions where they lie.
//!
//! Beams share what they have in common. A table names, for each row and position, the row of the buffer that holds its key and value,
//! so that a search which moves beams changes the table and copies no keys. The beams of a source read one copy of its keys.

mod autodiff;
mod cpu;
#[cfg(feature = "cuda")]
mod gpu;
mod ops;
mod reference;
#[cfg(test)]
mod tests;

use burn::backend::Dispatch;
use burn::tensor::{DType, Device, Int, Tensor};
#[cfg(all(test, feature = "cuda"))]
pub(crate) use gpu::tests::offline_kernels;
use ops::StepAttentionOps;
pub(crate) use ops::StepSpec;

use crate::capture::overwrite_rows;
use crate::settings::{is_cpu, is_cuda, runs_plain};

/// Heads of [`step_attention`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepAttentionConfig {
    /// H.
    pub n_heads: usize,
    /// G, a divisor of H.
    pub n_kv_heads: usize,
    /// K.
    pub head_dim: usize,
    /// Factor of the scores; `None`: `1 / sqrt(K)`.
    pub scale: Option<f64>,
    /// Whether several warps of a GPU share the positions of a head, which is faster for few rows with many positions. The results
    /// differ in rounding.
    pub divided: bool,
}

impl StepAttentionConfig {
    /// # Panics
    /// If the tensors do not fit.
    fn spec(&self, query: &Tensor<2>, key_value: &Tensor<3>, lengths: &Tensor<1, Int>) -> StepSpec {
        let ([rows, _], [_, capacity, width]) = (query.dims(), key_value.dims());
        let Self { n_heads, n_kv_heads, head_dim, scale, divided } = *self;
        assert!(n_heads.is_multiple_of(n_kv_heads) && width == 2 * n_kv_heads * head_dim, "{width}: {self:?}");
        assert!(lengths.dims() == [rows], "lengths of {rows} rows");
        assert_eq!(query.dtype(), key_value.dtype(), "queries and keys of one dtype");
        let scale = scale.unwrap_or_else(|| (head_dim as f64).powf(-0.5)) as f32;
        StepSpec { n_heads, n_kv_heads, head_dim, capacity, per_position: false, divided, scale }
    }
}

/// Returns whether [`step_attention`] has a kernel for heads of `head_dim` features on `device`.
pub fn step_attention_is_fused(device: &Device, head_dim: usize) -> bool {
    is_cpu(device) || is_cuda(device) && matches!(head_dim, 32 | 64 | 128 | 256)
}

/// Attends from one query per row to the first `lengths` positions of the row. The result of a row has the same bits whatever other
/// rows there are.
///
/// # Shapes
/// - `query`: `[R, C]`, the queries in the first H * K columns
/// - `key_value`: `[N, S, 2 * G * K]`, columns `k | v`
/// - `places`: for each row, and for each position if there are S columns, the first index of its key and value in `key_value`:
///   `[R, S]` or `[R, 1]`, each in `0..N`
/// - `lengths`: `[R]`, each in `1..=S`
/// - result: `[R, H * K]`
///
/// # Panics
/// If the shapes or dtypes do not fit.
pub fn step_attention(
    query: Tensor<2>,
    key_value: Tensor<3>,
    places: Tensor<2, Int>,
    lengths: Tensor<1, Int>,
    config: &StepAttentionConfig,
) -> Tensor<2> {
    let ([rows, columns], [_, capacity, _], [n_places, per_row]) = (query.dims(), key_value.dims(), places.dims());
    let spec = config.spec(&query, &key_value, &lengths);
    assert!(columns >= spec.n_heads * spec.head_dim, "{columns} columns: {config:?}");
    assert!(n_places == rows, "places of {rows} rows");
    assert!(per_row == 1 || per_row == capacity, "{per_row} places for {capacity} positions");
    let spec = StepSpec { per_position: per_row > 1 || capacity == 1, ..spec };
    if runs_plain(&query.device()) {
        return reference::step_attention(query, key_value, places, lengths, spec);
    }
    Tensor::from_dispatch(Dispatch::step_attention(
        query.into_dispatch(),
        key_value.into_dispatch(),
        places.cast(DType::I32).into_dispatch(),
        lengths.cast(DType::I32).into_dispatch(),
        spec,
    ))
}

/// Appends the key and value of each row's last position to the row's own buffer, and attends from its query to all its positions.
/// Returns the result, `[R, H * K]`, and the buffers: on a GPU the same ones, in which clones show the new position. The result of a row
/// has the same bits whatever other rows there are.
///
/// # Shapes
/// - `qkv`: `[R, (H + 2 G) K]`, columns `q | k | v` of the last position
/// - `key_value`: `[R, S, 2 * G * K]`, columns `k | v`, with the earlier positions
/// - `lengths`: `[R]`, positions with the last one, each in `1..=S`. A position beyond S is not kept.
///
/// # Panics
/// If the shapes or dtypes do not fit.
pub fn append_and_attend(
    qkv: Tensor<2>,
    key_value: Tensor<3>,
    lengths: Tensor<1, Int>,
    config: &StepAttentionConfig,
) -> (Tensor<2>, Tensor<3>) {
    let ([rows, columns], [n, _, _]) = (qkv.dims(), key_value.dims());
    let spec = config.spec(&qkv, &key_value, &lengths);
    assert!(n == rows, "{n} buffers for {rows} rows");
    assert_eq!(columns, (spec.n_heads + 2 * spec.n_kv_heads) * spec.head_dim, "{config:?}");

    if runs_plain(&qkv.device()) {
        let query = spec.n_heads * spec.head_dim;
        let new = qkv.clone().narrow(1, query, columns - query);
        let key_value = overwrite_rows(key_value, new, lengths.clone() - 1);
        let places = Tensor::arange(0..rows as i64, (&lengths.device(), DType::I32)).reshape([rows, 1]);
        let attended = step_attention(qkv.narrow(1, 0, query), key_value.clone(), places, lengths, config);
        return (attended, key_value);
    }
    let (attended, key_value) = Dispatch::append_and_attend(
        qkv.into_dispatch(),
        key_value.into_dispatch(),
        lengths.cast(DType::I32).into_dispatch(),
        spec,
    );
    (Tensor::from_dispatch(attended), Tensor::from_dispatch(key_value))
}
