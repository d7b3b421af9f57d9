//! Documents into the packed rows of a batch.

use crate::cache::Tokens;
use crate::host_batch::{HostBatch, Shape, TextParts};
use crate::tokenizer::FLAG;

/// Special tokens around a document, in the input or in the labels. Its `Debug` text is part of a source's fingerprint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Around {
    pub(crate) before: Vec<i32>,
    pub(crate) behind: Vec<i32>,
}

impl Around {
    pub(crate) fn len(&self) -> usize {
        self.before.len() + self.behind.len()
    }

    /// Copies the places from `from` on of a document to `to`, which they must fill. Returns the largest id of the
    /// document.
    fn copy(&self, tokens: Tokens<'_>, from: usize, to: &mut [i32]) -> u32 {
        match tokens {
            Tokens::Narrow(ids) => self.copy_ids(ids, from, to),
            Tokens::Wide(ids) => self.copy_ids(ids, from, to),
        }
    }

    fn copy_ids<T: Copy + Into<u32>>(&self, ids: &[T], from: usize, to: &mut [i32]) -> u32 {
        let end = from + to.len();
        // What `from..end` takes of a piece of `len` places that starts at place `start`.
        let part = |start: usize, len: usize| from.saturating_sub(start).min(len)..end.saturating_sub(start).min(len);
        let (before, rest) = (part(0, self.before.len()), self.before.len());
        let (middle, last) = (part(rest, ids.len()), part(rest + ids.len(), self.behind.len()));

        let (to_before, to) = to.split_at_mut(before.len());
        let (to_middle, to_last) = to.split_at_mut(middle.len());
        to_before.copy_from_slice(&self.before[before]);
        to_last.copy_from_slice(&self.behind[last]);

        let mut largest = 0;
        for (to, id) in to_middle.iter_mut().zip(&ids[middle]) {
            let id: u32 = (*id).into();
            largest = largest.max(id);
            *to = id as i32;
        }
        largest
    }
}

/// How rows are built. Its `Debug` text is part of a source's fingerprint.
#[derive(Debug, Clone)]
pub(crate) struct RowFormat {
    /// Special tokens around a document in the model's input.
    pub(crate) input: Around,
    /// Special tokens around the labels; as many as around the input.
    pub(crate) labels: Around,
    /// Fills padding places of the input.
    pub(crate) fill: i32,
    /// Positions restart at each document, and documents have numbers.
    pub(crate) boundaries: bool,
}

/// Writes documents into a batch whose shape is fixed in advance. The batch's buffer is reused.
pub(crate) struct RowWriter<'a> {
    batch: &'a mut HostBatch,
    format: &'a RowFormat,
    /// Complete rows.
    rows: usize,
    /// Filled places of the open row.
    filled: usize,
    /// Documents in the open row.
    documents: i32,
}

impl<'a> RowWriter<'a> {
    /// Makes room for `shape`.
    pub(crate) fn new(batch: &'a mut HostBatch, shape: Shape, format: &'a RowFormat) -> Self {
        // Every place is written below: it does not matter what a used buffer holds.
        batch.start_text(shape, format.boundaries);
        Self { batch, format, rows: 0, filled: 0, documents: 0 }
    }

    /// Lets two rows after one another be answers to compare.
    pub(crate) fn comparing(self, beta: f64) -> Self {
        self.batch.preference = Some(beta);
        self
    }

    /// Returns the number of free places of the open row.
    pub(crate) fn room(&self) -> usize {
        self.batch.target_len - self.filled
    }

    /// Adds the places `from .. from + len` of a document to the open row. Returns the largest id of the document.
    ///
    /// # Panics
    ///
    /// If the open row lacks the room for them.
    pub(crate) fn push(&mut self, tokens: Tokens<'_>, from: usize, len: usize) -> u32 {
        assert!(len <= self.room(), "{len} places of a document, but {} are free", self.room());
        let format = self.format;
        let (start, number) = if format.boundaries { (0, self.documents) } else { (self.filled, 0) };
        let open = self.open(len);
        let largest = format.input.copy(tokens, from, open.input);
        let of_labels = format.labels.copy(tokens, from, open.labels);
        fill_positions(open.positions, start);
        open.documents.fill(number);

        self.documents = number + 1;
        self.filled += len;
        largest.max(of_labels)
    }

    /// Adds a whole conversation, whose tokens to learn have the [`FLAG`], to the open row. The label of a place is the next
    /// token if it is one to learn. Returns the largest id.
    ///
    /// # Panics
    ///
    /// If the open row lacks the room for it.
    pub(crate) fn push_flagged(&mut self, tokens: &[u32]) -> u32 {
        assert!(tokens.len() <= self.room(), "{} places, but {} are free", tokens.len(), self.room());
        let number = self.documents;
        let open = self.open(tokens.len());
        let following = tokens.iter().skip(1).map(|next| match next & FLAG {
            0 => HostBatch::NOT_COUNTED,
            _ => (next & !FLAG) as i32,
        });
        let labels = following.chain([HostBatch::NOT_COUNTED]);
        for ((input, label), (token, next)) in open.input.iter_mut().zip(open.labels).zip(tokens.iter().zip(labels)) {
            (*input, *label) = ((token & !FLAG) as i32, next);
        }
        fill_positions(open.positions, 0);
        open.documents.fill(number);

        self.documents = number + 1;
        self.filled += tokens.len();
        tokens.iter().map(|token| token & !FLAG).max().unwrap_or(0)
    }

    /// Pads the open row and opens the next.
    pub(crate) fn end_row(&mut self, number: u32) {
        let (filled, documents) = (self.filled, self.documents);
        let (fill, boundaries) = (self.format.fill, self.format.boundaries);
        let open = self.open(self.room());
        open.input.fill(fill);
        open.labels.fill(HostBatch::NOT_COUNTED);
        fill_positions(open.positions, if boundaries { 0 } else { filled });
        open.documents.fill(documents);
        open.lengths[0] = filled as i32;

        self.batch.target_tokens += filled as u64;
        self.batch.rows.push(number);
        self.rows += 1;
        (self.filled, self.documents) = (0, 0);
    }

    /// Returns the next `len` places of the open row, and its length.
    fn open(&mut self, len: usize) -> TextParts<&mut [i32]> {
        let start = self.rows * self.batch.target_len + self.filled;
        let (places, row) = (start..start + len, self.rows..=self.rows);
        let TextParts { input, labels, positions, documents, lengths } = self.batch.text_parts_mut();
        TextParts {
            input: &mut input[places.clone()],
            labels: &mut labels[places.clone()],
            positions: &mut positions[places.clone()],
            documents: &mut documents[places],
            lengths: &mut lengths[row],
        }
    }
}

fn fill_positions(to: &mut [i32], start: usize) {
    for (to, position) in to.iter_mut().zip(start as i32..) {
        *to = position;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(boundaries: bool) -> RowFormat {
        let input = Around { before: vec![1], behind: vec![] };
        let labels = Around { before: vec![], behind: vec![2] };
        RowFormat { input, labels, fill: 0, boundaries }
    }

    #[test]
    fn documents_are_shifted_numbered_and_padded() {
        let mut batch = HostBatch { ids: vec![77; 100], rows: vec![7], ..HostBatch::default() };
        let format = format(true);
        let mut rows = RowWriter::new(&mut batch, Shape::text(2, 5), &format);
        assert_eq!(rows.push(Tokens::Narrow(&[10, 11]), 0, 3), 11);
        assert_eq!(rows.push(Tokens::Wide(&[20, 99, 22]), 0, 2), 99);
        rows.end_row(4);
        assert_eq!(rows.push(Tokens::Wide(&[20, 99, 22]), 2, 2), 99);
        rows.end_row(5);
        assert_eq!(batch.target_input(), [1, 10, 11, 1, 20, 99, 22, 0, 0, 0]);
        assert_eq!(batch.labels(), [10, 11, 2, 20, 99, 22, 2, -1, -1, -1]);
        assert_eq!(batch.positions(), [0, 1, 2, 0, 1, 0, 1, 0, 1, 2]);
        assert_eq!(batch.documents(), [0, 0, 0, 1, 1, 0, 0, 1, 1, 1]);
        assert_eq!(batch.lengths(), [5, 2]);
        assert_eq!((batch.target_tokens, &batch.rows[..], batch.boundaries), (7, &[4, 5][..], true));
        assert!((batch.padding_ratio() - 0.3).abs() < 1e-12);
        assert_eq!((batch.shape().to_string(), batch.source().len()), ("2 x 5".into(), 0));
    }

    #[test]
    fn only_the_tokens_to_learn_are_labels() {
        let mut batch = HostBatch { ids: vec![77; 100], ..HostBatch::default() };
        let format = format(true);
        let mut rows = RowWriter::new(&mut batch, Shape::text(1, 7), &format);
        assert_eq!(rows.push_flagged(&[10, 11, 12 | FLAG, 13 | FLAG]), 13);
        assert_eq!(rows.push_flagged(&[20 | FLAG, 21 | FLAG]), 21);
        rows.end_row(0);
        assert_eq!(batch.target_input(), [10, 11, 12, 13, 20, 21, 0]);
        assert_eq!(batch.labels(), [-1, 12, 13, -1, 21, -1, -1]);
        assert_eq!(batch.positions(), [0, 1, 2, 3, 0, 1, 0]);
        assert_eq!(batch.documents(), [0, 0, 0, 0, 1, 1, 2]);
        assert_eq!((batch.lengths(), batch.target_tokens), (&[6][..], 6), "tokens that the model reads");
        assert_eq!(batch.split(1)[0].target_tokens, 6);
    }

    #[test]
    fn a_stream_runs_on() {
        let mut batch = HostBatch::default();
        let format = format(false);
        let mut rows = RowWriter::new(&mut batch, Shape::text(1, 6), &format);
        rows.push(Tokens::Narrow(&[10]), 0, 2);
        rows.push(Tokens::Narrow(&[20]), 0, 2);
        rows.end_row(0);
        assert_eq!(batch.target_input(), [1, 10, 1, 20, 0, 0]);
        assert_eq!(batch.labels(), [10, 2, 20, 2, -1, -1]);
        assert_eq!(batch.positions(), [0, 1, 2, 3, 4, 5]);
        assert_eq!(batch.documents(), [0, 0, 0, 0, 1, 1]);
    }

    #[test]
    fn masked_rows_have_tokens_around_documents() {
        let around = Around { before: vec![1], behind: vec![2] };
        for (from, wanted) in [(0, [1, 10, 11]), (1, [10, 11, 12]), (2, [11, 12, 2])] {
            let mut to = [0; 3];
            around.copy(Tokens::Narrow(&[10, 11, 12]), from, &mut to);
            assert_eq!(to, wanted);
        }
    }

    #[test]
    #[should_panic(expected = "4 places of a document, but 3 are free")]
    fn a_document_that_is_too_long_is_refused() {
        RowWriter::new(&mut HostBatch::default(), Shape::text(1, 3), &format(true)).push(Tokens::Narrow(&[1; 9]), 0, 4);
    }
}
