//! What keeps a Hugging Face model out of Kiln, or a Kiln model out of Hugging Face's.

use thiserror::Error;

use super::Family;

/// Every variant lists everything that is wrong, each with its name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HfError {
    /// `config.json` names a family that Kiln does not have, or none.
    #[error("config.json: {found}; Kiln reads gpt2, llama, bert, bart and marian")]
    Family {
        /// What it says instead.
        found: String,
    },
    /// `config.json` asks for something that Kiln's models do not do.
    #[error("config.json ({family}) does not describe a model that Kiln has:\n{}", lines(problems))]
    Config {
        /// The family it names.
        family: Family,
        /// One line for each field.
        problems: Vec<String>,
    },
    /// The tensors are not those of the model.
    #[error("the weights are not those of the {family} model in config.json:\n{}", lines(problems))]
    Tensors {
        /// The family.
        family: Family,
        /// One line for each tensor.
        problems: Vec<String>,
    },
    /// The family's Hugging Face implementation cannot compute what the Kiln model does.
    #[error("this model cannot be written as {family}:\n{}", lines(problems))]
    NotExpressible {
        /// The family.
        family: Family,
        /// One line for each field.
        problems: Vec<String>,
    },
}

fn lines(problems: &[String]) -> String {
    problems.iter().map(|problem| format!("  {problem}")).collect::<Vec<_>>().join("\n")
}
