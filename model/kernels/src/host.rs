//! Tensors of the CPU backend as slices of numbers.

use burn::tensor::{DType, Shape, TensorData};
use burn_flex::FlexTensor;

/// The elements in row-major order, as f32.
pub(crate) fn floats(tensor: FlexTensor) -> Vec<f32> {
    let data = tensor.to_contiguous().into_data().convert::<f32>();
    data.try_into_vec().expect("data converted to f32")
}

/// The elements in row-major order, as i32.
pub(crate) fn ints(tensor: FlexTensor) -> Vec<i32> {
    let data = tensor.to_contiguous().into_data().convert::<i32>();
    data.try_into_vec().expect("data converted to i32")
}

/// Numbers in row-major order as a tensor of `dtype`.
pub(crate) fn tensor(values: Vec<f32>, shape: impl Into<Shape>, dtype: DType) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape.into()).convert_dtype(dtype))
}

/// `1 / (1 + e^-x)`.
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
