//! Token ids to vectors, and vectors back to logits over the same table.

use burn::module::{Module, Param};
use burn::tensor::{Int, Tensor};

use crate::init::Init;

/// One vector per token. Rows are drawn small and multiplied by `sqrt(d_model)` when looked up (Vaswani et al. 2017,
/// section 3.4), so that the same table serves as output projection.
#[derive(Module, Debug)]
pub struct TokenEmbedding {
    /// `[V, D]`
    pub table: Param<Tensor<2>>,
}

impl TokenEmbedding {
    pub(crate) fn init(init: &Init, vocab_size: usize) -> Self {
        Self { table: init.table("table", vocab_size) }
    }

    /// # Shapes
    /// - `ids`: `[M]`, each in `0..V`
    /// - result: `[M, D]`
    pub fn forward(&self, ids: Tensor<1, Int>) -> Tensor<2> {
        let table = self.table.val();
        let [_, d_model] = table.dims();
        kiln_kernels::embedding(ids, table) * (d_model as f64).sqrt()
    }

    /// The table as output projection.
    ///
    /// # Shapes
    /// - `hidden`: `[M, D]`
    /// - result: `[M, V]`
    pub fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        kiln_kernels::linear_transposed(hidden, self.table.val())
    }
}
