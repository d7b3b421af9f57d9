//! Why a model cannot be imported from or exported to Hugging Face.

use thiserror::Error;

use super::Family;

/// Each variant lists all problems by name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HfError {
    /// `config.json` names an unsupported family, or none.
    #[error(
        "config.json: {found}; Kiln reads gpt2, llama, mistral, qwen2, qwen3, gemma2, gemma3_text, bert, roberta, bart, marian, pegasus, m2m_100 and t5"
    )]
    Family {
        /// The content of `config.json`, in words.
        found: String,
    },
    /// `config.json` describes a model that Kiln does not support.
    #[error("config.json ({family}) describes a model that Kiln does not support:\n{}", lines(problems))]
    Config {
        /// Its family.
        family: Family,
        /// One line per field.
        problems: Vec<String>,
    },
    /// `adapter_config.json` describes adapters that Kiln does not support.
    #[error(
        "adapter_config.json describes adapters that Kiln cannot put next to this {family} model:\n{}",
        lines(problems)
    )]
    Adapter {
        /// The family of the model.
        family: Family,
        /// One line per setting.
        problems: Vec<String>,
    },
    /// The tensors do not fit the model.
    #[error("the weights do not fit the {family} model of config.json:\n{}", lines(problems))]
    Tensors {
        /// The family.
        family: Family,
        /// One line per tensor.
        problems: Vec<String>,
    },
    /// The family's Hugging Face implementation cannot compute the same as the Kiln model.
    #[error("this model cannot be exported as {family}:\n{}", lines(problems))]
    NotExpressible {
        /// The family.
        family: Family,
        /// One line per field.
        problems: Vec<String>,
    },
}

fn lines(problems: &[String]) -> String {
    problems.iter().map(|problem| format!("  {problem}")).collect::<Vec<_>>().join("\n")
}
