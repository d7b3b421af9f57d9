//! Division of a text by byte-pair encoding, after `bpe_model.cc` of SentencePiece. The pair with the highest score merges
//! first, of equal ones the leftmost; `tokenizers` ranks the pairs that make one piece, too.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use super::Pieces;
use super::normalizer::LongestMatch;
use super::proto::Kind;

/// A part of the text, in a list.
#[derive(Debug, Clone, Copy)]
struct Symbol {
    start: usize,
    /// Equal to `start` after it was merged into another one.
    end: usize,
    previous: Option<usize>,
    next: Option<usize>,
    /// A user-defined piece, which never merges.
    is_frozen: bool,
}

/// Two neighbours that could merge.
#[derive(Debug)]
struct Pair {
    left: usize,
    right: usize,
    score: f32,
    length: usize,
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        // Scores are finite, and 0 equals -0, which often is the score of the first merge.
        let by_score = self.score.partial_cmp(&other.score).unwrap_or(Ordering::Equal);
        by_score.then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

/// A text in the course of its division.
struct Division<'p, 't> {
    pieces: &'p Pieces,
    text: &'t str,
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Pair>,
    /// The parts of which unused pieces were merged.
    parts: HashMap<&'t str, (&'t str, &'t str)>,
}

/// Calls `each` with the pieces of a normalized text: piece and id, `None` for an unknown character.
pub(super) fn divide<'t>(
    pieces: &Pieces,
    user_defined: &LongestMatch,
    text: &'t str,
    each: &mut dyn FnMut(&'t str, Option<u32>),
) {
    let mut division = Division { pieces, text, symbols: Vec::new(), queue: BinaryHeap::new(), parts: HashMap::new() };
    division.begin(user_defined);
    while let Some(pair) = division.queue.pop() {
        division.merge(&pair);
    }
    let mut at = (!division.symbols.is_empty()).then_some(0);
    while let Some(i) = at {
        let symbol = division.symbols[i];
        division.hand_out(&text[symbol.start..symbol.end], each);
        at = symbol.next;
    }
}

impl<'t> Division<'_, 't> {
    fn begin(&mut self, user_defined: &LongestMatch) {
        let mut start = 0;
        while start < self.text.len() {
            let rest = &self.text[start..];
            let frozen = user_defined.at_start(rest);
            let end = start + frozen.unwrap_or_else(|| rest.chars().next().map_or(1, char::len_utf8));
            let i = self.symbols.len();
            let next = (end < self.text.len()).then_some(i + 1);
            self.symbols.push(Symbol { start, end, previous: i.checked_sub(1), next, is_frozen: frozen.is_some() });
            start = end;
        }
        for right in 1..self.symbols.len() {
            self.propose(Some(right - 1), Some(right));
        }
    }

    fn propose(&mut self, left: Option<usize>, right: Option<usize>) {
        let (Some(left), Some(right)) = (left, right) else { return };
        let (a, b) = (self.symbols[left], self.symbols[right]);
        if a.is_frozen || b.is_frozen || b.end - a.start > self.pieces.longest {
            return;
        }
        let piece = &self.text[a.start..b.end];
        let Some(&id) = self.pieces.by_text.get(piece) else { return };
        self.queue.push(Pair { left, right, score: self.pieces.scores[id as usize], length: piece.len() });
        if self.pieces.kinds[id as usize] == Kind::Unused {
            self.parts.insert(piece, (&self.text[a.start..a.end], &self.text[b.start..b.end]));
        }
    }

    fn merge(&mut self, pair: &Pair) {
        let (left, right) = (self.symbols[pair.left], self.symbols[pair.right]);
        let lengths = (left.end - left.start, right.end - right.start);
        if lengths.0 == 0 || lengths.1 == 0 || lengths.0 + lengths.1 != pair.length {
            return; // one of them has merged since
        }
        self.symbols[pair.left].end = right.end;
        self.symbols[pair.left].next = right.next;
        self.symbols[pair.right].end = right.start;
        if let Some(next) = right.next {
            self.symbols[next].previous = Some(pair.left);
        }
        self.propose(left.previous, Some(pair.left));
        self.propose(Some(pair.left), right.next);
    }

    /// Passes a piece on, or the parts of an unused one.
    fn hand_out(&self, piece: &'t str, each: &mut dyn FnMut(&'t str, Option<u32>)) {
        // Depth first without recursion: the parts may be nested deeply.
        let mut open = vec![piece];
        while let Some(piece) = open.pop() {
            let id = self.pieces.by_text.get(piece).copied();
            let is_unused = id.is_some_and(|id| self.pieces.kinds[id as usize] == Kind::Unused);
            match self.parts.get(piece) {
                Some((left, right)) if is_unused => open.extend([*right, *left]),
                _ => each(piece, id),
            }
        }
    }
}
