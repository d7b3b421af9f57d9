//! Long lines on a terminal: broken between words.

use console::Term;
use kiln_data::terminal::clean;

/// Breaks a line into lines of at most `width` columns; further ones are indented. A flag and its value stay in one line,
/// so that they can be copied.
pub fn wrapped(line: &str, width: usize) -> String {
    let indent = line.len() - line.trim_start_matches(' ').len();
    let (mut text, mut column) = (" ".repeat(indent), indent);
    let line = with_whole_cells(line);
    let mut words = line.split_whitespace().peekable();
    let mut is_first = true;
    while let Some(word) = words.next() {
        let value = words.next_if(|next| word.starts_with("--") && !next.starts_with("--"));
        let word = value.map_or(word.to_owned(), |value| format!("{word} {value}"));

        let len = word.chars().count();
        if !is_first && column + 1 + len > width {
            column = indent + 2;
            text.push('\n');
            text.push_str(&" ".repeat(column));
        } else if !is_first {
            column += 1;
            text.push(' ');
        }
        text.push_str(&word);
        column += len;
        is_first = false;
    }
    text.replace(KEPT, " ")
}

/// Shortens a text to `most` characters: the middle is left out.
pub fn without_middle(text: &str, most: usize) -> String {
    let n = text.chars().count();
    if n <= most {
        return text.to_owned();
    }
    let kept = most.saturating_sub(BETWEEN.len());
    let (head, tail) = (kept.div_ceil(2), kept / 2);
    let head: String = text.chars().take(head).collect();
    let tail: String = text.chars().skip(n - tail).collect();
    format!("{}{BETWEEN}{}", head.trim_end(), tail.trim_start())
}

/// Stands for the middle of a text.
const BETWEEN: &str = " ... ";
/// Stands for a space that is not broken.
const KEPT: char = '\u{1}';
/// Longest cell that stays in one line, in columns.
const LONGEST_CELL: usize = 24;

/// Keeps a name and its number together in a line of cells: `BLEU 18.96 | chrF2 59.40`.
fn with_whole_cells(line: &str) -> String {
    if !line.contains(" | ") {
        return line.to_owned();
    }
    let cell = |cell: &str| match cell.chars().count() <= LONGEST_CELL {
        true => cell.trim().replace(' ', &KEPT.to_string()),
        false => cell.to_owned(),
    };
    line.split(" | ").map(cell).collect::<Vec<_>>().join(&format!("{KEPT}| "))
}

/// Breaks a line for the terminal that stderr goes to; elsewhere its breaks stay as they are. No control character passes.
pub(crate) fn for_stderr(line: &str) -> String {
    for_terminal(line, &Term::stderr())
}

/// Does the same for stdout.
pub fn for_stdout(line: &str) -> String {
    for_terminal(line, &Term::stdout())
}

fn for_terminal(line: &str, terminal: &Term) -> String {
    let line = &clean(line);
    match terminal.size_checked().filter(|_| terminal.is_term()) {
        Some((_, columns)) if columns > 20 => wrapped(line, columns.into()),
        _ => line.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_and_keep_their_indent() {
        assert_eq!(
            wrapped("BLEU 18.96 | chrF2 59.40 | exact match 1%", 22),
            "BLEU 18.96 |\n  chrF2 59.40 |\n  exact match 1%"
        );
        assert_eq!(wrapped("one two three four", 9), "one two\n  three\n  four");
        assert_eq!(wrapped("  one two three", 10), "  one two\n    three");
        assert_eq!(wrapped("short", 80), "short");
        assert_eq!(wrapped("a-word-longer-than-the-line b", 10), "a-word-longer-than-the-line\n  b");
        assert_eq!(wrapped("", 10), "");
    }

    #[test]
    fn the_middle_of_a_long_text_is_left_out() {
        assert_eq!(without_middle("one two three", 13), "one two three");
        assert_eq!(without_middle("one two three four", 13), "one ... four");
        assert_eq!(without_middle(&"è".repeat(20), 9), "èè ... èè");
    }

    #[test]
    fn a_flag_and_its_value_stay_together() {
        assert_eq!(
            wrapped("lower it: --set train.steps=5 is enough", 24),
            "lower it:\n  --set train.steps=5 is\n  enough"
        );
        assert_eq!(wrapped("add --sample --seed 1 here", 12), "add --sample\n  --seed 1\n  here");
    }
}
