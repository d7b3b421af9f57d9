//! A text to try a model with: the beginning of a sentence of its validation text.

/// Words that make a prompt to continue.
const PROMPT_WORDS: usize = 4;
/// Most characters of a text to classify.
const LONGEST_TEXT: usize = 160;
/// Words around a mask, which is one of them.
const MASKED_WORDS: usize = 8;
/// Documents in which a sentence is looked for.
const DOCUMENTS: usize = 100;

/// The mask as every vocabulary of `kiln fill` reads it.
const MASK: &str = "[MASK]";

/// Returns the first words of a sentence, for a model to continue. They end with their line, which the text goes on behind in another
/// way than with a space, unless it has one word.
pub(super) fn to_continue(documents: &[String]) -> Option<String> {
    let text = opening(documents)?;
    let line = text.trim_start().lines().next().filter(|line| line.split_whitespace().nth(1).is_some());
    Some(first_words(line.unwrap_or(text), PROMPT_WORDS).join(" "))
}

/// Returns a whole text of one line for a model to classify, since a class may depend on any part of it. Without a short one, the first words
/// of a sentence.
pub(super) fn to_classify(texts: &[String]) -> Option<String> {
    let is_short = |text: &&str| {
        let has_breaks = text.contains(['\n', '\r', '\'']);
        text.split_whitespace().nth(1).is_some() && !has_breaks && text.chars().count() <= LONGEST_TEXT
    };
    let short = texts.iter().take(DOCUMENTS).map(|text| text.trim()).find(is_short);
    short.map(str::to_owned).or_else(|| to_continue(texts))
}

/// Returns the first words of a sentence with a mask in place of one of them, for a model to fill in.
pub(super) fn to_fill_in(documents: &[String]) -> Option<String> {
    let words = first_words(opening(documents)?, MASKED_WORDS);
    let hidden = words.len() / 2;
    let letters = words.get(hidden).filter(|_| words.len() > 1)?.trim_matches(|c: char| !c.is_alphanumeric());
    let masked: Vec<String> = (0..)
        .zip(&words)
        .map(|(i, word)| match i == hidden && !letters.is_empty() {
            true => word.replacen(letters, MASK, 1),
            false => (*word).to_owned(),
        })
        .collect();
    let text = masked.join(" ");
    text.contains(MASK).then_some(text)
}

fn first_words(text: &str, n: usize) -> Vec<&str> {
    text.split_whitespace().take(n).collect()
}

/// Returns the text from the first beginning of a sentence on, or all text if none is found.
fn opening(documents: &[String]) -> Option<&str> {
    let sentence = documents.iter().take(DOCUMENTS).find_map(|document| sentence_in(document));
    sentence.or_else(|| documents.first().map(String::as_str))
}

/// Finds a sentence: at the start of the document or after the end of another one, unless it begins in lower case. A
/// text that was cut anywhere begins in the middle of a sentence.
fn sentence_in(document: &str) -> Option<&str> {
    let begins = |text: &str| text.chars().find(|c| c.is_alphanumeric()).is_some_and(|c| !c.is_lowercase());
    if begins(document) {
        return Some(document);
    }
    let ends = document.char_indices().filter(|(_, c)| matches!(c, '.' | '!' | '?'));
    ends.map(|(end, _)| document[end + 1..].trim_start_matches(['"', '\'', '”', '’', '»', ')']))
        .filter(|rest| rest.starts_with(char::is_whitespace))
        .find(|rest| begins(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(prompt: fn(&[String]) -> Option<String>, documents: &[&str]) -> Option<String> {
        prompt(&documents.iter().map(|document| (*document).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_text_to_classify_is_whole_if_a_short_one_is_there() {
        let long = "a very long text ".repeat(20);
        let whole = "Lemna minor (Gemeines), in still water and ditches";
        assert_eq!(
            of(to_classify, &[&long, "word", "It's\nin two lines", "it's quoted", whole]).as_deref(),
            Some(whole)
        );
        assert_eq!(of(to_classify, &[&long]).as_deref(), Some("a very long text"));
        assert_eq!(of(to_classify, &[]), None);
    }

    #[test]
    fn a_prompt_is_the_beginning_of_a_sentence_in_one_line() {
        for (documents, wanted) in [
            (&["It is a\ntruth universally acknowledged"][..], "It is a"),
            (&["\nCarrot omelette\nIngredients: a carrot"], "Carrot omelette"),
            (&["Preface\nIt is a truth universally acknowledged"], "Preface It is a"),
            (&["Alone"], "Alone"),
            (&["of a good fortune. “My dear Mr. Bennet,” said"], "“My dear Mr. Bennet,”"),
            (&["and so they left.", "he said (“No!”) She knew it at once."], "She knew it at"),
            (&["42 is forty two."], "42 is forty two."),
            (&["no capitals here. none at all", "nor here"], "no capitals here. none"),
            (&["3.5 miles from e.g. the mill"], "3.5 miles from e.g."),
        ] {
            assert_eq!(of(to_continue, documents).as_deref(), Some(wanted));
        }
        assert_eq!(of(to_continue, &[]), None);
    }

    #[test]
    fn a_mask_hides_one_word_and_leaves_its_comma() {
        for (document, wanted) in [
            ("1000 is one thousand.", Some("1000 is [MASK] thousand.")),
            ("He came, saw, and went away", Some("He came, saw, [MASK] went away")),
            ("It was late, and dark", Some("It was [MASK], and dark")),
            ("Alone", None),
            ("Well -- no", None),
        ] {
            assert_eq!(of(to_fill_in, &[document]).as_deref(), wanted);
        }
    }
}
