//! What texts are by themselves, whatever their field is called: identifiers, parse trees, tags, marks or nothing.

/// Digits of a hash, at least.
const SHORTEST_HASH: usize = 12;
/// Texts that programs write for a value that is missing.
const NOTHING: [&str; 6] = ["none", "null", "nan", "n/a", "#n/a", "undefined"];

/// Whether the text stands for a value that is missing.
pub(super) fn is_nothing(text: &str) -> bool {
    let text = text.trim();
    text.is_empty() || NOTHING.iter().any(|name| name.eq_ignore_ascii_case(text))
}

/// Whether the text says true or false.
pub(super) fn is_boolean(text: &str) -> bool {
    ["true", "false"].iter().any(|name| name.eq_ignore_ascii_case(text.trim()))
}

/// Whether the text is a UUID or a hash.
pub(super) fn is_id(text: &str) -> bool {
    let text = text.trim();
    let groups: Vec<&str> = text.split('-').collect();
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_uuid =
        groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12]) && groups.iter().all(|group| is_hex(group));
    let is_mixed =
        text.bytes().any(|byte| byte.is_ascii_digit()) && text.bytes().any(|byte| byte.is_ascii_alphabetic());
    is_uuid || text.len() >= SHORTEST_HASH && is_hex(text) && is_mixed
}

/// Reads a number, which may have a decimal comma.
pub(super) fn number(text: &str) -> Option<f64> {
    let text = text.trim();
    let is_decimal = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    match text.split_once(',') {
        Some((whole, part)) if is_decimal(part) && is_decimal(whole.trim_start_matches(['-', '+'])) => {
            format!("{whole}.{part}").parse().ok()
        }
        _ => text.parse().ok(),
    }
}

/// Whether the text is a date, a time or both, in digits.
pub(super) fn is_time(text: &str) -> bool {
    let text = text.trim();
    let n_groups = text.split(|c: char| !c.is_ascii_digit()).filter(|group| !group.is_empty()).count();
    let is_part = |c: char| c.is_ascii_digit() || " .:/-+,TZ".contains(c);
    n_groups > 1
        && text.starts_with(|c: char| c.is_ascii_digit())
        && text.contains([':', '/', '-', '.'])
        && text.chars().all(is_part)
}

/// Whether the text is a sentence with the brackets of a parse tree.
pub(super) fn is_parse(text: &str) -> bool {
    let text = text.trim();
    let count = |bracket: char| text.matches(bracket).count();
    text.starts_with('(') && text.ends_with(')') && count('(') > 1 && count('(') == count(')')
}

/// Whether the text consists of tags of words, such as `O B-city I-city`.
pub(super) fn are_tags(text: &str) -> bool {
    let is_tag = |word: &str| {
        word == "O" || word.len() > 2 && matches!(word.as_bytes(), [b'B' | b'I' | b'E' | b'S' | b'L' | b'U', b'-', ..])
    };
    let words: Vec<&str> =
        text.split(|c: char| c.is_whitespace() || ",;|".contains(c)).filter(|word| !word.is_empty()).collect();
    words.len() > 1 && words.iter().all(|word| is_tag(word))
}

/// Returns the texts of a JSON list that is written in a text; `None` for other texts and for lists of other values.
pub(super) fn written_texts(text: &str) -> Option<Vec<String>> {
    let text = text.trim();
    let list: Vec<String> = text.starts_with('[').then(|| serde_json::from_str(text).ok()).flatten()?;
    (!list.is_empty()).then_some(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_say_what_they_are() {
        for text in ["6f1d4c1e-0c5e-4b1a-9a53-0123456789ab", "0000997932d777bf", "872bbe24868e1f7a5b7c"] {
            assert!(is_id(text), "{text}");
        }
        for text in ["1999-05-03", "742105000000000", "acgtacgtacgtacgt", "deadbeef", "the 3 of them", "C6H12O6"] {
            assert!(!is_id(text), "{text}");
        }
        assert!(is_parse("( ( a b ) . )") && is_parse("(ROOT (S (NP a)))") && !is_parse("(a remark)"));
        assert!(are_tags("O O B-city") && are_tags("O,B-PER") && !are_tags("O") && !are_tags("O dear"));
        assert!(is_nothing(" None ") && is_nothing("") && !is_nothing("none of them"));
        assert_eq!(written_texts(r#"["a", "b c"]"#), Some(vec!["a".to_owned(), "b c".to_owned()]));
        assert!([r#"[{"a": 1}]"#, "[]", "[x]", "a"].iter().all(|text| written_texts(text).is_none()));
    }
}
