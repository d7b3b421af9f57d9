//! Reductions of rows as a backend extension. On the CPU they are the backend's own.

use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, backend_extension};
use burn::tensor::TensorData;
#[cfg(feature = "cuda")]
use burn::tensor::{DType, Shape};
use burn_flex::{Flex, FlexTensor};
use rayon::prelude::*;

use crate::calls;
use crate::host::view;

#[backend_extension(Flex, Cube: cfg(feature = "cuda"), Fusion: cfg(feature = "cuda"), Autodiff)]
pub(crate) trait RowOps: Backend {
    /// Returns `[M]`, f32, the sums of the rows of `x`, `[M, N]`, f32.
    #[fusion(dtype = DType::F32, shape = Shape::new([x[0]]))]
    fn row_sums(x: FloatTensor<Self>) -> FloatTensor<Self>;

    /// Returns `[M]`, the columns of the largest numbers of the rows of `x`, `[M, N]`.
    #[fusion(dtype = DType::I32, shape = Shape::new([x[0]]))]
    fn row_argmax(x: FloatTensor<Self>) -> IntTensor<Self>;
}

impl RowOps for Flex {
    fn row_sums(x: FlexTensor) -> FlexTensor {
        let _call = calls::begin(|| calls::of_passes("row sums", &x, 1));
        let rows = x.layout().shape()[0];
        Self::float_reshape(Self::float_sum_dim(x, 1), [rows].into())
    }

    fn row_argmax(x: FlexTensor) -> FlexTensor {
        let _call = calls::begin(|| calls::of_passes("row argmax", &x, 1));
        let [rows, columns] = [x.layout().shape()[0], x.layout().shape()[1]];
        let x = view(&x);
        let largest = |row: &[f32]| {
            let mut best = 0;
            for (column, number) in row.iter().enumerate() {
                if *number > row[best] {
                    best = column;
                }
            }
            best as i32
        };
        let columns: Vec<i32> = x.par_chunks(columns).map(largest).collect();
        FlexTensor::from_data(TensorData::new(columns, [rows]))
    }
}
