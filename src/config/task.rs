//! What differs by task, in one table.

use kiln_data::Task;
use kiln_model::Architecture;

use super::Preset;

/// The kind of data that a task reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reads {
    /// Source texts and their targets.
    Pairs,
    /// Plain text.
    Text,
}

/// What a task means for the trainer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TaskTraits {
    /// The task in a configuration.
    pub(crate) name: &'static str,
    pub(crate) reads: Reads,
    /// The model that learns the task, and its name in a configuration.
    pub(crate) architecture: (Architecture, &'static str),
    /// The preset of a run that names none and trains on the built-in data.
    pub(crate) built_in_preset: Preset,
    /// The preset of a run that names none and trains on data of its own.
    pub(crate) preset: Preset,
    /// Hides tokens of the input at random: needs a mask token, and a head that predicts what is hidden.
    pub(crate) hides_tokens: bool,
}

/// Every task.
#[cfg(test)]
pub(crate) const TASKS: [Task; 3] = [Task::Translation, Task::Lm, Task::Mlm];

/// Returns the row of `task`.
pub(crate) const fn traits_of(task: Task) -> TaskTraits {
    match task {
        Task::Translation => TaskTraits {
            name: "translation",
            reads: Reads::Pairs,
            architecture: (Architecture::EncoderDecoder, "encoder_decoder"),
            built_in_preset: Preset::Numbers,
            preset: Preset::Base,
            hides_tokens: false,
        },
        Task::Lm => TaskTraits {
            name: "lm",
            reads: Reads::Text,
            architecture: (Architecture::DecoderOnly, "decoder_only"),
            built_in_preset: Preset::Gpt2Tiny,
            preset: Preset::Gpt2Mini,
            hides_tokens: false,
        },
        Task::Mlm => TaskTraits {
            name: "mlm",
            reads: Reads::Text,
            architecture: (Architecture::EncoderOnly, "encoder_only"),
            built_in_preset: Preset::BertTiny,
            preset: Preset::BertSmall,
            hides_tokens: true,
        },
    }
}

impl Preset {
    /// Returns the preset of a run that names none. It depends on the task and on whether the run has text of its own.
    pub fn usual_for(task: Task, has_text: bool) -> Self {
        let row = traits_of(task);
        if has_text { row.preset } else { row.built_in_preset }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_task_agrees_with_its_presets_and_with_its_name_in_files() {
        for task in TASKS {
            let row = traits_of(task);
            assert_eq!(serde_json::to_value(task).expect("a name"), row.name);
            let architecture = serde_json::to_value(row.architecture.0).expect("a name");
            assert_eq!(architecture, row.architecture.1);
            for preset in [row.built_in_preset, row.preset] {
                let config = preset.config();
                assert_eq!((config.task, config.model.architecture), (task, row.architecture.0), "{preset}");
            }
        }
    }
}
