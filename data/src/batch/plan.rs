//! The batches of one epoch.

use std::ops::Range;

use super::document_order::DocumentOrder;
use crate::host_batch::Shape;
use crate::sampler::{Order, ShuffleOf};

/// The batches of one epoch: their rows and shapes, and for packed text the order of the documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpochPlan {
    /// Row numbers, batch after batch.
    rows: Vec<u32>,
    batches: Vec<PlannedBatch>,
    /// Packed text: the order in which this epoch packs documents into rows.
    documents: Option<DocumentOrder>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct PlannedBatch {
    rows: Range<usize>,
    shape: Shape,
}

impl EpochPlan {
    /// Returns a plan without batches, with room for `n_rows` rows.
    pub fn with_capacity(n_rows: usize) -> Self {
        Self { rows: Vec::with_capacity(n_rows), batches: Vec::new(), documents: None }
    }

    /// Plans packed text: every batch has `shape`, and the last one has the remaining rows.
    pub(crate) fn packed(rows: Vec<u32>, shape: Shape, documents: DocumentOrder) -> Self {
        let batch = |start: usize| {
            let rows = start..rows.len().min(start + shape.batch_size);
            PlannedBatch { shape: Shape { batch_size: rows.len(), ..shape }, rows }
        };
        let batches = (0..rows.len()).step_by(shape.batch_size).map(batch).collect();
        Self { rows, batches, documents: Some(documents) }
    }

    /// Adds a batch of these rows.
    pub fn push(&mut self, rows: &[u32], shape: Shape) {
        let start = self.rows.len();
        self.rows.extend_from_slice(rows);
        self.batches.push(PlannedBatch { rows: start..self.rows.len(), shape });
    }

    /// Puts the batches into an order.
    pub fn shuffle_batches(&mut self, order: Order) {
        order.apply(&mut self.batches, ShuffleOf::Batches);
    }

    /// Returns the number of batches of the epoch.
    pub fn len(&self) -> usize {
        self.batches.len()
    }

    /// Whether the plan has no batches.
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Returns the rows and the planned shape of a batch.
    pub fn batch(&self, index: usize) -> (&[u32], Shape) {
        let batch = &self.batches[index];
        (&self.rows[batch.rows.clone()], batch.shape)
    }

    pub(crate) fn documents(&self) -> Option<&DocumentOrder> {
        self.documents.as_ref()
    }
}
