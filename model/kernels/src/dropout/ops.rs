//! Dropout as a backend extension, and its CPU loop.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, backend_extension};
use burn::tensor::{DType, Element, TensorData};
use burn_flex::{Flex, FlexTensor};
use half::{bf16, f16};
use rayon::prelude::*;

use super::philox::philox_many;
use super::threshold_16;
use crate::calls;
use crate::host::ints;
use crate::host::vector::{vectorized, vectorized_fn};

/// Elements that share one Philox call.
const BLOCK: usize = 8;
/// Blocks whose words the CPU computes together.
const BLOCKS: usize = 16;

#[backend_extension(Flex, Cube: cfg(feature = "cuda"), Fusion: cfg(feature = "cuda"), Autodiff)]
pub(crate) trait DropoutOps: Backend {
    /// Drops elements of `x`. `state`: `[4]`, seed and draw as in [`super::DropoutStream`].
    #[fusion(dtype = x, shape = x)]
    fn dropout(x: FloatTensor<Self>, state: IntTensor<Self>, site: u32, p: f32) -> FloatTensor<Self>;

    /// Returns `words`, in the buffer of `target` where the backend can. A launch has them as arguments, so the host uploads nothing.
    #[fusion(dtype = target, shape = target)]
    fn dropout_words(target: IntTensor<Self>, words: [i32; 4]) -> IntTensor<Self>;
}

impl DropoutOps for Flex {
    fn dropout(x: FloatTensor<Self>, state: IntTensor<Self>, site: u32, p: f32) -> FloatTensor<Self> {
        let _call = calls::begin(|| calls::of_passes("dropout", &x, 2));
        let state: Vec<u32> = ints(state).into_iter().map(i32::cast_unsigned).collect();
        let draw = Draw { key: [state[0], state[1]], site, draw: [state[2], state[3]], limit: threshold_16(p) };
        let keep = 1.0 / (1.0 - p);
        let dtype = x.dtype();
        let mut data = x.into_data();
        match dtype {
            DType::F32 => apply(&mut data, draw, |v: f32| v * keep),
            DType::BF16 => apply(&mut data, draw, |v: bf16| bf16::from_f32(v.to_f32() * keep)),
            DType::F16 => apply(&mut data, draw, |v: f16| f16::from_f32(v.to_f32() * keep)),
            other => panic!("dropout of {other:?}: only f32, bf16 and f16"),
        }
        FlexTensor::from_data(data)
    }

    fn dropout_words(_target: FlexTensor, words: [i32; 4]) -> FlexTensor {
        FlexTensor::from_data(TensorData::from(words))
    }
}

/// What decides which elements stay.
#[derive(Clone, Copy)]
struct Draw {
    key: [u32; 2],
    site: u32,
    draw: [u32; 2],
    /// Elements whose 16 bits are below are dropped.
    limit: u32,
}

vectorized_fn! {
    /// Returns the words of some blocks, one behind the other.
    fn words(draw: Draw, first_block: usize) -> [u32; 4 * BLOCKS] {
        let blocks = std::array::from_fn(|i| (first_block + i) as u32);
        let [low, high] = draw.draw;
        let words = philox_many([blocks, [draw.site; BLOCKS], [low; BLOCKS], [high; BLOCKS]], draw.key);
        std::array::from_fn(|i| words[i % 4][i / 4])
    }
}

/// Scales the elements that stay, and zeroes the others. Threads take many blocks at a time.
fn apply<E: Element + Default + Send>(data: &mut TensorData, draw: Draw, scale: impl Fn(E) -> E + Sync) {
    const BLOCKS_PER_TASK: usize = 2048;
    let values = data.as_mut_slice::<E>().expect("contiguous data of the tensor's own dtype");
    let kept = |value: E, bits: u32| if bits >= draw.limit { scale(value) } else { E::default() };

    values.par_chunks_mut(BLOCK * BLOCKS_PER_TASK).enumerate().for_each(|(task, values)| {
        vectorized(|| {
            for (i, values) in values.chunks_mut(BLOCK * BLOCKS).enumerate() {
                let words = words(draw, task * BLOCKS_PER_TASK + i * BLOCKS);
                let (pairs, last) = values.as_chunks_mut::<2>();
                last.iter_mut().for_each(|value| *value = kept(*value, words[pairs.len()] & 0xffff));
                for (pair, word) in pairs.iter_mut().zip(words) {
                    *pair = [kept(pair[0], word & 0xffff), kept(pair[1], word >> 16)];
                }
            }
        });
    });
}
