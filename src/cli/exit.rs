//! Exit codes, and the code of each error.

use std::io;

use kiln_data::Error as DataError;
use kiln_data::files::replace::FileError;
use kiln_interchange::gguf::GgufError;
use kiln_interchange::hugging_face::FolderError;
use kiln_lab::diagnose::workload::ShapeError;
use kiln_lab::report::history::HistoryError;
use kiln_model::hf::HfError;
use kiln_ranks::{DevicesError, WorldError};
use kiln_train::checkpoint::{CheckpointError, NotTheSameRun};
use kiln_train::config::ConfigError;
use kiln_train::device::{DeviceError, PrecisionError};
use kiln_train::generate::GenerateError;
use kiln_train::run::RunError;

use super::error::{NotUtf8, Usage};

/// The command failed while running: a full disk, a device out of memory, a bug.
pub const FAILED: u8 = 1;
/// The command line or the configuration is wrong; nothing was done.
pub const USAGE: u8 = 2;
/// A text, a tokenizer, a token cache or a checkpoint is damaged or not valid.
pub const BAD_DATA: u8 = 3;
/// A second signal ended a training run at once; its last checkpoint can be resumed. The first signal saves and ends
/// with code 0.
pub const INTERRUPTED: u8 = 130;

/// The section of `--help`.
pub const HELP: &str = "\
Exit codes:
  0    done
  1    the command failed while running: a full disk, a device out of memory
  2    the command line or the configuration is wrong; nothing was done
  3    bad data: a text, a tokenizer, a token cache or a checkpoint is damaged or not valid
  130  a second signal stopped training at once; --resume continues from the last checkpoint (the first signal saves and
       ends with 0)

Results go to stdout, everything else to stderr.";

/// Returns the exit code of an error: the code of the first cause that has one.
pub(super) fn code_of(error: &anyhow::Error) -> u8 {
    error.chain().find_map(code_of_cause).unwrap_or(FAILED)
}

fn code_of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<u8> {
    let is_usage = cause.is::<Usage>()
        || cause.is::<ConfigError>()
        || cause.is::<DeviceError>()
        || cause.is::<DevicesError>()
        || cause.is::<WorldError>()
        || cause.is::<PrecisionError>()
        || cause.is::<NotTheSameRun>()
        || cause.is::<RunError>()
        || cause.is::<ShapeError>();
    if is_usage {
        return Some(USAGE);
    }

    if let Some(error) = cause.downcast_ref::<DataError>() {
        return Some(match error {
            DataError::Io { error, .. } => code_of_io(error),
            DataError::WorkerPanicked(_) | DataError::Stopped(_) => FAILED,
            _ => BAD_DATA,
        });
    }
    if let Some(error) = cause.downcast_ref::<CheckpointError>() {
        return Some(match error {
            CheckpointError::Io { source, .. } => code_of_io(source),
            CheckpointError::Missing { .. } => USAGE,
            CheckpointError::Moved(_) => FAILED,
            _ => BAD_DATA,
        });
    }
    if let Some(error) = cause.downcast_ref::<FileError>() {
        return Some(code_of_io(&error.source));
    }
    if let Some(error) = cause.downcast_ref::<FolderError>() {
        return Some(match error {
            FolderError::Io { source, .. } => code_of_io(source),
            FolderError::NotAModel { .. } | FolderError::Taken(_) | FolderError::Beyond { .. } => USAGE,
            FolderError::BadFile { .. } => BAD_DATA,
        });
    }
    if let Some(error) = cause.downcast_ref::<GgufError>() {
        return Some(match error {
            GgufError::Io { source, .. } => code_of_io(source),
            GgufError::Taken(_) | GgufError::NotExpressible(_) | GgufError::Beyond { .. } => USAGE,
        });
    }

    if let Some(error) = cause.downcast_ref::<HfError>() {
        return Some(if matches!(error, HfError::NotExpressible { .. }) { USAGE } else { BAD_DATA });
    }
    if let Some(error) = cause.downcast_ref::<HistoryError>() {
        return Some(match error {
            HistoryError::Unreadable { source, .. } => code_of_io(source),
            _ => USAGE,
        });
    }
    if let Some(error) = cause.downcast_ref::<io::Error>()
        && error.kind() == io::ErrorKind::InvalidData
    {
        return Some(BAD_DATA);
    }
    if cause.is::<NotUtf8>() {
        return Some(BAD_DATA);
    }

    match cause.downcast_ref::<GenerateError>()? {
        GenerateError::TooFewBeams { .. }
        | GenerateError::UnknownStopToken(_)
        | GenerateError::UnknownBadWord(_)
        | GenerateError::Int8OnGpu => Some(USAGE),
        GenerateError::TooLong { .. }
        | GenerateError::PrefixTooLong { .. }
        | GenerateError::PromptTooLong { .. }
        | GenerateError::EmptyPrompt { .. }
        | GenerateError::NoMask { .. }
        | GenerateError::NoToken { .. }
        | GenerateError::OtherVocabulary { .. } => Some(BAD_DATA),
        GenerateError::Tokenizer(_) => None, // its cause, which follows in the chain, has the code
        GenerateError::Device { .. } | GenerateError::Output(_) => Some(FAILED),
    }
}

/// Returns the exit code of a system error. A missing file is a mistake of the command line; other failures are the
/// machine's.
fn code_of_io(error: &io::Error) -> u8 {
    match error.kind() {
        io::ErrorKind::NotFound => USAGE,
        io::ErrorKind::InvalidData => BAD_DATA,
        _ => FAILED,
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;
    use kiln_model::hf::Family;

    use super::*;

    #[test]
    fn the_cause_decides_whatever_is_said_around_it() {
        let missing = CheckpointError::Missing { wanted: "best".into(), dir: "runs/x".into(), have: String::new() };
        let damaged = CheckpointError::NotACheckpoint("runs/x".into());
        let not_found =
            CheckpointError::Io { action: "read", path: "x".into(), source: io::ErrorKind::NotFound.into() };
        let full = CheckpointError::Io { action: "write", path: "x".into(), source: io::ErrorKind::StorageFull.into() };

        for (error, code) in [
            (anyhow::Error::new(Usage("no".into())), USAGE),
            (anyhow::Error::new(ConfigError { problems: vec!["no".into()] }), USAGE),
            (anyhow::Error::new(DeviceError::Unknown("tpu".into())), USAGE),
            (anyhow::Error::new(DevicesError::NoGpus), USAGE),
            (anyhow::Error::new(missing), USAGE),
            (anyhow::Error::new(not_found), USAGE),
            (anyhow::Error::new(full), FAILED),
            (anyhow::Error::new(damaged), BAD_DATA),
            (anyhow::Error::new(FolderError::Taken("out".into())), USAGE),
            (anyhow::Error::new(GgufError::Taken("out.gguf".into())), USAGE),
            (anyhow::Error::new(FolderError::BadFile { path: "x".into(), reason: "is cut short".into() }), BAD_DATA),
            (anyhow::Error::new(HfError::Family { found: "no model_type".into() }), BAD_DATA),
            (anyhow::Error::new(HfError::NotExpressible { family: Family::Gpt2, problems: vec![] }), USAGE),
            (anyhow::Error::new(DataError::BadRows("too many".into())), BAD_DATA),
            (anyhow::Error::new(DataError::WorkerPanicked("oh".into())), FAILED),
            (anyhow::anyhow!("anything"), FAILED),
        ] {
            assert_eq!(code_of(&error), code, "{error}");
            let wrapped = Err::<(), _>(error).context("while doing this").context("and that").expect_err("an error");
            assert_eq!(code_of(&wrapped), code, "{wrapped:#}");
        }
    }
}
