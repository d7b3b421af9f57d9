//! How the rows of a sequence tensor make a batch: what every layer is told beside the hidden states.

use burn::tensor::{DType, Device, Int, Tensor};
use kiln_kernels::AttentionMask;

use crate::config::{Positions, TransformerConfig};

/// B rows of T positions each, right-padded or packed with several documents.
#[derive(Debug, Clone)]
pub struct Rows {
    /// B.
    pub batch_size: usize,
    /// Positions of each row that are no padding, `[B]`, at least 1 each; None: all, or it does not matter because the
    /// attention is causal and right padding comes after everything real.
    pub lengths: Option<Tensor<1, Int>>,
    /// Document of each position, `[B * T]`, numbers that never fall along a row: positions see their own document only.
    /// None: a row is one document.
    pub documents: Option<Tensor<1, Int>>,
    /// Place of each token, `[B * T]`, each in `0..max_positions`; None: 0 to T - 1 in every row.
    pub positions: Option<Tensor<1, Int>>,
}

impl Rows {
    /// Full rows of one document each.
    pub fn new(batch_size: usize) -> Self {
        Self { batch_size, lengths: None, documents: None, positions: None }
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

    /// With every position's place written out if the model turns queries and keys by it, once for all layers.
    pub(crate) fn placed(self, config: &TransformerConfig, n: usize, device: &Device) -> Self {
        if config.positions != Positions::Rotary {
            return self;
        }
        let positions = Some(self.places(n, device));
        Self { positions, ..self }
    }

    /// The last real position of each row.
    ///
    /// # Shapes
    /// - `x`: `[B * T, D]`
    /// - result: `[B, D]`
    pub(crate) fn last(&self, x: Tensor<2>) -> Tensor<2> {
        let ([n, _], b) = (x.dims(), self.batch_size);
        let len = self.len(n) as i64;
        let lengths = self.lengths.as_ref().expect("rows with a last position have lengths");
        let first = Tensor::<1, Int>::arange(0..b as i64, (&lengths.device(), lengths.dtype())) * len;
        x.select(0, first + lengths.clone() - 1)
    }

    pub(crate) fn mask(&self) -> AttentionMask {
        AttentionMask { key_lengths: self.lengths.clone(), documents: self.documents.clone() }
    }

    /// The place of each of `n` positions, `[n]`.
    pub(crate) fn places(&self, n: usize, device: &Device) -> Tensor<1, Int> {
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
