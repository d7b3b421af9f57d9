//! Dropout as a backend extension, and its CPU loop.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, backend_extension};
use burn::tensor::{DType, Element, TensorData};
use burn_flex::{Flex, FlexTensor};
use half::{bf16, f16};
use rayon::prelude::*;

use super::philox::philox;
use super::threshold_16;
use crate::host::ints;

/// Elements that share one Philox call.
const BLOCK: usize = 8;

#[backend_extension(Flex, Cube: cfg(feature = "cuda"), Fusion: cfg(feature = "cuda"), Autodiff)]
pub(crate) trait DropoutOps: Backend {
    /// Drops elements of `x`. `state`: `[4]`, seed and draw as in [`super::DropoutStream`].
    #[fusion(dtype = x, shape = x)]
    fn dropout(x: FloatTensor<Self>, state: IntTensor<Self>, site: u32, p: f32) -> FloatTensor<Self>;
}

impl DropoutOps for Flex {
    fn dropout(x: FloatTensor<Self>, state: IntTensor<Self>, site: u32, p: f32) -> FloatTensor<Self> {
        let words: Vec<u32> = ints(state).into_iter().map(i32::cast_unsigned).collect();
        let (key, draw) = ([words[0], words[1]], [words[2], words[3]]);
        let (limit, keep) = (threshold_16(p), 1.0 / (1.0 - p));
        let mask = |block: usize| {
            let words = philox([block as u32, site, draw[0], draw[1]], key);
            let half = |i: usize| words[i / 2] >> (16 * (i % 2)) & 0xffff;
            std::array::from_fn(|i| half(i) >= limit)
        };
        let dtype = x.dtype();
        let mut data = x.into_data();
        match dtype {
            DType::F32 => apply(&mut data, mask, |v: f32| v * keep),
            DType::BF16 => apply(&mut data, mask, |v: bf16| bf16::from_f32(v.to_f32() * keep)),
            DType::F16 => apply(&mut data, mask, |v: f16| f16::from_f32(v.to_f32() * keep)),
            other => panic!("dropout of {other:?}: only f32, bf16 and f16"),
        }
        FlexTensor::from_data(data)
    }
}

/// Applies `mask` and `scale` to blocks of eight elements, which share one Philox call. Threads take many blocks at a
/// time.
fn apply<E: Element + Default + Send>(
    data: &mut TensorData,
    mask: impl Fn(usize) -> [bool; BLOCK] + Sync,
    scale: impl Fn(E) -> E + Sync,
) {
    const BLOCKS_PER_TASK: usize = 2048;
    let values = data.as_mut_slice::<E>().expect("contiguous data of the tensor's own dtype");
    values.par_chunks_mut(BLOCK * BLOCKS_PER_TASK).enumerate().for_each(|(task, values)| {
        for (block, values) in values.chunks_mut(BLOCK).enumerate() {
            for (value, keep) in values.iter_mut().zip(mask(task * BLOCKS_PER_TASK + block)) {
                *value = if keep { scale(*value) } else { E::default() };
            }
        }
    });
}
