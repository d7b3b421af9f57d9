//! What the README tells people to type must exist.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::kiln::Workplace;

/// Subcommand and arguments of every command line in the README's shell blocks.
fn commands() -> Vec<(String, Vec<String>)> {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = fs::read_to_string(readme).expect("there is a README").replace("\\\n", " ");
    let blocks = readme.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default());
    let mut found = Vec::new();
    for line in blocks.flat_map(str::lines) {
        let line = line.split(" # ").next().unwrap_or_default();
        for command in line.split('|').map(str::trim) {
            let arguments = match command.strip_prefix("kiln ") {
                Some(arguments) => arguments,
                None if command.starts_with("cargo run ") => match command.split_once(" -- ") {
                    Some((_, arguments)) => arguments,
                    None => continue,
                },
                None => continue,
            };
            let mut words = arguments.split_whitespace().map(str::to_owned);
            found.push((words.next().expect("a subcommand"), words.collect()));
        }
    }
    found
}

#[test]
fn every_command_of_the_readme_has_the_options_it_is_called_with() {
    let place = Workplace::new();
    let commands = commands();
    assert!(commands.len() >= 8, "the README shows how to use the command: {commands:?}");
    let mut helps = BTreeMap::new();
    for (subcommand, arguments) in commands {
        let help = helps.entry(subcommand.clone()).or_insert_with(|| place.run(&[&subcommand, "--help"]).ok().stdout);
        for option in arguments.iter().filter(|argument| argument.starts_with("--")) {
            let option = option.split('=').next().unwrap_or(option);
            assert!(
                help.contains(&format!("{option} ")) || help.contains(&format!("{option}\n")),
                "{subcommand} {option}"
            );
        }
    }
}

#[test]
fn every_preset_of_the_readme_can_be_tried() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = fs::read_to_string(readme).expect("there is a README");
    for preset in kiln::config::Preset::ALL {
        assert!(readme.contains(&format!("`{preset}`")), "{preset} is missing in the README");
    }
}
