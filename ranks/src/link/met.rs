//! The connections after the rendezvous.

use std::net::TcpStream;

use super::error::Peer;

/// The ranks' processes and the connections to them, by rank. Rank 0 is connected to all, the others to rank 0.
pub(super) struct Met {
    pub(super) peers: Vec<Peer>,
    /// Blocking.
    pub(super) data: Vec<Option<TcpStream>>,
    /// Non-blocking.
    pub(super) watch: Vec<Option<TcpStream>>,
}

/// Names ranks: "rank 1", "ranks 1, 2 and 5", "ranks 1, 2, 3 and 9 others".
pub(crate) fn ranks_in_words(ranks: &[usize]) -> String {
    const SHOWN: usize = 8;
    let listed = |ranks: &[usize]| ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    match ranks {
        [] => "nobody".into(),
        [rank] => format!("rank {rank}"),
        [first @ .., last] if ranks.len() <= SHOWN => format!("ranks {} and {last}", listed(first)),
        _ => format!("ranks {} and {} others", listed(&ranks[..SHOWN]), ranks.len() - SHOWN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_named_in_words() {
        assert_eq!(ranks_in_words(&[3]), "rank 3");
        assert_eq!(ranks_in_words(&[1, 2, 5]), "ranks 1, 2 and 5");
        assert_eq!(ranks_in_words(&(1..512).collect::<Vec<_>>()), "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 503 others");
    }
}
