//! Constants that were found by measuring name the file of `benches/results` with the measurement.

use super::lists::Offence;
use super::tree::{Source, files, sources};

const RESULTS: &str = "benches/results/";
/// Parts of the names of constants that bound what is in flight. No formula gives them.
const TUNED: [&str; 7] = ["IN_FLIGHT", "STAGES", "_BLOCKS", "CUBES", "GROUP_M", "_SLOTS", "PIECE_BYTES"];

/// The tuned constants of the kernels whose comments name no results.
pub(super) fn count(sources: &[Source]) -> Vec<Offence> {
    let kernels = sources.iter().filter(|source| source.path.starts_with("model/kernels/src/") && !source.is_test);
    kernels.flat_map(|source| without_results(&source.path, &source.text)).collect()
}

fn without_results(path: &str, text: &str) -> Vec<Offence> {
    let (mut comment, mut is_test) = (String::new(), false);
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with("///") {
            comment.push_str(line);
            continue;
        }
        if line.starts_with("#[") {
            is_test |= line == "#[cfg(test)]";
            continue;
        }
        if let Some(name) = constant(line)
            && TUNED.iter().any(|part| name.contains(part))
            && !comment.contains(RESULTS)
            && !is_test
        {
            found.push(Offence::new("measured", 1, format!("{path} {name}")));
        }
        comment.clear();
        is_test = false;
    }
    found
}

/// The name of the number that the line defines.
fn constant(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("const ")?;
    let (name, kind) = rest.split_once(": ")?;
    let is_name = name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    (is_name && ["u32 = ", "usize = ", "u64 = "].iter().any(|number| kind.starts_with(number))).then_some(name)
}

#[test]
fn results_that_the_sources_name_exist() {
    let existing = files(&[".md"]);
    let mut missing = String::new();
    for source in sources() {
        for rest in source.text.split(RESULTS).skip(1) {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c)).unwrap_or(rest.len());
            let file = rest[..end].trim_end_matches('.');
            if file.ends_with(".md") && !existing.contains(&format!("{RESULTS}{file}")) {
                missing.push_str(&format!("\n  {}: {file}", source.path));
            }
        }
    }
    assert!(missing.is_empty(), "no such results:{missing}");
}

#[test]
fn a_tuned_constant_without_results_is_found() {
    let text = "/// Rows (`benches/results/README.md`).\nconst ROWS_IN_FLIGHT: u32 = 4;\n\n/// Stages.\npub(crate) const STAGES: usize = 3;\n\
                /// Threads.\nconst THREADS: u32 = 128;\n";
    let found: Vec<String> = without_results("a.rs", text).iter().map(|offence| offence.to_string()).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("a.rs STAGES"), "{found:?}");
}
