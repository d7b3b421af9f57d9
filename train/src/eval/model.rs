//! The interface between the trainer and a model.

use burn::module::Module;
use burn::tensor::{Device, FloatDType, Int, Tensor};
use kiln_data::{Rank, Shape};
use kiln_kernels::has_kernels;
use kiln_model::flops::{TrainSetting, attention_has_kernel, train_bytes, train_flops_per_batch};
use kiln_model::{
    ActivationCheckpointing, Batch, DropoutStream, EvalSums, Fp8Layers, LossSums, Positions, PreferenceSums, RowSums,
    Transformer,
};

use crate::config::{Config, GenerateConfig};
use crate::dataset::Vocabulary;
use crate::device::{device_name, is_cpu};
use crate::generate::{GenerateError, Translator, impression};

/// A model that Kiln trains: a Burn [`Module`], which holds the parameters, and the loss of a batch.
///
/// Only [`Self::loss`] has to be written. The other methods have defaults for a model that does not offer the feature
/// or does not know the number. [`Transformer`] is Kiln's own implementation. `examples/own_model.rs` shows a model that shares
/// nothing with it, and `examples/error_detector` an own head on Kiln's encoder.
///
/// The trainer replaces the parameters by views of one flat tensor. A parameter that is used in two places must
/// therefore be one field of the module.
pub trait Model: Module + 'static {
    /// Whether [`Self::with_checkpointing`] has a choice.
    const HAS_CHECKPOINTING: bool = false;

    /// Whether [`Self::with_fp8_layers`] has a choice.
    const HAS_FP8: bool = false;

    /// Whether `task = "mlm"` hides tokens of the input. `false`: the model reads them all, and `train.masked_share` has no effect.
    const HIDES_TOKENS: bool = true;

    /// Names of figures that validation reports besides the loss, such as an accuracy. [`Self::figures`] computes them.
    const FIGURES: &'static [&'static str] = &[];

    /// Computes the loss of a batch as sums over its labels: the trainer divides once by the number of labels of a
    /// whole step.
    ///
    /// `stream` is the source of randomness for dropout. It is `None` in validation and if [`Self::has_dropout`] is
    /// false.
    fn loss(&self, batch: &Batch, label_smoothing: f64, stream: Option<&DropoutStream>) -> LossSums;

    /// Computes [`Self::loss`], bit for bit, and its parts by the rows of the batch: a mixture reports the losses of its sources with
    /// it. A model that does not offer this returns `None`.
    fn loss_by_row(
        &self,
        _batch: &Batch,
        _label_smoothing: f64,
        _stream: Option<&DropoutStream>,
    ) -> Option<(LossSums, RowSums)> {
        None
    }

    /// Computes [`Self::loss`] without dropout, and the parts of each of [`Self::FIGURES`]. A figure is the sum of its numerators
    /// over all batches of the validation data, divided by the sum of its denominators. For an F1 these are `2 tp` and
    /// `2 tp + fp + fn`.
    ///
    /// # Shapes
    /// - parts: `[figures, 2]`, f32: numerator and denominator of each
    fn figures(&self, _batch: &Batch, _label_smoothing: f64) -> Option<(LossSums, Tensor<2>)> {
        None
    }

    /// Computes [`Self::loss`] without dropout, and how often the likeliest token is the label. `task = "mlm"`
    /// validates with it; a model without it returns `None`.
    fn evaluate(&self, _batch: &Batch, _label_smoothing: f64) -> Option<EvalSums> {
        None
    }

    /// Computes [`Self::loss`] without dropout, and the likeliest class of each row or of each token: `task =
    /// "classification"` and `"tagging"` validate with it. A model without classes returns `None`.
    ///
    /// # Shapes
    /// - classes: `[B]` or `[B * T]`, as [`Transformer::class_logits`] has rows
    fn classify(&self, _batch: &Batch, _label_smoothing: f64) -> Option<(LossSums, Tensor<1, Int>)> {
        None
    }

    /// Computes [`Self::loss`] of answers to compare without dropout, and how many pairs the model orders right. `None` if the batch
    /// has no preferences.
    fn prefer(&self, _batch: &Batch, _label_smoothing: f64) -> Option<PreferenceSums> {
        None
    }

    /// Returns whether [`Self::loss`] uses its stream.
    fn has_dropout(&self) -> bool {
        true
    }

    /// Returns the floating-point operations of forward and backward on a batch, to report the MFU; `None` if they are
    /// not known. `masked_share`: the probability that a token is hidden, if the run hides tokens.
    fn train_flops(&self, _shape: Shape, _masked_share: Option<f64>) -> Option<f64> {
        None
    }

    /// Returns the model with another choice of the activations that it keeps for backward. Gradients must keep their bits.
    #[must_use]
    fn with_checkpointing(self, _checkpointing: ActivationCheckpointing) -> Self {
        self
    }

    /// Returns the model with another choice of the layers that train in FP8.
    #[must_use]
    fn with_fp8_layers(self, _layers: Fp8Layers) -> Self {
        self
    }

    /// Returns the model with the one that [`Self::prefer`] and [`Self::loss`] of preferences compare it with: a copy from before
    /// training. None if it has no such comparison.
    #[must_use]
    fn with_reference(self, _reference: Transformer) -> Option<Self> {
        None
    }

    /// Returns the memory of a training step on a batch on `device`, in bytes. The trainer compares the figures of two batches to
    /// try the largest one first, so any number that grows with the memory will do.
    fn train_bytes(&self, shape: Shape, _device: &Device, _dtype: FloatDType) -> u64 {
        shape.padded_tokens() as u64
    }

    /// Refuses `train.deterministic = true` with a reason if the model uses operators that may differ from run to run
    /// on `device`.
    fn check_repeatable(&self, _device: &Device, _dtype: FloatDType) -> Result<(), String> {
        Ok(())
    }

    /// Translates the sources of the validation text, so that they can be scored; `None` if the model does not
    /// translate. Several processes share the sources: a translation is `None` where another one makes it.
    fn translate(
        &self,
        _sources: &[&str],
        _vocabulary: &Vocabulary,
        _config: &GenerateConfig,
        _share: Rank,
    ) -> Result<Option<Vec<Option<String>>>, GenerateError> {
        Ok(None)
    }

    /// Continues a few words of the validation text, or answers its first question, to show what the model writes. `None` if the
    /// model does not continue text.
    fn continue_prompt(
        &self,
        _prompt: &str,
        _vocabulary: &Vocabulary,
        _config: &Config,
    ) -> Result<Option<String>, GenerateError> {
        Ok(None)
    }
}

impl Model for Transformer {
    const HAS_CHECKPOINTING: bool = true;
    const HAS_FP8: bool = true;

    fn loss(&self, batch: &Batch, label_smoothing: f64, stream: Option<&DropoutStream>) -> LossSums {
        Transformer::loss(self, batch, label_smoothing, stream)
    }

    fn loss_by_row(
        &self,
        batch: &Batch,
        label_smoothing: f64,
        stream: Option<&DropoutStream>,
    ) -> Option<(LossSums, RowSums)> {
        Transformer::loss_by_row(self, batch, label_smoothing, stream)
    }

    fn evaluate(&self, batch: &Batch, label_smoothing: f64) -> Option<EvalSums> {
        Some(Transformer::evaluate(self, batch, label_smoothing))
    }

    fn classify(&self, batch: &Batch, label_smoothing: f64) -> Option<(LossSums, Tensor<1, Int>)> {
        Transformer::classify(self, batch, label_smoothing)
    }

    fn prefer(&self, batch: &Batch, label_smoothing: f64) -> Option<PreferenceSums> {
        Transformer::prefer(self, batch, label_smoothing)
    }

    fn has_dropout(&self) -> bool {
        let config = self.config();
        let adapters = config.has_adapters() && config.lora.dropout > 0.0;
        adapters
            || config.dropout > 0.0
            || config.attention_dropout > 0.0
            || config.activation_dropout.is_some_and(|p| p > 0.0)
    }

    fn train_flops(&self, shape: Shape, masked_share: Option<f64>) -> Option<f64> {
        let Shape { batch_size, source_len, target_len } = shape;
        Some(train_flops_per_batch(self.config(), [batch_size, source_len, target_len], masked_share).total())
    }

    fn with_fp8_layers(self, layers: Fp8Layers) -> Self {
        Transformer::with_fp8_layers(self, layers)
    }

    fn with_checkpointing(self, checkpointing: ActivationCheckpointing) -> Self {
        Transformer::with_checkpointing(self, checkpointing)
    }

    fn with_reference(self, reference: Transformer) -> Option<Self> {
        Transformer::with_reference(self, reference)
    }

    fn train_bytes(&self, shape: Shape, device: &Device, dtype: FloatDType) -> u64 {
        let Shape { batch_size, source_len, target_len } = shape;
        let shape = [batch_size, source_len, target_len];
        train_bytes(self.config(), device, shape, &TrainSetting::plain(dtype)).total()
    }

    fn check_repeatable(&self, device: &Device, dtype: FloatDType) -> Result<(), String> {
        let (config, head_dim) = (self.config(), self.config().head_dim());
        if is_cpu(device) || attention_has_kernel(config, device, dtype.into()) {
            return Ok(());
        }
        if !has_kernels(device) {
            return Err(format!(
                "Kiln has no kernels for {}, and Burn's may differ from run to run; set train.deterministic = false, or train on a CPU \
                 or a CUDA device",
                device_name(device)
            ));
        }

        if config.positions == Positions::Relative {
            return Err(format!(
                "attention in {dtype:?} with model.positions = \"relative\" and heads of {head_dim} has no kernel of its own on {}: \
                 the backend's autotune may choose different kernels from run to run; take train.precision = \"bf16\" or \"fp16\" \
                 and heads of a multiple of 8 up to 128, or set train.deterministic = false",
                device_name(device)
            ));
        }
        Err(format!(
            "attention in {dtype:?} with heads of {head_dim} has no kernel of its own on {}: the backend's autotune may choose \
             different kernels from run to run; take train.precision = \"bf16\" or \"fp16\" and heads (model.d_model / \
             model.n_heads) of a multiple of 8 up to 256, or set train.deterministic = false",
            device_name(device)
        ))
    }

    fn translate(
        &self,
        sources: &[&str],
        vocabulary: &Vocabulary,
        config: &GenerateConfig,
        share: Rank,
    ) -> Result<Option<Vec<Option<String>>>, GenerateError> {
        let (Self::EncoderDecoder(model), Vocabulary::Pairs(tokenizers)) = (self, vocabulary) else {
            return Ok(None);
        };
        let translator = Translator::new(model, tokenizers.clone(), config.clone())?;
        translator.translate_share(sources, 0, share).map(Some)
    }

    fn continue_prompt(
        &self,
        prompt: &str,
        vocabulary: &Vocabulary,
        config: &Config,
    ) -> Result<Option<String>, GenerateError> {
        vocabulary.text().map_or(Ok(None), |tokenizer| impression(self, tokenizer, config, prompt))
    }
}
