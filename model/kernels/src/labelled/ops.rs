//! The rows with labels as a backend extension, with the CPU loop.

use burn::backend::tensor::IntTensor;
use burn::backend::{Backend, TensorMetadata, backend_extension};
use burn::tensor::TensorData;
#[cfg(feature = "cuda")]
use burn::tensor::{DType, Shape};
use burn_flex::{Flex, FlexTensor};

use crate::calls::{self, Running, Work};
use crate::host::ints;

#[backend_extension(Flex, Cube: cfg(feature = "cuda"), Fusion: cfg(feature = "cuda"), Autodiff)]
pub(crate) trait LabelledOps: Backend {
    /// Returns `[len]` numbers of rows: those with a label that is not `ignored`, then others.
    #[fusion(dtype = DType::I32, shape = Shape::new([*len]))]
    fn labelled_rows(labels: IntTensor<Self>, ignored: i32, len: usize) -> IntTensor<Self>;
}

/// Records a call, which reads the labels twice.
pub(crate) fn record(labels: &impl TensorMetadata, len: usize) -> Option<Running> {
    calls::begin(|| {
        let rows = labels.shape()[0];
        ("labelled rows", vec![rows, len], Work::moved(4.0 * (2 * rows + len) as f64))
    })
}

impl LabelledOps for Flex {
    fn labelled_rows(labels: FlexTensor, ignored: i32, len: usize) -> FlexTensor {
        let _call = record(&labels, len);
        let labels = ints(labels);
        let (counted, others): (Vec<i32>, Vec<i32>) =
            (0..labels.len() as i32).partition(|&row| labels[row as usize] != ignored);
        let found: Vec<i32> = counted.into_iter().chain(others).take(len).collect();
        FlexTensor::from_data(TensorData::new(found, [len]))
    }
}
