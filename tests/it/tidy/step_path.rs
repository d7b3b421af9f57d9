//! The files of a training step, as `docs/architecture.md` lists them.

use super::scan::words;
use super::tree::{Source, read, sources};

/// Most files that a reader opens to follow a step.
const MOST_FILES: usize = 20;
const HEADER: &str = "| file | function | part of the step |";

/// The file and the name of each row of the page's table.
pub(super) fn rows(page: &str) -> Vec<(String, String)> {
    let (_, table) = page.split_once(HEADER).expect("the table of the step");
    let lines = table.lines().skip(2).take_while(|line| line.starts_with("| `"));
    lines
        .map(|line| {
            let quoted: Vec<&str> = line.split('`').skip(1).step_by(2).collect();
            (quoted[0].to_owned(), quoted[1].to_owned())
        })
        .collect()
}

/// Whether the file defines the function or type.
fn defines(source: &Source, name: &str) -> bool {
    let code = &source.scanned.code;
    words(code, name).any(|at| ["fn ", "struct ", "trait "].iter().any(|kind| code[..at].ends_with(kind)))
}

#[test]
fn the_page_names_a_step_in_at_most_20_files_that_call_each_other() {
    let sources = sources();
    let rows = rows(&read("docs/architecture.md"));
    assert!((10..=MOST_FILES).contains(&rows.len()), "{} files", rows.len());

    let of = |path: &str| {
        sources.iter().find(|source| source.path == path).unwrap_or_else(|| panic!("{path} is on the page only"))
    };
    for (i, (path, name)) in rows.iter().enumerate() {
        assert!(defines(of(path), name), "{path} does not define {name}");
        let is_named = |(before, _): &(String, String)| words(&of(before).scanned.code, name).next().is_some();
        assert!(i == 0 || rows[..i].iter().any(is_named), "no file above {path} names {name}");
    }
}

#[test]
fn a_table_that_leaves_the_path_is_found() {
    let page = format!(
        "{HEADER}\n|---|---|---|\n| `a.rs` | `run` | x |\n| `b/c.rs` | `Y` | z |\n\n| `d.rs` | `n` | other |\n"
    );
    assert_eq!(rows(&page), [("a.rs".into(), "run".into()), ("b/c.rs".into(), "Y".into())]);
}
