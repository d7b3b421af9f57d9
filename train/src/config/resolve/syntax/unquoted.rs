//! Values of TOML that lack their quotes.

use std::path::Path;

/// What other languages write for a switch.
const SWITCHES: [(&str, &str); 6] =
    [("True", "true"), ("TRUE", "true"), ("yes", "true"), ("False", "false"), ("FALSE", "false"), ("no", "false")];

/// Says how a line is written whose value is a text without quotes, a list of such texts, or a switch of another language.
pub(super) fn hint(line: &str) -> Option<String> {
    let Some((key, value)) = line.split_once('=') else { return item(line) };
    let (key, value) = (key.trim(), value.split(" #").next().unwrap_or_default().trim());
    if !super::is_key(key) || value.contains(['"', '\'', '=', '{']) {
        return None;
    }
    if let Some((_, switch)) = SWITCHES.iter().find(|(other, _)| *other == value) {
        return Some(format!("a switch is true or false: {key} = {switch}"));
    }

    let quoted = match value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        None => quoted(value)?,
        Some(items) => {
            let items = items.split(',').map(str::trim).filter(|item| !item.is_empty());
            format!("[{}]", items.map(quoted).collect::<Option<Vec<_>>>()?.join(", "))
        }
    };
    Some(format!("a text stands in quotes: {key} = {quoted}"))
}

/// Says how a line of a longer list is written.
fn item(line: &str) -> Option<String> {
    let text = line.split(" #").next().unwrap_or_default().trim().trim_end_matches(',');
    let is_one = !text.contains(char::is_whitespace) && !text.contains([':', '"', '\'', '{']);
    let quoted = quoted(text).filter(|_| is_one && is_path(text))?;
    Some(format!("a text stands in quotes: {quoted}"))
}

/// Whether a text has the form of a path or of a file's name.
fn is_path(text: &str) -> bool {
    let ending = Path::new(text).extension().map_or(String::new(), |ending| ending.to_string_lossy().into_owned());
    text.contains('/') || (ending.len() > 1 && ending.chars().all(char::is_alphabetic))
}

/// Returns a text in quotes; `None` if it may be a number, a date or a broken list.
fn quoted(text: &str) -> Option<String> {
    let is_word =
        text.starts_with(|c: char| c.is_alphabetic() || "./~_".contains(c)) && text.contains(char::is_alphabetic);
    let is_text = (is_path(text) || is_word) && !text.contains([',', '[', ']']);
    // A backslash begins an escape within double quotes.
    let quote = if text.contains('\\') { '\'' } else { '"' };
    is_text.then(|| format!("{quote}{text}{quote}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_without_quotes_is_shown_with_them() {
        for (line, wanted) in [
            ("train = news.tsv", "train = \"news.tsv\""),
            ("precision = bf16 # as before", "precision = \"bf16\""),
            ("train = data/2024.tsv", "train = \"data/2024.tsv\""),
            ("train = 2024.tsv", "train = \"2024.tsv\""),
            ("data.train = [a.tsv, b.tsv]", "data.train = [\"a.tsv\", \"b.tsv\"]"),
            ("train = C:\\texts\\a.tsv", "train = 'C:\\texts\\a.tsv'"),
        ] {
            assert_eq!(hint(line), Some(format!("a text stands in quotes: {wanted}")), "{line}");
        }
        assert_eq!(hint("  texts/b.tsv, # more").as_deref(), Some("a text stands in quotes: \"texts/b.tsv\""));
        assert_eq!(hint("use_ema = True").as_deref(), Some("a switch is true or false: use_ema = true"));
        for line in
            ["steps = 1,000", "lr = 1e-3 warmup = 5", "train = [\"a.tsv\"", "train = [a.tsv", "steps: 5", "lr = 1.5.2"]
        {
            assert_eq!(hint(line), None, "{line}");
        }
    }
}
