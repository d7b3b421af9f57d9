//! The dtype of weights and activations. Statistics and reductions are always f32.

use burn::tensor::{DType, Device, FloatDType};
use kiln_kernels::{KernelSet, has_kernels, is_cuda, product_kernels};
use kiln_model::{Fp8Layers, TransformerConfig};
use thiserror::Error;

use crate::config::{MasterWeights, Precision, TrainConfig};

/// The device does not support the requested precision.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{key} = \"{wanted}\" is not supported by this device ({who}); use {instead}")]
pub struct PrecisionError {
    key: &'static str,
    wanted: &'static str,
    who: &'static str,
    instead: &'static str,
}

const NO_BF16: PrecisionError = PrecisionError {
    key: "train.precision",
    wanted: "bf16",
    who: "GPUs since Ampere support it",
    instead: "\"fp16\", \"f32\" or \"auto\"",
};
const NO_KERNELS_BF16: PrecisionError = PrecisionError {
    key: "train.precision",
    wanted: "bf16",
    who: "Kiln has no kernels for it, so it computes in f32",
    instead: "\"f32\" or \"auto\"",
};
const NO_KERNELS_FP16: PrecisionError = PrecisionError { wanted: "fp16", ..NO_KERNELS_BF16 };
const NO_FP8: PrecisionError = PrecisionError {
    key: "train.precision",
    wanted: "fp8",
    who: "GPUs of the Hopper generation support it",
    instead: "\"bf16\" or \"auto\"",
};
const NO_KERNELS_FP8: PrecisionError = PrecisionError { wanted: "fp8", ..NO_KERNELS_BF16 };
const NO_FP16: PrecisionError =
    PrecisionError { key: "train.precision", wanted: "fp16", who: "GPUs support it", instead: "\"f32\" or \"auto\"" };

/// The compute dtype for `precision` on `device`: `auto` is bf16 on a CUDA device that supports it, and f32
/// elsewhere. Devices without kernels compute in f32 only.
pub fn compute_dtype(precision: Precision, device: &Device) -> Result<FloatDType, PrecisionError> {
    let has = |dtype: DType| device.clone().inner().supports_dtype(dtype);
    match precision {
        Precision::Bf16 if !has_kernels(device) => Err(NO_KERNELS_BF16),
        Precision::Fp16 if !has_kernels(device) => Err(NO_KERNELS_FP16),
        Precision::Fp8 if !has_kernels(device) => Err(NO_KERNELS_FP8),
        Precision::Fp8 if !is_cuda(device) => Ok(FloatDType::F32),
        Precision::Fp8 if product_kernels(device) == Some(KernelSet::Hopper) => Ok(FloatDType::BF16),
        Precision::Fp8 => Err(NO_FP8),
        Precision::F32 => Ok(FloatDType::F32),
        Precision::Bf16 if has(DType::BF16) => Ok(FloatDType::BF16),
        Precision::Bf16 => Err(NO_BF16),
        Precision::Fp16 if has(DType::F16) => Ok(FloatDType::F16),
        Precision::Fp16 => Err(NO_FP16),
        Precision::Auto if is_cuda(device) && has(DType::BF16) => Ok(FloatDType::BF16),
        Precision::Auto => Ok(FloatDType::F32),
    }
}

/// The compute dtype of a run by `train` on `device`, which must also support the dtype of its master weights.
///
/// # Errors
/// If the device does not support one of the two.
pub fn training_dtype(train: &TrainConfig, device: &Device) -> Result<FloatDType, PrecisionError> {
    let dtype = compute_dtype(train.precision, device)?;
    let is_exact = train.master_weights == MasterWeights::F32;
    if is_exact || has_kernels(device) && device.clone().inner().supports_dtype(DType::BF16) {
        return Ok(dtype);
    }
    let key = "train.master_weights";
    Err(PrecisionError { key, instead: "\"f32\"", ..if has_kernels(device) { NO_BF16 } else { NO_KERNELS_BF16 } })
}

/// The narrowest model, by `d_model`, for which FP8 was measured to pay (benches/results/2026-11-28-h200-fp8.md).
pub(crate) const FP8_PAYS_FROM: usize = 1536;

/// Returns the layers that multiply in FP8 by `train`, and a note if FP8 was asked for and does not pay on `device` for a model of
/// `shape`.
pub fn fp8_layers(train: &TrainConfig, shape: &TransformerConfig, device: &Device) -> (Fp8Layers, Option<String>) {
    let width = shape.d_model;
    match train.precision {
        Precision::Fp8 if is_cuda(device) && width < FP8_PAYS_FROM => {
            let note = format!(
                "train.precision = \"fp8\" is known to pay from a width (model.d_model) of {FP8_PAYS_FROM} on, and this model has {width}: its layers compute in bf16"
            );
            (Fp8Layers::None, Some(note))
        }
        Precision::Fp8 => {
            let note = "train.precision = \"fp8\": a CPU rounds operands to FP8 and multiplies them in f32, which is slower than f32 alone";
            (train.fp8_layers.of_model(), (!is_cuda(device)).then(|| note.to_owned()))
        }
        _ => (Fp8Layers::None, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fp8_on_the_cpu_is_f32_with_a_note() {
        let (cpu, shape) = (Device::flex(), TransformerConfig::tiny());
        let mut train = TrainConfig { precision: Precision::Fp8, ..TrainConfig::default() };
        assert_eq!(compute_dtype(train.precision, &cpu), Ok(FloatDType::F32));
        let (layers, note) = fp8_layers(&train, &shape, &cpu);
        assert!(layers == Fp8Layers::All && note.is_some_and(|note| note.contains("slower than f32")));
        train.precision = Precision::Bf16;
        assert_eq!(fp8_layers(&train, &shape, &cpu), (Fp8Layers::None, None));
    }

    #[test]
    fn a_device_of_a_run_needs_the_dtype_of_its_master_weights() {
        let cpu = Device::flex();
        for master_weights in [MasterWeights::F32, MasterWeights::Bf16] {
            let train = TrainConfig { master_weights, ..TrainConfig::default() };
            assert_eq!(training_dtype(&train, &cpu), Ok(FloatDType::F32));
            let train = TrainConfig { precision: Precision::Bf16, ..train };
            assert_eq!(training_dtype(&train, &cpu), Ok(FloatDType::BF16));
        }
        let error = PrecisionError { key: "train.master_weights", instead: "\"f32\"", ..NO_KERNELS_BF16 }.to_string();
        assert!(error.starts_with("train.master_weights = \"bf16\" is not supported"), "{error}");
    }

    #[test]
    fn auto_is_f32_on_the_cpu() {
        let cpu = Device::flex();
        assert_eq!(compute_dtype(Precision::Auto, &cpu), Ok(FloatDType::F32));
        assert_eq!(compute_dtype(Precision::F32, &cpu.autodiff()), Ok(FloatDType::F32));
    }
}
