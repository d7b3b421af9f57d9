//! Tips for options that a command does not have: its own option, or the key of the configuration, that was meant.

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Command};
use kiln_train::config::meant_by;

/// Explains an `error` about an option that the command of these `words` does not have. Returns lines to print below the error,
/// and removes guesses of the error that these lines replace or that no help mentions.
pub(super) fn explain(error: &mut clap::Error, words: &[String]) -> Vec<String> {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return Vec::new() };
    let name = in_full(option, words).trim_start_matches('-').split('=').next().unwrap_or_default().to_owned();
    let mut root = super::command();
    root.build();
    let command = called(&root, words);

    let tips = tips(command, &name);
    let is_hidden = match error.get(ContextKind::SuggestedArg) {
        Some(ContextValue::String(guess)) => !shown(command).any(|arg| is_named(arg, guess)),
        _ => false,
    };
    if is_hidden || !tips.is_empty() {
        error.remove(ContextKind::SuggestedArg);
        // clap's usage contains its guess.
        error.insert(ContextKind::Usage, ContextValue::StyledStr(command.clone().render_usage()));
    }
    if !tips.is_empty() {
        error.remove(ContextKind::Suggested);
    }
    tips
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
    let names: Vec<&str> = [name].into_iter().chain(meant.iter().map(|meant| option_of(meant))).collect();
    let options = shown(command).filter(|arg| names.iter().any(|name| is_named(arg, name))).filter_map(Arg::get_long);
    let options: Vec<String> = options.map(|long| format!("  tip: the option of this command is --{long}")).collect();
    if !options.is_empty() {
        return options;
    }
    let set = command.get_arguments().find(|arg| arg.get_long() == Some("set"));
    let keys = meant.into_iter().filter(|key| set.is_some_and(|set| accepts(set, key)));
    keys.map(|key| format!("  tip: {key} is a key of the configuration: --set {key}=VALUE")).collect()
}

/// Returns the options that the help of the `command` lists.
fn shown(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| !arg.is_hide_set())
}

/// Returns whether the option `arg` is called `name`, up to dashes, underscores and capitals.
fn is_named(arg: &Arg, name: &str) -> bool {
    let name = name.trim_start_matches('-').replace('_', "-");
    arg.get_long().is_some_and(|long| long.eq_ignore_ascii_case(&name))
}

/// Returns the name of the option that sets what `meant` sets: an option or a key.
fn option_of(meant: &str) -> &str {
    match meant.rsplit('.').next().unwrap_or(meant) {
        "beam_size" => "beam",
        name => name,
    }
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
    fn no_hidden_option_is_suggested() {
        for command in ["generate", "translate", "chat"] {
            let (said, tips) = answer(&[command, "x", "--sets", "a=b"]);
            assert!(tips.is_empty() && !said.contains("'--set'"), "{said}");
        }
        let (said, _) = answer(&["train", "--stpes", "5"]);
        assert!(said.contains("--stpes") && said.contains("--help"), "{said}");
    }
}
