//! Peak speeds of GPUs for dense products, for model FLOPs utilization.

use burn::tensor::{Device, FloatDType};

use super::{device_name, is_cpu};

/// Tensor-core peaks for dense bf16 and f16 products with f32 accumulation, FLOP/s, from NVIDIA's data sheets (figures "with
/// sparsity" halved). The first name that is part of the device's name counts.
const HALF_PEAKS: [(&str, f64); 15] = [
    ("B200", 2250e12),
    ("GH200", 989e12),
    ("H200 NVL", 835e12),
    ("H200", 989e12),
    ("H100 NVL", 835e12),
    ("H100 PCIe", 756e12),
    ("H100", 989e12),
    ("A100", 312e12),
    ("A40", 150e12),
    ("A10", 125e12),
    ("L40S", 362e12),
    ("L40", 181e12),
    ("L4", 121e12),
    ("RTX 4090", 165e12),
    ("RTX 3090", 71e12),
];

/// Memory bandwidths in bytes/s, from the same data sheets.
const BANDWIDTHS: [(&str, f64); 17] = [
    ("B200", 8.0e12),
    ("GH200", 4.0e12),
    ("H200", 4.8e12),
    ("H100 NVL", 3.9e12),
    ("H100 PCIe", 2.0e12),
    ("H100", 3.35e12),
    ("A100-SXM4-80GB", 2.039e12),
    ("A100 80GB", 1.935e12),
    ("A100", 1.555e12),
    ("A40", 0.696e12),
    ("A10", 0.6e12),
    ("L40S", 0.864e12),
    ("L40", 0.864e12),
    ("L4", 0.3e12),
    ("RTX 4090", 1.008e12),
    ("RTX 3090 Ti", 1.008e12),
    ("RTX 3090", 0.936e12),
];

/// Memory bandwidth of `device` in bytes per second, if known.
pub fn peak_bytes_per_sec(device: &Device) -> Option<f64> {
    let name = (!is_cpu(device)).then(|| device_name(device))?;
    BANDWIDTHS.iter().find(|(part, _)| name.contains(part)).map(|(_, peak)| *peak)
}

/// Peak of `device` in the compute dtype in FLOP/s, if known. Without it, no utilization is shown.
pub fn peak_flops_per_sec(device: &Device, dtype: FloatDType) -> Option<f64> {
    let is_half = matches!(dtype, FloatDType::BF16 | FloatDType::F16);
    (is_half && !is_cpu(device)).then(|| peak_of_name(&device_name(device))).flatten()
}

fn peak_of_name(name: &str) -> Option<f64> {
    HALF_PEAKS.iter().find(|(part, _)| name.contains(part)).map(|(_, peak)| *peak)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_the_driver_gives_them() {
        for (name, peak) in [
            ("NVIDIA H200", Some(989e12)),
            ("NVIDIA H200 NVL", Some(835e12)),
            ("NVIDIA GH200 480GB", Some(989e12)),
            ("NVIDIA H100 PCIe", Some(756e12)),
            ("NVIDIA A100-SXM4-80GB", Some(312e12)),
            ("NVIDIA L40S", Some(362e12)),
            ("NVIDIA L4", Some(121e12)),
            ("NVIDIA GeForce GTX 1080", None),
        ] {
            assert_eq!(peak_of_name(name), peak, "{name}");
        }
        assert_eq!(peak_flops_per_sec(&Device::flex(), FloatDType::BF16), None);
    }
}
