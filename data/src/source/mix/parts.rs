//! The sources of a mixture, all of one kind.

use std::sync::Arc;

use crate::batch::{DocumentOrder, RowFormat, RowWriter};
use crate::cache::Lengths;
use crate::error::Result;
use crate::host_batch::{HostBatch, Shape};
use crate::sampler::Order;
use crate::source::{BatchSource, ChatSource, PairSource, TextSource};

/// A source of a mixture with its name.
#[derive(Debug)]
pub struct MixPart<S> {
    /// Its name in metrics and messages.
    pub name: Arc<str>,
    /// Its rows.
    pub source: S,
}

/// The sources of a mixture. All must have been opened with the same tokenizer and settings.
#[derive(Debug)]
pub enum MixParts {
    /// Pairs of texts.
    Pairs(Vec<MixPart<PairSource>>),
    /// Plain text.
    Text(Vec<MixPart<TextSource>>),
    /// Conversations.
    Chat(Vec<MixPart<ChatSource>>),
}

/// Where a planned row comes from: the source, the order of its documents if the pass packs them anew, the row within the source,
/// and the row's number in the data set.
pub(super) type Origin<'a> = (usize, Option<&'a DocumentOrder>, u32, u32);

impl MixParts {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Pairs(parts) => parts.len(),
            Self::Text(parts) => parts.len(),
            Self::Chat(parts) => parts.len(),
        }
    }

    pub(super) fn name(&self, part: usize) -> &Arc<str> {
        match self {
            Self::Pairs(parts) => &parts[part].name,
            Self::Text(parts) => &parts[part].name,
            Self::Chat(parts) => &parts[part].name,
        }
    }

    pub(super) fn lengths_by_side(&self, part: usize) -> Vec<Lengths> {
        match self {
            Self::Pairs(parts) => parts[part].source.lengths(),
            Self::Text(parts) => parts[part].source.lengths(),
            Self::Chat(parts) => parts[part].source.lengths(),
        }
    }

    /// Returns the number of rows of a pass over a source.
    pub(super) fn n_rows(&self, part: usize) -> usize {
        match self {
            Self::Pairs(parts) => parts[part].source.cache().n_rows(),
            Self::Text(parts) => parts[part].source.n_rows(),
            Self::Chat(parts) => parts[part].source.n_rows(),
        }
    }

    /// Returns source and target length of a row.
    pub(super) fn lengths(&self, part: usize, row: usize) -> (usize, usize) {
        match self {
            Self::Pairs(parts) => parts[part].source.cache().lengths(row),
            Self::Text(parts) => (0, parts[part].source.row_len(row)),
            Self::Chat(parts) => (0, parts[part].source.row_len(row)),
        }
    }

    /// Returns the longest padded lengths; 0: no limit.
    pub(super) fn max_lens(&self) -> (usize, usize) {
        match self {
            Self::Pairs(parts) => parts.first().map_or((0, 0), |part| part.source.cache().max_lens()),
            Self::Text(parts) => (0, parts.first().map_or(0, |part| part.source.seq_len())),
            Self::Chat(parts) => (0, parts.first().map_or(0, |part| part.source.seq_len())),
        }
    }

    /// Returns the shape of a full batch if all rows have one length.
    pub(super) fn packed_shape(&self) -> Option<Shape> {
        match self {
            Self::Pairs(_) => None,
            Self::Text(parts) => parts.first()?.source.packed_shape(),
            Self::Chat(parts) => parts.first()?.source.packed_shape(),
        }
    }

    /// Whether every pass packs rows anew, so that the plan must say of which pass a row is.
    pub(super) fn is_planned_by_pass(&self) -> bool {
        matches!(self, Self::Text(_)) && self.packed_shape().is_some()
    }

    /// Returns the order of the documents in a pass that packs them anew.
    pub(super) fn documents(&self, part: usize, order: Order) -> Option<DocumentOrder> {
        match self {
            Self::Text(parts) if self.is_planned_by_pass() => Some(parts[part].source.documents(order)),
            _ => None,
        }
    }

    pub(super) fn fingerprint(&self, part: usize) -> String {
        match self {
            Self::Pairs(parts) => parts[part].source.fingerprint(),
            Self::Text(parts) => parts[part].source.fingerprint(),
            Self::Chat(parts) => parts[part].source.fingerprint(),
        }
    }

    /// Writes planned rows into a batch; `origin` says where each comes from.
    pub(super) fn fill<'a>(
        &self,
        numbers: &[u32],
        shape: Shape,
        batch: &mut HostBatch,
        origin: &dyn Fn(u32) -> Origin<'a>,
    ) -> Result<()> {
        if let Self::Pairs(parts) = self {
            let mut writer = parts[0].source.kind().writer(batch, shape);
            return numbers.iter().try_for_each(|number| {
                let (part, _, row, number) = origin(*number);
                writer.push(parts[part].source.cache(), (row, 0), number)
            });
        }

        let mut rows = RowWriter::new(batch, shape, self.format());
        numbers.iter().try_for_each(|number| {
            let (part, documents, row, number) = origin(*number);
            match (self, documents) {
                (Self::Text(parts), Some(documents)) => {
                    parts[part].source.fill_packed(documents, row, number, &mut rows)
                }
                (Self::Text(parts), None) => parts[part].source.fill_part(row, number, &mut rows),
                (Self::Chat(parts), _) => parts[part].source.fill_row(row, number, &mut rows),
                (Self::Pairs(_), _) => unreachable!("written above"),
            }
        })
    }

    /// Returns how rows of text are built.
    fn format(&self) -> &RowFormat {
        match self {
            Self::Pairs(_) => unreachable!("pairs have no format of rows"),
            Self::Text(parts) => parts[0].source.format(),
            Self::Chat(parts) => parts[0].source.format(),
        }
    }
}
