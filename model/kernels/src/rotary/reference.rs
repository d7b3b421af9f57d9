//! Rotary embedding in plain Burn operations.

use burn::tensor::{DType, Int, Tensor, TensorData};

use super::RotaryWavelengths;

pub(crate) fn rotary(
    qkv: Tensor<2>,
    positions: Tensor<1, Int>,
    n_rotated_heads: usize,
    head_dim: usize,
    wavelengths: &RotaryWavelengths,
) -> Tensor<2> {
    let ([m, n], dtype, device) = (qkv.dims(), qkv.dtype(), qkv.device());
    let (rotated, half) = (n_rotated_heads * head_dim, head_dim / 2);
    let frequencies = wavelengths.frequencies(head_dim);
    let frequencies = Tensor::<3>::from_data(TensorData::new(frequencies, [1, 1, half]), (&device, DType::F32));
    let angles = positions.float().cast(DType::F32).reshape([m, 1, 1]) * frequencies;
    let (cos, sin) = (angles.clone().cos(), angles.sin());

    let heads = qkv.clone().narrow(1, 0, rotated).cast(DType::F32).reshape([m, n_rotated_heads, head_dim]);
    let (a, b) = (heads.clone().narrow(2, 0, half), heads.narrow(2, half, half));
    let first = a.clone() * cos.clone() - b.clone() * sin.clone();
    let second = b * cos + a * sin;
    let rotated_heads = Tensor::cat(vec![first, second], 2).reshape([m, rotated]).cast(dtype);
    if rotated == n { rotated_heads } else { Tensor::cat(vec![rotated_heads, qkv.narrow(1, rotated, n - rotated)], 1) }
}
