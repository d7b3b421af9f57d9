//! Rotary embedding as a backend extension, with its CPU loops.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, backend_extension};
use burn_flex::{Flex, FlexTensor};
use rayon::prelude::*;

use crate::calls;
use crate::host::{floats, ints, tensor};

/// The rotated heads, and the direction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RotarySpec {
    pub(crate) n_rotated_heads: usize,
    pub(crate) head_dim: usize,
    /// Rotates in the opposite direction, as the gradient does: the transpose of a rotation is its inverse.
    pub(crate) back: bool,
}

#[backend_extension(Flex, Cube: cfg(feature = "cuda"), Fusion: cfg(feature = "cuda"), Autodiff)]
pub(crate) trait RotaryOps: Backend {
    /// Returns `[M, N]` from `[M, N]`, `[M]` positions (i32) and the `[K / 2]` angles (radians, f32) of one position.
    #[fusion(dtype = qkv, shape = qkv)]
    fn fused_rotary(
        qkv: FloatTensor<Self>,
        positions: IntTensor<Self>,
        frequencies: FloatTensor<Self>,
        spec: RotarySpec,
    ) -> FloatTensor<Self>;
}

impl RotaryOps for Flex {
    fn fused_rotary(qkv: FlexTensor, positions: FlexTensor, frequencies: FlexTensor, spec: RotarySpec) -> FlexTensor {
        let _call = calls::begin(|| calls::of_passes("rotary", &qkv, 2));
        let [m, n] = [qkv.layout().shape()[0], qkv.layout().shape()[1]];
        let dtype = qkv.dtype();
        let (positions, frequencies, half) = (ints(positions), floats(frequencies), spec.head_dim / 2);
        let direction = if spec.back { -1.0 } else { 1.0 };
        let mut x = floats(qkv);
        x.par_chunks_mut(n.max(1)).zip(positions).for_each(|(row, position)| {
            for (i, frequency) in frequencies.iter().enumerate() {
                let (sin, cos) = (direction * position as f32 * frequency).sin_cos();
                for head in row[..spec.n_rotated_heads * spec.head_dim].chunks_mut(spec.head_dim) {
                    let (a, b) = (head[i], head[i + half]);
                    head[i] = a * cos - b * sin;
                    head[i + half] = b * cos + a * sin;
                }
            }
        });
        tensor(x, [m, n], dtype)
    }
}
