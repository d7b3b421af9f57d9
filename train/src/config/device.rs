//! Choices of a run about the numbers, kernels and memory of its device.

use burn::tensor::FloatDType;
use kiln_kernels::{F32Products as Products, KernelChoice, Settings};
use kiln_model::ActivationCheckpointing;
use serde::{Deserialize, Serialize};

use super::{Config, OptimizerChoice};

/// Compute precision. [`MasterWeights`] is the precision of what the optimizer keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// bf16 on CUDA, f32 on the CPU and on other backends.
    Auto,
    /// 32-bit floats.
    F32,
    /// bfloat16 weights and activations.
    Bf16,
    /// IEEE half precision weights and activations, with a dynamic loss scale: for GPUs without bfloat16.
    Fp16,
    /// As bfloat16, but the products of layers and their gradients take operands in FP8. GPUs since Hopper; a CPU computes in f32 with
    /// operands rounded to FP8, for tests.
    Fp8,
}

/// Precision of master weights and of the optimizer's state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MasterWeights {
    /// 32-bit floats.
    #[default]
    F32,
    /// bfloat16, rounded stochastically. The model computes with the master weights.
    Bf16,
}

impl MasterWeights {
    /// Returns the choice of a run whose optimizer keeps numbers of `dtype`.
    pub(crate) fn of(dtype: FloatDType) -> Self {
        if dtype == FloatDType::BF16 { Self::Bf16 } else { Self::F32 }
    }

    /// Returns whether this is the choice of a run that says nothing.
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns what is wrong with this choice in a run of `config`.
    pub(super) fn problem(self, config: &Config) -> Option<String> {
        let train = &config.train;
        let (why, remedy) = match (train.precision, train.optimizer) {
            _ if self == Self::F32 => return None,
            (Precision::F32, _) => (
                "is for models that compute in bf16, but train.precision = \"f32\" keeps all digits",
                "set train.precision = \"bf16\" or \"fp8\"",
            ),
            (Precision::Fp16, _) => (
                "is for models that compute in bf16, but train.precision = \"fp16\" needs master weights with more digits than fp16",
                "set train.precision = \"bf16\" or \"fp8\"",
            ),
            (_, OptimizerChoice::Muon) => (
                "is for AdamW, but train.optimizer = \"muon\" keeps a momentum that is not rounded stochastically",
                "set train.optimizer = \"adamw\"",
            ),
            _ if train.sync_every > 1 => (
                "keeps changes of single steps, but an outer step (train.sync_every) replaces all weights without stochastic rounding",
                "set train.sync_every = 1",
            ),
            _ => return None,
        };
        Some(format!("train.master_weights = \"bf16\" {why}; {remedy}, or train.master_weights = \"f32\""))
    }
}

/// `precision = "fp8"`: whose products take operands in FP8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fp8Layers {
    /// The products of all layers.
    All,
    /// The products of all layers but the first and the last of each stack.
    Inner,
}

impl Fp8Layers {
    /// Returns what is wrong with this choice in `precision`.
    pub(super) fn problem(self, precision: Precision) -> Option<String> {
        let is_idle = self == Self::Inner && precision != Precision::Fp8;
        is_idle.then(|| {
            "train.fp8_layers = \"inner\" has no effect, because train.precision is not \"fp8\"; set train.precision = \"fp8\", or \
             remove train.fp8_layers"
                .into()
        })
    }

    /// Returns the choice as the model knows it.
    pub fn of_model(self) -> kiln_model::Fp8Layers {
        match self {
            Self::All => kiln_model::Fp8Layers::All,
            Self::Inner => kiln_model::Fp8Layers::Inner,
        }
    }
}

/// Which kernels compute products and attention on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kernels {
    /// The newest that the GPU has the instructions for.
    Auto,
    /// At most those for Ampere.
    Ampere,
    /// Burn's own.
    Stock,
}

impl Kernels {
    /// Applies the choice to all operators of this process.
    pub fn install(self) {
        let choice = match self {
            Self::Auto => KernelChoice::Newest,
            Self::Ampere => KernelChoice::Ampere,
            Self::Stock => KernelChoice::Stock,
        };
        choice.install();
    }
}

/// How products of f32 numbers are computed on a GPU, attention's included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum F32Products {
    /// With the accuracy of f32.
    F32,
    /// Rounded to TF32 for the tensor cores.
    Tf32,
}

impl F32Products {
    /// Returns `settings` with this choice.
    pub fn within(self, settings: Settings) -> Settings {
        Settings { f32_products: self.of_operators(), ..settings }
    }

    /// Applies the choice to the backend's own products in this process, if it has computed none yet.
    pub fn install_in_backend(self) {
        self.of_operators().install_in_backend();
    }

    /// Returns what is wrong with this choice in `precision`.
    pub(super) fn problem(self, precision: Precision) -> Option<String> {
        let is_idle = self == Self::Tf32 && matches!(precision, Precision::Bf16 | Precision::Fp16 | Precision::Fp8);
        is_idle.then(|| {
            "train.f32_products = \"tf32\" has no effect, because train.precision leaves no products in f32; set \
             train.precision = \"f32\", or remove train.f32_products"
                .into()
        })
    }

    fn of_operators(self) -> Products {
        match self {
            Self::F32 => Products::F32,
            Self::Tf32 => Products::Tf32,
        }
    }
}

/// Which activations are kept for backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Checkpointing {
    /// The first of the others that fits into memory.
    Auto,
    /// All.
    Off,
    /// The results of products and attention.
    Selective,
    /// The residual sum at the start of each layer.
    Layer,
}

impl Checkpointing {
    /// Returns what to train with; `None` for `auto`.
    pub fn chosen(self) -> Option<ActivationCheckpointing> {
        match self {
            Self::Auto => None,
            Self::Off => Some(ActivationCheckpointing::Off),
            Self::Selective => Some(ActivationCheckpointing::Selective),
            Self::Layer => Some(ActivationCheckpointing::Layer),
        }
    }
}

/// Says what backward computes again; `None` for nothing.
pub(crate) fn computed_again(checkpointing: ActivationCheckpointing) -> Option<&'static str> {
    match checkpointing {
        ActivationCheckpointing::Off => None,
        ActivationCheckpointing::Selective => Some("backward computes norms and activations again"),
        ActivationCheckpointing::Layer => Some("backward computes every layer again"),
    }
}

/// Names the policies that keep fewer activations, as the end of an advice; nothing if there are none.
pub(crate) fn fewer_activations(now: ActivationCheckpointing) -> &'static str {
    match now {
        ActivationCheckpointing::Off => ", or set train.activation_checkpointing to \"selective\" or \"layer\"",
        ActivationCheckpointing::Selective => ", or set train.activation_checkpointing to \"layer\"",
        ActivationCheckpointing::Layer => "",
    }
}

/// When forward and backward are replayed as CUDA graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capture {
    /// Shapes that occurred 500 times, in up to 40 % of the device's memory.
    Auto,
    /// Shapes that occurred three times, in up to 70 % of the device's memory.
    On,
    /// Never.
    Off,
}
