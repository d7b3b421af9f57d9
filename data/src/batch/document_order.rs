//! The order in which an epoch packs documents into rows.

use crate::sampler::{Order, ShuffleOf};

/// Documents from one waypoint to the next. A lookup walks over at most so many, and each waypoint takes eight bytes.
const STRIDE: usize = 16;

/// Documents in a row, and a lookup of the document at a given place. A document takes one place per token and per
/// special token around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DocumentOrder {
    /// Document numbers in order; `None` for the order of the files.
    documents: Option<Vec<u32>>,
    /// The first place of every [`STRIDE`]th document in that order.
    waypoints: Vec<u64>,
    n_documents: usize,
    n_places: u64,
}

impl DocumentOrder {
    /// Orders documents; `places` returns the number of places of each.
    pub(crate) fn new(n_documents: usize, order: Order, places: impl Fn(usize) -> u64) -> Self {
        let documents = match order {
            Order::Sequential => None,
            Order::Shuffled { .. } => Some(order.indices(n_documents as u32, ShuffleOf::Documents)),
        };
        let mut all =
            Self { documents, waypoints: Vec::with_capacity(n_documents / STRIDE + 1), n_documents, n_places: 0 };
        for turn in 0..n_documents {
            if turn % STRIDE == 0 {
                all.waypoints.push(all.n_places);
            }
            all.n_places += places(all.document(turn));
        }
        all
    }

    /// Returns the document at index `turn` of the order.
    fn document(&self, turn: usize) -> usize {
        self.documents.as_ref().map_or(turn, |documents| documents[turn] as usize)
    }

    /// Returns the documents from the one at `place` on, each with the number of its places that lie before `place`.
    pub(crate) fn starting_at(
        &self,
        place: u64,
        places: impl Fn(usize) -> u64,
    ) -> impl Iterator<Item = (usize, u64)> + '_ {
        // The last waypoint at or before the place.
        let waypoint = self.waypoints.partition_point(|start| *start <= place).saturating_sub(1);
        let mut turn = waypoint * STRIDE;
        let mut before = place - self.waypoints.get(waypoint).copied().unwrap_or(0);

        while turn < self.n_documents {
            let here = places(self.document(turn));
            if before < here {
                break;
            }
            before -= here;
            turn += 1;
        }

        (turn..self.n_documents).map(move |i| (self.document(i), if i == turn { before } else { 0 }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_found() {
        for n in [1, 2, 15, 16, 17, 100] {
            let places = |document: usize| 1 + (document as u64 * 7) % 5;
            for order in [Order::Sequential, Order::Shuffled { seed: 3, epoch: 1 }] {
                let all = DocumentOrder::new(n, order, places);
                let listed: Vec<_> = all.starting_at(0, places).collect();
                assert_eq!(listed.len(), n);
                let each: Vec<_> =
                    listed.iter().flat_map(|(document, _)| (0..places(*document)).map(|i| (*document, i))).collect();
                assert_eq!(all.n_places, each.len() as u64);
                for (place, wanted) in each.iter().enumerate() {
                    assert_eq!(all.starting_at(place as u64, places).next(), Some(*wanted));
                }
                assert_eq!(all.starting_at(all.n_places, places).next(), None);
                let mut documents: Vec<_> = listed.iter().map(|(document, _)| *document).collect();
                assert!(documents.is_sorted() || order != Order::Sequential);
                documents.sort_unstable();
                assert_eq!(documents, (0..n).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn the_order_never_changes_between_versions() {
        // A resumed run must see the same rows: these numbers may only change with a new checkpoint format.
        let all = DocumentOrder::new(10, Order::Shuffled { seed: 42, epoch: 7 }, |_| 1);
        assert_eq!(all.documents.expect("shuffled"), [0, 1, 9, 3, 4, 7, 8, 6, 5, 2]);
    }

    #[test]
    fn memory_is_a_few_bytes_per_document() {
        let order = Order::Shuffled { seed: 1, epoch: 0 };
        let all = DocumentOrder::new(1_000_000, order, |document| document as u64 % 900);
        let bytes = 4 * all.documents.as_ref().map_or(0, Vec::capacity) + 8 * all.waypoints.capacity();
        assert!(bytes < 5_000_000, "{bytes}");
    }
}
