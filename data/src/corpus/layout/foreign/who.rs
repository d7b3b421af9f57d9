//! Who wrote a message, in rows with a message each: names of roles, or a mark that tells customers from those who answer them.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::meaning;
use crate::corpus::columns::{Column, columns_of};
use crate::corpus::fields::words_of;
use crate::corpus::jq::path_in_jq;
use crate::corpus::values::is_boolean;

/// Words of marks that are true for messages of those who ask.
const ASKING: [&str; 6] = ["inbound", "incoming", "customer", "user", "client", "visitor"];
/// Words of marks that are true for messages of those who answer.
const ANSWERING: [&str; 9] =
    ["outbound", "outgoing", "agent", "bot", "assistant", "staff", "employee", "support", "operator"];
/// Further words of such names.
const OTHERS: [&str; 6] = ["is", "from", "by", "was", "sent", "message"];

/// How rows say which role wrote their message.
pub(super) struct Who {
    pub(super) field: String,
    /// The expression of jq for the role.
    pub(super) role: String,
}

/// Finds names of roles in all rows, or else a mark.
pub(super) fn role_of(rows: &[Map<String, Value>]) -> Option<Who> {
    let columns = columns_of(rows);
    let usual = || columns.iter().filter(|(_, column)| column.n == rows.len() && column.n_distinct() > 1);
    let path = |name: &str| path_in_jq(&name.split('.').map(str::to_owned).collect::<Vec<_>>());
    let named = usual().find_map(|(name, column)| {
        let known: Option<BTreeMap<String, &str>> =
            column.values().map(|value| Some((value.trim().to_lowercase(), meaning(value)?))).collect();
        let has = |role: &str| known.as_ref().is_some_and(|known| known.values().any(|other| *other == role));
        let role = format!("{}[{} | ascii_downcase]", json!(known), path(name));
        (has("user") && has("assistant")).then(|| Who { field: name.clone(), role })
    });
    let marked = || {
        usual().find_map(|(name, column)| {
            let asks = asks(name, column)?;
            let (one, other) = if asks { ("user", "assistant") } else { ("assistant", "user") };
            let path = path(name);
            let role = format!(
                "(if ({path} | tostring | ascii_downcase | IN(\"true\", \"1\")) then \"{one}\" else \"{other}\" end)"
            );
            Some(Who { field: name.clone(), role })
        })
    };
    named.or_else(marked)
}

/// Whether a mark is true for messages of those who ask, or of those who answer.
fn asks(name: &str, column: &Column) -> Option<bool> {
    let words = words_of(name.rsplit('.').next().unwrap_or(name));
    let is_known = |word: &String| [&ASKING[..], &ANSWERING, &OTHERS].iter().any(|list| list.contains(&word.as_str()));
    let are_marks = column.values().all(|value| is_boolean(value) || ["0", "1"].contains(&value.trim()));
    let asks = words.iter().any(|word| ASKING.contains(&word.as_str()));
    let answers = words.iter().any(|word| ANSWERING.contains(&word.as_str()));
    (are_marks && asks != answers && words.iter().all(is_known)).then_some(asks)
}
