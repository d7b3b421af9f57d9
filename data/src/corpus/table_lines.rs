//! Lines that are rows of a table, which the name of their file does not tell.

use std::path::Path;

use crate::formats::LineReader;

/// Lines that are looked at.
const LINES: usize = 200;

/// Returns the ending of a table with the lines of a file. `None` for other files, and for those that cannot be read.
pub(super) fn ending(path: &Path) -> Option<&'static str> {
    let lines = LineReader::texts(path).ok()?.take(LINES).collect::<Result<Vec<_>, _>>().ok()?;
    ending_of_table(&lines)
}

/// Returns the ending of a table with these lines, if nearly all of them have as many delimiters as the first.
pub(super) fn ending_of_table(lines: &[String]) -> Option<&'static str> {
    let filled: Vec<&String> = lines.iter().filter(|line| !line.trim().is_empty()).collect();
    let first = filled.first().filter(|line| filled.len() > 2 && !line.trim_start().starts_with(['{', '[']))?;
    let divides = |delimiter: char, first: &str| {
        let n = first.matches(delimiter).count();
        let n_alike = filled.iter().filter(|line| line.matches(delimiter).count() == n).count();
        n > 0 && 10 * n_alike >= 9 * filled.len()
    };
    if divides('\t', first) {
        return Some("tsv");
    }

    // Sentences have commas, too: the first row must have names.
    if first.trim_end().ends_with('.') {
        return None;
    }
    let are_names = |delimiter: char| {
        first.split(delimiter).all(|name| {
            let name = name.trim().trim_matches('"');
            !name.is_empty() && name.len() <= 30 && name.chars().all(|c| c.is_alphanumeric() || "_-. ".contains(c))
        })
    };
    [',', ';', '|'].into_iter().find(|delimiter| are_names(*delimiter) && first.contains(*delimiter)).and_then(
        |delimiter| {
            let has_more = filled.iter().filter(|line| line.contains(delimiter)).count();
            (has_more == filled.len()).then_some("csv")
        },
    )
}

#[cfg(test)]
mod tests {
    use crate::corpus::pairs::{CorpusConfig, PairCorpus};

    #[test]
    fn pairs_in_a_table_under_another_name_come_with_its_ending() {
        let folder = tempfile::tempdir().expect("a folder");
        let refused = |name: &str, row: &dyn Fn(usize) -> String| {
            let file = folder.path().join(name);
            std::fs::write(&file, (0..20).map(|n| row(n) + "\n").collect::<String>()).expect("writable");
            PairCorpus::open(&[file], &CorpusConfig::default()).expect_err("no known ending").to_string()
        };
        for name in ["deu.txt", "pairs", "a.dat"] {
            let tabs = refused(name, &|n| format!("A dog {n}.\tEin Hund {n}.\tCC-BY, by a"));
            assert!(tabs.ends_with("let its name end in .tsv, or --set data.corpus.format=tsv"), "{tabs}");
            let signs = |sign: char| {
                move |n: usize| if n == 0 { format!("en{sign}de") } else { format!("dog {n}{sign}Hund {n}") }
            };
            for sign in [',', ';'] {
                let found = refused(name, &signs(sign));
                assert!(found.ends_with("let its name end in .csv, or --set data.corpus.format=csv"), "{found}");
            }
            let text = refused(name, &|n| format!("A dog, {n}."));
            assert!(text.contains("has no known ending"), "{text}");
        }
    }
}
