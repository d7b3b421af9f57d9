//! Token ids to vectors, and vectors back to logits over the same table.

use burn::module::{Module, Param};
use burn::tensor::{Int, Tensor};
use kiln_kernels::{DropoutStream, Projection};

use crate::init::Init;
use crate::norm::{Norm, dropout};
use crate::position::PositionEncoding;
use crate::rows::Rows;

/// One vector per token, multiplied by `sqrt(d_model)` when it is looked up if the configuration says so (Vaswani et al.
/// 2017, section 3.4): rows drawn small then serve as output projection too.
#[derive(Module, Debug)]
pub struct TokenEmbedding {
    /// `[V, D]`
    pub table: Param<Tensor<2>>,
    scaled: bool,
}

impl TokenEmbedding {
    pub(crate) fn init(init: &Init, vocab_size: usize) -> Self {
        Self { table: init.table("table", vocab_size), scaled: init.config.scale_embedding }
    }

    /// Vectors of something else than tokens: never scaled.
    pub(crate) fn init_plain(init: &Init, n: usize) -> Self {
        Self { table: init.table("table", n), scaled: false }
    }

    /// # Shapes
    /// - `ids`: `[M]`, each in `0..V`
    /// - result: `[M, D]`
    ///
    /// # Panics
    /// Ids out of range are refused on the CPU and undefined on a GPU, where looking at them would stop the device: check
    /// them on the host, as [`Prompts`](crate::Prompts) does.
    pub fn forward(&self, ids: Tensor<1, Int>) -> Tensor<2> {
        self.placed(ids, None, None)
    }

    /// [`Self::forward`], and [`PositionEncoding::place`] of what it gives.
    ///
    /// # Shapes
    /// - `ids`: `[B * T]`; result `[B * T, D]`
    ///
    /// # Panics
    /// As [`Self::forward`] and [`PositionEncoding::add_to`].
    pub(crate) fn enter(
        &self,
        ids: Tensor<1, Int>,
        positions: &PositionEncoding,
        norm: &Option<Norm>,
        p: f64,
        rows: &Rows,
        stream: Option<&DropoutStream>,
    ) -> Tensor<2> {
        if positions.own_places(rows).is_some() {
            return positions.place(self.forward(ids), norm, p, rows, stream);
        }
        let vectors = positions.of_every_row(ids.dims()[0], rows);
        match norm {
            // One pass over memory.
            None => self.placed(ids, vectors, stream.filter(|_| p > 0.0).map(|stream| (p, stream))),
            Some(norm) => dropout(norm.forward(self.placed(ids, vectors, None)), p, stream),
        }
    }

    fn placed(
        &self,
        ids: Tensor<1, Int>,
        places: Option<Tensor<2>>,
        dropout: Option<(f64, &DropoutStream)>,
    ) -> Tensor<2> {
        let table = self.table.val();
        let scale = if self.scaled { (table.dims()[1] as f64).sqrt() } else { 1.0 };
        let places = places.map(|places| places.cast(table.dtype()));
        kiln_kernels::embed(ids, table, scale, places, dropout)
    }

    /// The table as output projection.
    pub(crate) fn projection(&self) -> Projection {
        Projection { weight: self.table.val(), transposed: true, bias: None }
    }
}
