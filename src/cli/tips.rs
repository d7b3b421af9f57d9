//! Tips for options that a command does not have: its own option, or the key of the configuration, that was meant.

use std::path::Path;

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Command};
use kiln_train::checkpoint::RUN_CONFIG_FILE;
use kiln_train::config::meant_by;

use super::lines::shell_path;

/// Options of other programs that name a file with lines to read.
const OF_LINES: [&str; 7] = ["src", "data", "input", "input-file", "test-file", "file", "text"];

/// Explains an `error` about an option that the command of these `words` does not have. Returns lines to print below the error,
/// and removes guesses of the error that these lines replace or that no help mentions.
pub(super) fn explain(error: &mut clap::Error, words: &[String]) -> Vec<String> {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return Vec::new() };
    let name = in_full(option, words).trim_start_matches('-').split('=').next().unwrap_or_default().to_owned();
    let mut root = super::command();
    root.build();
    let command = called(&root, words);

    let tips = match tip_for_text(command, Path::new(option)) {
        Some(tip) => vec![tip],
        None => tips(command, &name),
    };
    let passes_text = !option.starts_with("--") && shown(command).any(takes_texts);
    let is_hidden = match error.get(ContextKind::SuggestedArg) {
        Some(ContextValue::String(guess)) => !shown(command).filter_map(Arg::get_long).any(|long| is_same(long, guess)),
        _ => false,
    };
    if is_hidden || !tips.is_empty() {
        error.remove(ContextKind::SuggestedArg);
        // clap's usage contains its guess.
        error.insert(ContextKind::Usage, ContextValue::StyledStr(command.clone().render_usage()));
    }
    if !tips.is_empty() || !passes_text {
        error.remove(ContextKind::Suggested);
    }
    tips
}

/// Whether an argument is a text, which may begin with a dash.
fn takes_texts(arg: &Arg) -> bool {
    arg.is_positional() && arg.get_value_names().is_some_and(|names| names.iter().any(|name| name == "TEXT"))
}

/// Returns the word that has the `option`: clap takes `-lr` for an option `-l`.
fn in_full<'a>(option: &'a str, words: &'a [String]) -> &'a str {
    let is_letter = option.len() == 2 && !option.starts_with("--");
    let word = words.iter().find(|word| is_letter && word.starts_with(option) && word.len() > 2);
    word.map_or(option, String::as_str)
}

/// Returns the subcommand that the `words` begin with.
fn called<'a>(root: &'a Command, words: &[String]) -> &'a Command {
    let mut command = root;
    for word in words {
        match command.find_subcommand(word) {
            Some(inner) => command = inner,
            None => break,
        }
    }
    command
}

/// Returns a line for each option of the `command` that `name` means, else one for each key that its `--set` accepts.
fn tips(command: &Command, name: &str) -> Vec<String> {
    let meant = meant_by(name);
    let options: Vec<String> = options_for(command, name, &meant)
        .map(|option| format!("  tip: the option of this command is --{option}"))
        .collect();
    if !options.is_empty() {
        return options;
    }
    let set = command.get_arguments().find(|arg| arg.get_long() == Some("set"));
    let keys = meant.into_iter().filter(|key| set.is_some_and(|set| accepts(set, key)));
    let tips: Vec<String> =
        keys.map(|key| format!("  tip: {key} is a key of the configuration: --set {key}=VALUE")).collect();
    if tips.is_empty() { tip_for_lines(command, name).into_iter().collect() } else { tips }
}

/// Returns a line that shows how the `command` reads lines, if an option called `name` was to do that.
fn tip_for_lines(command: &Command, name: &str) -> Option<String> {
    let examples = command.get_after_help().filter(|_| OF_LINES.iter().any(|other| is_same(other, name)))?.to_string();
    let example = examples.lines().find(|line| line.contains(" < "))?.trim().to_owned();
    Some(format!("  tip: this command reads lines from its input: {example}"))
}

/// Returns a line that says how the `command` takes a text or a run, if there is one at `path`.
fn tip_for_text(command: &Command, path: &Path) -> Option<String> {
    if path.join(RUN_CONFIG_FILE).is_file() {
        let takes_run = shown(command).any(|arg| arg.get_long() == Some("run"));
        return takes_run.then(|| format!("  tip: this command takes a run with --run {}", shell_path(path)));
    }
    let set = command.get_arguments().find(|arg| arg.get_long() == Some("set"));
    let option = match set.is_some_and(|set| accepts(set, "data.train")) {
        true => "--set data.train=",
        false => shown(command).find(|arg| arg.get_long() == Some("data")).map(|_| "--data ")?,
    };
    path.exists().then(|| format!("  tip: this command takes a text with {option}{}", shell_path(path)))
}

/// Returns the names of the options of the `command` that are called `name`, or that set what it means: `num_beams` means
/// `generate.beam_size`, and so does `--beam`.
fn options_for<'a>(command: &'a Command, name: &'a str, meant: &'a [String]) -> impl Iterator<Item = &'a str> {
    let is_meant = move |long: &str| {
        is_same(long, name)
            || meant.iter().any(|meant| is_same(long, last_part(meant)) || meant_by(long).contains(meant))
    };
    shown(command).filter_map(Arg::get_long).filter(move |long| is_meant(long))
}

/// Returns the option of the `command` that sets the `key` of the configuration.
pub(super) fn option_for_key<'a>(command: &'a Command, key: &str) -> Option<&'a Arg> {
    let meant = meant_by(key);
    let long = options_for(command, last_part(key), &meant).next()?.to_owned();
    command.get_arguments().find(|arg| arg.get_long() == Some(&long))
}

/// Returns the options that the help of the `command` lists.
fn shown(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| !arg.is_hide_set())
}

/// Returns whether the option `long` is called `name`, up to dashes, underscores and capitals.
fn is_same(long: &str, name: &str) -> bool {
    long.eq_ignore_ascii_case(&name.trim_start_matches('-').replace('_', "-"))
}

/// Returns the last part of a key, or an option as it is.
fn last_part(meant: &str) -> &str {
    meant.rsplit('.').next().unwrap_or(meant)
}

/// Returns whether the option `set` of a command accepts a value of `key`.
fn accepts(set: &Arg, key: &str) -> bool {
    let assignment = format!("{key}=VALUE");
    let alone = Command::new("set").arg(set.clone());
    !key.starts_with("--") && alone.try_get_matches_from(["set", "--set", assignment.as_str()]).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the command says to these words, and the tips.
    fn answer(words: &[&str]) -> (String, Vec<String>) {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        let all = ["kiln".to_owned()].into_iter().chain(words.clone());
        let mut error = crate::cli::command().try_get_matches_from(all).expect_err("no such option");
        let tips = explain(&mut error, &words);
        (error.render().to_string(), tips)
    }

    fn set(key: &str) -> String {
        format!("  tip: {key} is a key of the configuration: --set {key}=VALUE")
    }

    fn option(long: &str) -> String {
        format!("  tip: the option of this command is {long}")
    }

    #[test]
    fn options_of_other_trainers_are_answered_with_keys_and_options() {
        for (given, wanted) in [
            ("--lr", set("optim.lr")),
            ("-lr", set("optim.lr")),
            ("--optim.lr", set("optim.lr")),
            ("--learning_rate", set("optim.lr")),
            ("--learning-rate", set("optim.lr")),
            ("--learningrate", set("optim.lr")),
            ("-learning_rate", set("optim.lr")),
            ("--num_train_epochs", set("train.epochs")),
            ("--num-epochs", set("train.epochs")),
            ("--batch_size", set("loader.batch_rows")),
            ("--batch-size=8", set("loader.batch_rows")),
            ("--per_device_train_batch_size", set("loader.batch_rows")),
            ("--max-update", set("train.steps")),
            ("--max-steps", set("train.steps")),
            ("--train-steps", set("train.steps")),
            ("-train_steps", set("train.steps")),
            ("--lora", set("model.lora.rank")),
            ("--max_new_tokens", set("generate.max_new_tokens")),
            ("--output_dir", option("--run")),
            ("--name", option("--run")),
            ("--model", option("--from")),
            ("--cpu", option("--device")),
            ("--workers", set("loader.num_workers")),
            ("--data", set("data.train")),
            ("--validation", set("data.valid")),
            ("--sample_packing", option("--packing")),
            ("--model-name-or-path", option("--from")),
            ("--plain-operators", option("--reference-operators")),
        ] {
            let (said, tips) = answer(&["train", "pairs.tsv", given, "3"]);
            assert_eq!(tips, [wanted], "{given}: {said}");
            assert!(!said.contains("tip:") && said.contains("Usage: kiln train [OPTIONS]"), "{given}: {said}");
        }

        assert_eq!(answer(&["train", "--n_layers", "2"]).1.len(), 2, "one for each side of a model");
        assert_eq!(answer(&["data", "stats", "--batch_size", "2"]).1, [set("loader.batch_rows")]);
    }

    #[test]
    fn a_command_is_offered_only_what_it_accepts() {
        assert_eq!(answer(&["generate", "x", "--max_new_tokens", "5"]).1, [option("--max-new-tokens")]);
        assert_eq!(answer(&["translate", "x", "--num_beams", "5"]).1, [option("--beam")]);
        assert_eq!(answer(&["evaluate", "x", "--source_field", "en"]).1, [set("data.corpus.source_field")]);
        for command in ["generate", "translate", "chat", "classify", "evaluate"] {
            for given in ["--learning_rate", "--num-epochs", "--lora", "--lr"] {
                let (said, tips) = answer(&[command, "x", given, "5"]);
                assert!(tips.is_empty() && !said.contains("--set"), "{command}: {said} {tips:?}");
            }
        }
    }

    #[test]
    fn a_text_is_answered_with_the_option_that_takes_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let text = folder.path().display().to_string();
        assert_eq!(
            answer(&["data", "stats", "--task", "lm", &text]).1,
            [format!("  tip: this command takes a text with --set data.train={text}")]
        );
        assert_eq!(
            answer(&["evaluate", "x", &text]).1,
            [format!("  tip: this command takes a text with --data {text}")]
        );
        assert!(answer(&["data", "stats", "no-such-file"]).1.is_empty());

        std::fs::write(folder.path().join(RUN_CONFIG_FILE), "").expect("writable");
        let run = format!("  tip: this command takes a run with --run {text}");
        for command in [&["data", "stats"][..], &["memory"], &["profile"], &["diagnose"], &["config"]] {
            assert_eq!(answer(&[command, &[text.as_str()]].concat()).1, [run.as_str()]);
        }
        assert!(answer(&["evaluate", "x", &text]).1.is_empty(), "it has one already");
    }

    #[test]
    fn no_option_is_offered_as_a_text() {
        let classify =
            "  tip: this command reads lines from its input: kiln classify runs/reviews < reviews.txt > classes.jsonl";
        let translate =
            "  tip: this command reads lines from its input: kiln translate runs/en-it --beam 5 < in.en > out.it";
        for (words, tips) in [
            (["classify", "x", "--data"], vec![classify.to_owned()]),
            (["translate", "x", "-src"], vec![translate.to_owned()]),
            (["train", "x", "--train_src"], vec![set("data.train")]),
            (["train", "x", "--no-such-thing"], Vec::new()),
        ] {
            let (said, found) = answer(&[&words[..], &["f"]].concat());
            assert_eq!(found, tips, "{words:?}: {said}");
            assert!(!said.contains("as a value"), "{words:?}: {said}");
        }
        let (said, _) = answer(&["classify", "x", "-5 degrees"]);
        assert!(said.contains("as a value"), "a text may begin with a dash: {said}");
    }

    #[test]
    fn no_hidden_option_is_suggested() {
        for command in ["generate", "translate", "chat"] {
            let (said, tips) = answer(&[command, "x", "--sets", "a=b"]);
            assert!(tips.is_empty() && !said.contains("'--set'"), "{said}");
        }
        let (said, _) = answer(&["train", "--stpes", "5"]);
        assert!(said.contains("--stpes") && said.contains("--help"), "{said}");
    }
}
