//! Words of names that say how good an answer is, and words that say that a field is one.

/// Words of the better answer. With a negation they say the opposite.
const GOOD: [&str; 38] = [
    "chosen",
    "choose",
    "preferred",
    "prefer",
    "preferable",
    "good",
    "better",
    "best",
    "positive",
    "pos",
    "winner",
    "winning",
    "win",
    "won",
    "w",
    "accepted",
    "accept",
    "approved",
    "selected",
    "correct",
    "right",
    "desirable",
    "desired",
    "favored",
    "favoured",
    "upvoted",
    "upvote",
    "liked",
    "helpful",
    "harmless",
    "safe",
    "aligned",
    "truthful",
    "acceptable",
    "appropriate",
    "satisfactory",
    "ideal",
    "revised",
];
/// Words of the worse answer.
const BAD: [&str; 30] = [
    "rejected",
    "reject",
    "rejection",
    "bad",
    "worse",
    "worst",
    "poor",
    "negative",
    "neg",
    "loser",
    "losing",
    "lose",
    "lost",
    "l",
    "discarded",
    "declined",
    "refused",
    "wrong",
    "false",
    "downvoted",
    "downvote",
    "disliked",
    "harmful",
    "toxic",
    "flawed",
    "dispreferred",
    "unchosen",
    "inferior",
    "failed",
    "disapproved",
];
/// Words that turn the next one round.
const NOT: [&str; 5] = ["non", "not", "un", "less", "least"];
/// Beginnings that turn a word round.
const PREFIXES: [&str; 6] = ["non", "un", "in", "im", "dis", "mis"];
/// Words of fields with answers.
const ANSWERS: [&str; 16] = [
    "answer",
    "response",
    "reply",
    "output",
    "completion",
    "generation",
    "candidate",
    "conversation",
    "assistant",
    "chat",
    "bot",
    "summary",
    "continuation",
    "message",
    "rollout",
    "dialogue",
];

/// Which of two answers a name means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Good,
    Bad,
}

/// Returns a word without the `s` of a plural.
pub(super) fn singular(word: &str) -> String {
    match word.strip_suffix("ies") {
        Some(stem) => format!("{stem}y"),
        None => word.strip_suffix('s').filter(|stem| stem.len() > 2).unwrap_or(word).to_owned(),
    }
}

/// Whether fields with this word in their name hold answers.
pub(in crate::corpus::layout) fn is_answer_word(word: &str) -> bool {
    ANSWERS.contains(&word)
}

/// Returns which answer the words of a name mean, with the words that say nothing of it.
pub(super) fn side_of(words: &[String]) -> Option<(Side, Vec<String>)> {
    let (mut side, mut is_turned, mut stem) = (None, false, Vec::new());
    for word in words {
        let is_good = GOOD.contains(&word.as_str());
        let is_bad = BAD.contains(&word.as_str())
            || PREFIXES.iter().any(|prefix| word.strip_prefix(prefix).is_some_and(|rest| GOOD.contains(&rest)));
        match (is_good, is_bad) {
            (true, _) => side = side.or(Some(if is_turned { Side::Bad } else { Side::Good })),
            (_, true) => side = side.or(Some(if is_turned { Side::Good } else { Side::Bad })),
            _ if NOT.contains(&word.as_str()) => is_turned = true,
            _ if ["more", "most", "y"].contains(&word.as_str()) => {}
            _ => stem.push(singular(word)),
        }
    }
    side.map(|side| (side, stem))
}
