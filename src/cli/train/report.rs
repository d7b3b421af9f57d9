//! The result of `kiln train`, for people.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use kiln_data::{Example, LabelledCorpus, TextCorpus};
use kiln_metrics::logging::print::stdout_line;
use kiln_metrics::logging::wrap::{for_stdout, without_middle, wrapped};
use kiln_metrics::units::{counted, duration, thousands};
use kiln_train::Model;
use kiln_train::config::task::{Reads, traits_of};
use kiln_train::config::{Config, Task};
use kiln_train::eval::Init;
use kiln_train::metrics::ValidationMetrics;
use kiln_train::run::Session;
use kiln_train::train::{Outcome, Trainer};
use serde_json::json;

use crate::cli::lines::{one_line, shell_path};

/// Translations shown after the last step.
const N_SAMPLES: usize = 3;
/// Characters of a sample that are shown.
const MOST_CHARACTERS: usize = 70;
/// Width of the lines.
const COLUMNS: usize = 80;
/// Most characters of a text with line breaks in the next command.
const MOST_IN_JSON: usize = 1500;

/// Describes the speed of a run in a line.
pub(super) fn speed(outcome: &Outcome) -> String {
    let speed = &outcome.throughput;
    format!(
        "step {} after {}: {} tok/s without padding (padding {:.0}%){}{}",
        outcome.step,
        duration(Duration::from_secs_f64(outcome.train_secs)),
        thousands(speed.tokens_per_sec),
        100.0 * speed.padding_ratio,
        if outcome.data_wait_share >= 0.01 {
            format!(", data wait {:.0}%", 100.0 * outcome.data_wait_share)
        } else {
            String::new()
        },
        match outcome.late_kernels {
            None | Some(0) => String::new(),
            Some(n) => format!(", {} compiled during training", counted(n as u64, "kernel")),
        }
    )
}

/// Says how to continue a run that was stopped, on the same `devices` if there were several.
pub(super) fn stopped(outcome: &Outcome, dir: &Path, devices: Option<&str>) -> String {
    let what = match outcome.checkpoint {
        Some(_) => format!("stopped after step {} and saved", outcome.step),
        None if outcome.step == 0 => "stopped before the first step".into(),
        None => format!("stopped at step {}, which is saved", outcome.step),
    };
    let devices = devices.map_or(String::new(), |list| format!(" --devices {list}"));
    format!("{what}; continue with: {} train --run {} --resume{devices}", program(), shell_path(dir))
}

/// Prints scores and samples of a trained model, and the next command.
///
/// `shown`: the console has shown the scores on the same screen.
pub(super) fn print<M: Model>(
    outcome: &Outcome,
    session: &Session<M>,
    dir: &Path,
    shown: bool,
    init: &Init<'_, M>,
) -> Result<()> {
    let trainer = session.trainer();
    let _installed = trainer.operators().install();
    let samples = samples(&trainer.validation().examples);
    print_result(outcome, &samples, shown);
    if let Some(best) = outcome.best.as_ref().filter(|best| best.step < outcome.step) {
        let (step, last) = (best.step, outcome.step);
        stdout_line!(
            "best: step {step}, loss {:.4}; commands use it, and --checkpoint last takes step {last}",
            best.loss
        );
    }

    let is_chat = trainer.config().data.text.is_chat();
    if let Some(prompt) = session.prompt()
        && let Some(text) = written(outcome, trainer, prompt, shown)?
    {
        let between = if is_chat { " -> " } else { "" };
        let prompt = without_middle(prompt, 2 * MOST_CHARACTERS);
        stdout_line!("{}", wrapped(&one_line(&format!("  {prompt}{between}{text}")), COLUMNS));
    }
    let next = match is_chat {
        // The files of the configuration are not what it has learned.
        _ if init.data().is_some() => format!("{} report {}", program(), shell_path(dir)),
        _ if init.is_own() => format!("{} evaluate {}", program(), shell_path(dir)),
        true => chat_command(session.prompt(), system_of(trainer.config()).as_deref(), dir),
        false => next_command(trainer.config().task, &samples, session.prompt(), dir) + &second_text(trainer.config()),
    };
    stdout_line!("Next: {next}");
    Ok(())
}

/// Returns how the model continues `prompt`, or `None` if it does not, or if the console has shown it.
fn written<M: Model>(outcome: &Outcome, trainer: &Trainer<M>, prompt: &str, shown: bool) -> Result<Option<String>> {
    let validated_step = outcome.validation.as_ref().map(|validation| validation.step);
    match &outcome.continuation {
        Some(text) if validated_step == Some(outcome.step) => Ok((!shown).then(|| text.clone())),
        _ => Ok(trainer.state().model.continue_prompt(prompt, trainer.vocabulary(), trainer.config())?),
    }
}

/// Returns a few rows from all over the validation text, with their numbers.
fn samples(examples: &[Example]) -> Vec<(usize, Example)> {
    let rows = (1..=N_SAMPLES).map(|n| n * examples.len() / (N_SAMPLES + 1));
    let mut rows: Vec<_> = rows.filter(|row| *row < examples.len()).collect();
    rows.dedup();
    rows.into_iter().map(|row| (row, examples[row].clone())).collect()
}

fn print_result(outcome: &Outcome, samples: &[(usize, Example)], shown: bool) {
    if let Some(validation) = outcome.validation.as_ref().filter(|_| !shown) {
        stdout_line!("{}", scores(validation));
    }
    for (row, example) in samples {
        if let Some(hypothesis) = outcome.hypotheses.get(*row) {
            let verdict = if hypothesis == &example.target { "=" } else { "!=" };
            let lines = sample(&cut(&example.source), &cut(hypothesis), verdict, &cut(&example.target));
            lines.lines().for_each(|line| stdout_line!("{}", for_stdout(line)));
        }
    }
}

/// Shows a translation and its reference: in two lines, or in three if the first would be too long.
fn sample(source: &str, hypothesis: &str, verdict: &str, target: &str) -> String {
    let line = format!("  {source} -> {hypothesis}");
    let line = if line.chars().count() <= COLUMNS { line } else { format!("  {source}\n    -> {hypothesis}") };
    format!("{line}\n    {verdict} {target}")
}

fn scores(validation: &ValidationMetrics) -> String {
    let mut line = format!("validation: nll {:.4}{}", validation.nll, validation.perplexity_after(", ", 3));
    if let Some(bits) = validation.bits_per_byte {
        line += &format!(", {bits:.4} bits/byte");
    }
    if let (Some(model), Some(unigram)) = (validation.masked_accuracy, validation.unigram_accuracy) {
        line += &format!(", masked accuracy {:.2}% (unigram {:.2}%)", 100.0 * model, 100.0 * unigram);
    }
    if let Some(rewards) = validation.rewards_in_words() {
        line += &format!(", {rewards}");
    }
    for (name, value) in validation.of_classes() {
        line += &format!(", {name} {:.2}%", 100.0 * value);
    }
    if let Some(bleu) = validation.bleu_in_words() {
        line += &format!(", {bleu}");
    }
    if let Some(chrf) = validation.chrf {
        line += &format!(", chrF2 {chrf:.2}");
    }
    if let Some(share) = validation.exact_match {
        line += &format!(", exact match {:.1}%", 100.0 * share);
    }
    line
}

/// Returns the command that uses the trained model.
fn next_command(task: Task, samples: &[(usize, Example)], prompt: Option<&str>, dir: &Path) -> String {
    let traits = traits_of(task);
    let placeholder = if traits.hides_tokens { "... [MASK] ..." } else { "..." };
    if traits.reads == Reads::Pairs
        && let Some(passed) = passed_as_json(&shortest(samples), |text| json!({ "source": text }))
    {
        return format!("{passed} | {} translate {}", program(), shell_path(dir));
    }
    let input = match traits.reads {
        Reads::Pairs => next_input(samples),
        Reads::Text => prompt.filter(|prompt| !prompt.contains('\'')).unwrap_or(placeholder),
    };
    let command = traits.next.replace("{program}", &program()).replace("{run}", &shell_path(dir));
    command.replace("{input}", input)
}

/// Returns the command that passes a text with line breaks as a line of JSON; `None` for other texts, which a line is enough for. `echo`
/// would change the escapes of JSON.
fn passed_as_json(text: &str, row: impl Fn(&str) -> serde_json::Value) -> Option<String> {
    let text = text.trim();
    let is_long = text.chars().count() > MOST_IN_JSON;
    let row = row(if is_long { "..." } else { text }).to_string().replace('\'', "\\u0027");
    text.contains('\n').then(|| format!("printf '%s\\n' '{row}'"))
}

/// Returns the flag with a second text, for a model that has learned from two. Files that are gone have none.
fn second_text(config: &Config) -> String {
    let is_of_texts = config.task == Task::Classification;
    let pair =
        is_of_texts.then(|| LabelledCorpus::first_pair(&config.data.train_files(), &config.data.labels)).flatten();
    pair.map_or(String::new(), |[_, second]| format!(" --pair '{}'", Some(&*second).filter(is_short).unwrap_or("...")))
}

/// Whether a text stands between quotes in a line.
fn is_short(text: &&str) -> bool {
    !text.contains(['\'', '\n']) && text.chars().count() <= MOST_CHARACTERS
}

/// Returns the instructions in front of most conversations of the training text. Files that are gone have none.
fn system_of(config: &Config) -> Option<String> {
    TextCorpus::open(&config.data.train_files(), &config.data.text).ok()?.first_system().ok()?
}

/// Returns the command that talks with a model that learned conversations, behind the instructions that it has learned them with.
fn chat_command(question: Option<&str>, system: Option<&str>, dir: &Path) -> String {
    let messages = |text: &str| {
        let system = system.map(|content| json!({ "role": "system", "content": content }));
        let all: Vec<_> = system.into_iter().chain([json!({ "role": "user", "content": text })]).collect();
        json!({ "messages": all })
    };
    if let Some(passed) = question.and_then(|question| passed_as_json(question, messages)) {
        return format!("{passed} | {} chat {}", program(), shell_path(dir));
    }
    let question = question.filter(is_short).unwrap_or("...");
    let system = system.map(|text| format!(" --system '{}'", Some(text).filter(is_short).unwrap_or("...")));
    format!("echo '{question}' | {} chat {}{}", program(), shell_path(dir), system.unwrap_or_default())
}

/// Returns the shortest source.
fn shortest(samples: &[(usize, Example)]) -> String {
    samples
        .iter()
        .map(|(_, example)| example.source.as_str())
        .min_by_key(|source| source.len())
        .unwrap_or("")
        .to_owned()
}

/// Returns the shortest source that the model should be able to translate, as one shell word.
fn next_input(samples: &[(usize, Example)]) -> &str {
    let is_plain = |source: &&str| !source.contains(['\'', '\n', '\\']);
    let sources = samples.iter().map(|(_, example)| example.source.as_str()).filter(is_plain);
    sources.min_by_key(|source| source.len()).unwrap_or("...")
}

/// Shortens a text to about a line of a terminal.
fn cut(text: &str) -> String {
    let text = &one_line(text.trim_end());
    match text.char_indices().nth(MOST_CHARACTERS) {
        Some((at, _)) => format!("{}...", text[..at].trim_end()),
        None => text.to_owned(),
    }
}

/// Returns the name that this program was called by.
fn program() -> String {
    std::env::args().next().map_or_else(|| "kiln".into(), |name| shell_path(Path::new(&name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(n: usize) -> Example {
        Example { source: n.to_string(), target: n.to_string() }
    }

    #[test]
    fn samples_come_from_all_over_and_only_once() {
        let examples: Vec<_> = (0..100).map(example).collect();
        let rows: Vec<_> = samples(&examples).iter().map(|(row, _)| *row).collect();
        assert_eq!(rows, [25, 50, 75]);
        assert_eq!(samples(&examples[..1]).len(), 1);
        assert_eq!(samples(&[]), []);
    }

    #[test]
    fn long_samples_are_cut_between_characters() {
        assert_eq!(cut("seven"), "seven");
        assert_eq!(cut(&"è ".repeat(50)), format!("{}...", "è ".repeat(35).trim_end()));
    }

    #[test]
    fn samples_fit_into_the_columns() {
        assert_eq!(sample("7", "seven", "=", "seven"), "  7 -> seven\n    = seven");
        let long = "a".repeat(70);
        let text = sample(&long, &long, "!=", &long);
        assert!(text.lines().count() == 3 && text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
    }

    #[test]
    fn the_next_command_survives_a_shell() {
        let quoted = (0, Example { source: "l'albero".into(), target: "the tree".into() });
        assert_eq!(next_input(std::slice::from_ref(&quoted)), "...");
        assert_eq!(next_input(&[quoted, (1, example(7))]), "7");
        let lines = (0, Example { source: "def it's():\n  pass\\".into(), target: "nothing".into() });
        let json = next_command(Task::Translation, &[lines], None, Path::new("runs/code"));
        assert!(json.starts_with(r#"printf '%s\n' '{"source":"def it\u0027s():\n  pass\\"}' | "#), "{json}");
        assert!(json.ends_with(" translate runs/code"), "{json}");

        let next = |prompt| next_command(Task::Lm, &[], prompt, Path::new("runs/lm"));
        assert!(next(Some("It is")).ends_with("generate runs/lm --prompt 'It is'"));
        assert!(next(Some("It's")).ends_with("--prompt '...'") && next(None).ends_with("--prompt '...'"));
        let masked = |prompt| next_command(Task::Mlm, &[], prompt, Path::new("runs/mlm"));
        assert!(masked(Some("It [MASK] late")).ends_with("fill runs/mlm 'It [MASK] late'"));
        assert!(masked(None).ends_with("fill runs/mlm '... [MASK] ...'"));
        let spaced = next_command(Task::Lm, &[], None, Path::new("runs/my lm"));
        assert!(spaced.ends_with("generate 'runs/my lm' --prompt '...'"), "{spaced}");
        let chat = |question| chat_command(question, None, Path::new("runs/chat"));
        assert!(chat(Some("Who?")).starts_with("echo 'Who?' | ") && chat(Some("Who?")).ends_with(" chat runs/chat"));
        let with_system = |system| chat_command(Some("Who?"), Some(system), Path::new("runs/chat"));
        assert!(with_system("Be kind.").ends_with(" chat runs/chat --system 'Be kind.'"));
        assert!(with_system("Don't.").ends_with(" --system '...'"));
        let json = chat_command(Some("It is.\nWho?"), Some("Don't."), Path::new("runs/chat"));
        let system = r#"{"content":"Don\u0027t.","role":"system"}"#;
        assert!(json.starts_with(&format!(r#"printf '%s\n' '{{"messages":[{system},"#)), "{json}");
        assert!(json.ends_with(" chat runs/chat") && json.contains(r"It is.\nWho?"), "{json}");
        let long = chat_command(Some(&"a line\n".repeat(900)), None, Path::new("runs/chat"));
        assert!(long.contains(r#""content":"...""#), "{long}");
        assert!(chat(Some("Who's there?")).starts_with("echo '...'") && chat(None).starts_with("echo '...'"));
    }
}
