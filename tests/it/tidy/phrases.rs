//! Phrases that `docs/style.md` replaces, counted in documents, messages and comments.

use super::lists::Offence;
use super::tree::{Source, documents, read};

/// What is looked for, in lower case and as whole words.
const PHRASES: [&str; 16] = [
    "is no",
    "are no",
    "was no",
    "were no",
    "tokens a second",
    "tokens a step",
    "on the way",
    "on its way",
    "is told",
    "are told",
    "told apart",
    "beside",
    "that of",
    "those of",
    "under way",
    "plain operators",
];

/// What is idiomatic although a phrase is in it.
const IDIOMS: [&str; 3] = ["is no longer", "are no longer", "no matter"];

/// The number of phrases in each document and each file of the program.
pub(super) fn count(sources: &[Source]) -> Vec<Offence> {
    // The style page names the phrases.
    let documents = documents().into_iter().filter(|path| path != "docs/style.md");
    let in_documents = documents.map(|path| {
        let number = read(&path).split("\n\n").map(phrases).sum();
        (path, number)
    });
    let in_sources = sources.iter().filter(|source| !source.is_test).map(|source| {
        let number = source.scanned.prose.iter().map(|piece| phrases(piece)).sum();
        (source.path.clone(), number)
    });
    let all = in_documents.chain(in_sources).filter(|&(_, number)| number > 0);
    all.map(|(path, number)| Offence::new("phrase", number, path)).collect()
}

fn phrases(text: &str) -> usize {
    let words = text.to_lowercase().replace(['*', '`', '"'], "");
    let mut words = format!(" {} ", words.split_whitespace().collect::<Vec<_>>().join(" "));
    for idiom in IDIOMS {
        words = words.replace(idiom, "");
    }
    let ends = |after: &str| !after.starts_with(|c: char| c.is_alphanumeric());
    let count = |phrase: &str| {
        let starts =
            words.match_indices(phrase).filter(|(at, _)| !words[..*at].ends_with(|c: char| c.is_alphanumeric()));
        starts.filter(|(at, _)| ends(&words[at + phrase.len()..])).count()
    };
    PHRASES.iter().map(|phrase| count(phrase)).sum()
}

#[cfg(test)]
mod tests {
    use super::phrases;

    #[test]
    fn phrases_are_counted_as_whole_words() {
        assert_eq!(phrases("Tokens that are\nno padding, 7 tokens a second, beside the rest"), 3);
        assert_eq!(phrases("besides, it is no longer there; this nothing"), 0);
    }
}
