//! What differs by task, in one table.

use kiln_data::Task;
use kiln_model::Architecture;

use super::{Config, Preset};

/// The kind of data that a task reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// Source texts and their targets.
    Pairs,
    /// Plain text.
    Text,
}

/// What has a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Classes {
    /// Each text, or pair of texts.
    OfTexts,
    /// Each word.
    OfWords,
}

/// What a task means for the trainer.
#[derive(Debug, Clone, Copy)]
pub struct TaskTraits {
    /// The task in a configuration.
    pub name: &'static str,
    pub reads: Reads,
    /// The model that learns the task, and its name in a configuration.
    pub architecture: (Architecture, &'static str),
    /// Another one that learns it too.
    pub or_architecture: Option<(Architecture, &'static str)>,
    /// The preset of a run that names none and trains on the built-in data.
    pub built_in_preset: Preset,
    /// The presets of a run that names none and trains on data of its own on a CPU: each with the number of pairs or words
    /// from which on it is taken.
    pub on_cpu: &'static [(u64, Preset)],
    /// The same on a GPU.
    pub on_gpu: &'static [(u64, Preset)],
    /// Hides tokens of the input at random: needs a mask token, and a head that predicts what is hidden.
    pub hides_tokens: bool,
    /// Predicts each token of a text from the tokens before it: the model continues text, and bits per byte are defined.
    pub continues_text: bool,
    /// Predicts classes: reads labelled rows, and needs a head for them.
    pub classes: Option<Classes>,
    /// What to do with a run of this task; a refusal of another task's command says so.
    pub instead: &'static str,
    /// The command to try after training, in which `{program}`, `{run}` and `{input}` are replaced.
    pub next: &'static str,
}

impl TaskTraits {
    /// Returns whether a model of this architecture can learn the task.
    pub fn suits(&self, architecture: Architecture) -> bool {
        self.all().any(|(one, _)| one == architecture)
    }

    /// Returns the names of the architectures that can learn the task, for messages.
    pub fn architectures(&self) -> String {
        self.all().map(|(_, name)| format!("\"{name}\"")).collect::<Vec<_>>().join(" or ")
    }

    fn all(&self) -> impl Iterator<Item = (Architecture, &'static str)> {
        [Some(self.architecture), self.or_architecture].into_iter().flatten()
    }
}

impl Config {
    /// Returns the probability that a token is hidden, if the task hides tokens.
    pub fn masked_share(&self) -> Option<f64> {
        traits_of(self.task).hides_tokens.then_some(self.train.masked_share)
    }
}

/// All tasks.
pub const TASKS: [Task; 5] = [Task::Translation, Task::Lm, Task::Mlm, Task::Classification, Task::Tagging];

/// Returns the row of `task`.
pub const fn traits_of(task: Task) -> TaskTraits {
    match task {
        Task::Translation => TaskTraits {
            name: "translation",
            reads: Reads::Pairs,
            architecture: (Architecture::EncoderDecoder, "encoder_decoder"),
            or_architecture: None,
            built_in_preset: Preset::Numbers,
            on_cpu: &[(0, Preset::FewPairs), (5000, Preset::Tiny)],
            on_gpu: &[(0, Preset::FewPairs), (5000, Preset::Small), (100_000, Preset::Base)],
            hides_tokens: false,
            continues_text: false,
            classes: None,
            instead: "use kiln translate",
            next: "echo '{input}' | {program} translate {run}",
        },

        Task::Lm => TaskTraits {
            name: "lm",
            reads: Reads::Text,
            architecture: (Architecture::DecoderOnly, "decoder_only"),
            or_architecture: None,
            built_in_preset: Preset::Gpt2Tiny,
            on_cpu: &[(0, Preset::FewWords)],
            on_gpu: &[(0, Preset::FewWords), (500_000, Preset::Gpt2Mini)],
            hides_tokens: false,
            continues_text: true,
            classes: None,
            instead: "it continues text; use kiln generate",
            next: "{program} generate {run} --prompt '{input}'",
        },

        Task::Mlm => TaskTraits {
            name: "mlm",
            reads: Reads::Text,
            architecture: (Architecture::EncoderOnly, "encoder_only"),
            or_architecture: None,
            built_in_preset: Preset::BertTiny,
            on_cpu: &[(0, Preset::FewWordsMlm)],
            on_gpu: &[(0, Preset::FewWordsMlm), (500_000, Preset::BertSmall)],
            hides_tokens: true,
            continues_text: false,
            classes: None,
            instead: "it fills in hidden tokens; use kiln fill",
            next: "{program} fill {run} '{input}'",
        },

        Task::Classification => TaskTraits {
            name: "classification",
            built_in_preset: Preset::Classify,
            on_cpu: &[(0, Preset::Classify)],
            on_gpu: &[(0, Preset::Classify)],
            or_architecture: Some((Architecture::DecoderOnly, "decoder_only")),
            classes: Some(Classes::OfTexts),
            ..CLASSES
        },

        Task::Tagging => TaskTraits {
            name: "tagging",
            built_in_preset: Preset::Tag,
            on_cpu: &[(0, Preset::Tag)],
            on_gpu: &[(0, Preset::Tag)],
            classes: Some(Classes::OfWords),
            ..CLASSES
        },
    }
}

/// What the tasks that predict classes have in common.
const CLASSES: TaskTraits = TaskTraits {
    name: "",
    reads: Reads::Text,
    architecture: (Architecture::EncoderOnly, "encoder_only"),
    or_architecture: None,
    built_in_preset: Preset::Classify,
    on_cpu: &[],
    on_gpu: &[],
    hides_tokens: false,
    continues_text: false,
    classes: None,
    instead: "it predicts classes; use kiln classify",
    next: "{program} classify {run} '{input}'",
};

impl Preset {
    /// Returns the preset of a run that names none, if neither its device nor the size of its text is known. It depends on
    /// the task and on whether the run has text of its own.
    pub fn usual_for(task: Task, has_text: bool) -> Self {
        let row = traits_of(task);
        match row.on_gpu.last() {
            Some((_, preset)) if has_text => *preset,
            _ => row.built_in_preset,
        }
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
            let own = row.on_cpu.iter().chain(row.on_gpu).map(|(_, preset)| *preset);
            for preset in own.chain([row.built_in_preset]) {
                let config = preset.config();
                assert_eq!((config.task, config.model.architecture), (task, row.architecture.0), "{preset}");
            }
        }
    }
}
