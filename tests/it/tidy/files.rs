//! Files of a run are opened by `kiln_data::files`: it follows no link where it writes, and opens only files.

use super::PROGRAM;
use super::tree;

/// Ways to open, read or write a file without the helpers.
const WAYS: [&str; 7] =
    ["File::open(", "File::create(", "File::options(", "OpenOptions", "fs::read(", "fs::read_to_string(", "fs::write("];

/// The files that may, and why.
const ALLOWED: [(&str, &str); 23] = [
    ("data/src/files/mod.rs", "the helpers"),
    ("data/src/files/replace.rs", "syncs folders"),
    ("train/src/checkpoint/held.rs", "keeps a folder open"),
    ("data/src/cache/build.rs", "syncs folders"),
    ("interchange/src/hugging_face/write.rs", "syncs what it has written to a new folder"),
    ("metrics/src/logging/console.rs", "the terminal"),
    ("metrics/src/logging/tensorboard.rs", "the name of the machine"),
    ("ranks/src/link/hello.rs", "the name of the machine"),
    ("ranks/src/launch/numa.rs", "the kernel's files"),
    ("ranks/src/launch/signals.rs", "the kernel's files"),
    ("train/src/device/memory.rs", "the kernel's files"),
    ("data/src/tokenizer/chat/apart.rs", "the kernel's files"),
    ("lab/src/diagnose/measure/memory.rs", "the kernel's files"),
    ("src/cli/doctor/libraries.rs", "the kernel's files"),
    ("src/cli/doctor/several_gpus.rs", "the kernel's files"),
    ("train/src/run/ranks.rs", "this program"),
    ("src/cli/evaluate.rs", "a file that the user names for the result, such as /dev/stderr"),
    ("src/cli/generate.rs", "a file that the user names for prompts, such as /dev/stdin"),
    ("lab/src/diagnose/peer.rs", "a temporary folder of its own"),
    ("lab/src/diagnose/elimination/stages.rs", "a temporary folder of its own"),
    ("train/src/eval/golden.rs", "a fixture of the tests"),
    ("lab/src/diagnose/profile/kernels.rs", "a fixture of the tests"),
    ("data/src/fixtures.rs", "a fixture of the tests"),
];

/// The ways that `code` takes.
fn ways(code: &str) -> impl Iterator<Item = &'static str> {
    let is_used = move |way: &str| {
        code.match_indices(way).any(|(at, _)| !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
    };
    WAYS.into_iter().filter(move |way| is_used(way))
}

#[test]
fn files_are_opened_by_the_helpers() {
    let mut found = Vec::new();
    for source in tree::sources() {
        let is_of_a_command = PROGRAM.iter().chain(&["data/src/"]).any(|folder| source.path.starts_with(folder));
        if is_of_a_command && !source.is_test && !ALLOWED.iter().any(|(path, _)| *path == source.path) {
            let code = &source.scanned.code;
            let code = &code[..code.find("mod tests {").unwrap_or(code.len())];
            found.extend(ways(code).map(|way| format!("{}: {way}", source.path)));
        }
    }
    assert!(found.is_empty(), "use kiln_data::files (see its functions), not:\n  {}", found.join("\n  "));
}

#[test]
fn each_way_is_seen() {
    assert_eq!(ways("let file = std::fs::File::create(path)?;").collect::<Vec<_>>(), ["File::create("]);
    assert_eq!(ways("fs::read_to_string(a); OpenOptions::new()").count(), 2);
    assert_eq!(ways("SafetensorsFile::open(path); TextFile::open(input); read_file(path)").count(), 0);
}
