//! Messages in an object by their identifiers, each with the one before it, as ChatGPT exports them.

use serde_json::{Map, Value};

use super::{Foreign, WayOut};
use crate::corpus::jq::in_jq;

/// Recognizes the layout by its first row.
pub(super) fn tree(row: &Map<String, Value>) -> Option<Foreign> {
    let (field, nodes) = row
        .iter()
        .find_map(|(field, value)| Some((field, value.as_object()?)).filter(|(_, nodes)| are_nodes(nodes)))?;
    let path = in_jq(field);
    // The last message of the branch that the user saw, and those before it.
    let last = format!("(.current_node // ([{path}[] | select(.children == []) | .id] | last))");
    let messages = match nodes.values().any(|node| node.get("parent").is_some_and(Value::is_string)) {
        true => format!("([{last} | recurse($nodes[.].parent // empty)] | reverse)[] | $nodes[.].message"),
        false => "$nodes[].message".to_owned(),
    };
    let program = format!(
        "{path} as $nodes | {{messages: [{messages} | select(. != null) | {{role: .author.role, content: ([.content.parts[]? | strings] | \
         join(\"\\n\"))}} | select(.content != \"\" and (.role | IN(\"system\", \"user\", \"assistant\")))]}} | select(.messages | \
         any(.role == \"assistant\"))"
    );
    Some(Foreign {
        name: format!("conversations of ChatGPT, with messages by their identifiers in \"{field}\""),
        way_out: WayOut::Program("to make messages of them".into(), program),
    })
}

/// Whether the values of an object are messages with an author, or have none yet.
fn are_nodes(nodes: &Map<String, Value>) -> bool {
    let message = |node: &'_ Value| node.get("message").cloned();
    let is_said = |node: &Value| {
        message(node)
            .is_some_and(|message| message.pointer("/author/role").is_some() && message.get("content").is_some())
    };
    nodes.values().all(|node| message(node).is_some()) && nodes.values().any(is_said)
}
