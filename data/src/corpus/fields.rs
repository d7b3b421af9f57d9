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
const LABEL_WORDS: [&str; 9] =
    ["label", "labels", "class", "category", "intent", "sentiment", "rating", "stars", "overall"];
/// Words of names that are more often a class than other values that recur.
const LIKELY_LABELS: [&str; 24] = [
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
/// Of [`TWO_TEXTS`], those that somebody compares.
const N_COMPARED: usize = 8;
/// Names of two texts that have one class, in any order.
const TWO_TEXTS: [[&str; 2]; 14] = [
    ["premise", "hypothesis"],
    ["text", "hypothesis"],
    ["text", "text_pair"],
    ["question", "sentence"],
    ["query", "passage"],
    ["query", "document"],
    ["claim", "evidence"],
    ["headline", "body"],
    ["question", "passage"],
    ["question", "context"],
    ["question", "paragraph"],
    ["question", "answer"],
    ["source", "target"],
    ["anchor", "positive"],
];
/// Words from which a column holds texts rather than names, on average.
const WORDS_OF_TEXT: usize = 3;
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
    let name = name.to_lowercase();
    name.split(|c: char| !c.is_alphanumeric()).any(|word| LABEL_WORDS.contains(&word))
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

/// What is known of a column of strings.
#[derive(Debug, Clone, Copy)]
pub(super) struct Strings<'a> {
    pub(super) name: &'a str,
    /// Of all its cells.
    pub(super) n_bytes: usize,
    /// Of all its cells.
    pub(super) n_words: usize,
    /// Number of its cells.
    pub(super) n: usize,
    /// Whether few values recur in many rows.
    pub(super) recurs: bool,
}

impl Strings<'_> {
    /// Whether its cells have so many words, on average.
    pub(super) fn has_words(&self, per_cell: usize) -> bool {
        self.n > 0 && self.n_words >= per_cell * self.n
    }

    /// Whether the column holds texts, as `text` does.
    fn is_like(&self, text: &Self) -> bool {
        let is_alike = || are_alike([self.n_bytes, text.n_bytes]) && (self.has_words(2) || !text.has_words(2));
        self.has_words(WORDS_OF_TEXT) || is_alike()
    }
}

/// Returns which of the `columns` hold what a class belongs to: two texts, one, or none. `given` is the first text, if the user has named
/// it. Columns with classes and columns about a text must not be among them.
pub(super) fn texts_of_class(columns: &[Strings<'_>], given: Option<usize>) -> Vec<usize> {
    let is_filled = |at: &usize| columns[*at].n_bytes > 0;
    let filled: Vec<usize> = (0..columns.len()).filter(is_filled).collect();
    // Two tags with numbers are not texts.
    let can_be = |at: &usize| !columns[*at].recurs || columns[*at].has_words(2);
    let are_two = |one: &usize, other: &usize| {
        let names = [columns[*one].name, columns[*other].name];
        are_two_texts(names[0], names[1]) && (!are_counted(names[0], names[1]) || can_be(one) && can_be(other))
    };
    let named = filled.iter().find_map(|one| {
        let other = filled.iter().find(|other| *other > one && are_two(one, other));
        other.map(|other| [*one, *other])
    });
    let ordered = |pair: [usize; 2]| match given {
        Some(given) if pair[1] == given => vec![given, pair[0]],
        _ => pair.to_vec(),
    };
    if let Some(pair) = named.filter(|pair| given.is_none_or(|given| pair.contains(&given))) {
        return ordered(pair);
    }

    // Where all columns recur, texts do, too.
    let varied: Vec<usize> = filled.iter().copied().filter(|at| !columns[*at].recurs).collect();
    let texts = if varied.is_empty() { filled } else { varied };
    let rank = |at: &usize| (is_text(columns[*at].name), columns[*at].has_words(2), columns[*at].n_bytes);
    let longest = || texts.iter().copied().max_by_key(rank);
    let Some(text) = given.or_else(longest) else { return Vec::new() };
    let others: Vec<usize> =
        texts.into_iter().filter(|at| *at != text && columns[*at].is_like(&columns[text])).collect();
    match others[..] {
        [other] => ordered([text.min(other), text.max(other)]),
        _ => vec![text],
    }
}

/// Whether two names belong to two texts with one class: `premise` and `hypothesis`, `sentence1` and `sentence2`, `text_a` and `text_b`.
pub(super) fn are_two_texts(one: &str, other: &str) -> bool {
    let is_known = TWO_TEXTS.iter().any(|pair| is_pair_of(pair, one, other));
    is_known || are_counted(one, other)
}

/// Whether two names belong to two texts that somebody compares: neither answers the other one or translates it.
pub(super) fn are_compared(one: &str, other: &str) -> bool {
    are_counted(one, other) || TWO_TEXTS[..N_COMPARED].iter().any(|pair| is_pair_of(pair, one, other))
}

fn is_pair_of([first, second]: &[&str; 2], one: &str, other: &str) -> bool {
    let is_it = |name: &str, wanted: &str| name.eq_ignore_ascii_case(wanted);
    is_it(one, first) && is_it(other, second) || is_it(one, second) && is_it(other, first)
}

/// Whether two names differ in a number or a letter at their end.
fn are_counted(one: &str, other: &str) -> bool {
    let [one, other] = [one, other].map(str::to_lowercase);
    let stems =
        |ends: [&str; 2]| one.strip_suffix(ends[0]).is_some_and(|stem| other.strip_suffix(ends[1]) == Some(stem));
    let is_counted = [["1", "2"], ["2", "1"], ["_a", "_b"], ["_b", "_a"]].into_iter().any(stems);
    is_counted && one.starts_with(|c: char| c.is_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings<'a>(name: &'a str, cell: &str) -> Strings<'a> {
        let n_words = 20 * cell.split_whitespace().count();
        Strings { name, n_bytes: 20 * cell.len(), n_words, n: 20, recurs: false }
    }

    #[test]
    fn two_texts_are_found_by_name_or_because_they_have_words() {
        let long =
            "a much longer text of many words that goes on and on and on until it is long enough to be unlike others";
        for ([one, other], cells, n_wanted) in [
            (["sentence1", "sentence2"], [long, "short"], 2),
            (["text_A", "text_B"], [long, "short"], 2),
            (["passage", "question"], [long, "who?"], 2),
            (["headline", "summary"], ["a title of words", long], 2),
            (["message", "user"], [long, "bob"], 1),
            (["message", "hash"], ["a text of words", "0123456789abcdef"], 1),
            (["wort", "ort"], ["Haus", "Rom"], 2),
        ] {
            let columns = [strings(one, cells[0]), strings(other, cells[1])];
            assert_eq!(texts_of_class(&columns, None).len(), n_wanted, "{one} {other}");
        }
        let columns = [strings("premise", long), strings("hypothesis", "short")];
        assert_eq!(texts_of_class(&columns, Some(1)), [1, 0], "the user has named the first text");
        let three = [strings("sentence1_parse", long), strings("sentence1", "short"), strings("sentence2", "short")];
        assert_eq!(texts_of_class(&three, None), [1, 2]);
        assert_eq!(texts_of_class(&[], None), Vec::<usize>::new());
    }

    #[test]
    fn a_class_is_recognized_by_a_word_of_its_name() {
        assert!(has_label_word("gold_label") && has_label_word("Intent Name") && !has_label_word("classic"));
    }
}
