//! A short learned prompt (Lester et al. 2021, "The power of scale for parameter-efficient prompt tuning"): P trained vectors
//! inserted among the token vectors of each row, at positions that each row chooses.
//!
//! One index tensor holds the origin of every output position. Inserting is then one gather and its gradient one scatter,
//! for any P and batch size.

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Int, Tensor};

use crate::config::TransformerConfig;
use crate::init::Init;
use crate::named_tensor::NamedTensor;

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

/// Returns whether the parameter at `path` is a learned prompt.
pub fn is_learned_prompt(path: &str) -> bool {
    path.starts_with("learned_prompt.")
}

/// Returns the prompt that training of a model begins with: the vectors of tokens that `seed` chooses from the vocabulary, which
/// Lester et al. 2021 (section 3.2) find better than random numbers. None if `weights` lack the token vectors.
pub fn prompt_of_tokens(config: &TransformerConfig, weights: &[NamedTensor], seed: u64) -> Option<NamedTensor> {
    let embedding = weights.iter().find(|tensor| tensor.name == "embedding.table")?;
    let &[n, d] = embedding.shape.as_slice() else { return None };
    let scale = if config.scale_embedding { (d as f32).sqrt() } else { 1.0 };
    let tokens = Init::choices(seed, "learned_prompt.table", config.prompt_tokens, n);
    let rows = tokens.into_iter().flat_map(|token| &embedding.values[token * d..][..d]);
    let values = rows.map(|x| scale * x).collect();
    Some(NamedTensor { name: "learned_prompt.table".to_owned(), shape: vec![config.prompt_tokens, d], values })
}

impl LearnedPrompt {
    /// Initializes the prompt of a model, if its configuration has one.
    pub(crate) fn init(init: &Init) -> Option<Self> {
        let n = init.config.prompt_tokens;
        (n > 0).then(|| Self { table: init.table("table", n) })
    }

    /// Puts the prompt behind the first `before` positions of each row.
    ///
    /// # Shapes
    /// - `x`: `[B * T, D]`
    /// - result: `[B * (T + P), D]`
    pub(crate) fn behind(&self, before: usize, x: Tensor<2>, batch_size: usize) -> Tensor<2> {
        let ([n, d], [p, _], b) = (x.dims(), self.table.dims(), batch_size);
        let ids = Tensor::<1, Int>::arange(0..p as i64, (&x.device().inner(), DType::I32));
        let ids = ids.reshape([1, p]).expand([b, p]).reshape([b * p]);
        // The lookup adds up the gradients of all rows in f32 and in a fixed order.
        let prompt = kiln_kernels::embedding(ids, self.table.val()).cast(x.dtype()).reshape([b, p, d]);
        let x = x.reshape([b, n / b, d]);
        let parts = match before {
            0 => vec![prompt, x],
            _ => vec![x.clone().narrow(1, 0, before), prompt, x.narrow(1, before, n / b - before)],
        };
        Tensor::cat(parts, 1).reshape([b * p + n, d])
    }

    /// Removes the positions of the prompt, which stands behind the first `before` positions.
    ///
    /// # Shapes
    /// - `hidden`: `[B * (T + P), D]`
    /// - result: `[B * T, D]`
    pub(crate) fn without(&self, before: usize, hidden: Tensor<2>, batch_size: usize) -> Tensor<2> {
        let ([n, d], [p, _], b) = (hidden.dims(), self.table.dims(), batch_size);
        let rows = hidden.reshape([b, n / b, d]);
        let text = rows.clone().narrow(1, before + p, n / b - before - p);
        let text = if before == 0 { text } else { Tensor::cat(vec![rows.narrow(1, 0, before), text], 1) };
        text.reshape([n - b * p, d])
    }

    /// Adds the prompt to the lengths of rows, `[B]`.
    pub(crate) fn lengths(&self, lengths: Tensor<1, Int>) -> Tensor<1, Int> {
        lengths + self.table.dims()[0] as i64
    }

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
