//! Checks that the commands and presets in the README and the documents exist.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use kiln::config::{Preset, Sources, load};

use crate::tidy::tree::{documents, read};

/// The lines of a document's code blocks, and the code spans of its text.
fn code(document: &str) -> (Vec<String>, Vec<String>) {
    let document = document.replace("\\\n", " ");
    let (mut lines, mut text, mut in_block) = (Vec::new(), String::new(), false);
    for line in document.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if in_block {
            lines.push(line.trim_start().trim_start_matches("$ ").to_owned());
        } else {
            text.push_str(line);
            text.push('\n');
        }
    }
    let spans = text.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    (lines, spans)
}

/// The commands of a shell line as words: quotes are removed, comments, variables and redirections left out.
fn commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![vec![String::new()]];
    let mut quote = None;
    for c in line.chars() {
        let command = commands.last_mut().expect("never empty");
        let word = command.last_mut().expect("never empty");
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), c) => word.push(c),
            (None, '"' | '\'') => quote = Some(c),
            (None, '#') if word.is_empty() => break,
            (None, '|' | ';' | '&') => commands.push(vec![String::new()]),
            (None, c) if c.is_whitespace() => command.push(String::new()),
            (None, c) => word.push(c),
        }
    }
    for command in &mut commands {
        command.retain(|word| !word.is_empty() && !word.starts_with('$'));
        if let Some(end) = command.iter().position(|word| word.starts_with(['>', '<']) || word.starts_with("2>")) {
            command.truncate(end);
        }
    }
    commands
}

/// What a command gives to `kiln`, if that is what it runs.
fn arguments(mut command: Vec<String>) -> Option<Vec<String>> {
    let is_setting =
        |word: &String| word.split_once('=').is_some_and(|(name, _)| !name.is_empty() && !name.starts_with('-'));
    let start = command.iter().position(|word| !is_setting(word))?;
    command.drain(..start);
    match command.first().map(String::as_str) {
        // `kiln -> kiln-data` draws an arrow.
        Some("kiln") => Some(command.split_off(1)).filter(|rest| !rest.iter().any(|word| word == "->" || word == "→")),
        Some("cargo") if command.get(1).is_some_and(|word| word == "run") => {
            let separator = command.iter().position(|word| word == "--")?;
            (!command.iter().any(|word| ["--example", "--bin"].contains(&word.as_str())))
                .then(|| command.split_off(separator + 1))
        }
        _ => None,
    }
}

/// Why `kiln` would refuse these arguments. A `span` of text may leave arguments out.
fn refusal(arguments: &[String], is_span: bool) -> Option<String> {
    let parsed = kiln::cli::command().try_get_matches_from([&["kiln".to_owned()], arguments].concat());
    let matches = match parsed {
        Ok(matches) => matches,
        Err(error) => {
            let incomplete = [
                ErrorKind::MissingRequiredArgument,
                ErrorKind::MissingSubcommand,
                ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand,
            ];
            let accepted = [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion].contains(&error.kind());
            let without_value = error.get(ContextKind::InvalidValue) == Some(&ContextValue::String(String::new()));
            let accepted = accepted || is_span && (incomplete.contains(&error.kind()) || without_value);
            return (!accepted).then(|| error.to_string());
        }
    };

    // Keys and values of the configuration.
    let (_, matches) = matches.subcommand()?;
    let set: Vec<String> = matches.try_get_many("set").ok()??.cloned().collect();
    let one = |name: &str| matches.try_get_one::<String>(name).ok().flatten().cloned();
    // The run to start from decides the task.
    let of_text =
        matches!(matches.try_contains_id("from"), Ok(true)) && set.iter().any(|set| set.starts_with("data.text."));
    let task = one("task").or(of_text.then(|| "lm".to_owned()));
    let sources = Sources { task, preset: one("preset"), file: None, set, ..Sources::default() };
    load(&sources).err().map(|error| error.to_string())
}

#[test]
fn every_command_of_the_documents_is_accepted() {
    let mut of_the_readme = 0;
    let mut refused = String::new();
    for path in documents() {
        let (lines, spans) = code(&read(&path));
        let of_lines = lines.iter().map(|line| (line, false));
        for (line, is_span) in of_lines.chain(spans.iter().map(|span| (span, true))) {
            for arguments in commands(line).into_iter().filter_map(arguments) {
                of_the_readme += usize::from(path == "README.md" && !is_span);
                if let Some(reason) = refusal(&arguments, is_span) {
                    refused.push_str(&format!("\n{path}: {line}\n{reason}"));
                }
            }
        }
    }
    assert!(of_the_readme >= 8, "the README shows how to use the command: {of_the_readme} commands");
    assert!(refused.is_empty(), "{refused}");
}

#[test]
fn commands_that_kiln_does_not_know_are_refused() {
    let refusal_of = |line: &str| {
        let found = commands(line).into_iter().find_map(arguments).unwrap_or_else(|| panic!("no command in {line}"));
        refusal(&found, false)
    };
    assert_eq!(refusal_of("kiln train --set 'data.train=[\"a b.jsonl\"]' --set train.steps=5000 # train | it"), None);
    assert_eq!(refusal_of("A=1 cargo run --release -- evaluate runs/a --data b | head"), None);
    assert_eq!(refusal_of("echo hello | kiln translate runs/a > out.txt"), None);
    for wrong in ["kiln trian", "kiln train --preest tiny", "kiln evaluate", "kiln train --set train.step=5000"] {
        assert!(refusal_of(wrong).is_some(), "{wrong}");
    }
    assert!(commands("cargo test --test it tidy && ls").into_iter().all(|command| arguments(command).is_none()));
}

#[test]
fn every_preset_is_listed() {
    let page = read("docs/presets.md");
    for preset in Preset::ALL {
        assert!(page.contains(&format!("`{preset}`")), "{preset} is missing in docs/presets.md");
    }
}
