//! What loops on the CPU share: slices of tensors, vector arithmetic, and products of matrices.

pub(crate) mod matrix;
pub(crate) mod softcap;
pub(crate) mod vector;

use std::borrow::Cow;
use std::mem::MaybeUninit;

use burn::backend::Flex;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, Shape, TensorData};
use burn_flex::FlexTensor;
use rayon::prelude::*;

use self::vector::vectorized;

/// Numbers that a thread takes at a time.
pub(crate) const CHUNK: usize = 8192;

/// Returns the elements in row-major order, as f32: without a copy where they lie in memory that way.
pub(crate) fn view(tensor: &FlexTensor) -> Cow<'_, [f32]> {
    let in_place = if tensor.dtype() == DType::F32 { tensor.as_slice() } else { None };
    in_place.map_or_else(|| Cow::Owned(floats(tensor.clone())), Cow::Borrowed)
}

/// Returns the elements in row-major order, as f32.
pub(crate) fn floats(tensor: FlexTensor) -> Vec<f32> {
    let data = tensor.into_data().convert::<f32>();
    data.try_into_vec().expect("data converted to f32")
}

/// Returns the tensor in f32 and row by row, in memory that only this reference sees: its own if that is so already.
pub(crate) fn owned(tensor: FlexTensor) -> FlexTensor {
    let n = tensor.layout().num_elements();
    let is_whole = tensor.is_contiguous() && tensor.layout().start_offset() == 0 && tensor.bytes().len() == 4 * n;
    if tensor.dtype() == DType::F32 && is_whole && tensor.is_unique() {
        return tensor;
    }
    let values = view(&tensor);
    let copy = written(n, CHUNK, |i, part| part.copy_from_slice(&values[i * CHUNK..][..part.len()]));
    self::tensor(copy, tensor.layout().shape().clone(), DType::F32)
}

/// Changes the elements, in row-major order and as f32. They stay where they are if nothing else refers to them.
pub(crate) fn change(tensor: FlexTensor, change: impl FnOnce(&mut [f32])) -> FlexTensor {
    let dtype = tensor.dtype();
    let mut tensor = owned(tensor);
    change(tensor.storage_mut());
    if dtype == DType::F32 { tensor } else { Flex::float_cast(tensor, dtype.into()) }
}

/// Returns `n` numbers, which threads write chunk by chunk: `write` gets the index of a chunk, and zeros in its place.
pub(crate) fn written(n: usize, chunk: usize, write: impl Fn(usize, &mut [f32]) + Sync) -> Vec<f32> {
    let mut values = Vec::with_capacity(n);
    values.spare_capacity_mut()[..n].par_chunks_mut(chunk.max(1)).enumerate().for_each(|(i, values)| {
        values.fill(MaybeUninit::new(0.0));
        #[expect(unsafe_code, reason = "a thread initializes its part, which the vector cannot see")]
        // SAFETY: the line above has written every number.
        write(i, unsafe { values.assume_init_mut() });
    });

    #[expect(unsafe_code, reason = "the numbers are written before they have a length")]
    // SAFETY: the chunks cover all numbers.
    unsafe {
        values.set_len(n);
    }
    values
}

/// Replaces each number by `f` of it.
pub(crate) fn map(values: &mut [f32], f: impl Fn(f32) -> f32 + Sync) {
    values.par_chunks_mut(CHUNK).for_each(|values| vectorized(|| values.iter_mut().for_each(|x| *x = f(*x))));
}

/// Returns the elements in row-major order, as i32.
pub(crate) fn ints(tensor: FlexTensor) -> Vec<i32> {
    let data = tensor.into_data().convert::<i32>();
    data.try_into_vec().expect("data converted to i32")
}

/// Builds a tensor of `dtype` from numbers in row-major order.
pub(crate) fn tensor(values: Vec<f32>, shape: impl Into<Shape>, dtype: DType) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape.into()).convert_dtype(dtype))
}
