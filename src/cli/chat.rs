//! `kiln chat`: a conversation with a language model.

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use kiln_data::{ChatMessage, ChatTemplate, Role, SpecialEncoder};
use kiln_metrics::logging::print::{over_line, results, stderr_line};
use kiln_train::config::{Config, GenerateConfig};
use kiln_train::generate::{Conversation, TextGenerator};
use serde_json::{Value, json};

use super::config_args::{DeviceArgs, GenerateArgs, NoSetArgs, checked};
use super::error::Usage;
use super::line_breaks::{self, EXAMPLE};
use super::lines::{note_age, read_lines, shell_path, shell_word};

const COMMANDS: &str =
    "/reset forgets the conversation, /system TEXT begins a new one with these instructions, /exit ends";

/// Talks with a language model
///
/// Each line of stdin is a message. The model's chat template writes the conversation, and the answer is printed as it is
/// generated, up to the token that ends the model's turn. A line that begins with a slash is a command: /reset forgets
/// the conversation, /system TEXT begins a new one with these instructions, and /exit ends. A model without a chat
/// template gets ChatML. On a pipe, a line with a JSON object that has `messages` is a conversation of its own: it comes back
/// as a line with the answer as its last message.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kiln chat runs/tuned
  kiln chat runs/tuned --system 'Answer in one sentence.' --temperature 0.7
  echo 'What is the capital of Italy?' | kiln chat runs/tuned --greedy
  kiln chat runs/tuned < chats.jsonl > answers.jsonl")]
pub(super) struct Args {
    /// Run folder, or a checkpoint's folder
    #[arg(value_name = "RUN")]
    run: PathBuf,

    /// Not taken: a message is written to stdin
    #[arg(hide = true)]
    text: Option<String>,

    /// Instructions in front of the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,

    /// Maximum number of tokens of an answer
    #[arg(long, value_name = "N")]
    max_new_tokens: Option<usize>,

    /// best, last, a step's number or its folder's name [default: best, or last without validation]
    #[arg(long, value_name = "NAME")]
    checkpoint: Option<String>,

    #[command(flatten)]
    generate: GenerateArgs,

    #[command(flatten)]
    _no_set: NoSetArgs,

    #[command(flatten)]
    device: DeviceArgs,
}

/// What a line asks for.
#[derive(Debug, PartialEq)]
enum Line<'a> {
    Message(&'a str),
    Reset,
    System(&'a str),
    Exit,
    Help,
    Nothing,
    Unknown(&'a str),
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Self {
        let line = line.trim();
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match word {
            "" => Self::Nothing,
            "/reset" => Self::Reset,
            "/system" => Self::System(rest.trim()),
            "/exit" | "/quit" => Self::Exit,
            "/help" | "/?" => Self::Help,
            command if command.starts_with('/') => Self::Unknown(command),
            _ => Self::Message(line),
        }
    }
}

/// A conversation in progress.
struct Chat {
    conversation: Conversation,
    template: ChatTemplate,
    encoder: SpecialEncoder,
    messages: Vec<ChatMessage>,
    /// Answers so far; the random numbers of an answer depend on it.
    n_answers: u64,
}

impl Chat {
    /// Begins a new conversation.
    fn reset(&mut self, system: Option<&str>) {
        let system = system.filter(|text| !text.is_empty()).map(|text| ChatMessage::new(Role::System, text));
        self.messages = system.into_iter().collect();
    }

    /// Begins a new conversation with the same instructions.
    fn forget(&mut self) {
        self.messages.retain(|message| message.role == Role::System);
    }

    /// Answers a conversation of its own, `{"messages": [...]}`, and writes it with the answer as one line.
    fn answer_row(&mut self, line: &str, output: &mut impl Write) -> Result<()> {
        let mut row: Value = serde_json::from_str(line)?;
        let Some(list) = row["messages"].as_array_mut() else {
            return Err(Usage("a line with a JSON object needs \"messages\", a list of role and content".into()).into());
        };
        // The answer that is there already is the one to write.
        if list.last().is_some_and(|last| last["role"] == Role::Assistant.name()) {
            list.pop();
        }
        let read = |message: &Value| {
            let role =
                [Role::System, Role::User, Role::Assistant].into_iter().find(|role| message["role"] == role.name());
            role.zip(message["content"].as_str()).map(|(role, content)| ChatMessage::new(role, content))
        };
        let read: Option<Vec<ChatMessage>> = list.iter().map(read).collect();
        self.messages = read.filter(|messages| !messages.is_empty()).ok_or_else(|| {
            Usage("\"messages\" needs a role (system, user, assistant) and a content in each message".into())
        })?;

        let answer = self.write_answer(&mut io::sink())?;
        list.push(json!({"role": Role::Assistant.name(), "content": answer}));
        self.n_answers += 1;
        writeln!(output, "{row}")?;
        Ok(output.flush()?)
    }

    /// Answers a message. After an error the conversation is as it was before.
    fn answer(&mut self, text: &str, output: &mut impl Write) -> Result<()> {
        let n_before = self.messages.len();
        self.messages.push(ChatMessage::new(Role::User, text));
        let answered = self.write_answer(output);
        match &answered {
            Ok(answer) => self.messages.push(ChatMessage::new(Role::Assistant, answer)),
            Err(_) => self.messages.truncate(n_before),
        }
        self.n_answers += 1;
        answered.map(drop)
    }

    fn write_answer(&mut self, output: &mut impl Write) -> Result<String> {
        let failed =
            |problem| kiln_data::Error::Invalid(format!("the chat template refuses the conversation: {problem}"));
        let prompt = self.template.render(&self.messages, true).map_err(failed)?;
        let ids = self.encoder.encode(&prompt)?;
        let found = self.conversation.answer(ids, self.n_answers, &mut |piece| {
            output.write_all(piece.as_bytes())?;
            output.flush()
        })?;
        writeln!(output)?;
        Ok(found.text.trim().to_owned())
    }
}

pub(super) fn run(args: Args) -> Result<()> {
    if let Some(text) = &args.text {
        let command = format!("echo {} | kiln chat {}", shell_word(text), shell_path(&args.run));
        return Err(Usage(format!("{text:?}: pass the message on stdin: {command}")).into());
    }
    let (device, run) = args.device.open_with(&args.run, args.checkpoint.as_deref())?;
    run.check_language_model()?;
    note_age(&run, &args.run, args.checkpoint.as_deref());

    let (model, tokenizer) = run.language_model(run.dtype_on(&device)?, &device)?;
    let (template, encoder) = (tokenizer.chat_template()?, tokenizer.special_encoder()?);
    if template.is_default() {
        stderr_line!("note: the run has no chat template of its own; the conversation is written with ChatML");
    }
    let config = args.generate.apply(&run.config.generate)?;
    let config = GenerateConfig { max_new_tokens: args.max_new_tokens.unwrap_or(config.max_new_tokens), ..config };
    let config = checked(ending_at_turns(config, &template, &encoder)?)?;
    let conversation = Conversation::new(TextGenerator::new(&model, tokenizer, config)?.in_int8(args.generate.int8)?);

    let mut chat = Chat { conversation, template, encoder, messages: Vec::new(), n_answers: 0 };
    chat.reset(args.system.as_deref());
    talk(&mut chat, &run.config, &mut io::stdin().lock(), &mut results(), io::stdin().is_terminal())
}

/// Says how a message with line breaks is passed, if the model has learned from such ones.
fn note_line_breaks(config: &Config) {
    let example = json!({ "messages": [{ "role": Role::User.name(), "content": EXAMPLE }] });
    line_breaks::note(
        config,
        "messages",
        &format!("a message with line breaks is in a line of JSON, such as {example}"),
    );
}

/// Lets an answer end where the template ends a turn: at a token if it has one, else at its text.
fn ending_at_turns(
    mut config: GenerateConfig,
    template: &ChatTemplate,
    encoder: &SpecialEncoder,
) -> Result<GenerateConfig> {
    // A template that refuses two messages ends its turns with the end token.
    let end = template.end_of_turn().unwrap_or_default();
    match encoder.first_added_token(&end)? {
        Some(token) => config.stop_tokens.push(token),
        None if !end.is_empty() => config.stop.push(end),
        None => {}
    }
    Ok(config)
}

/// Answers each line of `input`. `typed`: somebody sits at a terminal, so that an error does not end the conversation.
fn talk(
    chat: &mut Chat,
    config: &Config,
    input: &mut impl BufRead,
    output: &mut impl Write,
    typed: bool,
) -> Result<()> {
    if typed {
        stderr_line!("{COMMANDS}");
    }
    let mut n_lines = 0;
    loop {
        if typed {
            over_line("> ");
        }
        let lines = read_lines(input, "stdin", 1, n_lines)?;
        let Some(line) = lines.first() else { return Ok(()) };
        n_lines += 1;

        match Line::parse(line) {
            Line::Nothing => {}
            Line::Exit => return Ok(()),
            Line::Help => stderr_line!("{COMMANDS}"),
            Line::Reset => chat.forget(),
            Line::System(text) => chat.reset(Some(text)),
            Line::Unknown(command) => {
                let problem = format!("unknown command {command}: {COMMANDS}");
                if !typed {
                    return Err(Usage(format!("line {n_lines} of stdin: {problem}")).into());
                }
                stderr_line!("{problem}");
            }

            Line::Message(row) if !typed && row.starts_with('{') && serde_json::from_str::<Value>(row).is_ok() => {
                chat.answer_row(row, output).with_context(|| format!("line {n_lines} of stdin"))?;
            }
            Line::Message(text) => {
                if !typed && chat.n_answers == 0 {
                    note_line_breaks(config);
                }
                match chat.answer(text, output) {
                    Err(error) if typed && error.downcast_ref::<io::Error>().is_none() => {
                        stderr_line!("\nerror: {error:#}")
                    }
                    answered => answered?,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_message_or_a_command() {
        for (line, wanted) in [
            ("Hello there", Line::Message("Hello there")),
            (" spaced ", Line::Message("spaced")),
            ("", Line::Nothing),
            ("/reset", Line::Reset),
            ("/system Be  brief.", Line::System("Be  brief.")),
            ("/system", Line::System("")),
            ("/exit", Line::Exit),
            ("/help", Line::Help),
            ("/halp me", Line::Unknown("/halp")),
        ] {
            assert_eq!(Line::parse(line), wanted, "{line:?}");
        }
    }
}
