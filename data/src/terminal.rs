//! Text for terminals. What strangers wrote (a server, another rank, a manifest, a row of data) may hold characters that
//! move the cursor, change the title or rewrite lines that somebody relies on.

use std::borrow::Cow;
use std::path::Path;

/// Replaces what a terminal would act on: control characters other than line breaks and tabs, and marks that reorder text.
/// All that Kiln prints passes through here.
pub fn clean(text: &str) -> Cow<'_, str> {
    let is_acted_on = |c: char| acts(c) && c != '\n' && c != '\t';
    match text.contains(is_acted_on) {
        true => Cow::Owned(text.replace(is_acted_on, REPLACEMENT)),
        false => Cow::Borrowed(text),
    }
}

/// Does the same for a text that stands inside a line: what breaks lines becomes a space.
pub fn in_one_line(text: &str) -> String {
    let text = text.replace("\r\n", " ").replace(['\n', '\t', '\r', '\u{2028}', '\u{2029}'], " ");
    clean(&text).into_owned()
}

/// Quotes a text for the shell.
pub fn shell_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Writes a text as one word of a shell, quoted only if necessary.
pub fn shell_argument(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+:@%,=".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) { text.to_owned() } else { shell_word(text) }
}

/// Writes a path as one word of a shell.
pub fn shell_path(path: &Path) -> String {
    shell_argument(&path.display().to_string())
}

/// Stands for a character that was replaced.
const REPLACEMENT: &str = "\u{fffd}";

/// Control characters (C0, DEL, C1), separators that break lines, and the marks that show text in another order.
fn acts(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_acts_on_passes() {
        let hostile = "a\u{1b}[2J\u{1b}]0;owned\u{7}\r\u{8}\u{7f}\u{9b}31m\u{202e}gpj\u{2066}b\u{2028}c\0";
        let cleaned = clean(hostile);
        assert!(!cleaned.chars().any(acts), "{cleaned:?}");
        assert!(cleaned.starts_with("a\u{fffd}[2J\u{fffd}]0;owned\u{fffd}") && cleaned.contains("gpj"), "{cleaned:?}");
        assert!(matches!(clean("two\nlines\tand é, ü, 語, \u{200f}א"), Cow::Borrowed(_)), "ordinary text stays");
    }

    #[test]
    fn words_of_a_shell_are_quoted_only_if_necessary() {
        assert_eq!(shell_path(Path::new("runs/a-b.1")), "runs/a-b.1");
        assert_eq!([shell_argument("it's"), shell_argument(""), shell_word("a")], [r"'it'\''s'", "''", "'a'"]);
    }

    #[test]
    fn a_text_inside_a_line_breaks_no_line() {
        assert_eq!(in_one_line("no\r\nerror: all is lost\nb\u{2028}c\td"), "no error: all is lost b c d");
        assert_eq!(in_one_line("\u{1b}[1mbold"), "\u{fffd}[1mbold");
    }
}
