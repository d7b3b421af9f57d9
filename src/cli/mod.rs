//! The command line: one file per subcommand. Results go to stdout, everything else to stderr; [`exit`] lists the exit
//! codes.

mod average;
mod bench;
mod chat;
mod check;
mod classify;
mod compare;
mod config;
mod config_args;
mod data;
mod diagnose;
mod doctor;
mod error;
mod evaluate;
pub mod exit;
mod export;
mod fill;
mod generate;
mod heap;
mod import;
mod limits;
mod line_breaks;
mod lines;
mod memory;
mod of_run;
mod other_input;
mod pool;
mod prepare;
mod profile;
mod report;
mod tips;
mod together;
mod tokenizer;
mod train;
mod translate;
mod warm;

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io::ErrorKind as IoKind;
use std::process::ExitCode;

use anyhow::Result;
use burn::tensor::Device;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use kiln_data::terminal::clean;
use kiln_metrics::logging::print::stderr_line;
use kiln_model::TransformerConfig;
use kiln_train::dataset::{OwnData, RunData};
use kiln_train::device::take_kernel_notes;
use kiln_train::eval::Init;
use kiln_train::{Config, Model};

/// Trains Transformers in pure Rust on Burn, on a CPU or an NVIDIA GPU.
#[derive(Debug, Parser)]
#[command(name = "kiln", version, propagate_version = true, after_help = exit::HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Train(train::Args),
    Prepare(prepare::Args),
    Tokenizer(tokenizer::Args),
    Evaluate(evaluate::Args),
    Translate(translate::Args),
    Generate(generate::Args),
    Chat(chat::Args),
    Fill(fill::Args),
    Classify(classify::Args),
    Average(average::Args),
    Import(import::Args),
    Export(export::Args),
    Bench(bench::Args),
    Check(check::Args),
    Compare(compare::Args),
    Report(report::Args),
    Data(data::Args),
    Memory(memory::Args),
    Profile(profile::Args),
    Diagnose(diagnose::Args),
    Config(config::Args),
    Warm(warm::Args),
    Doctor(doctor::Args),
}

impl Command {
    /// Returns the name of a command that reads the files of a configuration.
    fn of_files(&self) -> Option<&'static str> {
        Some(match self {
            Self::Prepare(_) => "prepare",
            Self::Evaluate(_) => "evaluate",
            Self::Data(_) => "data",
            _ => return None,
        })
    }

    /// Returns the name of a command that uses a Transformer: its texts, its weights or its published form.
    fn of_transformers(&self) -> Option<&'static str> {
        Some(match self {
            Self::Translate(_) => "translate",
            Self::Generate(_) => "generate",
            Self::Chat(_) => "chat",
            Self::Fill(_) => "fill",
            Self::Classify(_) => "classify",
            Self::Import(_) => "import",
            Self::Export(_) => "export",
            _ => return None,
        })
    }
}

/// The command line as clap knows it, so that tests can parse what documents tell people to type.
#[doc(hidden)]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Parses the command line, runs the command, and reports its error.
pub fn main() -> ExitCode {
    main_as(&Init::transformer())
}

/// Does the same as [`main`], for a program with a model of its own: `kiln train`, `evaluate`, `bench`, `diagnose`, `profile`, `memory`, `check`
/// and `warm` use the model that `init` makes. `init` is as in [`Run::train_model`](crate::Run::train_model). Commands that need Kiln's
/// Transformers, such as `translate` and `export`, are refused.
///
/// ```no_run
/// # use burn::{module::{Module, Param}, tensor::{Device, Tensor}};
/// # use kiln_model::{Batch, DropoutStream, LossSums, TransformerConfig};
/// # #[derive(Module, Debug)]
/// # struct MyModel { weight: Param<Tensor<2>> }
/// # impl MyModel {
/// #     fn init(_: &TransformerConfig, _: &Device) -> Self { unimplemented!() }
/// # }
/// # impl kiln::Model for MyModel {
/// #     fn loss(&self, _: &Batch, _: f64, _: Option<&DropoutStream>) -> LossSums { unimplemented!() }
/// # }
/// fn main() -> std::process::ExitCode {
///     kiln::cli::main_for(MyModel::init)
/// }
/// ```
pub fn main_for<M: Model>(init: impl Fn(&TransformerConfig, &Device) -> M) -> ExitCode {
    main_as(&Init::own(init))
}

/// Does the same as [`main_for`], for a program that has data of its own, too: `data` makes it for the configuration of a run, as for
/// [`Run::train_model_on`](crate::Run::train_model_on). Commands that read the files of a configuration, such as `evaluate`, are refused.
pub fn main_on<M: Model>(
    data: impl Fn(&Config) -> Result<RunData> + Send + Sync + 'static,
    init: impl Fn(&TransformerConfig, &Device) -> M,
) -> ExitCode {
    main_as(&Init::own(init).reading(OwnData::new(data)))
}

fn main_as<M: Model>(init: &Init<'_, M>) -> ExitCode {
    clean_panics();
    // Before anything that needs a stack.
    if let Err(error) = limits::check() {
        stderr_line!("error: {error}");
        return ExitCode::from(exit::USAGE);
    }
    heap::keep_freed_memory();
    let command = parsed().command;
    let ran = pool::check().map_err(Into::into).and_then(|()| run(command, init));
    // Training has logged them.
    take_kernel_notes().iter().for_each(|note| stderr_line!("{note}"));
    match ran {
        Ok(code) => code,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            stderr_line!("error: {}", in_one_line(&error));
            ExitCode::from(exit::code_of(&error))
        }
    }
}

/// Parses the command line. An option that the command does not have is answered with what was meant.
fn parsed() -> Cli {
    Cli::try_parse().unwrap_or_else(|mut error| {
        if error.kind() == ErrorKind::InvalidUtf8
            && let Some(argument) = std::env::args_os().find(|argument| argument.to_str().is_none())
        {
            stderr_line!("error: {}", not_utf8(&argument));
            std::process::exit(error.exit_code());
        }
        if error.kind() != ErrorKind::UnknownArgument {
            error.exit();
        }
        let words: Vec<String> = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
        let tips = tips::explain(&mut error, &words);
        let _ = error.print();
        tips.iter().for_each(|tip| stderr_line!("{tip}"));
        std::process::exit(error.exit_code());
    })
}

/// Says which argument is not text. A file of such a name can be read in the folder that it is in.
fn not_utf8(argument: &OsStr) -> String {
    format!(
        "the argument '{}' is not UTF-8: if it names a file, rename the file, or name the folder that it is in",
        argument.as_encoded_bytes().escape_ascii()
    )
}

fn run<M: Model>(command: Command, init: &Init<'_, M>) -> Result<ExitCode> {
    if let Some(name) = command.of_transformers().filter(|_| init.is_own()) {
        let text = format!("{name} needs one of Kiln's Transformers, and this program has a model of its own");
        return Err(error::Usage(text).into());
    }
    if let Some(name) = command.of_files().filter(|_| init.data().is_some()) {
        let text = format!("{name} reads the files of the configuration, and this program has data of its own");
        return Err(error::Usage(text).into());
    }
    let done = match command {
        Command::Train(args) => return train::run(args, init),
        Command::Bench(args) => return bench::run(args, init),
        Command::Diagnose(args) => return diagnose::run(args, init),
        Command::Profile(args) => return profile::run(args, init),
        Command::Evaluate(args) => return evaluate::run(args, init),
        Command::Translate(args) => return translate::run(args),

        Command::Prepare(args) => prepare::run(args),
        Command::Tokenizer(args) => tokenizer::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Chat(args) => chat::run(args),
        Command::Fill(args) => fill::run(args),
        Command::Classify(args) => classify::run(args),
        Command::Average(args) => average::run(args),
        Command::Import(args) => import::run(args),
        Command::Export(args) => export::run(args),
        Command::Check(args) => check::run(args, init),
        Command::Compare(args) => compare::run(args),
        Command::Report(args) => report::run(args),
        Command::Data(args) => data::run(args),
        Command::Memory(args) => memory::run(args, init),
        Command::Config(args) => config::run(args),
        Command::Warm(args) => warm::run(args, init),
        Command::Doctor(args) => doctor::run(args),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// Joins the error and its causes, without causes that the text before them already contains.
fn in_one_line(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    let is_full = |cause: &(dyn std::error::Error + 'static)| {
        let io = cause.downcast_ref::<std::io::Error>();
        io.is_some_and(|io| matches!(io.kind(), IoKind::StorageFull | IoKind::QuotaExceeded))
    };
    if error.chain().any(is_full) && !text.contains("free ") {
        text += "; free space there, or choose a folder on another disk, and repeat the command";
    }
    text
}

/// Returns whether the reader of stdout has closed it (`kiln translate | head`).
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
    io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Lets a panic say what it must without control characters: its text may quote what strangers wrote.
fn clean_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| match clean(panic.payload_as_str().unwrap_or_default()) {
        Cow::Borrowed(_) => report(panic),
        Cow::Owned(message) => stderr_line!("panicked at {}: {message}", panic.location().expect("a location")),
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_cause_is_reported_once() {
        let reported =
            anyhow::anyhow!("no such file").context("x.jsonl: opening failed: no such file").context("data.train");
        assert_eq!(in_one_line(&reported), "data.train: x.jsonl: opening failed: no such file");
        let separate = anyhow::anyhow!("disk full").context("saving");
        assert_eq!(in_one_line(&separate), "saving: disk full");
    }

    #[test]
    fn every_subcommand_explains_itself_with_an_example() {
        for command in Cli::command().get_subcommands() {
            let help = command.clone().render_long_help().to_string();
            assert!(help.contains("Example"), "{}:\n{help}", command.get_name());
            assert!(help.contains("kiln "), "{}:\n{help}", command.get_name());
        }
    }
}
