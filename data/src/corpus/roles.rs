//! What the fields of a row are for one another, by the words of their names: the one table that all layouts ask.

use super::fields::words_of;

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// What is asked.
    Question,
    /// A text, or tools, that the question is about.
    Context,
    /// Candidates of which one is right: the whole list, or one of them.
    Option,
    /// The right option: its number, its letter or its text.
    Key,
    /// A text that answers the question.
    Answer,
    /// The text of the right option, next to wrong ones.
    Right,
    /// A wrong option.
    Wrong,
    /// Somebody's answer, which may be wrong.
    Guess,
}

/// The words of names for each role, best first.
const TABLE: [(Role, &[&str]); 8] = [
    (
        Role::Question,
        &["question", "query", "prompt", "instruction", "ask", "stem", "problem", "goal", "q", "input", "inputs"],
    ),
    (
        Role::Context,
        &[
            "context",
            "contexts",
            "ctx",
            "passage",
            "passages",
            "paragraph",
            "paragraphs",
            "document",
            "documents",
            "docs",
            "evidence",
            "background",
            "article",
            "story",
            "excerpt",
            "support",
            "premise",
            "narrative",
            "scenario",
            "vignette",
            "fact",
            "facts",
            "snippets",
            "chunks",
            "retrieved",
            "tools",
            "functions",
            "schema",
            "knowledge",
            "case",
            "material",
            "hint",
            "lecture",
            "dialogue",
            "dialog",
            "transcript",
            "email",
        ],
    ),
    (
        Role::Option,
        &[
            "options",
            "option",
            "opt",
            "opts",
            "op",
            "choices",
            "choice",
            "endings",
            "ending",
            "alternatives",
            "alternative",
            "candidates",
            "candidate",
            "answers",
            "answer",
            "ans",
            "solutions",
            "solution",
            "sol",
            "mc",
            "possibilities",
            "hypotheses",
            "hypothesis",
            "continuations",
            "continuation",
            "targets",
        ],
    ),
    (
        Role::Key,
        &[
            "answer",
            "answers",
            "key",
            "answerkey",
            "label",
            "labels",
            "gold",
            "correct",
            "right",
            "target",
            "cop",
            "truth",
            "idx",
            "index",
            "ans",
            "solution",
            "output",
            "completion",
            "class",
            "y",
        ],
    ),
    (Role::Answer, &["answer", "answers", "span", "spans", "solution", "solutions"]),
    (Role::Right, &["correct", "right", "gold", "true", "best"]),
    (Role::Wrong, &["distractor", "distractors", "incorrect", "wrong", "false", "foil", "foils", "decoy", "decoys"]),
    (
        Role::Guess,
        &[
            "model",
            "predicted",
            "prediction",
            "predictions",
            "pred",
            "user",
            "student",
            "human",
            "guess",
            "selected",
            "response",
            "generated",
            "worker",
            "baseline",
            "winner",
            "better",
            "preferred",
        ],
    ),
];

/// A text, and what people make of it: names of the text as it is found, and names of the wanted one.
const CHANGES: [(&[&str], &[&str]); 9] = [
    (
        &["body", "email", "mail", "ticket", "message", "complaint", "request", "issue", "inquiry", "enquiry"],
        &["answer", "reply", "response", "resolution"],
    ),
    (
        &["diff", "patch", "changes", "change"],
        &["message", "msg", "subject", "summary", "commit", "description", "title"],
    ),
    (
        &["ocr", "noisy", "raw", "asr", "recognized", "hyp", "hypothesis", "scanned", "dirty"],
        &[
            "gold",
            "clean",
            "cleaned",
            "truth",
            "gt",
            "reference",
            "ref",
            "corrected",
            "correct",
            "correction",
            "transcript",
        ],
    ),
    (
        &[
            "incorrect",
            "wrong",
            "error",
            "erroneous",
            "typo",
            "ungrammatical",
            "misspelled",
            "mistake",
            "student",
            "buggy",
            "before",
        ],
        &["correct", "corrected", "correction", "fixed", "fix", "right", "grammatical", "after", "gold", "edited"],
    ),
    (
        &[
            "article",
            "document",
            "dialogue",
            "dialog",
            "transcript",
            "body",
            "text",
            "content",
            "story",
            "meeting",
            "report",
            "bill",
        ],
        &[
            "summary",
            "highlights",
            "headline",
            "tldr",
            "abstract",
            "minutes",
            "gist",
            "keywords",
            "keyphrases",
            "title",
        ],
    ),
    (
        &["complex", "original", "normal", "informal", "draft", "toxic", "biased", "modern", "old", "formal", "expert"],
        &[
            "simple",
            "simplified",
            "simplification",
            "rewritten",
            "rewrite",
            "formal",
            "final",
            "neutral",
            "paraphrase",
            "revised",
            "informal",
            "edited",
            "modernized",
            "layman",
            "detoxified",
        ],
    ),
    (
        &["question", "nl", "utterance", "command", "intent", "request", "query"],
        &["sql", "code", "cypher", "sparql", "regex", "bash", "cmd", "latex", "program", "logical", "amr", "query"],
    ),
    // A snippet next to a query is a result of a search.
    (&["question", "nl", "utterance", "command", "intent", "request"], &["snippet", "formula", "script"]),
    // Code, formulas and regular expressions are read aloud, too.
    (&["text"], &["sql", "cypher", "sparql", "bash", "cmd", "logical", "amr", "query"]),
];

/// Words of texts in which somebody says why a row has its class.
const REASONS: [&str; 8] =
    ["reason", "reasons", "rationale", "rationales", "explanation", "explanations", "justification", "justifications"];

/// Returns the words of a name in lower case, with numbers as words.
pub(super) fn parts_of(name: &str) -> Vec<String> {
    let split = |word: String| {
        let stem = word.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
        let number = word[stem.len()..].to_owned();
        [stem, number].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>()
    };
    words_of(name).into_iter().flat_map(split).collect()
}

/// Whether the last part of a path has a word of the role.
pub(super) fn is_of(role: Role, path: &str) -> bool {
    rank(role, path).is_some()
}

/// Returns how well a name fits the role: the place of its best word in the table.
pub(super) fn rank(role: Role, path: &str) -> Option<usize> {
    let (_, words) = TABLE.iter().find(|(other, _)| *other == role)?;
    let parts = parts_of(path.rsplit('.').next().unwrap_or(path));
    words.iter().position(|word| parts.iter().any(|part| part == word))
}

/// Whether a name says that somebody wrote the text later, as an answer to another one, or to explain its class.
pub(super) fn is_reply(name: &str) -> bool {
    let replies = ["answer", "answers", "reply", "replies", "response", "resolution", "solution"];
    words_of(name).iter().any(|word| replies.contains(&word.as_str()) || REASONS.contains(&word.as_str()))
}

/// Whether a name says that the field is about others, and nothing to read.
pub(super) fn is_aside(name: &str) -> bool {
    let asides = ["id", "ids", "type", "types", "title", "start", "end", "key", "url", "uuid", "hash"];
    words_of(name).iter().any(|word| asides.contains(&word.as_str()))
}

/// Returns whether the first of two names is the text as it is found and the second one what is made of it (`true`), or the other way round
/// (`false`). `None` if the names do not tell.
pub(super) fn is_changed_into(one: &str, other: &str) -> Option<bool> {
    let has = |name: &str, words: &[&str]| {
        let parts = parts_of(name.rsplit('.').next().unwrap_or(name));
        parts.iter().any(|part| words.contains(&part.as_str()))
    };
    CHANGES.iter().find_map(|(from, to)| {
        let forwards = has(one, from) && has(other, to);
        let backwards = has(other, from) && has(one, to);
        (forwards != backwards).then_some(forwards)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_roles_in_any_spelling() {
        for (role, name) in [
            (Role::Question, "question_stem"),
            (Role::Question, "Question"),
            (Role::Context, "context.contexts"),
            (Role::Option, "opt3"),
            (Role::Option, "ending0"),
            (Role::Key, "answerKey"),
            (Role::Key, "correct_answer_id"),
            (Role::Wrong, "Incorrect Answer 2"),
            (Role::Guess, "model_answer"),
        ] {
            assert!(is_of(role, name), "{role:?} {name}");
        }
        assert!(!is_of(Role::Context, "contextual") && !is_of(Role::Option, "text"));
    }

    #[test]
    fn the_names_of_a_text_and_what_is_made_of_it_say_the_direction() {
        for (from, to) in [
            ("diff", "commit_message"),
            ("ocr", "gold"),
            ("raw_text", "cleaned_text"),
            ("before", "after"),
            ("article", "highlights"),
            ("complex", "simple"),
            ("question", "sql"),
            ("text", "sql"),
            ("intent", "snippet"),
            ("nl", "latex"),
        ] {
            assert_eq!(is_changed_into(from, to), Some(true), "{from} {to}");
            assert_eq!(is_changed_into(to, from), Some(false), "{from} {to}");
        }

        // Both directions are usual.
        for (one, other) in [
            ("english", "italian"),
            ("code", "docstring"),
            ("func_code", "func_documentation"),
            ("latex", "text"),
            ("text", "regex"),
            ("query", "snippet"),
        ] {
            assert_eq!(is_changed_into(one, other), None, "{one} {other}");
        }
    }
}
