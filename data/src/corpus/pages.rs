//! Pages with tags, and other XML: the command that takes out their text.

use std::path::Path;

use regex::Regex;

use super::jq::{fed, kept_apart};
use crate::formats::LineReader;

/// Lines that show where the text of a page is.
const LINES: usize = 200;
/// Words of a text in an attribute, in the mean.
const WORDS: usize = 3;
/// Takes the text between tags. Paragraphs are divided by blank lines.
const BETWEEN_TAGS: &str = concat!(
    r#"import html, re; text = open(0, encoding="utf-8").read(); "#,
    r#"text = re.sub(r"(?is)<(script|style)\b.*?</\1>|<!--.*?-->", " ", text); "#,
    r#"text = re.sub(r"(?i)</(p|div|h[1-6]|li|tr|text|title|page|doc)>|<br */?>", "\n\n", text); "#,
    r#"lines = html.unescape(re.sub(r"<[^>]*>", " ", text)).splitlines(); "#,
    r#"print(re.sub(r"\n{3,}", "\n\n", "\n".join(" ".join(line.split()) for line in lines)).strip())"#,
);
/// Takes the texts of the attributes `NAMES`, which may be pages themselves. An element is a document.
const IN_ATTRIBUTES: &str = r#"import html, re, xml.etree.ElementTree as tree
for _, node in tree.iterparse(open(0, "rb")):
  text = "\n".join(node.get(name) or "" for name in NAMES)
  text = html.unescape(re.sub(r"<[^>]*>", " ", re.sub(r"(?i)</(p|div|h[1-6]|li|pre)>|<br */?>", "\n", text)))
  lines = [" ".join(line.split()) for line in text.splitlines()]
  if any(lines): print("\n".join(line for line in lines if line) + "\n")
  node.clear()"#;

/// Says how the text of a page with tags is taken out.
pub(super) fn text_of_page(page: &Path) -> String {
    let names = attributes(page);
    let (what, script) = match names.is_empty() {
        true => ("tags included; to learn from their text".to_owned(), BETWEEN_TAGS.to_owned()),
        false => {
            let list = serde_json::Value::from(names.clone()).to_string();
            let named = names.join(" and ");
            let what = format!(
                "tags included; to learn from the texts in the attributes {named}, a document for each element"
            );
            (what, IN_ATTRIBUTES.replace("NAMES", &list))
        }
    };
    let said = format!(
        "{what}: {} > plain.txt, and read plain.txt in the place of the page",
        fed(page, &format!("python3 -c '{script}'"))
    );
    kept_apart(page, &said)
}

/// Returns the attributes with the texts of a file that has most of its text in attributes, in the order of the file.
fn attributes(page: &Path) -> Vec<String> {
    let (Ok(mut reader), mut line, mut text, mut n) = (LineReader::open(page), Vec::new(), String::new(), 0) else {
        return Vec::new();
    };
    while n < LINES && reader.read_line(&mut line).unwrap_or(false) {
        text.push_str(&String::from_utf8_lossy(&line));
        text.push('\n');
        (n, line) = (n + 1, Vec::new());
    }
    let (Ok(tag), Ok(attribute)) = (Regex::new("<[^>]*>"), Regex::new(r#"\s([A-Za-z_][\w.-]*)\s*=\s*"([^"<]*)""#))
    else {
        return Vec::new();
    };
    let between: usize = tag.split(&text).map(|text| text.trim().len()).sum();

    let mut found: Vec<(String, usize, usize)> = Vec::new();
    let tags = tag.find_iter(&text).map(|tag| tag.as_str()).filter(|tag| !tag.starts_with("<?"));
    for pair in tags.flat_map(|tag| attribute.captures_iter(tag)) {
        let n_words = pair[2].split_whitespace().count();
        match found.iter_mut().find(|(name, ..)| *name == pair[1]) {
            Some((_, n, words)) => (*n, *words) = (*n + 1, *words + n_words),
            None => found.push((pair[1].to_owned(), 1, n_words)),
        }
    }
    let all: usize = attribute.captures_iter(&text).map(|pair| pair[2].len()).sum();
    // Escaped text is long: quotes and brackets within it are a few letters each.
    found.retain(|(_, n, words)| *words >= WORDS * *n);
    let mut names: Vec<String> = found.into_iter().map(|(name, ..)| name).collect();
    // A title stands above its text.
    names.sort_by_key(|name| !name.eq_ignore_ascii_case("title"));
    if all > between { names } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_text_of_a_page_has_no_tags() {
        let folder = tempfile::tempdir().expect("a folder");
        let page = folder.path().join("it's.xml");
        let text = "<page><title>Rome</title><style>p {}</style><text>A &amp; b\n<b>c</b>.</text></page><!-- x -->\n<p>Last</p>\n";
        std::fs::write(&page, text).expect("writable");
        let said = text_of_page(&page);
        let (_, command) = said.split_once("their text: ").expect("a command");
        let (command, _) = command.split_once(" > plain.txt").expect("a command");
        let Ok(ran) = Command::new("sh").args(["-c", command]).output() else { return };
        if ran.status.code() == Some(127) {
            return;
        }
        assert_eq!(String::from_utf8_lossy(&ran.stdout), "Rome\n\nA & b\nc .\n\nLast\n", "{ran:?}");
    }

    #[test]
    fn texts_in_attributes_are_documents() {
        let folder = tempfile::tempdir().expect("a folder");
        let page = folder.path().join("Posts.xml");
        let row = |n: usize| {
            let title = if n == 0 { "Title=\"How to buy {n}?\" " } else { "" };
            format!(
                "  <row Id=\"{n}\" CreationDate=\"2014-05-13T23:58:30\" Body=\"&lt;p&gt;It is a &amp;amp; b {n}.&lt;/p&gt;&#xA;&#xA;&lt;p&gt;So be it.&lt;/p&gt;\" {title}/>\n"
            )
        };
        let rows: String = (0..3).map(row).collect();
        std::fs::write(&page, format!("\u{feff}<?xml version=\"1.0\"?>\n<posts>\n{rows}</posts>\n")).expect("writable");
        let said = text_of_page(&page);
        let (_, command) = said.split_once("Title and Body, a document for each element: ").expect("a command");
        let (command, _) = command.split_once(" > plain.txt").expect("a command");
        let Ok(ran) = Command::new("sh").args(["-c", command]).output() else { return };
        if ran.status.code() == Some(127) {
            return;
        }
        let wanted =
            "How to buy {n}?\nIt is a & b 0.\nSo be it.\n\nIt is a & b 1.\nSo be it.\n\nIt is a & b 2.\nSo be it.\n\n";
        assert_eq!(String::from_utf8_lossy(&ran.stdout), wanted, "{ran:?}");
    }
}
