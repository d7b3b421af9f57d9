//! The first row of a TSV or CSV file: the names of its columns, or already a pair.

use std::path::Path;

use super::{CorpusConfig, Header};
use crate::error::{Error, Result};

/// Where a file has its texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Columns {
    /// Counted from 0.
    pub(crate) source: usize,
    /// Counted from 0.
    pub(crate) target: usize,
    /// Whether the first row names the columns.
    pub(crate) header: bool,
}

impl Columns {
    /// Finds the columns of the file at `path` by its first row, as `config` says.
    ///
    /// # Errors
    ///
    /// If the header lacks a column, or if the first row looks like a header that `config` does not describe. The error
    /// has the flags to paste.
    pub(crate) fn find(path: &Path, first_row: &[String], config: &CorpusConfig) -> Result<Self> {
        let by_number = |header| Self { source: config.source_column, target: config.target_column, header };
        if config.header == Header::No || first_row.is_empty() {
            return Ok(by_number(false));
        }

        let names: Vec<&str> = first_row.iter().map(|name| name.trim()).collect();
        let wanted = [&config.source_field, &config.target_field];
        let found = wanted.map(|field| names.iter().position(|name| name == field));
        let is_header = config.header == Header::Yes || found.iter().all(Option::is_some);
        let defaults = CorpusConfig::default();
        let numbers_are_set =
            (config.source_column, config.target_column) != (defaults.source_column, defaults.target_column);

        match found {
            _ if is_header && numbers_are_set => Ok(by_number(true)),
            [Some(source), Some(target)] => Ok(Self { source, target, header: true }),
            _ if is_header => Err(lacks_a_column(path, &names, wanted, found)),
            _ if looks_like_header(&names, config) => Err(ask(path, &names, numbers_are_set)),
            _ => Ok(by_number(false)),
        }
    }
}

fn lacks_a_column(path: &Path, names: &[&str], wanted: [&String; 2], found: [Option<usize>; 2]) -> Error {
    let missing = wanted.iter().zip(found).find(|(_, found)| found.is_none()).map_or("", |(name, _)| name.as_str());
    Error::corpus(
        path,
        format!(
            "the header has no column \"{missing}\": it has {}\n  to name the columns: {}\n  if the first row is a pair: \
             --set data.corpus.header=no",
            quoted(names),
            field_flags(names)
        ),
    )
}

fn ask(path: &Path, names: &[&str], numbers_are_set: bool) -> Error {
    let if_header = if numbers_are_set { "--set data.corpus.header=yes".to_owned() } else { field_flags(names) };
    Error::corpus(
        path,
        format!(
            "the first row looks like a header: {}\n  if it names the columns: {if_header}\n  if it is a pair: --set \
             data.corpus.header=no",
            quoted(names)
        ),
    )
}

fn quoted(names: &[&str]) -> String {
    names.iter().take(12).map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
}

/// Returns the flags that name the two fields with the texts, as far as `names` tell which these are.
pub(super) fn field_flags(names: &[&str]) -> String {
    let [source, target] = texts_of(names).map(|at| at.map_or("NAME", |at| names[at]));
    let flag = |key: &str, name: &str| {
        let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
        let quote = if is_plain { "" } else { "'" };
        format!("--set {quote}data.corpus.{key}={}{quote}", name.replace('\'', r"'\''"))
    };
    format!("{} {}", flag("source_field", source), flag("target_field", target))
}

/// Returns which names probably stand for the source and the target.
fn texts_of(names: &[&str]) -> [Option<usize>; 2] {
    let roles: Vec<Role> = names.iter().map(|name| Role::of(name)).collect();
    let first =
        |role: Role, except: Option<usize>| (0..roles.len()).find(|at| roles[*at] == role && Some(*at) != except);
    let target = first(Role::Target, None);
    let source = first(Role::Source, None).or_else(|| first(Role::Text, target));
    let target = target.or_else(|| first(Role::Text, source));
    match (source, target, names.len()) {
        (None, None, 2) => [Some(0), Some(1)],
        (Some(one), None, 2) | (None, Some(one), 2) if source.is_some() => [Some(one), Some(1 - one)],
        (None, Some(one), 2) => [Some(1 - one), Some(one)],
        _ => [source, target],
    }
}

/// Whether two cells or more are names that columns usually have, or one is a field that the user named.
fn looks_like_header(names: &[&str], config: &CorpusConfig) -> bool {
    let defaults = CorpusConfig::default();
    let is_named = |name: &&str| {
        (*name == config.source_field && config.source_field != defaults.source_field)
            || (*name == config.target_field && config.target_field != defaults.target_field)
    };
    names.iter().any(is_named) || names.iter().filter(|name| Role::of(name) != Role::Unknown).count() >= 2
}

/// What a column with a usual name holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Source,
    Target,
    /// A text, or a language.
    Text,
    /// Something else, such as a number.
    Other,
    Unknown,
}

const SOURCES: [&str; 6] = ["source", "src", "input", "original", "question", "prompt"];
const TARGETS: [&str; 11] = [
    "target",
    "trg",
    "tgt",
    "output",
    "translation",
    "translated",
    "reference",
    "ref",
    "answer",
    "completion",
    "response",
];
const TEXTS: [&str; 8] = ["text", "sentence", "sent", "segment", "phrase", "line", "string", "text1"];
const OTHERS: [&str; 9] = ["id", "index", "idx", "number", "score", "domain", "label", "lang", "language"];
/// Languages by name and by code.
const LANGUAGES: [&str; 83] = [
    "arabic",
    "ar",
    "ara",
    "bulgarian",
    "bg",
    "catalan",
    "ca",
    "chinese",
    "zh",
    "zho",
    "croatian",
    "hr",
    "czech",
    "cs",
    "ces",
    "danish",
    "da",
    "dan",
    "dutch",
    "nl",
    "nld",
    "english",
    "en",
    "eng",
    "estonian",
    "et",
    "finnish",
    "fi",
    "fin",
    "french",
    "fr",
    "fra",
    "german",
    "de",
    "deu",
    "greek",
    "el",
    "ell",
    "hebrew",
    "he",
    "hindi",
    "hi",
    "hin",
    "hungarian",
    "hu",
    "hun",
    "indonesian",
    "italian",
    "it",
    "ita",
    "japanese",
    "ja",
    "jpn",
    "korean",
    "ko",
    "kor",
    "latvian",
    "lv",
    "lithuanian",
    "lt",
    "norwegian",
    "no",
    "nb",
    "persian",
    "fa",
    "polish",
    "pl",
    "pol",
    "portuguese",
    "pt",
    "por",
    "romanian",
    "ro",
    "russian",
    "ru",
    "rus",
    "slovak",
    "spanish",
    "es",
    "spa",
    "swedish",
    "turkish",
    "ukrainian",
];

impl Role {
    /// Finds the role of a name such as `source_text`, `Sentence EN`, `en-US` or `translation.en`: each of its words (of the
    /// last field) must be known.
    fn of(name: &str) -> Self {
        let name = name.rsplit('.').next().unwrap_or(name).to_lowercase();
        let words: Vec<&str> = name.split(['_', '-', ' ', ':']).filter(|word| !word.is_empty()).collect();
        let roles: Vec<Role> = words.iter().map(|word| Self::of_word(word)).collect();
        // `en-US`: a language and a country.
        let is_locale = words.len() == 2 && roles[0] == Self::Text && words.iter().all(|word| word.len() == 2);
        match roles.as_slice() {
            [] => Self::Unknown,
            _ if is_locale => Self::Text,
            roles if roles.contains(&Self::Unknown) => Self::Unknown,
            roles => [Self::Other, Self::Source, Self::Target]
                .into_iter()
                .find(|role| roles.contains(role))
                .unwrap_or(Self::Text),
        }
    }

    fn of_word(word: &str) -> Self {
        let lists: [(&[&str], Self); 5] = [
            (&SOURCES, Self::Source),
            (&TARGETS, Self::Target),
            (&TEXTS, Self::Text),
            (&LANGUAGES, Self::Text),
            (&OTHERS, Self::Other),
        ];
        lists.into_iter().find(|(words, _)| words.contains(&word)).map_or(Self::Unknown, |(_, role)| role)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(row: &[&str], config: &CorpusConfig) -> Result<Columns> {
        let row: Vec<String> = row.iter().map(|cell| (*cell).to_owned()).collect();
        Columns::find(Path::new("a.tsv"), &row, config)
    }

    fn columns(source: usize, target: usize, header: bool) -> Columns {
        Columns { source, target, header }
    }

    #[test]
    fn a_header_with_the_named_fields_is_used() {
        let config = CorpusConfig::default();
        assert_eq!(find(&["id", "trg", " src "], &config).expect("found"), columns(2, 1, true));
        let named = CorpusConfig { source_field: "domanda".into(), target_field: "risposta".into(), ..config.clone() };
        assert_eq!(find(&["risposta", "domanda"], &named).expect("found"), columns(1, 0, true));
        let by_number = CorpusConfig { source_column: 1, target_column: 0, ..config };
        assert_eq!(find(&["src", "trg"], &by_number).expect("found"), columns(1, 0, true));
    }

    #[test]
    fn what_looks_like_a_header_is_asked_about_with_flags_to_paste() {
        let flags = |row: &[&str]| find(row, &CorpusConfig::default()).expect_err("asked").to_string();
        for (row, source, target) in [
            (["english", "italian"].as_slice(), "english", "italian"),
            (&["id", "Source", "Target"], "Source", "Target"),
            (&["", "en", "it"], "en", "it"),
            (&["target_text", "source_text"], "source_text", "target_text"),
            (&["en-US", "it_IT", "score"], "en-US", "it_IT"),
            (&["translation", "sentence"], "sentence", "translation"),
        ] {
            let text = flags(row);
            let wanted = format!("--set data.corpus.source_field={source} --set data.corpus.target_field={target}");
            assert!(text.contains("looks like a header") && text.contains(&wanted), "{text}");
            assert!(text.contains("if it is a pair: --set data.corpus.header=no"), "{text}");
        }
        assert!(flags(&["source text", "target text"]).contains("--set 'data.corpus.source_field=source text'"));
        let numbered = CorpusConfig { source_column: 1, target_column: 2, ..CorpusConfig::default() };
        let text = find(&["id", "en", "it"], &numbered).expect_err("asked").to_string();
        assert!(text.contains("if it names the columns: --set data.corpus.header=yes"), "{text}");
        // One of the fields that the user named is there, the other has a typo.
        let typo =
            CorpusConfig { source_field: "frase".into(), target_field: "resa".into(), ..CorpusConfig::default() };
        assert!(find(&["frase", "reso"], &typo).is_err());
    }

    #[test]
    fn ordinary_rows_are_pairs() {
        for row in [
            ["Good morning.", "Buongiorno."],
            ["dog", "cane"],
            ["742105", "seven hundred forty-two thousand one hundred five"],
            ["ab", "ba"],
            ["The source", "La fonte"],
            ["it", "esso"],
            ["", ""],
        ] {
            assert_eq!(find(&row, &CorpusConfig::default()).expect("a pair"), columns(0, 1, false), "{row:?}");
        }
        assert_eq!(find(&[], &CorpusConfig::default()).expect("an empty file"), columns(0, 1, false));
    }

    #[test]
    fn the_configuration_decides_if_it_says_yes_or_no() {
        let no = CorpusConfig { header: Header::No, ..CorpusConfig::default() };
        assert_eq!(find(&["src", "trg"], &no).expect("a pair"), columns(0, 1, false));
        let yes = CorpusConfig { header: Header::Yes, ..CorpusConfig::default() };
        let text = find(&["domanda", "risposta"], &yes).expect_err("no such columns").to_string();
        assert!(
            text.starts_with("a.tsv: the header has no column \"src\": it has \"domanda\", \"risposta\""),
            "{text}"
        );
        assert!(
            text.contains("--set data.corpus.source_field=domanda --set data.corpus.target_field=risposta"),
            "{text}"
        );
        let numbered = CorpusConfig { source_column: 1, target_column: 0, ..yes };
        assert_eq!(find(&["domanda", "risposta"], &numbered).expect("by number"), columns(1, 0, true));
    }
}
