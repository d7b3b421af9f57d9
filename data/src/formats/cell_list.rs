//! Lists in cells of tables: as JSON, as Python and `numpy` write them, or words between white space.

use serde_json::Value;

use super::{RowProblem, write_string};

/// Characters of a cell that a message shows.
const SHOWN: usize = 40;

/// Appends the words of a cell of the column `name` as a JSON list. Returns why the list cannot be read.
pub(super) fn write_list(json: &mut Vec<u8>, cell: &str, name: &str) -> Option<RowProblem> {
    let text = cell.trim();
    if text.starts_with('[') && serde_json::from_str::<Vec<Value>>(text).is_ok() {
        json.extend_from_slice(text.as_bytes());
        return None;
    }
    if is_list(text) {
        let values = python_list(text);
        let problem = values.is_none().then(|| {
            let shown: String = text.chars().take(SHOWN).collect();
            let more = if shown.len() < text.len() { "..." } else { "" };
            RowProblem::Malformed(format!(
                "column \"{name}\" has a list that cannot be read: {shown}{more}: write it as JSON ([\"a\", \"b\"]), or as words between \
                 white space"
            ))
        });
        serde_json::to_writer(json, &values.unwrap_or_default()).expect("memory");
        return problem;
    }

    json.push(b'[');
    for (number, word) in text.split_whitespace().enumerate() {
        if number > 0 {
            json.push(b',');
        }
        write_string(json, word);
    }
    json.push(b']');
    None
}

/// Returns the words of a cell, as a list has them or between white space. Empty if the list cannot be read.
pub(crate) fn words_of_cell(cell: &str) -> Vec<String> {
    let mut json = Vec::new();
    write_list(&mut json, cell, "");
    let values: Vec<Value> = serde_json::from_slice(&json).unwrap_or_default();
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    values.iter().map(word).collect()
}

/// Whether a cell is meant as a list, rather than as words of which the first begins with a bracket.
fn is_list(text: &str) -> bool {
    let Some(inside) = text.strip_prefix('[') else { return false };
    let is_closed = inside.ends_with(']');
    let begins_with_quote = inside.trim_start().starts_with(['\'', '"']);
    let inside = inside.trim_end_matches(']');
    let are_numbers = !inside.is_empty() && inside.split_whitespace().all(|part| part.parse::<f64>().is_ok());
    begins_with_quote || is_closed && (inside.contains(',') || are_numbers)
}

/// Reads a list as Python writes it, with quoted texts, numbers, `True`, `False` and `None`. As `numpy` writes it, white space is between
/// the values. `None` if it has anything else.
fn python_list(text: &str) -> Option<Vec<Value>> {
    let inside = text.strip_prefix('[')?.strip_suffix(']')?;
    let (mut values, mut rest, mut has_commas) = (Vec::new(), inside.trim_start(), None);
    while !rest.is_empty() {
        let (value, behind) = match rest.chars().next()? {
            quote @ ('\'' | '"') => quoted(&rest[1..], quote)?,
            _ => plain(rest)?,
        };
        values.push(value);

        let is_apart = behind.starts_with(char::is_whitespace);
        let behind = behind.trim_start();
        let comma = behind.strip_prefix(',');
        rest = comma.unwrap_or(behind).trim_start();
        if rest.is_empty() {
            break;
        }
        // Either all values have a comma behind them, or none has.
        if *has_commas.get_or_insert(comma.is_some()) != comma.is_some() || comma.is_none() && !is_apart {
            return None;
        }
    }
    Some(values)
}

/// Reads a text up to the quote that closes it. Returns it with the text behind.
fn quoted(text: &str, quote: char) -> Option<(Value, &str)> {
    let (mut value, mut chars) = (String::new(), text.char_indices());
    while let Some((at, c)) = chars.next() {
        match c {
            c if c == quote => return Some((Value::String(value), &text[at + 1..])),
            '\\' => {
                let (_, escape) = chars.next()?;

                let mut code = |n_digits: usize| {
                    let digits: String = chars.by_ref().take(n_digits).map(|(_, digit)| digit).collect();
                    let is_whole = digits.chars().count() == n_digits && digits.bytes().all(|b| b.is_ascii_hexdigit());
                    char::from_u32(u32::from_str_radix(&digits, 16).ok().filter(|_| is_whole)?)
                };
                value.push(match escape {
                    '\\' | '\'' | '"' => escape,
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    'x' => code(2)?,
                    'u' => code(4)?,
                    'U' => code(8)?,
                    _ => return None,
                });
            }
            c => value.push(c),
        }
    }
    None
}

/// Reads a number or a name up to a comma or white space. Returns it with the text behind.
fn plain(text: &str) -> Option<(Value, &str)> {
    let end = text.find(|c: char| c == ',' || c.is_whitespace()).unwrap_or(text.len());
    let (word, behind) = text.split_at(end);
    let value = match word {
        "True" => Value::Bool(true),
        "False" => Value::Bool(false),
        "None" => Value::Null,
        // As `numpy` writes a whole number of a column of fractions.
        number => serde_json::from_str(number.trim_end_matches('.')).ok().filter(Value::is_number)?,
    };
    Some((value, behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(cell: &str) -> Result<String, String> {
        let mut json = Vec::new();
        let problem = write_list(&mut json, cell, "tags");
        let json = String::from_utf8(json).expect("text");
        problem.map_or(Ok(json), |problem| Err(problem.to_string()))
    }

    #[test]
    fn lists_are_read_as_they_are_written() {
        for (cell, wanted) in [
            (r#"["a", 3]"#, r#"["a", 3]"#),
            ("[]", "[]"),
            (" ['a', \"it's\"] ", r#"["a","it's"]"#),
            (r"['it\'s', 'a\\b', '\xe9\u20ac\U0001F600', 'x\ty']", "[\"it's\",\"a\\\\b\",\"é€😀\",\"x\\ty\"]"),
            ("[ 'a' , 'b', ]", r#"["a","b"]"#),
            ("['a' 'b'\n 'c']", r#"["a","b","c"]"#),
            ("[0 3 -1]", "[0,3,-1]"),
            ("[True, None, 'x, ]']", r#"[true,null,"x, ]"]"#),
            ("a b", r#"["a","b"]"#),
            ("[ok]", r#"["[ok]"]"#),
            ("[Applause] Thank you", r#"["[Applause]","Thank","you"]"#),
            ("[1] He said", r#"["[1]","He","said"]"#),
            ("", "[]"),
        ] {
            assert_eq!(list(cell).as_deref(), Ok(wanted), "{cell}");
        }
    }

    #[test]
    fn a_list_that_can_be_read_in_two_ways_is_refused() {
        for cell in [
            "['a', 'b'",
            "['a' 'b', 'c']",
            "['a''b']",
            "['a', b]",
            "[O, O, B-PER]",
            r"['a\q']",
            r"['a\x4']",
            "['a', ...]",
            "['a', ['b']]",
            "['a'] and more",
            "['a\\",
        ] {
            let found = list(cell).expect_err(cell);
            assert!(found.starts_with("column \"tags\" has a list that cannot be read: ["), "{found}");
            assert!(found.contains("write it as JSON"), "{found}");
        }
    }
}
