//! The state that a measurement begins with.

use anyhow::Result;
use burn::tensor::{Device, FloatDType};
use kiln_model::{ActivationCheckpointing, TransformerConfig};
use kiln_train::config::Config;
use kiln_train::dataset::Vocabulary;
use kiln_train::eval::{Hiding, Init, Masking, Model};
use kiln_train::optim::Groups;
use kiln_train::train::{Start, TrainState};

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
    /// Returns the state before the first step of the model that `init` makes.
    ///
    /// # Errors
    /// If the device fails, or if the configuration does not fit the model.
    pub(crate) fn state<M: Model>(self, init: &Init<'_, M>) -> Result<TrainState<M>> {
        let Self { config, model, vocabulary, checkpointing, dtype, device } = self;
        let start = Start { config, groups: &Groups::of(config, dtype), dtype };
        let module = init.make(model, config.seed, device);
        let mut state = TrainState::begin(start, model, module)?.with_checkpointing(checkpointing)?;
        if let Some(vocabulary) = vocabulary {
            state.masking = if M::HIDES_TOKENS { Masking::of(config, vocabulary)? } else { None };
            state.hiding = Hiding::of(config, vocabulary)?;
        }
        Ok(state)
    }
}
