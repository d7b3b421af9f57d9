//! Embedding and its gradients as a backend extension, with the CPU loops.

#[cfg(feature = "cuda")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata, backend_extension};
use burn::tensor::Shape;
use burn_flex::{Flex, FlexTensor};
use rayon::prelude::*;

use crate::calls::{self, Running, Work};
use crate::dropout::Mask;
#[cfg(feature = "cuda")]
use crate::dropout::MaskMetadata;
use crate::host::vector::add;
use crate::host::{floats, ints, map, tensor, view};
use crate::linear::LinearOps;
use crate::maybe::Maybe;
#[cfg(feature = "cuda")]
use crate::maybe::MaybeMetadata;

/// The numeric arguments of a lookup.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lookup {
    /// Factor of the table's rows.
    pub(crate) scale: f32,
    /// V
    pub(crate) rows: usize,
    /// T; 1 without positions.
    pub(crate) length: usize,
}

/// Records a lookup of `ids` in `table`.
pub(crate) fn record_lookup(table: &impl TensorMetadata, ids: &impl TensorMetadata) -> Option<Running> {
    calls::begin(|| {
        let (m, d) = (ids.shape()[0], table.shape()[1]);
        let moved = 2 * m * d * table.dtype().size();
        ("embedding forward", vec![m, table.shape()[0], d], Work::moved(moved as f64))
    })
}

/// Records the gradient of a table of `rows` rows.
pub(crate) fn record_gradient(dy: &impl TensorMetadata, rows: usize) -> Option<Running> {
    calls::begin(|| {
        let (m, d) = (dy.shape()[0], dy.shape()[1]);
        ("embedding backward", vec![m, rows, d], Work::moved(((m + rows) * d * dy.dtype().size()) as f64))
    })
}

#[cfg(feature = "cuda")]
fn embedded(
    table: &TensorSpec,
    ids: &TensorSpec,
    _positions: &MaybeMetadata,
    _drop: &MaskMetadata,
    _lookup: &Lookup,
) -> TensorSpec {
    TensorSpec::new(Shape::new([ids.shape[0], table.shape[1]]), table.dtype)
}

#[cfg(feature = "cuda")]
fn of_table(dy: &TensorSpec, _ids: &TensorSpec, _drop: &MaskMetadata, lookup: &Lookup) -> TensorSpec {
    TensorSpec::new(Shape::new([lookup.rows, dy.shape[1]]), dy.dtype)
}

#[cfg(feature = "cuda")]
fn of_positions(dy: &TensorSpec, _drop: &MaskMetadata, lookup: &Lookup) -> TensorSpec {
    TensorSpec::new(Shape::new([lookup.length, dy.shape[1]]), dy.dtype)
}

#[backend_extension(Flex, Cube: cfg(feature = "cuda"), Fusion: cfg(feature = "cuda"), Autodiff)]
pub(crate) trait EmbeddingOps: Backend {
    /// Returns `[M, D]`: `drop(scale * table[ids[m]] + positions[m % T])`.
    #[fusion(meta = embedded)]
    fn embed(
        table: FloatTensor<Self>,
        ids: IntTensor<Self>,
        #[extension_type] positions: Maybe<Self>,
        #[extension_type] drop: Mask<Self>,
        lookup: Lookup,
    ) -> FloatTensor<Self>;

    /// Returns `[V, D]`: row v is `scale` times the sum of `drop(dy[m])` over the rows m with id v, in the order of m.
    #[fusion(meta = of_table)]
    fn table_gradient(
        dy: FloatTensor<Self>,
        ids: IntTensor<Self>,
        #[extension_type] drop: Mask<Self>,
        lookup: Lookup,
    ) -> FloatTensor<Self>;

    /// Returns `[T, D]`: row t is the sum of `drop(dy[m])` over the rows m at position t, in the order of m.
    #[fusion(meta = of_positions)]
    fn position_gradient(
        dy: FloatTensor<Self>,
        #[extension_type] drop: Mask<Self>,
        lookup: Lookup,
    ) -> FloatTensor<Self>;
}

impl EmbeddingOps for Flex {
    fn embed(
        table: FlexTensor,
        ids: FlexTensor,
        positions: Maybe<Self>,
        drop: Mask<Self>,
        lookup: Lookup,
    ) -> FlexTensor {
        let _call = record_lookup(&table, &ids);
        let rows = Self::float_select(table, 0, ids);
        let (shape, dtype) = (rows.layout().shape().clone(), rows.dtype());
        let mut x = floats(rows);
        map(&mut x, |x| x * lookup.scale);
        if let Maybe::Some(positions) = positions {
            let positions = view(&positions);
            x.par_chunks_mut(positions.len()).for_each(|row| add(row, &positions));
        }
        drop.apply(tensor(x, shape, dtype))
    }

    fn table_gradient(dy: FlexTensor, ids: FlexTensor, drop: Mask<Self>, lookup: Lookup) -> FlexTensor {
        let _call = record_gradient(&dy, lookup.rows);
        let dy = drop.apply(dy);
        let (d, dtype) = (dy.layout().shape()[1], dy.dtype());
        let (dy, ids) = (floats(dy), ints(ids));
        let mut gradient = vec![0f32; lookup.rows * d];
        for (id, dy) in ids.into_iter().zip(dy.chunks(d)) {
            let row = &mut gradient[id as usize * d..][..d];
            row.iter_mut().zip(dy).for_each(|(sum, x)| *sum += x * lookup.scale);
        }
        tensor(gradient, [lookup.rows, d], dtype)
    }

    fn position_gradient(dy: FlexTensor, drop: Mask<Self>, lookup: Lookup) -> FlexTensor {
        let dy = drop.apply(dy);
        let [n, d] = [dy.layout().shape()[0], dy.layout().shape()[1]];
        // View each batch row as one row of T * D columns, and sum the columns.
        let rows = Self::float_reshape(dy, Shape::new([n / lookup.length, lookup.length * d]));
        Self::float_reshape(Self::column_sum(rows), Shape::new([lookup.length, d]))
    }
}
