//! The size of what users and readers meet: commands, flags, keys, variables of the environment, files that an addition touches, and long
//! sentences of the documents.

use std::collections::BTreeSet;

use super::scan::words;
use super::tree::{Source, documents, files, read};
use super::{doors, keys, sentences, step_path};

const PREFIX: &str = "KILN_";

/// Prints the counts as a table.
pub(super) fn print(sources: &[Source]) {
    let (long, all) = sentences::long_and_all();
    let rows = [
        ("commands", count_commands(&kiln::cli::command()).to_string()),
        ("long flags, as `src` declares them", sources.iter().map(count_flags).sum::<usize>().to_string()),
        ("keys of the configuration", keys::all_keys().len().to_string()),
        ("variables `KILN_*` in all files", variables().len().to_string()),
        ("files of a training step", step_path::rows(&read("docs/architecture.md")).len().to_string()),
        ("files of an activation", doors::files_of_the_guide().len().to_string()),
        ("sentences of documents over 25 words", format!("{long} of {all}")),
        ("documents", documents().len().to_string()),
        ("lines of README", read("README.md").lines().count().to_string()),
    ];
    println!("\n| what users and readers meet | |\n|---|---|");
    rows.iter().for_each(|(what, number)| println!("| {what} | {number} |"));
}

/// Counts the commands that have no commands themselves.
fn count_commands(command: &clap::Command) -> usize {
    command.get_subcommands().map(count_commands).sum::<usize>().max(1)
}

/// Counts the flags that a file of the command line declares: commands that share arguments share their declarations.
fn count_flags(source: &Source) -> usize {
    let is_flag = |line: &&str| line.trim_start().starts_with("#[arg(") && words(line, "long").next().is_some();
    if source.path.starts_with("src/") { source.scanned.code.lines().filter(is_flag).count() } else { 0 }
}

/// The variables that sources, scripts and documents name, apart from dated results.
fn variables() -> BTreeSet<String> {
    let paths = files(&[".rs", ".py", ".sh", ".md", ".yml", ".toml"]);
    let texts = paths.iter().filter(|path| !path.starts_with("benches/results/")).map(|path| read(path));
    texts.flat_map(|text| variables_in(&text)).collect()
}

fn variables_in(text: &str) -> Vec<String> {
    let is_part = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let names = text.split(PREFIX).skip(1).map(|rest| &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())]);
    names.filter(|name| !name.is_empty()).map(|name| format!("{PREFIX}{name}")).collect()
}

#[test]
fn commands_of_commands_count_and_variables_are_whole_words() {
    let inner = clap::Command::new("data").subcommands([clap::Command::new("stats"), clap::Command::new("filter")]);
    let program = clap::Command::new("kiln").subcommands([clap::Command::new("train"), inner]);
    assert_eq!(count_commands(&program), 3);
    let text = format!("{PREFIX}A_1=2 \"{PREFIX}B\" and `{PREFIX}*`");
    assert_eq!(variables_in(&text), ["A_1", "B"].map(|name| format!("{PREFIX}{name}")));
}
