//! Conversions between tensors of the CPU backend and slices of numbers.

use burn::tensor::{DType, Shape, TensorData};
use burn_flex::FlexTensor;

/// Returns the elements in row-major order, as f32.
pub(crate) fn floats(tensor: FlexTensor) -> Vec<f32> {
    let data = tensor.to_contiguous().into_data().convert::<f32>();
    data.try_into_vec().expect("data converted to f32")
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

/// Returns `1 / (1 + e^-x)`.
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
