//! Reads Rust source as text: separates code from prose, then finds functions, parameters and tests by their brackets.

use std::ops::Range;

/// A source file, split into what the compiler runs and what people read.
pub(super) struct Scanned {
    /// The text with every comment, string and character literal replaced by spaces: lines and columns stay.
    pub(super) code: String,
    /// Paragraphs of comments and texts of literals, in order.
    pub(super) prose: Vec<String>,
    /// Where the literals stand.
    pub(super) literals: Vec<Range<usize>>,
}

/// A function, or the signature of one.
#[derive(Debug, PartialEq)]
pub(super) struct Function {
    pub(super) name: String,
    /// From the line of `fn` to the line of the closing brace.
    pub(super) lines: usize,
    /// With `self`.
    pub(super) parameters: usize,
    pub(super) has_blank_line: bool,
    /// Where the name stands in the text.
    pub(super) at: usize,
}

/// Separates code from prose.
pub(super) fn scan(text: &str) -> Scanned {
    let mut code = text.as_bytes().to_vec();
    let mut prose: Vec<String> = Vec::new();
    let mut literals = Vec::new();
    let mut at = 0;
    let mut comment_ended_in_line = None;
    let mut line = 0;
    while at < text.len() {
        let Some((length, kind)) = prose_at(text, at) else {
            line += usize::from(code[at] == b'\n');
            at += 1;
            continue;
        };

        if kind == Prose::Literal {
            literals.push(at..at + length);
        }
        let piece = &text[at..at + length];
        let words =
            piece.trim_matches(['/', '!', '*', '"', '#', ' ']).trim_start_matches("r#").trim_start_matches("r\"");
        match prose.last_mut() {
            // A comment goes on in the next line.
            Some(last) if kind == Prose::Comment && comment_ended_in_line == Some(line) => {
                last.push(' ');
                last.push_str(words);
            }
            _ => prose.push(words.to_owned()),
        }

        for byte in &mut code[at..at + length] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        line += piece.matches('\n').count();
        comment_ended_in_line = (kind == Prose::Comment).then_some(line + 1);
        at += length;
    }
    Scanned { code: String::from_utf8(code).expect("whole characters are replaced"), prose, literals }
}

#[derive(PartialEq)]
enum Prose {
    Comment,
    Literal,
}

/// The length and kind of the comment or literal that starts at `at`.
fn prose_at(text: &str, at: usize) -> Option<(usize, Prose)> {
    let rest = text.get(at..)?;
    let to = |end: Option<usize>| end.unwrap_or(rest.len());
    if rest.starts_with("//") {
        return Some((to(rest.find('\n')), Prose::Comment));
    }
    if rest.starts_with("/*") {
        return Some((block_comment(rest), Prose::Comment));
    }
    if rest.starts_with('"') {
        return Some((quoted(rest), Prose::Literal));
    }

    // `r"..."`, `br#"..."#`: the prefix must not be the end of a name.
    let in_word = at > 0 && is_word(text.as_bytes()[at - 1]);
    let raw = ["r", "br", "cr"].iter().find_map(|prefix| rest.strip_prefix(prefix));
    if let Some(raw) = raw.filter(|_| !in_word) {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let close = format!("\"{}", "#".repeat(hashes));
            let start = rest.len() - raw.len() + hashes + 1;
            return Some((to(rest[start..].find(&close).map(|end| start + end + close.len())), Prose::Literal));
        }
    }

    // A character, or else a lifetime or label.
    let mut after = rest.strip_prefix('\'')?.chars();
    let first = after.next()?;
    if first == '\\' {
        return Some((to(rest[3..].find('\'').map(|end| end + 4)), Prose::Literal));
    }
    (after.next() == Some('\'')).then(|| (2 + first.len_utf8(), Prose::Literal))
}

fn block_comment(rest: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while let Some(next) = rest.get(at..).and_then(|rest| rest.find(['/', '*'])) {
        at += next;
        if rest[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

fn quoted(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

pub(super) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// The positions where `word` stands alone in `code`.
pub(super) fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = code.as_bytes();
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = at == 0 || !is_word(bytes[at - 1]);
        before && bytes.get(at + word.len()).is_none_or(|&byte| !is_word(byte))
    })
}

/// The word that starts at `at`, after spaces.
pub(super) fn word_at(code: &str, at: usize) -> Option<(usize, &str)> {
    let rest = code.get(at..)?;
    let start = at + rest.len() - rest.trim_start().len();
    let rest = &code[start..];
    let length = rest.bytes().take_while(|&byte| is_word(byte)).count();
    (length > 0).then(|| (start, &rest[..length]))
}

/// The position after the bracket that closes the one at `open`.
pub(super) fn closing(code: &str, open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return Some(at + 1);
        }
    }
    None
}

/// Finds every function of `text`, whose code without prose is `code`.
pub(super) fn functions(text: &str, code: &str) -> Vec<Function> {
    words(code, "fn").filter_map(|at| function(text, code, at)).collect()
}

fn function(text: &str, code: &str, start: usize) -> Option<Function> {
    let (at, name) = word_at(code, start + 2)?;
    let open = after_generics(code, at + name.len())?;
    let close = closing(code, open)?;
    let end = body_end(code, close)?;

    let whole = &text[start..end];
    Some(Function {
        name: name.to_owned(),
        lines: whole.lines().count(),
        parameters: items(&code[open + 1..close - 1]),
        has_blank_line: whole.lines().any(|line| line.trim().is_empty()),
        at,
    })
}

/// Skips `<...>` up to the parenthesis of the parameters.
fn after_generics(code: &str, at: usize) -> Option<usize> {
    let bytes = code.as_bytes();
    let mut depth = 0;
    for here in at..bytes.len() {
        match bytes[here] {
            b'<' => depth += 1,
            b'>' if !is_arrow(bytes, here) => depth -= 1,
            b'(' if depth == 0 => return Some(here),
            b'{' | b'}' | b';' => return None,
            _ => {}
        }
    }
    None
}

fn is_arrow(bytes: &[u8], at: usize) -> bool {
    at > 0 && (bytes[at - 1] == b'-' || bytes[at - 1] == b'=')
}

/// The position after the body that follows a parameter list, or after the semicolon of a signature.
fn body_end(code: &str, from: usize) -> Option<usize> {
    let bytes = code.as_bytes();
    let mut at = from;
    while at < bytes.len() {
        match bytes[at] {
            b'{' => return closing(code, at),
            b';' => return Some(at + 1),
            b'(' | b'[' => at = closing(code, at)?,
            _ => at += 1,
        }
    }
    None
}

/// The number of items between commas, without a trailing one.
fn items(list: &str) -> usize {
    let bytes = list.as_bytes();
    let (mut depth, mut count, mut filled) = (0, 0, false);
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            b'(' | b'[' | b'{' | b'<' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            b'>' if !is_arrow(bytes, at) => depth -= 1,
            b',' if depth == 0 => {
                count += usize::from(filled);
                filled = false;
                continue;
            }
            _ => {}
        }
        filled |= !byte.is_ascii_whitespace();
    }
    count + usize::from(filled)
}

/// A module that is compiled for tests only: its name, and its body where it has one here.
#[derive(Debug, PartialEq)]
pub(super) struct TestModule {
    pub(super) name: String,
    pub(super) body: Option<Range<usize>>,
}

/// Finds every `#[cfg(test)] mod name` of `code`.
pub(super) fn test_modules(code: &str) -> Vec<TestModule> {
    code.match_indices("#[cfg(").filter_map(|(at, _)| test_module(code, at)).collect()
}

fn test_module(code: &str, at: usize) -> Option<TestModule> {
    let mut end = closing(code, at + 1)?;
    let condition = &code[at..end];
    if words(condition, "test").next().is_none() || words(condition, "not").next().is_some() {
        return None;
    }

    // Further attributes, then visibility.
    while code[end..].trim_start().starts_with("#[") {
        end = closing(code, end + code[end..].find('[')?)?;
    }
    let (mut at, mut word) = word_at(code, end)?;
    if word == "pub" {
        let after = at + word.len();
        let restricted = code[after..].starts_with('(');
        (at, word) = word_at(code, if restricted { closing(code, after)? } else { after })?;
    }
    if word != "mod" {
        return None;
    }

    let (start, name) = word_at(code, at + word.len())?;
    let after = start + name.len();
    let open = after + code[after..].find(|c: char| !c.is_whitespace())?;
    let body = if code[open..].starts_with('{') { Some(open..closing(code, open)?) } else { None };
    Some(TestModule { name: name.to_owned(), body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_prose() {
        let text = "let a = \"fn // b\"; // fn c\nlet d = 'x'; let e: &'static str = r#\"\"fn f\"#; /* g /* h */ */ let i = '\\'';";
        let scanned = scan(text);
        assert_eq!(scanned.code.len(), text.len());
        assert!(!scanned.code.contains("fn"), "{}", scanned.code);
        assert!(scanned.code.contains("&'static str ="), "{}", scanned.code);
        assert!(scanned.code.contains("let i ="), "{}", scanned.code);
        assert!(scanned.prose.iter().any(|piece| piece == "fn // b"), "{:?}", scanned.prose);
        assert!(scanned.prose.iter().any(|piece| piece == "fn c"), "{:?}", scanned.prose);
    }

    #[test]
    fn a_comment_over_several_lines_is_one_paragraph() {
        let scanned = scan("/// tokens a\n    /// second\n\n// apart\nlet a = 1;");
        assert_eq!(scanned.prose, ["tokens a second", "apart"]);
    }

    #[test]
    fn parameters_are_counted_between_brackets() {
        let text =
            "fn a<F: Fn(u32, u32) -> u32>(&self, f: F, map: HashMap<K, V>, (b, c): (u32, u32), d: &[u8; 4],) -> u32;";
        let found = functions(text, &scan(text).code);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].name.as_str(), found[0].parameters), ("a", 5));
        assert_eq!(functions("fn b() {}", "fn b() {}")[0].parameters, 0);
    }

    #[test]
    fn a_function_ends_with_its_brace() {
        let text = "impl A {\n    fn a(\n        b: fn(u8) -> u8,\n    ) -> [u8; 2] {\n        if c {\n        }\n\n        d\n    }\n    fn e() {\n        f\n    }\n}\n";
        let found = functions(text, &scan(text).code);
        let seen: Vec<_> = found.iter().map(|f| (f.name.as_str(), f.lines, f.has_blank_line)).collect();
        assert_eq!(seen, [("a", 8, true), ("e", 3, false)]);
    }

    #[test]
    fn modules_for_tests_are_found() {
        let code = "#[cfg(test)]\nmod tests {\n    fn a() {}\n}\n#[cfg(all(test, feature = x))]\n#[path = y]\npub(crate) mod b;\n#[cfg(not(test))]\nmod c;\n#[cfg(feature = z)]\nmod d;";
        let found = test_modules(code);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].name.as_str(), found[0].body.is_some()), ("tests", true));
        assert_eq!(found[1], TestModule { name: "b".to_owned(), body: None });
    }
}
