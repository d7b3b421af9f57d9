//! Probes whether operators compute in f32, whatever the dtype of their inputs. The result of each probe is far off if an
//! operator keeps a sum in the dtype of its tensors: bf16 counts to 256 at most, and the largest f16 is 65504.

use anyhow::{Context, Result};
use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData};
use kiln_kernels::{
    AttentionConfig, AttentionMask, CrossEntropyConfig, Projected, attention, cross_entropy, embedding, layer_norm,
};

use crate::diagnose::largest;

/// The result of a probe.
#[derive(Debug, Clone, PartialEq)]
pub struct Probe {
    /// The operator.
    pub what: &'static str,
    /// The largest relative error against the exact result.
    pub error: f64,
    /// The error that rounding the result to its dtype explains.
    pub allowed: f64,
}

impl Probe {
    /// Whether rounding the result explains the error.
    pub fn is_sound(&self) -> bool {
        self.error <= self.allowed
    }
}

/// Probes norm, softmax and loss in `dtype` on `device`.
pub fn of_operators(dtype: FloatDType, device: &Device) -> Result<Vec<Probe>> {
    let probes = [("norm", norm(dtype, device)?), ("softmax", softmax(dtype, device)?), ("loss", loss(dtype, device)?)];
    // Two roundings of a result of magnitude one; the loss is f32.
    let half_digit = match dtype {
        FloatDType::BF16 => 1.0 / 256.0,
        FloatDType::F16 => 1.0 / 2048.0,
        _ => 1e-6,
    };
    let allowed = |what: &str| if what == "loss" { 1e-5 } else { 2.0 * half_digit };
    Ok(probes.into_iter().map(|(what, error)| Probe { what, error, allowed: allowed(what) }).collect())
}

/// Rows that alternate between 128 and 384. The squares of the centered values have the sum 2^24 and the mean 2^14, so the
/// normed values are -1 and 1.
fn norm(dtype: FloatDType, device: &Device) -> Result<f64> {
    let (rows, d) = (4, 1024);
    let values: Vec<f32> = (0..rows * d).map(|i| if i % 2 == 0 { 128.0 } else { 384.0 }).collect();
    let x = Tensor::<1>::from_data(TensorData::from(values.as_slice()), (device, DType::F32)).reshape([rows, d]);
    let gamma = Tensor::<1>::ones([d], (device, DType::from(dtype)));
    let normed = layer_norm(x.cast(dtype), gamma.clone(), gamma.zeros_like(), 1e-5);
    largest_error(normed, |i| if i % 2 == 0 { -1.0 } else { 1.0 })
}

/// 2048 keys with the same score: each has the probability 2^-11, and the values of 1 add up to 1.
fn softmax(dtype: FloatDType, device: &Device) -> Result<f64> {
    let (t, d) = (2048, 64);
    let part = |value: f32| Tensor::<2>::full([t, d], value, (device, DType::from(dtype)));
    let qkv = Tensor::cat(vec![part(0.0), part(0.0), part(1.0)], 1);
    let config = AttentionConfig {
        batch_size: 1,
        n_heads: 1,
        n_kv_heads: 1,
        causal: false,
        window: None,
        scale: None,
        softcap: None,
    };
    largest_error(attention(Projected::SelfAttention { qkv }, &AttentionMask::default(), None, &config), |_| 1.0)
}

/// 50304 equal logits: the loss is the logarithm of their number.
fn loss(dtype: FloatDType, device: &Device) -> Result<f64> {
    let (rows, vocabulary) = (8, 50_304);
    let logits = Tensor::<2>::zeros([rows, vocabulary], (device, DType::from(dtype)));
    let labels = Tensor::<1, Int>::ones([rows], (device, DType::I32));
    let config = CrossEntropyConfig { label_smoothing: 0.1, ignore_index: 0 };
    let loss = cross_entropy(logits, labels, &config).loss_sum;
    largest_error(loss, |_| rows as f64 * (vocabulary as f64).ln())
}

/// Whether 70,000 token ids look up the right rows. f16 cannot represent that many ids.
pub fn ids_are_exact(dtype: FloatDType, device: &Device) -> Result<bool> {
    let n = 70_000;
    // The digits of an id, which are exact in every dtype.
    let digits = |id: i32| [id / 4096, id / 64 % 64, id % 64, 0].map(|digit| digit as f32);
    let rows: Vec<f32> = (0..n).flat_map(digits).collect();
    let table = Tensor::<1>::from_data(TensorData::from(rows.as_slice()), (device, DType::F32));
    let table = table.reshape([n as usize, 4]).cast(dtype);

    let ids: Vec<i32> = (0..n).rev().step_by(7).collect();
    let wanted: Vec<f32> = ids.iter().copied().flat_map(digits).collect();
    let ids = Tensor::<1, Int>::from_data(TensorData::from(ids.as_slice()), (device, DType::I32));
    Ok(host(embedding(ids, table))? == wanted)
}

fn largest_error<const D: usize>(found: Tensor<D>, wanted: impl Fn(usize) -> f64) -> Result<f64> {
    let errors = host(found)?.into_iter().enumerate().map(|(i, x)| (f64::from(x) / wanted(i) - 1.0).abs());
    Ok(largest(errors))
}

fn host<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f32>> {
    let data = tensor.cast(FloatDType::F32).try_into_data().context("reading from the device")?;
    Ok(data.try_into_vec::<f32>().expect("cast to f32"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operator_computes_in_f32() {
        for dtype in [FloatDType::F32, FloatDType::BF16, FloatDType::F16] {
            for probe in of_operators(dtype, &Device::flex()).expect("the CPU answers") {
                assert!(probe.is_sound(), "{dtype:?}: {probe:?}");
            }
            assert!(ids_are_exact(dtype, &Device::flex()).expect("the CPU answers"), "{dtype:?}");
        }
    }

    #[test]
    fn a_sum_in_half_precision_would_be_found() {
        let half = |dtype| Tensor::<1>::ones([2048], (&Device::flex(), DType::from(dtype)));
        let mut sum = half(FloatDType::BF16).narrow(0, 0, 1);
        for _ in 1..2048 {
            sum = sum + half(FloatDType::BF16).narrow(0, 0, 1);
        }

        let probe =
            Probe { what: "a sum", error: largest_error(sum, |_| 2048.0).expect("a CPU"), allowed: 1.0 / 128.0 };
        assert!(!probe.is_sound(), "{probe:?}");
        let nan = Tensor::<1>::from_data([f32::NAN, 1.0], &Device::flex());
        assert!(largest_error(nan, |_| 1.0).expect("a CPU").is_nan());
    }
}
