//! Pages and other XML under the names of tables and rows, which programs export: what they are, and how they are read.

use std::path::Path;

use super::RowReader;
use crate::corpus::jq::{fed, kept_apart};
use crate::corpus::plain_forms::text_of_page;
use crate::corpus::text::{Task, rows_of_tags};
use crate::error::{Error, Result};
use crate::formats::{FileFormat, LineReader};

/// What a page begins with, in lower case.
const PAGE: [&str; 6] = ["<!doctype html", "<html", "<table", "<meta", "<head", "<body"];
/// Writes the rows of the tables of a page.
const SCRIPT: &str = r#"import csv, html.parser, sys
class Page(html.parser.HTMLParser):
  rows, cell = [], None
  def handle_starttag(self, tag, attributes):
    if tag == "tr": self.rows.append([])
    if tag in ("td", "th"): self.cell = ""
    if tag == "br" and self.cell is not None: self.cell += "\n"
  def handle_data(self, text):
    if self.cell is not None: self.cell += text
  def handle_endtag(self, tag):
    if tag in ("td", "th") and self.cell is not None and self.rows: self.rows[-1].append(self.cell.strip())
    if tag in ("td", "th"): self.cell = None
page = Page()
page.feed(open(0, encoding="utf-8-sig").read())
csv.writer(sys.stdout, lineterminator="\n").writerows(row for row in page.rows if any(row))"#;

impl RowReader<'_> {
    /// Refuses a page of HTML with the name of a table, and XML where rows are wanted.
    pub(super) fn check_markup(&self, file: &Path) -> Result<()> {
        let is_table = [Some(FileFormat::CSV), Some(FileFormat::TSV)].contains(&FileFormat::by_name(file));
        let Some(first) = first_line(file).filter(|first| first.starts_with('<')) else { return Ok(()) };
        let is_page = PAGE.iter().any(|begin| first.starts_with(begin));
        if is_table && is_page {
            let said = format!(
                "is a page of HTML with a table, as some programs export, and not a table of text: to make one of it: {} > rows.csv\nand read \
                 rows.csv in its place",
                fed(file, &format!("python3 -c '{SCRIPT}'"))
            );
            return Err(Error::corpus(file, kept_apart(file, &said)));
        }

        // Classes may have folders of pages.
        let reads_text = match self.task {
            Task::Tagging => "--task lm",
            Task::Lm if self.text.is_chat() => "--set data.text.format=auto",
            _ => return Ok(()),
        };
        let is_markup = is_page || first.starts_with("<?xml");
        if is_markup && FileFormat::by_name(file).is_none() {
            if let Some((made, _)) = rows_of_tags(file) {
                let said = format!("is XML, and rows are wanted\n{made}\nand read rows.jsonl with the same flags");
                return Err(Error::corpus(file, said));
            }
            let said = format!(
                "is XML or HTML, and rows are wanted, such as JSON objects in lines: write its elements as rows\n{reads_text} reads it as text, {}",
                text_of_page(file)
            );
            return Err(Error::corpus(file, said));
        }
        Ok(())
    }
}

/// Returns the first line with text, in lower case.
fn first_line(file: &Path) -> Option<String> {
    let lines = LineReader::texts(file).ok()?.map_while(Result::ok);
    lines.map(|line| line.trim_start_matches('\u{feff}').trim().to_lowercase()).find(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::super::*;

    #[test]
    fn a_page_with_the_name_of_a_table_becomes_a_table() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("rows.csv");
        let text = "\n<table><tr><th>Name<th>Text</tr>\n<tr><td>A</td><td>x &amp; \"y\",<br>z</td></tr></table>\n";
        std::fs::write(&file, text.replace("Name<th>Text", "Name</th><th>Text</th>")).expect("writable");
        let (corpus, text, labels) = Default::default();
        for task in [Task::Translation, Task::Classification, Task::Lm] {
            let reader = RowReader { task, other_tasks: &[], corpus: &corpus, text: &text, labels: &labels };
            let said = check_layout(std::slice::from_ref(&file), &reader).expect_err("a page").to_string();
            let command =
                said.split("of it: ").nth(1).expect("a command").split("\nand read").next().expect("a command");
            assert!(command.ends_with("> new-rows.csv"), "its own input: {said}");
            let Ok(ran) = Command::new("sh").args(["-c", command]).current_dir(folder.path()).status() else { return };
            if ran.code() == Some(127) {
                return;
            }
            let made = std::fs::read_to_string(folder.path().join("new-rows.csv")).expect("written");
            assert_eq!(made, "Name,Text\nA,\"x & \"\"y\"\",\nz\"\n");
        }
    }

    #[test]
    fn xml_is_no_rows() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a.xml");
        std::fs::write(&file, "<?xml version=\"1.0\"?>\n<set><s>the <cons>NF-kB</cons></s></set>\n").expect("writable");
        let (corpus, text, labels) = Default::default();
        for (task, is_refused) in [(Task::Tagging, true), (Task::Classification, false), (Task::Lm, false)] {
            let reader = RowReader { task, other_tasks: &[], corpus: &corpus, text: &text, labels: &labels };
            let said = check_layout(std::slice::from_ref(&file), &reader).err().map(|error| error.to_string());
            assert_eq!(
                said.is_some_and(|said| said.contains("is XML or HTML, and rows are wanted")),
                is_refused,
                "{task:?}"
            );
        }
    }
}
