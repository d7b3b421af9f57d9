//! Messages that the other side never saw: what a program wrote, such as who has joined, and remarks among those who answer.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::corpus::fields::words_of;
use crate::corpus::jq::in_jq;

/// Words of marks that are true for remarks.
const HIDDEN: [&str; 5] = ["internal", "private", "hidden", "deleted", "removed"];
/// Words of marks that are false for remarks.
const SHOWN: [&str; 2] = ["public", "visible"];
/// Further words of such names.
const OTHERS: [&str; 3] = ["is", "was", "message"];
/// Kinds of messages that are remarks.
const NOTES: [&str; 7] = ["note", "notes", "internal", "private", "internal_note", "private_note", "note_and_reopen"];

/// Returns conditions of jq that leave out such messages, each with `and` behind it.
pub(in crate::corpus::layout) fn conditions<'r>(messages: impl Iterator<Item = &'r Map<String, Value>>) -> String {
    let messages: Vec<&Map<String, Value>> = messages.collect();
    let strings = |name: &str| messages.iter().filter_map(|row| row.get(name)?.as_str()).collect::<HashSet<&str>>();
    let kinds = strings("type");
    let of_kind = kinds.len() > 1 && kinds.contains("message");
    let mut all = if of_kind { ".type == \"message\" and ".to_owned() } else { String::new() };
    if !strings("subtype").is_empty() {
        all.push_str(".subtype == null and ");
    }

    let mut names: Vec<&String> = messages.iter().flat_map(|row| row.keys()).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let mut values = messages.iter().filter_map(|row| row.get(name));
        let field = in_jq(name);
        // The first rows may be without a remark.
        if let Some(hides) = hides(name).filter(|_| values.all(|value| value.is_boolean() || value.is_null())) {
            all.push_str(&format!("{field} != {hides} and "));
        } else if words_of(name).iter().any(|word| word == "type" || word == "kind") {
            let kinds = strings(name);
            let mut notes: Vec<&str> = kinds.iter().copied().filter(|kind| is_note(kind)).collect();
            notes.sort_unstable();
            let is_mixed = kinds.len() > notes.len();
            notes
                .iter()
                .filter(|_| is_mixed)
                .for_each(|note| all.push_str(&format!("{field} != {} and ", Value::from(*note))));
        }
    }
    all
}

/// Returns the value with which a mark of this name hides a message.
fn hides(name: &str) -> Option<bool> {
    let words = words_of(name);
    let has = |list: &[&str]| words.iter().any(|word| list.contains(&word.as_str()));
    let is_mark =
        words.iter().all(|word| [&HIDDEN[..], &SHOWN, &OTHERS].iter().any(|list| list.contains(&word.as_str())));
    (is_mark && has(&HIDDEN) != has(&SHOWN)).then(|| has(&HIDDEN))
}

fn is_note(kind: &str) -> bool {
    NOTES.contains(&kind.to_lowercase().replace([' ', '-'], "_").as_str())
}
