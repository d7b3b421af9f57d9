//! Reviews with stars, and the replies to them.

use super::fields::words_of;

/// Names of the number that a review gives to what it is about.
const STARS: [&str; 6] = ["stars", "star", "rating", "star_rating", "starrating", "review_rating"];

/// Whether a field has the stars of a review.
pub(super) fn is_star(name: &str) -> bool {
    STARS.contains(&name.to_lowercase().as_str())
}

/// Whether a field is named after a review.
pub(super) fn is_review(name: &str) -> bool {
    let words = words_of(name);
    let has = |list: &[&str]| words.iter().any(|word| list.contains(&word.as_str()));
    has(&["review", "content", "comment", "feedback"]) && !has(&["id", "date", "created"]) && !is_reply(name)
}

/// Whether a field is named after a reply, as the owner of a shop writes it.
pub(super) fn is_reply(name: &str) -> bool {
    words_of(name).iter().any(|word| ["reply", "response"].contains(&word.as_str()))
}
