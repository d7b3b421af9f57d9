//! The dtype of weights and activations. Master weights, moments, statistics and reductions are f32 in every case.

use burn::tensor::{DType, Device, FloatDType};
use thiserror::Error;

use super::is_cpu;
use crate::config::Precision;

/// The device cannot compute in the precision that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "train.precision = \"bf16\" is not supported by this device (GPUs from Ampere on have it); use \"f32\" or \"auto\""
)]
pub struct PrecisionError;

/// The compute dtype for `precision` on `device`: `auto` is bf16 on a GPU that has it, f32 elsewhere.
pub fn compute_dtype(precision: Precision, device: &Device) -> Result<FloatDType, PrecisionError> {
    let has_bf16 = || device.clone().inner().supports_dtype(DType::BF16);
    match precision {
        Precision::F32 => Ok(FloatDType::F32),
        Precision::Bf16 if has_bf16() => Ok(FloatDType::BF16),
        Precision::Bf16 => Err(PrecisionError),
        Precision::Auto if !is_cpu(device) && has_bf16() => Ok(FloatDType::BF16),
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
