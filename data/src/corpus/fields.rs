//! What fields of rows and columns of tables are, by their names and their length.

/// Names of the class of a text.
const LABELS: [&str; 13] = [
    "label",
    "labels",
    "class",
    "category",
    "section",
    "topic",
    "sentiment",
    "intent",
    "genre",
    "rating",
    "stars",
    "tag",
    "emotion",
];
/// Names of fields about a text, which are neither its class nor a text to learn.
const ABOUT: [&str; 19] = [
    "id",
    "uid",
    "idx",
    "lang",
    "language",
    "domain",
    "dataset",
    "split",
    "date",
    "timestamp",
    "model",
    "version",
    "license",
    "url",
    "title",
    "author",
    "path",
    "file",
    "filename",
];

/// Whether fields of this name usually hold a class.
pub(super) fn is_label(name: &str) -> bool {
    LABELS.contains(&name.to_lowercase().as_str())
}

/// Whether the field says something about the text next to it.
pub(super) fn is_about(name: &str) -> bool {
    ABOUT.contains(&name.to_lowercase().as_str())
}

/// Whether two fields of so many bytes may both be texts. The name or the language next to a text is much shorter.
pub(super) fn are_alike(n_bytes: [usize; 2]) -> bool {
    n_bytes[0].max(n_bytes[1]) <= 4 * n_bytes[0].min(n_bytes[1])
}
