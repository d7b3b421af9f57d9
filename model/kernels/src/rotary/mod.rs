//! Rotary position embedding: positions as rotations of queries and keys.

mod autodiff;
#[cfg(feature = "cuda")]
mod kernel;
mod ops;
mod reference;
#[cfg(test)]
mod tests;
mod wavelengths;

use std::cell::RefCell;

use burn::backend::Dispatch;
use burn::tensor::{DType, Device, Int, IntDType, Tensor, TensorData};
use ops::{RotaryOps, RotarySpec};
pub use wavelengths::{RotaryScaling, RotaryWavelengths};

use crate::settings::runs_plain;

/// Applies rotary position embedding (Su et al. 2021, "RoFormer") in the layout that the projection wrote: rotates the
/// first `n_rotated_heads` heads of each row and copies the rest (the values). In a head of size K, features `i` and
/// `i + K / 2` form a pair ("rotate half", as in Hugging Face's Llama), rotated by `position * theta^(-2 i / K)`
/// unless the wavelengths are scaled. A number stands for unscaled wavelengths of that base.
///
/// Angles and products are computed in f32. The result has the dtype of `qkv`.
///
/// # Shapes
/// - `qkv`: `[M, N]`, heads side by side, rotated heads first
/// - `positions`: `[M]`
/// - result: `[M, N]`
///
/// # Panics
/// If `head_dim` is odd, if `positions` does not have one number per row, or if the rotated heads do not fit into a
/// row.
pub fn rotary(
    qkv: Tensor<2>,
    positions: Tensor<1, Int>,
    n_rotated_heads: usize,
    head_dim: usize,
    wavelengths: impl Into<RotaryWavelengths>,
) -> Tensor<2> {
    let wavelengths = wavelengths.into();
    let [rows, columns] = qkv.dims();
    assert!(head_dim.is_multiple_of(2), "heads of {head_dim} features do not split into pairs");
    assert_eq!(positions.dims(), [rows], "one position for each of {rows} rows");
    let rotated = n_rotated_heads * head_dim;
    assert!(rotated <= columns, "{n_rotated_heads} heads of {head_dim} do not fit into {columns} columns");
    if rotated == 0 {
        return qkv;
    }
    if runs_plain(&qkv.device()) {
        return reference::rotary(qkv, positions, n_rotated_heads, head_dim, &wavelengths);
    }

    let positions = positions.cast(IntDType::I32).into_dispatch();
    let frequencies = frequencies(head_dim, &wavelengths, &qkv.device().inner()).into_dispatch();
    let spec = RotarySpec { n_rotated_heads, head_dim, back: false };
    Tensor::from_dispatch(Dispatch::fused_rotary(qkv.into_dispatch(), positions, frequencies, spec))
}

thread_local! {
    /// The tables of the models in use: one upload per model instead of one per layer and step.
    static FREQUENCIES: RefCell<Vec<(usize, RotaryWavelengths, Device, Tensor<1>)>> = const { RefCell::new(Vec::new()) };
}

/// Returns the angle in radians by which one position rotates each pair of a head, `[K / 2]`, f32.
fn frequencies(head_dim: usize, wavelengths: &RotaryWavelengths, device: &Device) -> Tensor<1> {
    FREQUENCIES.with_borrow_mut(|tables| {
        let known = tables.iter().find(|(k, t, d, _)| *k == head_dim && t == wavelengths && d == device);
        if let Some((.., table)) = known {
            return table.clone();
        }

        let table =
            Tensor::from_data(TensorData::new(wavelengths.frequencies(head_dim), [head_dim / 2]), (device, DType::F32));
        tables.push((head_dim, wavelengths.clone(), device.clone(), table.clone()));
        table
    })
}
