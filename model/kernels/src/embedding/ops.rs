//! Table rows and their gradient as a backend extension, and its CPU loop.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, backend_extension};
#[cfg(feature = "cuda")]
use burn::tensor::Shape;
use burn_flex::{Flex, FlexTensor};

use crate::host::{floats, ints, tensor};

#[backend_extension(Flex, Cube: cfg(feature = "cuda"), Fusion: cfg(feature = "cuda"), Autodiff)]
pub(crate) trait EmbeddingOps: Backend {
    /// `[M, D]`: row `ids[m]` of `table`.
    #[fusion(default)]
    fn table_rows(table: FloatTensor<Self>, ids: IntTensor<Self>) -> FloatTensor<Self> {
        Self::float_select(table, 0, ids)
    }

    /// `[rows, D]`: row v is the sum of `dy[m]` over the m whose id is v, in the order of m.
    #[fusion(dtype = dy, shape = Shape::new([*rows, dy[1]]))]
    fn table_gradient(dy: FloatTensor<Self>, ids: IntTensor<Self>, rows: usize) -> FloatTensor<Self>;
}

impl EmbeddingOps for Flex {
    fn table_gradient(dy: FlexTensor, ids: FlexTensor, rows: usize) -> FlexTensor {
        let (d, dtype) = (dy.layout().shape()[1], dy.dtype());
        let (dy, ids) = (floats(dy), ints(ids));
        let mut gradient = vec![0f32; rows * d];
        for (id, dy) in ids.into_iter().zip(dy.chunks(d)) {
            let row = &mut gradient[id as usize * d..][..d];
            row.iter_mut().zip(dy).for_each(|(sum, x)| *sum += x);
        }
        tensor(gradient, [rows, d], dtype)
    }
}
