//! Token embeddings: from ids to vectors, and back to logits with the same table.

use burn::module::{Module, Param};
use burn::tensor::{Int, Tensor};
use kiln_kernels::{DropoutStream, Projection};

use crate::init::Init;
use crate::norm::{Norm, dropout};
use crate::position::PositionEncoding;
use crate::rows::Rows;

/// One vector per token.
///
/// With [`TransformerConfig::scale_embedding`](crate::TransformerConfig::scale_embedding), looking a vector up multiplies it
/// by `sqrt(d_model)` (Vaswani et al. 2017, section 3.4). The table itself then stays small enough to serve as the output
/// projection as well.
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

    /// Initializes a table for something other than tokens, which is never scaled.
    pub(crate) fn init_plain(init: &Init, n: usize) -> Self {
        Self { table: init.table("table", n), scaled: false }
    }

    /// Looks up the vectors of `ids`.
    ///
    /// # Shapes
    /// - `ids`: `[M]`, each in `0..V`
    /// - result: `[M, D]`
    ///
    /// # Panics
    /// On the CPU, if an id is out of range. On a GPU the result is undefined then, since checking would stall the device.
    /// Check ids on the host, as [`Prompts`](crate::Prompts) does.
    pub fn forward(&self, ids: Tensor<1, Int>) -> Tensor<2> {
        self.embed(ids, None, None)
    }

    /// Computes the input of the layers: [`Self::forward`], then [`PositionEncoding::layer_input`].
    ///
    /// # Shapes
    /// - `ids`: `[B * T]`; result `[B * T, D]`
    ///
    /// # Panics
    /// As [`Self::forward`] and [`PositionEncoding::add_to`].
    pub(crate) fn layer_input(
        &self,
        ids: Tensor<1, Int>,
        positions: &PositionEncoding,
        norm: &Option<Norm>,
        p: f64,
        rows: &Rows,
        stream: Option<&DropoutStream>,
    ) -> Tensor<2> {
        if positions.per_token(rows).is_some() {
            return positions.layer_input(self.forward(ids), norm, p, rows, stream);
        }

        let vectors = positions.shared_by_rows(ids.dims()[0], rows);
        match norm {
            // Lookup, sum and dropout in one pass over memory.
            None => self.embed(ids, vectors, stream.filter(|_| p > 0.0).map(|stream| (p, stream))),
            Some(norm) => dropout(norm.forward(self.embed(ids, vectors, None)), p, stream),
        }
    }

    fn embed(
        &self,
        ids: Tensor<1, Int>,
        positions: Option<Tensor<2>>,
        dropout: Option<(f64, &DropoutStream)>,
    ) -> Tensor<2> {
        let table = self.table.val();
        let scale = if self.scaled { (table.dims()[1] as f64).sqrt() } else { 1.0 };
        let positions = positions.map(|vectors| vectors.cast(table.dtype()));
        kiln_kernels::embed(ids, table, scale, positions, dropout)
    }

    /// The table as the output projection.
    pub(crate) fn projection(&self) -> Projection {
        Projection { weight: self.table.val(), transposed: true, bias: None, softcap: None }
    }
}
