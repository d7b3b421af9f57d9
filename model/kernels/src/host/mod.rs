//! What loops on the CPU share: slices of tensors, vector arithmetic, and products of matrices.

pub(crate) mod matrix;
pub(crate) mod vector;

use std::borrow::Cow;

use burn::tensor::{DType, Shape, TensorData};
use burn_flex::FlexTensor;
use rayon::prelude::*;

use self::vector::vectorized;

/// Numbers that a thread takes at a time.
const CHUNK: usize = 8192;

/// Returns the elements in row-major order, as f32: without a copy where they lie in memory that way.
pub(crate) fn view(tensor: &FlexTensor) -> Cow<'_, [f32]> {
    let in_place = if tensor.dtype() == DType::F32 { tensor.as_slice() } else { None };
    in_place.map_or_else(|| Cow::Owned(floats(tensor.clone())), Cow::Borrowed)
}

/// Returns the elements in row-major order, as f32.
pub(crate) fn floats(tensor: FlexTensor) -> Vec<f32> {
    let data = tensor.to_contiguous().into_data().convert::<f32>();
    data.try_into_vec().expect("data converted to f32")
}

/// Replaces each number by `f` of it.
pub(crate) fn map(values: &mut [f32], f: impl Fn(f32) -> f32 + Sync) {
    values.par_chunks_mut(CHUNK).for_each(|values| vectorized(|| values.iter_mut().for_each(|x| *x = f(*x))));
}

/// Replaces each number by `f` of it and its counterpart in `other`.
pub(crate) fn zip_map(values: &mut [f32], other: &[f32], f: impl Fn(f32, f32) -> f32 + Sync) {
    values.par_chunks_mut(CHUNK).zip(other.par_chunks(CHUNK)).for_each(|(values, other)| {
        vectorized(|| values.iter_mut().zip(other).for_each(|(x, &y)| *x = f(*x, y)));
    });
}

/// Returns the elements in row-major order, as i32.
pub(crate) fn ints(tensor: FlexTensor) -> Vec<i32> {
    let data = tensor.to_contiguous().into_data().convert::<i32>();
    data.try_into_vec().expect("data converted to i32")
}

/// Builds a tensor of `dtype` from numbers in row-major order.
pub(crate) fn tensor(values: Vec<f32>, shape: impl Into<Shape>, dtype: DType) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape.into()).convert_dtype(dtype))
}
