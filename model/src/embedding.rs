//! Token ids to vectors, and vectors back to logits over the same table.

use burn::module::{Module, Param};
use burn::tensor::{Int, Tensor};
use kiln_kernels::Projection;

use crate::init::Init;

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
        let table = self.table.val();
        let [_, d_model] = table.dims();
        let x = kiln_kernels::embedding(ids, table);
        if self.scaled { x * (d_model as f64).sqrt() } else { x }
    }

    /// The table as output projection.
    pub(crate) fn projection(&self) -> Projection {
        Projection { weight: self.table.val(), transposed: true, bias: None }
    }
}
