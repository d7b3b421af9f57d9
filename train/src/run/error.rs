//! Requests that a run folder cannot grant.

use std::io;
use std::path::{Path, PathBuf};

use kiln_data::terminal::shell_path;
use kiln_interchange::hugging_face::{ADAPTER_CONFIG_FILE, CONFIG_FILE};
use thiserror::Error;

use crate::checkpoint::RUN_CONFIG_FILE;
use crate::config::Task;
use crate::config::task::traits_of;

/// A request that cannot be granted as it was made; the text says what to do. Nothing was changed.
#[derive(Debug, Error)]
pub enum RunError {
    /// The folder holds no run.
    #[error("{}: {}", .0.display(), instead_of_run(.0))]
    NoRun(PathBuf),
    /// There is nothing to continue in the folder.
    #[error(
        "{}: there is no run to resume here (no {RUN_CONFIG_FILE}); name its folder with --run, or start a new run without \
         --resume{others}", dir.display()
    )]
    NothingToResume {
        /// The folder.
        dir: PathBuf,
        /// The newest run next to it, or nothing.
        others: String,
    },
    /// The folder lies among the checkpoints of a run.
    #[error(
        "{}: this is a checkpoint of {run}: --run {run} --resume continues that run, --from {} starts a new one from this checkpoint",
        dir.display(), shell_path(dir), run = shell_path(run)
    )]
    Checkpoint {
        /// The folder.
        dir: PathBuf,
        /// The run.
        run: PathBuf,
    },
    /// The folder of the new run holds a run.
    #[error("{}: this run folder exists already; {remedy}", dir.display())]
    Exists {
        /// The folder.
        dir: PathBuf,
        /// What to do instead.
        remedy: String,
    },
    /// Another process makes the run.
    #[error(
        "{}: {} is making this run; wait until it ends, or choose another folder with --out", dir.display(),
        pid.map_or("another process".to_string(), |pid| format!("process {pid}"))
    )]
    BeingMade {
        /// The folder.
        dir: PathBuf,
        /// The process, if it is known.
        pid: Option<u32>,
    },
    /// The folder cannot be read.
    #[error("{}: cannot be used as run folder: {source}; choose another one with --run", dir.display())]
    Unusable {
        /// The folder.
        dir: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The run trains for a task that cannot do this.
    #[error("{} is a checkpoint of a run with task = \"{}\", which does not {wanted}: {instead}", path.display(), traits_of(*task).name)]
    OtherTask {
        /// The checkpoint.
        path: PathBuf,
        /// Its task.
        task: Task,
        /// "translate", "continue text".
        wanted: &'static str,
        /// What the task can do.
        instead: &'static str,
    },
    /// `train.steps` is smaller than the number of steps that the run has already taken.
    #[error(
        "{}: this run has already taken {done} steps, more than train.steps = {wanted}; to train longer, set more, for example --set train.steps={longer}",
        dir.display()
    )]
    TrainedFurther {
        /// The run folder.
        dir: PathBuf,
        /// Steps taken.
        done: u64,
        /// `train.steps` now.
        wanted: u64,
        /// An example of more.
        longer: u64,
    },
    /// There is no text to score the run on.
    #[error("this run has no validation text; name {0} with --data")]
    NoValidationText(&'static str),
    /// The validation text of the run is not where its configuration says.
    #[error(
        "{}: the validation text of this run is not there, seen from this folder; name a text with --data, or work in the folder where \
         the run was trained", .0.display()
    )]
    NoSuchValidationText(PathBuf),
    /// The model has no head for masked tokens.
    #[error(
        "{dir} has no head for masked tokens, so it can neither be scored nor fill them in; give it one with kiln train --from \
         {dir} --set model.mlm_head=true", dir = .0.display()
    )]
    NoMaskedHead(PathBuf),
    /// The weights of another run do not fit the configured model.
    #[error(
        "--from {}: these weights belong to another model than model.* of the configuration; of these keys, only dropout, \
         attention_dropout, activation_dropout, mlm_head, pooler, class_head, n_classes and, without learned positions, max_positions may change; adapters \
         (model.lora) may be added or, with model.lora.rank=0, merged; a prompt (model.prompt_tokens) may be added or, with 0, left out",
        .0.display()
    )]
    OtherModel(PathBuf),
    /// The configuration and the vocabulary do not fit.
    #[error("{0}")]
    Config(String),
}

/// Says what to do with a path that holds no run. Models and adapters of other programs become runs by an import.
fn instead_of_run(dir: &Path) -> String {
    let folder = shell_path(dir);
    let instead = if dir.join(ADAPTER_CONFIG_FILE).is_file() {
        format!(
            ", but an adapter of peft: kiln import MODEL --adapter {folder} makes a run of it and the folder of its model"
        )
    } else if dir.join(CONFIG_FILE).is_file() {
        format!(", but a model of transformers: kiln import {folder} makes a run of it")
    } else {
        format!(" (no {RUN_CONFIG_FILE}); name a run folder, kiln train makes runs/NAME")
    };
    format!("there is no run here{instead}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_another_program_is_answered_with_the_import() {
        let folder = tempfile::tempdir().expect("a folder");
        let said = || RunError::NoRun(folder.path().into()).to_string();
        assert!(said().contains("(no config.toml); name a run folder"), "{}", said());
        for (file, wanted) in [
            (CONFIG_FILE, format!("kiln import {} makes a run", folder.path().display())),
            (ADAPTER_CONFIG_FILE, format!("kiln import MODEL --adapter {} makes", folder.path().display())),
        ] {
            std::fs::write(folder.path().join(file), "{}").expect("writable");
            assert!(said().contains("no run here, but") && said().contains(&wanted), "{}", said());
        }
    }
}
