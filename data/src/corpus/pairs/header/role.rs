//! The names that columns usually have.

/// What a column with a usual name holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Source,
    Target,
    /// A text, or a language.
    Text,
    /// Something else, such as a number.
    Other,
    Unknown,
}

const SOURCES: [&str; 7] = ["source", "src", "input", "inputs", "original", "question", "prompt"];
const TARGETS: [&str; 15] = [
    "target",
    "targets",
    "trg",
    "tgt",
    "output",
    "outputs",
    "translation",
    "translated",
    "reference",
    "ref",
    "answer",
    "completion",
    "response",
    "solution",
    "solutions",
];
const TEXTS: [&str; 16] = [
    "text",
    "sentence",
    "sent",
    "segment",
    "phrase",
    "line",
    "string",
    "text1",
    "texts",
    "sentences",
    "segments",
    "phrases",
    "lines",
    "strings",
    "word",
    "words",
];
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

/// Scripts in codes of languages, such as `eng_Latn`.
const SCRIPTS: [&str; 14] =
    ["latn", "cyrl", "arab", "hans", "hant", "deva", "jpan", "hang", "grek", "hebr", "thai", "beng", "taml", "geor"];

impl Role {
    /// Finds the role of a name such as `source_text`, `Sentence EN`, `Text (en)`, `en-US` or `translation.en`: each of its words (of the
    /// last field) must be known.
    pub(super) fn of(name: &str) -> Self {
        let name = name.rsplit('.').next().unwrap_or(name).to_lowercase();
        let between = ['_', '-', ' ', ':', '(', ')', '[', ']', '/'];
        let words: Vec<&str> = name.split(between).filter(|word| !word.is_empty()).collect();
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
        let lists: [(&[&str], Self); 6] = [
            (&SOURCES, Self::Source),
            (&TARGETS, Self::Target),
            (&TEXTS, Self::Text),
            (&LANGUAGES, Self::Text),
            (&SCRIPTS, Self::Text),
            (&OTHERS, Self::Other),
        ];
        lists.into_iter().find(|(words, _)| words.contains(&word)).map_or(Self::Unknown, |(_, role)| role)
    }
}

/// Whether a word is the name or the code of a language, such as `en-US`.
pub(in crate::corpus) fn is_language(word: &str) -> bool {
    let word = word.to_lowercase();
    let language = word.split(['-', '_']).next().unwrap_or_default();
    LANGUAGES.contains(&language)
}

/// Whether two names differ in the language alone, such as `sentence_eng_Latn` and `sentence_ita_Latn`.
pub(in crate::corpus) fn are_of_languages(one: &str, other: &str) -> bool {
    let divided = |name: &str| {
        let name = name.to_lowercase();
        let words: Vec<String> = name.split(|c: char| !c.is_alphanumeric()).map(str::to_owned).collect();
        let languages: Vec<String> = words.iter().filter(|word| LANGUAGES.contains(&word.as_str())).cloned().collect();
        let is_other = |word: &String| !LANGUAGES.contains(&word.as_str()) && !SCRIPTS.contains(&word.as_str());
        (languages, words.into_iter().filter(is_other).collect::<Vec<_>>())
    };
    let ((one, rest), (other, other_rest)) = (divided(one), divided(other));
    one.len() == 1 && other.len() == 1 && one != other && rest == other_rest
}
