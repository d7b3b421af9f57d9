//! Records in files that are read as plain text: JSON that the name of its file does not tell, and tags without a text between them.

use std::collections::BTreeMap;
use std::path::Path;

use crate::corpus::jq::{fed, kept_apart};
use crate::corpus::json::first_rows;
use crate::corpus::pairs::flag;
use crate::corpus::share;
use crate::formats::{FileFormat, LineReader};

/// Endings of pages with tags.
pub(super) const PAGES: [&str; 4] = ["html", "htm", "xhtml", "xml"];
/// Endings of source code and of marked-up text, in which blank lines do not divide documents.
pub(super) const CODE: [&str; 26] = [
    "py", "rs", "c", "h", "cc", "cpp", "hpp", "js", "ts", "jsx", "tsx", "java", "go", "rb", "php", "cs", "sh", "pl",
    "sql", "lua", "kt", "swift", "scala", "md", "rst", "tex",
];
/// Lines that show what a file has.
const LINES: usize = 30;

/// Returns the first lines of a file that are not blank. Empty if it cannot be read.
fn first_lines(path: &Path) -> Vec<String> {
    let Ok(texts) = LineReader::texts(path) else { return Vec::new() };
    let lines = texts.map_while(Result::ok).map(|line| line.trim_start_matches('\u{feff}').trim().to_owned());
    lines.filter(|line| !line.is_empty()).take(LINES).collect()
}

/// Says how the text in the records of a file is read, whose lines are JSON. `None` for other files.
pub(super) fn note_on_json(path: &Path) -> Option<String> {
    let lines = first_lines(path);
    let are_objects = !lines.is_empty() && lines.iter().all(|line| line.starts_with('{') && line.ends_with('}'));
    let rows = if are_objects { first_rows(path, FileFormat::JSON).rows } else { Vec::new() };
    let field = share::flag_of_most(&rows)?;
    Some(format!(
        "note: {}: read as plain text, though its lines are JSON, names and quotes included; to learn from the field with most of the text: \
         --set data.text.format=jsonl {field}",
        path.display()
    ))
}

/// Says how a page becomes rows whose texts are in its tags and not between them. `None` for other pages.
pub(super) fn note_on_tags(path: &Path) -> Option<String> {
    let (made, field) = rows_of_tags(path)?;
    Some(format!(
        "{}: read as plain text, tags included, and its texts are in them; {made}, and read rows.jsonl with {field}",
        path.display()
    ))
}

/// Returns how rows are made of such a page, and the flag that reads their longest texts.
pub(in crate::corpus) fn rows_of_tags(path: &Path) -> Option<(String, String)> {
    let lines = first_lines(path);
    let is_row = |line: &&String| line.starts_with('<') && line.ends_with("/>") && line.contains("=\"");
    let rows: Vec<&String> = lines.iter().filter(is_row).collect();
    if 2 * rows.len() < lines.len() {
        return None;
    }

    let mut lengths: BTreeMap<&str, usize> = BTreeMap::new();
    for row in &rows {
        // Values have no quotes inside.
        let parts: Vec<&str> = row.split('"').collect();
        for pair in parts.chunks_exact(2) {
            let name = pair[0].trim_end_matches('=').rsplit(' ').next().unwrap_or_default();
            *lengths.entry(name).or_default() += pair[1].len();
        }
    }
    let (longest, _) = lengths.into_iter().max_by_key(|(_, n_bytes)| *n_bytes)?;
    let script = concat!(
        r#"import json, re, sys, xml.etree.ElementTree as tree; "#,
        r#"text = lambda value: re.sub(r"<[^>]*>", " ", value).strip(); "#,
        r#"[print((json.dumps({name: text(value) for name, value in row.attrib.items()}), row.clear())[0]) "#,
        r#"for _, row in tree.iterparse(sys.stdin.buffer) if row.attrib]"#,
    );
    let said = format!("to make rows of the tags: {} > rows.jsonl", fed(path, &format!("python3 -c '{script}'")));
    Some((kept_apart(path, &said), flag("data.text.field", longest)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::corpus::text::{TextConfig, TextCorpus, TextFormat};

    #[test]
    fn records_under_the_name_of_a_text_come_with_the_flags_that_read_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("train.txt");
        let row = |n: usize| {
            format!(
                "{{\"id\": \"{n}\", \"article\": [\"A first sentence {n}.\", \"And one more.\"], \"title\": \"Article {n}\"}}\n"
            )
        };
        fs::write(&file, (0..40).map(row).collect::<String>()).expect("writable");
        for format in [TextFormat::Auto, TextFormat::Lines] {
            let config = TextConfig { format, ..TextConfig::default() };
            let notes = TextCorpus::open(std::slice::from_ref(&file), &config).expect("a text").notes();
            let [note] = &notes[..] else { panic!("{notes:?}") };
            let (_, field) = note.split_once("--set data.text.format=jsonl --set 'data.text.field=").expect("flags");
            let field = field.trim_end_matches('\'').replace(r"\n", "\n");
            let config = TextConfig { format: TextFormat::Jsonl, field, ..TextConfig::default() };
            let (texts, _) =
                TextCorpus::open(std::slice::from_ref(&file), &config).expect("rows").read_all().expect("texts");
            assert_eq!(texts[3], "A first sentence 3.\nAnd one more.\n", "{note}");
        }

        let text = folder.path().join("a.txt");
        fs::write(&text, "{a set}\n\nof words\n").expect("writable");
        assert!(TextCorpus::open(&[text], &TextConfig::default()).expect("a text").notes().is_empty());
    }

    #[test]
    fn texts_in_tags_become_rows() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("Posts.xml");
        let row = |n: usize| {
            format!("  <row Id=\"{n}\" Body=\"&lt;p&gt;How to buy a keyboard {n}?&lt;/p&gt;\" Title=\"Buy {n}\" />\n")
        };
        let rows: String = (0..40).map(row).collect();
        fs::write(&file, format!("<?xml version=\"1.0\"?>\n<posts>\n{rows}</posts>\n")).expect("writable");
        let notes = TextCorpus::open(&[file], &TextConfig::default()).expect("a text").notes();
        let [note] = &notes[..] else { panic!("{notes:?}") };
        assert!(note.ends_with("with --set data.text.field=Body"), "{note}");
        let Some(made) = crate::corpus::followed::rows_made(note, folder.path()) else { return };
        assert_eq!((made.len(), made[7]["Body"].as_str()), (40, Some("How to buy a keyboard 7?")), "{note}");
    }
}
