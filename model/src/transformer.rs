//! An enum of the three models, for a trainer that trains any of them.

use std::fmt;

use burn::module::{Content, Devices, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor};
use burn::tensor::{DType, Device, Int, Tensor};
use kiln_kernels::DropoutStream;

use crate::batch::Batch;
use crate::checkpointing::ActivationCheckpointing;
use crate::config::{Architecture, TransformerConfig};
use crate::decoder_only::DecoderOnly;
use crate::encoder_decoder::EncoderDecoder;
use crate::encoder_only::EncoderOnly;
use crate::fp8::Fp8Layers;
use crate::loss::{EvalSums, LossSums, PreferenceSums, RowSums};
use crate::stack::Training;

/// A model of any architecture. The enum adds nothing to the parameter paths of the model.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "one per run; a box would only cost a pointer to follow")]
pub enum Transformer {
    /// Translates a source into a target.
    EncoderDecoder(EncoderDecoder),
    /// Continues a text.
    DecoderOnly(DecoderOnly),
    /// Predicts masked tokens.
    EncoderOnly(EncoderOnly),
}

/// Evaluates the same expression for each of the models.
macro_rules! each {
    ($self:expr, $model:ident => $result:expr) => {
        match $self {
            Transformer::EncoderDecoder($model) => $result,
            Transformer::DecoderOnly($model) => $result,
            Transformer::EncoderOnly($model) => $result,
        }
    };
}

/// Applies the same change to each of the models.
macro_rules! mapped {
    ($self:expr, $model:ident => $result:expr) => {
        match $self {
            Transformer::EncoderDecoder($model) => Transformer::EncoderDecoder($result),
            Transformer::DecoderOnly($model) => Transformer::DecoderOnly($result),
            Transformer::EncoderOnly($model) => Transformer::EncoderOnly($result),
        }
    };
}

impl TransformerConfig {
    /// Initializes a model. The weights are a pure function of `self` and `seed`, and equal on every device.
    ///
    /// `dtype` is the compute dtype of weights and activations. On an autodiff device all parameters are tracked.
    ///
    /// # Panics
    /// If [`Self::validate`] finds a problem or a vocabulary is still 0.
    pub fn init(&self, seed: u64, dtype: impl Into<DType>, device: &Device) -> Transformer {
        self.new_transformer(Some(seed), dtype.into(), device)
    }

    /// Makes a model whose weights are all replaced before it is used. No matrix is drawn, and none has memory: one that is used in
    /// spite of that is zero.
    ///
    /// # Panics
    /// As [`Self::init`].
    pub fn init_without_weights(&self, dtype: impl Into<DType>, device: &Device) -> Transformer {
        self.new_transformer(None, dtype.into(), device)
    }

    fn new_transformer(&self, seed: Option<u64>, dtype: DType, device: &Device) -> Transformer {
        match self.architecture {
            Architecture::EncoderDecoder => Transformer::EncoderDecoder(self.new_encoder_decoder(seed, dtype, device)),
            Architecture::DecoderOnly => Transformer::DecoderOnly(self.new_decoder_only(seed, dtype, device)),
            Architecture::EncoderOnly => Transformer::EncoderOnly(self.new_encoder_only(seed, dtype, device)),
        }
    }
}

impl Transformer {
    /// The configuration of the model.
    pub fn config(&self) -> &TransformerConfig {
        each!(self, model => model.config())
    }

    /// Returns the label-smoothed cross-entropy summed over the labels that count, and their number, both on the device; of preferences
    /// the losses of [`DecoderOnly::prefer`]. Add both up over all micro-batches before dividing.
    ///
    /// # Panics
    /// If the batch is of the wrong kind (pairs for an encoder-decoder, text for the others) or too long for the model.
    pub fn loss(&self, batch: &Batch, label_smoothing: f64, stream: Option<&DropoutStream>) -> LossSums {
        match (self, batch) {
            (Self::EncoderDecoder(model), Batch::Pairs(batch)) => model.loss(batch, label_smoothing, stream),
            (Self::DecoderOnly(model), Batch::Text(batch)) if batch.preference.is_some() => {
                model.prefer(batch, label_smoothing, stream).losses
            }
            (Self::DecoderOnly(model), Batch::Text(batch)) => model.loss(batch, label_smoothing, stream),
            (Self::EncoderOnly(model), Batch::Text(batch)) => model.loss(batch, label_smoothing, stream),
            _ => self.refuse(batch),
        }
    }

    /// [`Self::loss`], and its parts by the rows of the batch; None for classes and preferences.
    ///
    /// # Panics
    /// As [`Self::loss`].
    pub fn loss_by_row(
        &self,
        batch: &Batch,
        label_smoothing: f64,
        stream: Option<&DropoutStream>,
    ) -> Option<(LossSums, RowSums)> {
        let has_classes = self.config().has_classes();
        Some(match (self, batch) {
            (_, Batch::Text(batch)) if has_classes || batch.preference.is_some() => return None,
            (Self::EncoderDecoder(model), Batch::Pairs(batch)) => model.loss_by_row(batch, label_smoothing, stream),
            (Self::DecoderOnly(model), Batch::Text(batch)) => model.loss_by_row(batch, label_smoothing, stream),
            (Self::EncoderOnly(model), Batch::Text(batch)) => model.loss_by_row(batch, label_smoothing, stream),
            _ => self.refuse(batch),
        })
    }

    /// Returns what [`DecoderOnly::prefer`] does, without dropout; None if the batch has no preferences.
    ///
    /// # Panics
    /// As [`DecoderOnly::prefer`].
    pub fn prefer(&self, batch: &Batch, label_smoothing: f64) -> Option<PreferenceSums> {
        match (self, batch) {
            (Self::DecoderOnly(model), Batch::Text(batch)) if batch.preference.is_some() => {
                Some(model.prefer(batch, label_smoothing, None))
            }
            _ => None,
        }
    }

    /// [`Self::loss`] without dropout, and the number of labels that got the largest logit.
    ///
    /// # Panics
    /// As [`Self::loss`].
    pub fn evaluate(&self, batch: &Batch, label_smoothing: f64) -> EvalSums {
        match (self, batch) {
            (Self::EncoderDecoder(model), Batch::Pairs(batch)) => model.evaluate(batch, label_smoothing),
            (Self::DecoderOnly(model), Batch::Text(batch)) => model.evaluate(batch, label_smoothing),
            (Self::EncoderOnly(model), Batch::Text(batch)) => model.evaluate(batch, label_smoothing),
            _ => self.refuse(batch),
        }
    }

    /// Returns the loss of the classes without dropout, and the likeliest class of each row of [`Self::class_logits`]; None
    /// if the model has no head for classes.
    ///
    /// # Panics
    /// As [`Self::loss`].
    pub fn classify(&self, batch: &Batch, label_smoothing: f64) -> Option<(LossSums, Tensor<1, Int>)> {
        match (self, batch) {
            (Self::EncoderOnly(model), Batch::Text(batch)) => model.classify(batch, label_smoothing),
            (Self::DecoderOnly(model), Batch::Text(batch)) => model.classify(batch, label_smoothing),
            _ => None,
        }
    }

    /// Returns the logits of the classes, see [`EncoderOnly::class_logits`] and [`DecoderOnly::class_logits`]; None if the model has no
    /// head for them.
    ///
    /// # Panics
    /// As [`Self::loss`].
    pub fn class_logits(&self, batch: &Batch) -> Option<Tensor<2>> {
        match (self, batch) {
            (Self::EncoderOnly(model), Batch::Text(batch)) => model.class_logits(batch, None),
            (Self::DecoderOnly(model), Batch::Text(batch)) => model.class_logits(batch, None),
            _ => None,
        }
    }

    /// Returns the logits of every position.
    ///
    /// # Shapes
    /// - result: `[B * T, V]`; rows of padded positions have no meaning
    ///
    /// # Panics
    /// As [`Self::loss`].
    pub fn logits(&self, batch: &Batch, stream: Option<&DropoutStream>) -> Tensor<2> {
        match (self, batch) {
            (Self::EncoderDecoder(model), Batch::Pairs(batch)) => model.logits(batch, stream),
            (Self::DecoderOnly(model), Batch::Text(batch)) => model.logits(batch, stream),
            (Self::EncoderOnly(model), Batch::Text(batch)) => model.logits(batch, stream),
            _ => self.refuse(batch),
        }
    }

    /// Does the same as [`DecoderOnly::with_reference`]; None if one of the two models is of another architecture.
    pub fn with_reference(self, reference: Self) -> Option<Self> {
        match (self, reference) {
            (Self::DecoderOnly(model), Self::DecoderOnly(reference)) => {
                Some(Self::DecoderOnly(model.with_reference(reference)))
            }
            _ => None,
        }
    }

    /// Returns the model with another choice of the activations that training keeps. A saved model does not
    /// remember the choice.
    #[must_use]
    pub fn with_checkpointing(self, checkpointing: ActivationCheckpointing) -> Self {
        self.with_training(|training| training.checkpointing = checkpointing)
    }

    /// Returns the model with another choice of the layers that train in FP8. A saved model does not remember the choice.
    #[must_use]
    pub fn with_fp8_layers(self, layers: Fp8Layers) -> Self {
        self.with_training(|training| training.fp8 = layers)
    }

    fn with_training(mut self, change: impl Fn(&mut Training)) -> Self {
        match &mut self {
            Self::EncoderDecoder(model) => {
                change(&mut model.encoder.training);
                change(&mut model.decoder.training);
            }
            Self::DecoderOnly(model) => change(&mut model.decoder.training),
            Self::EncoderOnly(model) => change(&mut model.encoder.training),
        }
        self
    }

    fn refuse(&self, batch: &Batch) -> ! {
        let batch = match batch {
            Batch::Pairs(_) => "pairs",
            Batch::Text(_) => "text",
        };
        panic!("a batch of {batch} for a model of architecture {:?}", self.config().architecture)
    }
}

/// Written by hand: the derived implementation would put the variant's name in front of every parameter path, and so into
/// every checkpoint.
impl Module for Transformer {
    fn collect_devices(&self, devices: Devices) -> Devices {
        each!(self, model => model.collect_devices(devices))
    }

    fn fork(self, device: &Device) -> Self {
        mapped!(self, model => model.fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        mapped!(self, model => model.to_device(device))
    }

    fn train(self) -> Self {
        mapped!(self, model => model.train())
    }

    fn valid(&self) -> Self {
        mapped!(self, model => model.valid())
    }

    fn materialize(self) -> Self {
        mapped!(self, model => model.materialize())
    }

    fn num_params(&self) -> usize {
        each!(self, model => Module::num_params(model))
    }

    fn visit<Visitor: ModuleVisitor>(&self, visitor: &mut Visitor) {
        each!(self, model => model.visit(visitor));
    }

    fn map<Mapper: ModuleMapper>(self, mapper: &mut Mapper) -> Self {
        mapped!(self, model => model.map(mapper))
    }
}

/// With it, a model is a field of other modules, such as one that `burn-train` trains.
impl ModuleDisplayDefault for Transformer {
    fn content(&self, content: Content) -> Option<Content> {
        each!(self, model => model.content(content))
    }

    fn num_params(&self) -> usize {
        Module::num_params(self)
    }
}

impl ModuleDisplay for Transformer {}

impl fmt::Display for Transformer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.format(Default::default()))
    }
}
