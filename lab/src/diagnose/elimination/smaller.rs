//! Batches of a part of the length, or of a part of the rows.

use kiln_data::{BatchLayout, HostBatch, PairParts, Shape, TextParts};

use super::altered::Change;

/// What batches have less of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Less {
    /// Each row ends earlier.
    Length,
    /// The last rows are missing.
    Rows,
}

/// Cuts batches to about one `part`th.
#[derive(Debug, Clone, Copy)]
pub(super) struct Smaller {
    pub(super) less: Less,
    pub(super) part: usize,
}

impl Change for Smaller {
    fn apply(&mut self, batch: &mut HostBatch) {
        *batch = match self.less {
            Less::Length => shorter(batch, self.part),
            Less::Rows => batch.split(self.part).swap_remove(0),
        };
    }
}

/// Returns the first part of each row, about one `part`th of it.
fn shorter(host: &HostBatch, part: usize) -> HostBatch {
    let Shape { batch_size, source_len, target_len } = host.shape();
    let cut_to = |len: usize| len.div_ceil(part);
    let shape = Shape { batch_size, source_len: cut_to(source_len), target_len: cut_to(target_len) };

    let cut = |ids: &[i32], len: usize| -> Vec<i32> {
        ids.chunks(len.max(1)).flat_map(|row| &row[..cut_to(len)]).copied().collect()
    };
    let at_most = |lengths: &[i32], most: usize| lengths.iter().map(|len| (*len).min(most as i32)).collect();

    match host.layout {
        BatchLayout::Pairs => HostBatch::pairs(
            shape,
            PairParts {
                source: cut(host.source(), source_len),
                target_input: cut(host.target_input(), target_len),
                labels: cut(host.labels(), target_len),
                source_lengths: at_most(host.source_lengths(), shape.source_len),
                target_lengths: at_most(host.target_lengths(), shape.target_len),
            },
        ),
        BatchLayout::Text => {
            let parts = TextParts {
                input: cut(host.target_input(), target_len),
                labels: cut(host.labels(), target_len),
                positions: cut(host.positions(), target_len),
                documents: cut(host.documents(), target_len),
                lengths: at_most(host.lengths(), shape.target_len),
            };
            let (token_types, preference) = (host.token_types, host.preference);
            HostBatch { token_types, preference, ..HostBatch::text(shape, host.boundaries, parts) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cut_to_their_first_part() {
        let shape = Shape::text(2, 5);
        let ids = |first: i32| (first..first + 10).collect::<Vec<i32>>();
        let parts =
            TextParts { input: ids(0), labels: ids(20), positions: ids(40), documents: ids(60), lengths: vec![5, 1] };
        let host = HostBatch { token_types: true, ..HostBatch::text(shape, true, parts) };
        let cut = shorter(&host, 4);
        assert_eq!(cut.shape(), Shape::text(2, 2));
        assert_eq!((cut.target_input(), cut.labels()), (&[0, 1, 5, 6][..], &[20, 21, 25, 26][..]));
        assert_eq!((cut.positions(), cut.documents()), (&[40, 41, 45, 46][..], &[60, 61, 65, 66][..]));
        assert_eq!((cut.lengths(), cut.boundaries, cut.token_types), (&[2, 1][..], true, true));

        let shape = Shape { batch_size: 1, source_len: 8, target_len: 4 };
        let parts = PairParts {
            source: (0..8).collect(),
            target_input: vec![1, 2, 3, 4],
            labels: vec![2, 3, 4, 5],
            source_lengths: vec![8],
            target_lengths: vec![1],
        };
        let cut = shorter(&HostBatch::pairs(shape, parts), 4);
        assert_eq!((cut.source(), cut.target_input(), cut.labels()), (&[0, 1][..], &[1][..], &[2][..]));
        assert_eq!((cut.source_lengths(), cut.target_lengths()), (&[2][..], &[1][..]));
    }
}
