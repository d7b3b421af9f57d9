//! The peaks of a device whose data sheet is not known, measured.

use anyhow::Result;
use burn::tensor::{Device, FloatDType};
use kiln_kernels::linear;
use kiln_train::device::is_cpu;

use super::bench::Bench;
use super::work::Peaks;
use crate::diagnose::measure::{Effort, time};

/// Rows and columns of the product that is timed, and elements of the tensor that is copied: on a CPU, and on a GPU.
const SIZES: [(usize, usize); 2] = [(768, 1 << 24), (8192, 1 << 28)];
/// A peak is the fastest of so many times, because other programs slow a device down and none makes it faster.
const TIMES: usize = 8;

/// Times a large product, and reading and writing a tensor that no cache holds.
///
/// # Errors
/// If the device fails.
pub fn measured_peaks(dtype: FloatDType, device: &Device) -> Result<Peaks> {
    let bench = Bench::new(dtype, device, 1);
    let (side, len) = SIZES[usize::from(!is_cpu(device))];
    let (x, w) = (bench.random([side, side]), bench.random([side, side]));
    let product = fastest(&bench.device, || linear(x.clone(), w.clone(), None))?;
    let long = bench.random([len]);
    let copy = fastest(&bench.device, || long.clone() * 2.0)?;
    bench.device.memory_cleanup();

    let flops = 2.0 * (side as f64).powi(3);
    let bytes = bench.bytes(2 * len) as f64;
    Ok(Peaks { flops: flops / product, bytes: bytes / copy })
}

/// Returns the seconds of the fastest of some calls, after one that compiles kernels and grows memory pools.
fn fastest<T>(device: &Device, call: impl Fn() -> T) -> Result<f64> {
    let effort = Effort { steps: 1, repeats: TIMES, warm_up: 1 };
    let [fastest, _] = time(device, effort, || Ok(()), |_| Ok(call()))?.device.spread();
    Ok(fastest.max(1e-9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_has_peaks_that_a_cpu_can_have() {
        let peaks = measured_peaks(FloatDType::F32, &Device::flex()).expect("a CPU");
        assert!((1e9..1e14).contains(&peaks.flops), "{peaks:?}");
        assert!((1e8..1e13).contains(&peaks.bytes), "{peaks:?}");
    }
}
