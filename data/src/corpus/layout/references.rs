//! Pairs in which one side is a list of texts: several references of one source, or a source in parts.

use std::collections::HashSet;
use std::path::Path;

use serde_json::{Map, Value};

use super::converted::they_have;
use super::lists::lists_in;
use super::recognize::texts_in;
use super::{Layout, RowReader};
use crate::corpus::columns::column_at;
use crate::corpus::jq::{self, path_in_jq};
use crate::corpus::pairs::{is_language, says_direction, texts_of};
use crate::corpus::path::value_at;
use crate::corpus::roles::is_changed_into;
use crate::corpus::text::{Task, TextFormat};
use crate::formats::FileFormat;

/// Names, without the `s` of a plural, of lists with several texts that are made of one.
const SEVERAL: [&str; 8] =
    ["correction", "paraphrase", "rewrite", "simplification", "summarie", "gold", "variant", "description"];
/// Words of a text of such a list, at least, in the mean, unless its name is a language.
const WORDS: usize = 2;

/// A text and a list of texts, of which one becomes the other.
pub(super) struct Listed {
    text: String,
    list: String,
    /// Whether the list has the targets.
    is_target: bool,
}

/// Whether the name says that a list has several texts for one source.
pub(super) fn names_several(name: &str) -> bool {
    let name = name.rsplit('.').next().unwrap_or(name).to_lowercase();
    let stem = name.strip_suffix('s').unwrap_or(&name);
    is_language(&name) || SEVERAL.iter().any(|known| stem.ends_with(known)) || says_direction("", stem)
}

/// Returns the program of jq that makes a row of each text in a list at `path`. `row`: what it makes of `$text`.
pub(super) fn each(path: &str, row: &str) -> String {
    format!("({path} | arrays[], strings) as $text | {row}")
}

/// Recognizes such rows by their names, or because the texts of the list are much like the other text.
pub(super) fn of(rows: &[Map<String, Value>], order: &[String]) -> Option<Listed> {
    let found = texts_in(rows, order);
    let texts: Vec<&str> = found.iter().map(String::as_str).filter(|name| column_at(rows, name).has_words()).collect();
    let are_several = |list: &&String| lists_in(rows, list).iter().any(|list| list.len() > 1);
    order.iter().filter(are_several).find_map(|list| {
        let lists = lists_in(rows, list);
        let (n_texts, n_words) = size(&lists);
        let stem = list.strip_suffix('s').unwrap_or(list);
        let found = |text: &str, is_target| Some(Listed { text: text.to_owned(), list: list.clone(), is_target });
        let language = texts.iter().find(|text| is_language(list) && is_language(text));
        if let Some(text) = language {
            return found(text, true);
        }
        if n_words < WORDS * n_texts {
            return None;
        }
        if let Some(text) = texts.iter().find(|text| are_alike(rows, text, list)) {
            return found(text, true);
        }

        let names: Vec<&str> = texts.iter().copied().chain([stem]).collect();
        let (source, target) = match texts[..] {
            [text] if names_several(list) => (text, stem),
            [text] => {
                let is_known = says_direction("", text) || is_changed_into(stem, text) == Some(true);
                return found(text, false).filter(|_| is_known && says_direction(stem, text));
            }
            _ => {
                let [source, target] = texts_of(&names);
                (names[source?], names[target?])
            }
        };
        match (source == stem, target == stem) {
            (false, true) if names_several(list) => found(source, true),
            (true, false) if says_direction("", target) => found(target, false),
            _ => None,
        }
    })
}

/// Returns how many texts lists have, and how many words these have.
fn size(lists: &[Vec<&str>]) -> (usize, usize) {
    let texts = || lists.iter().flatten();
    (texts().count(), texts().map(|text| text.split_whitespace().count()).sum())
}

/// Whether the texts of a list have most words of another text of their row, as corrections have.
fn are_alike(rows: &[Map<String, Value>], text: &str, list: &str) -> bool {
    let words = |text: &str| text.split_whitespace().map(str::to_lowercase).collect::<HashSet<String>>();
    let share = |row: &Map<String, Value>| {
        let text = words(value_at(row, text)?.as_str()?);
        let texts: Vec<&str> = value_at(row, list)?.as_array()?.iter().filter_map(Value::as_str).collect();
        let shared: usize = texts.iter().map(|other| words(other).intersection(&text).count()).sum();
        // Sentences of a text have few of its words each.
        Some((shared, texts.len() * text.len()))
    };
    let (shared, all) = rows.iter().filter_map(share).fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
    all > 0 && 2 * shared > all
}

impl RowReader<'_> {
    /// Says how this reader reads such rows, unless it finds a pair of texts next to the list.
    pub(super) fn advice_for_references(
        &self,
        (file, format): (&Path, FileFormat),
        (rows, order): (&[Map<String, Value>], &[String]),
        layout: Option<&Layout>,
    ) -> Option<String> {
        let is_chat = self.task == Task::Lm && self.text.format == TextFormat::Chat;
        let is_pair = match layout {
            Some(Layout::Pairs { source, target } | Layout::Answers { question: source, answer: target }) => {
                [source, target].iter().all(|name| column_at(rows, name).has_words())
            }
            Some(Layout::Texts { .. } | Layout::Labelled { .. }) | None => false,
            Some(_) => true,
        };
        if is_pair || !is_chat && self.task != Task::Translation || self.has_named_a_field(rows) {
            return None;
        }

        let Listed { text, list, is_target } = of(rows, order)?;
        let path = |name: &String| path_in_jq(&name.split('.').map(str::to_owned).collect::<Vec<_>>());
        let begin = match is_target {
            true => format!("several texts in \"{list}\" for each \"{text}\""),
            false => format!("a \"{text}\" for the texts in each list of \"{list}\""),
        };
        let begin = format!("{}: its rows have {begin}{}", file.display(), they_have(rows, format));
        let joined = format!("{{{list}}}");
        let (source, target) = if is_target { (&text, &joined) } else { (&joined, &text) };
        let of_joined = self.pair_flags(source, target).join(" ");
        Some(match (is_chat, is_target) {
            (false, false) => {
                format!("{begin}: read them as pairs, with each list joined by spaces, with {of_joined}")
            }
            (false, true) => format!(
                "{begin}, and one is wanted\nto make a row of each of them: {}\nand read rows.jsonl with {}\nto learn each list as one text, \
                 joined by spaces, read the file as it is with {of_joined}",
                jq::command(file, format, &each(&path(&list), &format!("{} = $text", path(&list)))),
                self.pair_flags(&text, &list).join(" ")
            ),
            (true, _) => {
                let program = match is_target {
                    true => each(&path(&list), &format!("{{prompt: {}, completion: $text}}", path(&text))),
                    false => format!("{{prompt: ({} | join(\"\\n\")), completion: {}}}", path(&list), path(&text)),
                };
                let what = if is_target { "a row of each of them" } else { "prompts and completions of them" };
                format!(
                    "{begin}, and one text is wanted\nto make {what}: {}\n{}",
                    jq::command(file, format, &program),
                    self.read_with("chat", TextFormat::Chat)
                )
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::roles_tests::refusal;
    use super::*;
    use crate::corpus::followed;

    fn said(row: &dyn Fn(usize) -> String, format: TextFormat) -> String {
        let task = if format == TextFormat::Chat { Task::Lm } else { Task::Translation };
        refusal(row, task, format)
    }

    #[test]
    fn several_references_of_a_source_are_offered_as_rows_of_their_own_and_joined() {
        for (row, [source, list]) in [
            (
                r#""image": "N.jpg", "en": "A man N runs.", "de": ["Der Mann N rennt.", "Dieser Mann N lauft."]"#,
                ["en", "de"],
            ),
            (
                r#""sentence": "He go to N now .", "fixes": ["He goes to N now .", "He went to N now ."]"#,
                ["sentence", "fixes"],
            ),
            (
                r#""meaning": "name of N is x", "references": ["It is N here.", "N is its name."]"#,
                ["meaning", "references"],
            ),
            (
                r#""text": "the feline N sat there", "simplifications": ["the cat N sat", "a cat sat"]"#,
                ["text", "simplifications"],
            ),
        ] {
            let row = |n: usize| format!("{{{}}}", row.replace('N', &n.to_string()));
            let found = said(&row, TextFormat::Auto);

            let flags = |target: &str| format!("--set data.corpus.source_field={source} --set {target}");
            assert!(found.contains(&format!("several texts in \"{list}\" for each \"{source}\"")), "{found}");
            assert!(found.contains(&flags(&format!("data.corpus.target_field={list}\n"))), "{found}");
            assert!(found.ends_with(&flags(&format!("'data.corpus.target_field={{{list}}}'"))), "{found}");
            let asked = said(&row, TextFormat::Chat);
            assert!(asked.contains(&format!("prompt: .{source}, completion: $text")), "{asked}");
        }
    }

    #[test]
    fn commands_make_a_row_of_each_reference() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a.jsonl");
        let row = |n: usize| format!("{{\"en\": \"a b {n}\", \"de\": [\"c {n}\", \"d {n}\"]}}\n");
        std::fs::write(&file, (0..20).map(row).collect::<String>() + "{\"en\": \"x y\", \"de\": []}\n")
            .expect("writable");
        let rows = crate::corpus::json::first_rows(&file, FileFormat::JSON);
        let (corpus, labels, text) = Default::default();
        let reader =
            RowReader { task: Task::Translation, other_tasks: &[], corpus: &corpus, text: &text, labels: &labels };
        let found = reader.advice_for_references((&file, FileFormat::JSON), (&rows.rows, &rows.order), None);
        let Some(made) = followed::rows_made(&found.expect("references"), folder.path()) else { return };
        assert_eq!(made.len(), 40);
        assert_eq!(made[1], serde_json::json!({"en": "a b 0", "de": "d 0"}));
    }

    #[test]
    fn a_source_in_parts_is_read_by_a_template() {
        let row = |n: usize| {
            format!(
                r#"{{"gem_id": "w-{n}", "input": ["A_{n} | of | B", "B | in | C"], "target": "The A {n} of B.", "references": [], "category": "{}"}}"#,
                ["Food", "City"][n % 2]
            )
        };
        let found = said(&row, TextFormat::Auto);
        let flags = "--set 'data.corpus.source_field={input}' --set data.corpus.target_field=target";
        assert!(found.ends_with(flags) && !found.contains("--task"), "{found}");
        let asked = said(&row, TextFormat::Chat);
        assert!(asked.contains("{prompt: (.input | join(\"\\n\")), completion: .target}"), "{asked}");
    }

    #[test]
    fn other_lists_are_no_references() {
        for row in [
            r#""title": "the words of N", "abstract": "many words of N here", "authors": ["A B", "C D"]"#,
            r#""text": "it is N. so be it. or not N", "sentences": ["it is N.", "so be it.", "or not N"]"#,
            r#""text": "some words of N", "source": ["a site", "a book"]"#,
            r#""source": "a b N", "target": "c d N", "translations": ["e f", "g h"]"#,
        ] {
            let found = said(&|n| format!("{{{}}}", row.replace('N', &n.to_string())), TextFormat::Auto);
            assert!(!found.contains("several texts in") && !found.contains("for the texts in"), "{found}");
        }
    }
}
