//! The batches of one epoch.

use std::ops::Range;

use super::document_order::DocumentOrder;
use crate::host_batch::Shape;
use crate::sampler::{Order, ShuffleOf};

/// The batches of one epoch: which rows they have, and for packed text where rows come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpochPlan {
    /// Row numbers, batch after batch.
    rows: Vec<u32>,
    batches: Vec<PlannedBatch>,
    /// Packed text: the order in which this epoch's documents were packed into rows.
    documents: Option<DocumentOrder>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct PlannedBatch {
    rows: Range<usize>,
    shape: Shape,
}

impl EpochPlan {
    pub(crate) fn with_capacity(n_rows: usize) -> Self {
        Self { rows: Vec::with_capacity(n_rows), batches: Vec::new(), documents: None }
    }

    /// Packed text: every batch has `shape`, except that the last takes what is left.
    pub(crate) fn packed(rows: Vec<u32>, shape: Shape, documents: DocumentOrder) -> Self {
        let batch = |start: usize| {
            let rows = start..rows.len().min(start + shape.batch_size);
            PlannedBatch { shape: Shape { batch_size: rows.len(), ..shape }, rows }
        };
        let batches = (0..rows.len()).step_by(shape.batch_size).map(batch).collect();
        Self { rows, batches, documents: Some(documents) }
    }

    pub(crate) fn push(&mut self, rows: &[u32], shape: Shape) {
        let start = self.rows.len();
        self.rows.extend_from_slice(rows);
        self.batches.push(PlannedBatch { rows: start..self.rows.len(), shape });
    }

    pub(crate) fn shuffle_batches(&mut self, order: Order) {
        order.apply(&mut self.batches, ShuffleOf::Batches);
    }

    /// Batches of the epoch.
    pub fn len(&self) -> usize {
        self.batches.len()
    }

    /// No batches at all.
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Rows and planned shape of a batch.
    pub fn batch(&self, index: usize) -> (&[u32], Shape) {
        let batch = &self.batches[index];
        (&self.rows[batch.rows.clone()], batch.shape)
    }

    pub(crate) fn documents(&self) -> Option<&DocumentOrder> {
        self.documents.as_ref()
    }
}
