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
/// Words in the names of other fields with a class, such as `gold_label` and `star_rating`.
const LABEL_WORDS: [&str; 14] = [
    "annotation",
    "label",
    "labels",
    "class",
    "category",
    "intent",
    "sentiment",
    "rating",
    "stars",
    "overall",
    "stance",
    "emotion",
    "polarity",
    "verdict",
];
/// Words in the names of fields that say how sure somebody is of a class.
const MEASURES: [&str; 7] = ["confidence", "conf", "probability", "prob", "certainty", "agreement", "annotators"];
/// Words of names that are more often a class than other values that recur.
const LIKELY_LABELS: [&str; 25] = [
    "score",
    "severity",
    "priority",
    "urgency",
    "outcome",
    "verdict",
    "decision",
    "diagnosis",
    "status",
    "polarity",
    "stance",
    "toxicity",
    "toxic",
    "spam",
    "quality",
    "difficulty",
    "level",
    "grade",
    "kind",
    "type",
    "target",
    "result",
    "team",
    "department",
    "queue",
];
/// Names of the text that a class belongs to, and of plain texts.
const TEXTS: [&str; 10] =
    ["text", "content", "sentence", "document", "body", "review", "description", "article", "story", "abstract"];
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

/// Words of fields that say who wrote a text.
const PEOPLE: [&str; 10] = ["user", "author", "name", "sender", "from", "by", "speaker", "username", "nick", "channel"];
/// Words that end the names of fields with the persons who made something.
const PERSONS: [&str; 10] = [
    "author",
    "authors",
    "editor",
    "editors",
    "creator",
    "creators",
    "contributor",
    "contributors",
    "submitter",
    "uploader",
];
/// Words of names that say that a field numbers or names its row.
const IDS: [&str; 12] = ["id", "ids", "uid", "uuid", "guid", "qid", "pid", "idx", "hash", "sha", "md5", "checksum"];
/// Words of names of other forms of a text.
const ANALYSES: [&str; 9] = ["toks", "tok", "tokens", "tokenized", "parse", "tree", "lemmas", "lemma", "pos"];

/// Fields of a question and its answer in one row. The first that a row has count.
pub(super) const ANSWERS: [[&str; 2]; 11] = [
    ["prompt", "completion"],
    ["instruction", "output"],
    ["instruction", "response"],
    ["instruction", "answer"],
    ["question", "answer"],
    ["question", "response"],
    ["prompt", "response"],
    ["prompt", "answer"],
    ["query", "response"],
    ["query", "answer"],
    ["input", "output"],
];

/// Returns the names of texts that belong to a question.
pub(super) fn names_behind(question: &str) -> &'static [&'static str] {
    match question {
        "instruction" => &["input", "context"],
        "question" => &["context"],
        _ => &[],
    }
}

/// Returns the template of a question with the text that belongs to it, which rows may lack.
pub(super) fn with_text_behind(question: &str, name: &str) -> String {
    format!("{{{{ {question} }}}}{{% if {name} %}}\\n{{{{ {name} }}}}{{% endif %}}")
}

/// Returns the words of a name in lower case: `qualityScore`, `quality-score` and `Quality Score` have two.
pub(super) fn words_of(name: &str) -> Vec<String> {
    let (mut words, mut was_lower) = (vec![String::new()], false);
    for character in name.chars() {
        if !character.is_alphanumeric() || was_lower && character.is_uppercase() {
            words.push(String::new());
        }
        was_lower = character.is_lowercase() || character.is_numeric();
        if let (true, Some(word)) = (character.is_alphanumeric(), words.last_mut()) {
            word.extend(character.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Whether fields of this name usually hold a class.
pub(super) fn is_label(name: &str) -> bool {
    LABELS.contains(&name.to_lowercase().as_str())
}

/// Whether a word of the name says that the field holds a class.
pub(super) fn has_label_word(name: &str) -> bool {
    let lower = name.to_lowercase();
    let has_word = lower.split(|c: char| !c.is_alphanumeric()).any(|word| LABEL_WORDS.contains(&word));
    has_word && !is_of_measure(name) && !is_predicted(name)
}

/// Whether a word of the name says that a program has found the value.
pub(super) fn is_predicted(name: &str) -> bool {
    let words = ["model", "predicted", "prediction", "pred", "preds", "machine", "baseline"];
    words_of(name.rsplit('.').next().unwrap_or(name)).iter().any(|word| words.contains(&word.as_str()))
}

/// Whether a word of the name says that the field measures how sure a class is.
pub(super) fn is_of_measure(name: &str) -> bool {
    words_of(name.rsplit('.').next().unwrap_or(name)).iter().any(|word| MEASURES.contains(&word.as_str()))
}

/// Whether the last part of a path has a word that is more often the name of a class than others.
pub(super) fn is_likely_label(name: &str) -> bool {
    words_of(name.rsplit('.').next().unwrap_or(name)).iter().any(|word| LIKELY_LABELS.contains(&word.as_str()))
}

/// Whether the name, or the name of an object around the field, calls it the class.
pub(super) fn has_word_of_class(name: &str) -> bool {
    let name = name.to_lowercase();
    name.split(|c: char| !c.is_alphanumeric()).any(|word| ["label", "labels", "class"].contains(&word))
}

/// Whether the field usually holds a text.
pub(super) fn is_text(name: &str) -> bool {
    TEXTS.contains(&name.to_lowercase().as_str())
}

/// Whether the field says something about the text next to it.
pub(super) fn is_about(name: &str) -> bool {
    ABOUT.contains(&name.to_lowercase().as_str())
}

/// Whether the name says that the field numbers or names its row, such as `table_id` and `pairID`. Its values may say otherwise.
pub(super) fn is_id_name(name: &str) -> bool {
    let (outer, last) = name.rsplit_once('.').unwrap_or(("", name));
    let words = words_of(last);
    let has_id = words.iter().any(|word| IDS.contains(&word.as_str()));
    let is_class = words.iter().any(|word| is_label(word) || LABEL_WORDS.contains(&word.as_str()));
    // Next to other languages, "id" is Indonesian.
    let is_language = words.len() == 1 && words_of(outer).iter().any(|word| word.starts_with("translation"));
    has_id && !is_class && !is_language
}

/// Whether a word of the name says that the field has the name of somebody.
pub(super) fn is_someone(name: &str) -> bool {
    words_of(name).iter().any(|word| PEOPLE.contains(&word.as_str()))
}

/// Whether the name says that the field names the persons who made something, such as `authors` and `editor_name`.
pub(super) fn is_of_persons(name: &str) -> bool {
    let mut words = words_of(name.rsplit('.').next().unwrap_or(name));
    if words.len() > 1 && words.last().is_some_and(|word| word == "name" || word == "names") {
        words.pop();
    }
    words.last().is_some_and(|word| PERSONS.contains(&word.as_str()))
}

/// Whether the name says that the field has another form of a text: its words, its parse tree, or the like.
pub(super) fn is_analysis(name: &str) -> bool {
    words_of(name.rsplit('.').next().unwrap_or(name)).iter().any(|word| ANALYSES.contains(&word.as_str()))
}

/// Whether two fields of so many bytes may both be texts. The name or the language next to a text is much shorter.
pub(super) fn are_alike(n_bytes: [usize; 2]) -> bool {
    n_bytes[0].max(n_bytes[1]) <= 4 * n_bytes[0].min(n_bytes[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_recognized_by_a_word_of_its_name() {
        assert!(has_label_word("gold_label") && has_label_word("Intent Name") && !has_label_word("classic"));
    }
}
