//! Division of a text by a unigram language model, after `EncodeOptimized` in `unigram_model.cc` of SentencePiece: with
//! its precision, so that texts with two nearly equal divisions get the same one.

use super::Pieces;
use super::proto::Kind;

/// What an unknown character costs more than the least likely piece.
const UNKNOWN_PENALTY: f32 = 10.0;

/// The best division of the text up to a byte.
#[derive(Debug, Clone, Copy)]
struct Best {
    id: u32,
    score: f32,
    /// First byte of the last piece; `None` if no division ends here.
    start: Option<usize>,
}

/// Calls `each` with the pieces of a normalized text: piece and id, `None` for an unknown character.
pub(super) fn divide<'t>(pieces: &Pieces, text: &'t str, each: &mut dyn FnMut(&'t str, Option<u32>)) {
    let unknown = pieces.lowest_score - UNKNOWN_PENALTY;
    let mut ends = vec![Best { id: pieces.unknown, score: 0.0, start: None }; text.len() + 1];
    let mut lengths: Vec<usize> = Vec::new();

    for (start, first) in text.char_indices() {
        let so_far = ends[start].score;
        let (rest, first) = (&text[start..], first.len_utf8());
        let mut has_single = false;
        lengths.clear();
        lengths.extend(rest.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= pieces.longest));
        for &length in &lengths {
            let Some(&id) = pieces.by_text.get(&rest[..length]) else { continue };
            let score = match pieces.kinds[id as usize] {
                Kind::Unused => continue,
                // User-defined pieces get a bonus, so that they win.
                Kind::UserDefined => f64::from(length as f32 * pieces.highest_score) - 0.1,
                _ => f64::from(pieces.scores[id as usize]),
            };
            let candidate = score + f64::from(so_far);
            let end = &mut ends[start + length];
            if end.start.is_none() || candidate > f64::from(end.score) {
                *end = Best { id, score: candidate as f32, start: Some(start) };
            }
            has_single |= length == first;
        }
        if !has_single {
            let candidate = unknown + so_far;
            let end = &mut ends[start + first];
            if end.start.is_none() || candidate > end.score {
                *end = Best { id: pieces.unknown, score: candidate, start: Some(start) };
            }
        }
    }

    let (mut end, mut found) = (text.len(), Vec::new());
    while end > 0 {
        let Best { id, start, .. } = ends[end];
        let start = start.expect("each character is a piece or unknown");
        found.push((&text[start..end], (id != pieces.unknown).then_some(id)));
        end = start;
    }
    found.into_iter().rev().for_each(|(piece, id)| each(piece, id));
}
