//! The state that a measurement begins with.

use anyhow::Result;
use burn::tensor::{Device, FloatDType};
use kiln_model::{ActivationCheckpointing, TransformerConfig};
use kiln_train::config::Config;
use kiln_train::dataset::Vocabulary;
use kiln_train::eval::{Hiding, Masking};
use kiln_train::train::TrainState;

/// What is prepared: a model with initial weights and its optimizer, in one dtype on one device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prepared<'a> {
    pub(crate) config: &'a Config,
    /// The model, with the sizes of its vocabularies.
    pub(crate) model: &'a TransformerConfig,
    /// Says how tokens of real batches are hidden. Synthetic batches have none to hide.
    pub(crate) vocabulary: Option<&'a Vocabulary>,
    /// The activations that are kept.
    pub(crate) checkpointing: ActivationCheckpointing,
    pub(crate) dtype: FloatDType,
    pub(crate) device: &'a Device,
}

impl Prepared<'_> {
    /// Returns the state before the first step.
    ///
    /// # Errors
    /// If the device fails, or if the configuration does not fit the model.
    pub(crate) fn state(self) -> Result<TrainState> {
        let Self { config, model, vocabulary, checkpointing, dtype, device } = self;
        let mut state = TrainState::new(config, model, dtype, device)?.with_checkpointing(checkpointing)?;
        if let Some(vocabulary) = vocabulary {
            state.masking = Masking::of(config, vocabulary)?;
            state.hiding = Hiding::of(config, vocabulary)?;
        }
        Ok(state)
    }
}
