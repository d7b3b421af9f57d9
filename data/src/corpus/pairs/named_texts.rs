//! Two files with the texts of a program by their names, such as `.properties` of Java and `.strings` of iOS.

use std::collections::HashSet;
use std::path::Path;

use crate::formats::LineReader;

/// Lines that are looked at.
const LINES: usize = 2000;
/// Names from which it is not chance.
const ENOUGH: usize = 5;
/// The share of lines with a name, and of different names, in percent.
const NAMED: usize = 80;
/// The share of the names of the shorter file that the other one has, too.
const SHARED: usize = 60;

/// How lines have names and texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NamedTexts {
    /// `"btn.save" = "Save";`
    Strings,
    /// `<string name="btn_save">Save</string>`
    Xml,
    /// `btn.save=Save`
    Properties,
}

impl NamedTexts {
    /// Returns how both files have names that they share, with one of these. `None` for other files.
    pub(super) fn of(files: [&Path; 2]) -> Option<(Self, String)> {
        let [source, target] = files.map(first_lines);
        let (source, target) = (source?, target?);
        [Self::Strings, Self::Xml, Self::Properties].into_iter().find_map(|form| {
            let (ours, theirs) = (form.names(&source)?, form.names(&target)?);
            let shared: Vec<&&str> = ours.iter().filter(|name| theirs.contains(*name)).collect();
            let first = source.iter().find_map(|line| form.name(line).filter(|name| theirs.contains(name)))?;
            (100 * shared.len() >= SHARED * ours.len().min(theirs.len())).then(|| (form, first.to_owned()))
        })
    }

    /// Returns the name that the line begins with.
    fn name(self, line: &str) -> Option<&str> {
        match self {
            Self::Strings => {
                let (name, text) = line.strip_prefix('"')?.split_once('"')?;
                let text = text.trim_start().strip_prefix('=')?.trim_start();
                (text.starts_with('"') && text.ends_with(';')).then_some(name)
            }
            Self::Xml => line.strip_prefix("<string name=\"")?.split_once('"').map(|(name, _)| name),
            Self::Properties => {
                let (name, text) = line.split_once(['=', ':'])?;
                let is_part = |c: char| c.is_ascii_alphanumeric() || "._-/[]$".contains(c);
                let name = name.trim_end();
                let is_name = name.contains(|c: char| c.is_ascii_alphabetic()) && name.chars().all(is_part);
                (is_name && !text.starts_with("//")).then_some(name)
            }
        }
    }

    /// Returns the names of lines; `None` if too few lines have one of their own.
    fn names(self, lines: &[String]) -> Option<HashSet<&str>> {
        let found: Vec<&str> = lines.iter().filter_map(|line| self.name(line)).collect();
        let names: HashSet<&str> = found.iter().copied().collect();
        let are_most = 100 * found.len() >= NAMED * lines.len() && 100 * names.len() >= NAMED * found.len();
        (names.len() >= ENOUGH && are_most).then_some(names)
    }

    /// Returns the beginning of a script that reads the texts of a file by their names.
    pub(super) fn script(self) -> String {
        let (joined, pattern, text) = match self {
            Self::Strings => {
                ("whole", r#"\x22((?:[^\x22\\]|\\.)*)\x22\s*=\s*\x22((?:[^\x22\\]|\\.)*)\x22\s*;"#, "text")
            }
            Self::Xml => (
                "whole",
                r#"(?s)<string name=\x22([^\x22]*)\x22[^>]*>(.*?)</string>"#,
                r#"html.unescape(re.sub("<[^>]*>", "", text))"#,
            ),
            Self::Properties => (
                r#"re.sub(r"\\\r?\n[ \t]*", "", whole)"#,
                r"(?m)^[ \t]*([^\s#!=:][^\s=:]*)[ \t]*[=:][ \t]*(.*?)[ \t\r]*$",
                "text",
            ),
        };

        format!(
            r#"import html, json, re, sys
def plain(text):
  char = lambda m: chr(int(m[1][1:], 16)) if m[1][1:] else {{"n": "\n", "t": "\t"}}.get(m[1], m[1])
  return re.sub(r"\\(u[0-9a-fA-F]{{4}}|.)", char, {text})
def read(name):
  whole = open(name, "rb").read()
  try: whole = whole.decode("utf-8-sig")
  except ValueError: whole = whole.decode("latin-1")
  return {{key: plain(text) for key, text in re.findall(r"{pattern}", {joined})}}"#
        )
    }
}

/// Returns the first lines of a file with text. Comments, lines that go on with the line above, and tags around all texts are left out.
fn first_lines(path: &Path) -> Option<Vec<String>> {
    let (mut reader, mut line, mut lines) = (LineReader::open(path).ok()?, Vec::new(), Vec::<String>::new());
    let mut goes_on = false;
    while lines.len() < LINES && reader.read_line(&mut line).ok()? {
        let text = String::from_utf8_lossy(&line).trim_start_matches('\u{feff}').trim().to_owned();
        let is_other = ["#", "!", "//", "/*", "*", "<?", "<!", "<resources", "</resources"];
        let is_text = !goes_on && !text.is_empty() && !is_other.iter().any(|begin| text.starts_with(begin));
        goes_on = text.ends_with('\\');
        if is_text {
            lines.push(text);
        }
        line.clear();
    }
    Some(lines)
}
