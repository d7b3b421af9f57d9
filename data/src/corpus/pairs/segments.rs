//! Two files of marked-up segments, as WMT publishes its test sets: the command that joins them.

use std::path::Path;

use crate::formats::{LineReader, ending};
use crate::terminal::shell_path;

/// Lines that show what a file is.
const LINES: usize = 60;
/// Joins the segments of two files that have the same document and number.
const SCRIPT: &str = r#"import html, json, re, sys
def texts(name):
  document, found = "", {}
  for mark in re.finditer(r"(?is)<doc\b[^>]*?\bdocid\s*=\s*[\x22\x27]?([^\x22\x27\s>]+)|<(?:seg|hl)\b[^>]*?\bid\s*=\s*[\x22\x27]?(\w+)[^>]*>(.*?)</(?:seg|hl)>", open(name, encoding="utf-8-sig").read()):
    if mark[1]: document = mark[1]
    else: found.setdefault((document, mark[2]), " ".join(html.unescape(mark[3]).split()))
  return found
one, other = map(texts, sys.argv[1:])
both = [key for key in one if one[key] and other.get(key)]
for key in both: print(json.dumps({"src": one[key], "trg": other[key]}))
print("segments left out that have no partner:", len(one) + len(other) - 2 * len(both), file=sys.stderr)"#;

/// Whether most lines of a file are segments or marks around them.
fn has_segments(path: &Path) -> bool {
    let Ok(texts) = LineReader::texts(path) else { return false };
    let lines = texts.map_while(Result::ok).map(|line| line.trim().to_lowercase());
    let lines: Vec<String> = lines.filter(|line| !line.is_empty()).take(LINES).collect();
    let n_marked = lines.iter().filter(|line| line.starts_with('<') && line.ends_with('>')).count();
    let is_segment = |line: &String| line.starts_with("<seg ") || line.starts_with("<hl ");
    lines.iter().any(is_segment) && 2 * n_marked > lines.len()
}

/// Returns what to say of two such files; `None` for others.
pub(super) fn refusal([source, target]: [&Path; 2]) -> Option<String> {
    if ![source, target].into_iter().all(has_segments) {
        return None;
    }
    let found = "their lines are segments with tags (SGML), and tags are not texts";
    if [source, target].iter().any(|path| ["gz", "zst", "xz"].contains(&ending(path).as_str())) {
        return Some(format!("{found}: unpack them, and name the unpacked files to get the command that joins them"));
    }
    let [source, target] = [source, target].map(shell_path);
    Some(format!(
        "{found}\nto join segments of the same document and number: python3 -c '{SCRIPT}' {source} {target} > rows.jsonl\nand train on rows.jsonl"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::followed;

    #[test]
    fn segments_of_the_same_document_and_number_are_pairs() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str, text: &str| {
            let set = |doc: &str| {
                format!(
                    "<doc docid=\"{doc}\" origlang=\"en\">\n<hl>\n<seg id=\"0\">{text} &amp; {doc}</seg>\n</hl>\n<p>\n<seg id='1'>\n{text} 1\n</seg>\n</p>\n</doc>\n"
                )
            };
            let path = folder.path().join(name);
            std::fs::write(&path, format!("<srcset setid=\"n\">\n{}{}</srcset>\n", set("a"), set("b")))
                .expect("writable");
            path
        };
        let [one, other] = [file("it's.sgm", "cat"), file("ref.sgm", "gatto")];
        let said = refusal([&one, &other]).expect("segments");
        let Some(rows) = followed::rows_made(&said, folder.path()) else { return };
        assert_eq!(rows.len(), 4, "{rows:?}");
        assert_eq!(rows[0], serde_json::json!({"src": "cat & a", "trg": "gatto & a"}));
        assert_eq!(rows[3], serde_json::json!({"src": "cat 1", "trg": "gatto 1"}));
        std::fs::write(&other, "a line\n<seg id=\"1\">\nanother\nthird\n").expect("writable");
        assert_eq!(refusal([&one, &other]), None);
    }
}
