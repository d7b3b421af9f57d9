//! Overwriting a tensor as a backend extension.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, backend_extension};
use burn::tensor::TensorData;
use burn_flex::{Flex, FlexTensor};

use crate::host::{change, ints, view};

#[backend_extension(Flex, Cube: cfg(feature = "cuda"), Fusion: cfg(feature = "cuda"))]
pub(crate) trait OverwriteOps: Backend {
    /// Returns `source`, in the buffer of `target` where the backend can.
    #[fusion(dtype = target, shape = target)]
    fn overwrite(target: IntTensor<Self>, source: IntTensor<Self>) -> IntTensor<Self>;

    /// The same for floats.
    #[fusion(dtype = target, shape = target)]
    fn overwrite_floats(target: FloatTensor<Self>, source: FloatTensor<Self>) -> FloatTensor<Self>;

    /// Returns `target`, `[B, S, W]`, with `rows[b]`, `[W]`, at `[b, at[b]]`, in the buffer of `target` where the backend can. `at` is
    /// i32. A row at S or beyond is left out.
    #[fusion(dtype = target, shape = target)]
    fn overwrite_rows(target: FloatTensor<Self>, rows: FloatTensor<Self>, at: IntTensor<Self>) -> FloatTensor<Self>;

    /// The same for a whole number in each row of `target`, `[B, S]`. `numbers` are i32, `[B]`.
    #[fusion(dtype = target, shape = target)]
    fn overwrite_numbers(target: IntTensor<Self>, numbers: IntTensor<Self>, at: IntTensor<Self>) -> IntTensor<Self>;
}

impl OverwriteOps for Flex {
    fn overwrite(_target: IntTensor<Self>, source: IntTensor<Self>) -> IntTensor<Self> {
        source
    }

    fn overwrite_floats(_target: FlexTensor, source: FlexTensor) -> FlexTensor {
        source
    }

    fn overwrite_rows(target: FlexTensor, rows: FlexTensor, at: FlexTensor) -> FlexTensor {
        let [_, len, width] = [target.layout().shape()[0], target.layout().shape()[1], target.layout().shape()[2]];
        let (rows, at) = (view(&rows), ints(at));
        change(target, |target| {
            for (row, (numbers, at)) in rows.chunks_exact(width).zip(at).enumerate() {
                if (at as usize) < len {
                    target[(row * len + at as usize) * width..][..width].copy_from_slice(numbers);
                }
            }
        })
    }

    fn overwrite_numbers(target: FlexTensor, numbers: FlexTensor, at: FlexTensor) -> FlexTensor {
        let shape = target.layout().shape().clone();
        let mut all = ints(target);
        for ((row, number), at) in all.chunks_exact_mut(shape[1]).zip(ints(numbers)).zip(ints(at)) {
            if let Some(place) = row.get_mut(at as usize) {
                *place = number;
            }
        }
        FlexTensor::from_data(TensorData::new(all, shape))
    }
}
