//! A short learned prompt (Lester et al. 2021, "The power of scale for parameter-efficient prompt tuning"): P trained vectors
//! inserted among the token vectors of each row, at positions that each row chooses.
//!
//! One index tensor holds the origin of every output position. Inserting is then one gather and its gradient one scatter,
//! for any P and batch size.

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Int, Tensor};

use crate::config::TransformerConfig;
use crate::init::Init;

/// P trained vectors.
#[derive(Module, Debug)]
pub struct LearnedPrompt {
    /// `[P, D]`
    pub table: Param<Tensor<2>>,
}

impl TransformerConfig {
    /// Initializes a prompt of `n_tokens` vectors for models of this configuration.
    ///
    /// # Panics
    /// If `n_tokens` is 0 or not below `max_positions`.
    pub fn init_learned_prompt(
        &self,
        n_tokens: usize,
        seed: u64,
        dtype: impl Into<DType>,
        device: &Device,
    ) -> LearnedPrompt {
        let max = self.max_positions;
        assert!((1..max).contains(&n_tokens), "a prompt of {n_tokens} tokens for a model of {max} positions");
        LearnedPrompt {
            table: Init::new(self, seed, dtype.into(), device).at("learned_prompt").table("table", n_tokens),
        }
    }
}

impl LearnedPrompt {
    /// Inserts the prompt among the token vectors of each row.
    ///
    /// # Shapes
    /// - `x`: `[B * T, D]`
    /// - result: `[B * (T + P), D]`
    ///
    /// # Panics
    /// If `x` does not have the shape that `insertion` was made for.
    pub fn insert(&self, x: Tensor<2>, insertion: &Insertion) -> Tensor<2> {
        let ([n, _], [p, _]) = (x.dims(), self.table.dims());
        insertion.check(n, p);
        Tensor::cat(vec![x, self.table.val()], 0).select(0, insertion.origin.clone())
    }
}

/// The positions of a prompt's tokens in each row of a batch.
#[derive(Debug, Clone)]
pub struct Insertion {
    /// Row of `[tokens; prompt]` for each output position, `[B * (T + P)]`.
    origin: Tensor<1, Int>,
    n_tokens: usize,
    n_prompt: usize,
}

impl Insertion {
    /// Extends rows of `len` tokens to `len + P`. Token p of the prompt goes to position `positions[b * P + p]` of row b.
    ///
    /// # Shapes
    /// - `positions`: `[B * P]`, in the longer rows: each in `0..len + P`, strictly ascending in each row. They are not
    ///   checked, because they are on the device.
    ///
    /// # Panics
    /// If `positions` does not divide into the rows.
    pub fn new(positions: Tensor<1, Int>, batch_size: usize, len: usize) -> Self {
        let ([n], b) = (positions.dims(), batch_size);
        assert!(b > 0 && n > 0 && n.is_multiple_of(b), "{n} positions of prompt tokens do not divide into {b} rows");

        let (p, longer) = (n / b, len + n / b);
        let options = (&positions.device(), positions.dtype());
        let arange = |end: usize| Tensor::<1, Int>::arange(0..end as i64, options);
        let positions = positions.reshape([b, 1, p]);
        let here = arange(longer).reshape([1, longer, 1]);
        let is_prompt = positions.clone().equal(here.clone()).int();

        // The number of prompt tokens before each position: by how much a token at it has moved.
        let before = positions.lower(here.clone()).int().sum_dim(2).reshape([b, longer]);
        let which = (is_prompt.clone() * arange(p).reshape([1, 1, p])).sum_dim(2).reshape([b, longer]);
        let first = (arange(b) * len as i64).reshape([b, 1]);
        let token = first + here.reshape([1, longer]) - before;

        let is_prompt = is_prompt.sum_dim(2).reshape([b, longer]).greater_elem(0);
        let origin = token.mask_where(is_prompt, which + (b * len) as i64).reshape([b * longer]);
        Self { origin, n_tokens: b * len, n_prompt: p }
    }

    /// Extends ids, such as labels or token types, to the longer rows, with `fill` at the prompt's positions. For labels
    /// that is [`TextBatch::NOT_COUNTED`](crate::TextBatch).
    ///
    /// # Shapes
    /// - `ids`: `[B * T]`
    /// - result: `[B * (T + P)]`
    ///
    /// # Panics
    /// If `ids` does not have the shape that the insertion was made for.
    pub fn ids(&self, ids: Tensor<1, Int>, fill: i32) -> Tensor<1, Int> {
        self.check(ids.dims()[0], self.n_prompt);
        let fill = Tensor::<1, Int>::full([self.n_prompt], fill, (&ids.device(), ids.dtype()));
        Tensor::cat(vec![ids, fill], 0).select(0, self.origin.clone())
    }

    fn check(&self, n: usize, p: usize) {
        let (tokens, prompt) = (self.n_tokens, self.n_prompt);
        assert!(
            n == tokens && p == prompt,
            "{n} tokens and a prompt of {p}, but the insertion is for {tokens} and {prompt}"
        );
    }
}
