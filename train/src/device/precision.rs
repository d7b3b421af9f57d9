//! The dtype of weights and activations. Master weights, optimizer state, statistics and reductions are always f32.

use burn::tensor::{DType, Device, FloatDType};
use kiln_kernels::{has_kernels, is_cuda};
use thiserror::Error;

use crate::config::Precision;

/// The device does not support the requested precision.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("train.precision = \"{wanted}\" is not supported by this device ({who}); use {instead}")]
pub struct PrecisionError {
    wanted: &'static str,
    who: &'static str,
    instead: &'static str,
}

const NO_BF16: PrecisionError =
    PrecisionError { wanted: "bf16", who: "GPUs since Ampere support it", instead: "\"fp16\", \"f32\" or \"auto\"" };
const NO_KERNELS_BF16: PrecisionError = PrecisionError {
    wanted: "bf16",
    who: "Kiln has no kernels for it, so it computes in f32",
    instead: "\"f32\" or \"auto\"",
};
const NO_KERNELS_FP16: PrecisionError = PrecisionError { wanted: "fp16", ..NO_KERNELS_BF16 };
const NO_FP16: PrecisionError =
    PrecisionError { wanted: "fp16", who: "GPUs support it", instead: "\"f32\" or \"auto\"" };

/// The compute dtype for `precision` on `device`: `auto` is bf16 on a CUDA device that supports it, and f32
/// elsewhere. Devices without kernels compute in f32 only.
pub fn compute_dtype(precision: Precision, device: &Device) -> Result<FloatDType, PrecisionError> {
    let has = |dtype: DType| device.clone().inner().supports_dtype(dtype);
    match precision {
        Precision::Bf16 if !has_kernels(device) => Err(NO_KERNELS_BF16),
        Precision::Fp16 if !has_kernels(device) => Err(NO_KERNELS_FP16),
        Precision::F32 => Ok(FloatDType::F32),
        Precision::Bf16 if has(DType::BF16) => Ok(FloatDType::BF16),
        Precision::Bf16 => Err(NO_BF16),
        Precision::Fp16 if has(DType::F16) => Ok(FloatDType::F16),
        Precision::Fp16 => Err(NO_FP16),
        Precision::Auto if is_cuda(device) && has(DType::BF16) => Ok(FloatDType::BF16),
        Precision::Auto => Ok(FloatDType::F32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_is_f32_on_the_cpu() {
        let cpu = Device::flex();
        assert_eq!(compute_dtype(Precision::Auto, &cpu), Ok(FloatDType::F32));
        assert_eq!(compute_dtype(Precision::F32, &cpu.autodiff()), Ok(FloatDType::F32));
    }
}
