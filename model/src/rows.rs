//! How a `[B * T, D]` tensor divides into sequences: what attention and positions need to know besides the values.

use burn::tensor::{DType, Device, Int, Tensor};
use kiln_kernels::AttentionMask;

use crate::config::{Positions, TransformerConfig};

/// The layout of a batch of sequences: B rows of T positions each, right-padded or packed with several documents.
///
/// The layers receive hidden states as `[B * T, D]`. `Rows` tells them where each row ends, which positions may see each
/// other, and which position of its document a token has.
#[derive(Debug, Clone)]
pub struct Rows {
    /// B.
    pub batch_size: usize,
    /// Non-padding positions of each row, `[B]`, at least 1 each. None: there is no padding, or attention is causal, so
    /// that no real position sees the padding after it.
    pub lengths: Option<Tensor<1, Int>>,
    /// Document number of each position, `[B * T]`, never decreasing along a row. A position sees only its own document.
    /// None: each row is one document.
    pub documents: Option<Tensor<1, Int>>,
    /// Position of each token in its document, `[B * T]`, each in `0..max_positions`. None: 0 to T - 1 in every row.
    pub positions: Option<Tensor<1, Int>>,
    /// What relative positions add to the scores of a row, by ascending `key - query`: `[H, 2 * T - 1]`. The stacks fill it in.
    pub(crate) relative: Option<Tensor<2>>,
}

impl Rows {
    /// Full rows of one document each.
    pub fn new(batch_size: usize) -> Self {
        Self { batch_size, lengths: None, documents: None, positions: None, relative: None }
    }

    /// Right-padded rows.
    ///
    /// # Shapes
    /// - `lengths`: `[B]`
    pub fn of_lengths(lengths: Tensor<1, Int>) -> Self {
        Self { lengths: Some(lengths.clone()), ..Self::new(lengths.dims()[0]) }
    }

    /// T of a tensor of `n` positions.
    ///
    /// # Panics
    /// If `n` does not divide into the rows.
    pub(crate) fn len(&self, n: usize) -> usize {
        let b = self.batch_size;
        assert!(b > 0 && n.is_multiple_of(b), "{n} positions do not divide into {b} rows");
        n / b
    }

    /// Fills in the position ids if the model rotates queries and keys by them, once for all layers.
    pub(crate) fn with_rotary_positions(self, config: &TransformerConfig, n: usize, device: &Device) -> Self {
        if config.positions != Positions::Rotary {
            return self;
        }
        let positions = Some(self.position_ids(n, device));
        Self { positions, ..self }
    }

    /// Selects the last real position of each row.
    ///
    /// # Shapes
    /// - `x`: `[B * T, D]`
    /// - result: `[B, D]`
    pub(crate) fn last(&self, x: Tensor<2>) -> Tensor<2> {
        let places = self.last_places(x.dims()[0]);
        x.select(0, places)
    }

    /// The place of the last real position of each row, `[B]`, among `n` positions.
    pub(crate) fn last_places(&self, n: usize) -> Tensor<1, Int> {
        let len = self.len(n) as i64;
        let lengths = self.lengths.as_ref().expect("rows with a last position have lengths");
        let first = Tensor::<1, Int>::arange(0..self.batch_size as i64, (&lengths.device(), lengths.dtype())) * len;
        first + lengths.clone() - 1
    }

    pub(crate) fn without_autodiff(self) -> Self {
        let Self { batch_size, lengths, documents, positions, relative } = self;
        let [lengths, documents, positions] = [lengths, documents, positions].map(|ids| ids.map(Tensor::inner));
        Self { batch_size, lengths, documents, positions, relative }
    }

    pub(crate) fn mask(&self) -> AttentionMask {
        AttentionMask {
            key_lengths: self.lengths.clone(),
            documents: self.documents.clone(),
            relative: self.relative.clone(),
            bias: None,
        }
    }

    /// The position of each of `n` tokens in its document, `[n]`.
    pub(crate) fn position_ids(&self, n: usize, device: &Device) -> Tensor<1, Int> {
        match &self.positions {
            Some(positions) => positions.clone(),
            None => {
                let len = self.len(n);
                let row = Tensor::<1, Int>::arange(0..len as i64, (&device.clone().inner(), DType::I32));
                row.reshape([1, len]).expand([self.batch_size, len]).reshape([n])
            }
        }
    }
}

/// Puts numbers `[B * T * S, H]` of B rows of T queries in the order of scores, `[B, H, T, S]`.
pub(crate) fn bias_of_scores(bias: Tensor<2>, [b, t]: [usize; 2], heads: usize) -> Tensor<4> {
    let s = bias.dims()[0] / (b * t);
    bias.reshape([b, t, s, heads]).permute([0, 3, 1, 2])
}
