use burn::tensor::{DType, Device};

use super::{DropoutStream, dropout, threshold_16};
use crate::testing::{devices, host, tensor, values};

fn run(device: &Device, dtype: DType, draw: u64, sites: usize) -> (Vec<f32>, Vec<f32>) {
    let device = device.clone().autodiff();
    // 3 x 37 elements: not a multiple of the four that share a block.
    let x = tensor(&values(111, 1), [3, 37], dtype, &device).require_grad();
    let stream = DropoutStream::new(0x1234_5678_9abc_def0, draw, &device);
    let mut y = dropout(x.clone(), 0.3, &stream);
    for _ in 1..sites {
        y = dropout(x.clone(), 0.3, &stream);
    }
    let grads = y.clone().sum().backward();
    (host(y), host(x.grad(&grads).expect("a gradient")))
}

/// The mask of a seed is part of the format: a run resumed on another device must continue with the same bits.
#[test]
fn every_device_drops_the_same_elements() {
    let (reference, _) = run(&Device::flex(), DType::F32, 7, 1);
    for (name, device) in devices() {
        let (y, grad) = run(&device, DType::F32, 7, 1);
        assert_eq!(y, reference, "values on {name}");
        let kept = 1.0f32 / (1.0 - 0.3f32);
        let expected: Vec<f32> = reference.iter().map(|&v| if v == 0.0 { 0.0 } else { kept }).collect();
        assert_eq!(grad, expected, "gradient on {name}");
        let (bf16, _) = run(&device, DType::BF16, 7, 1);
        let zeros = |v: &[f32]| v.iter().map(|&x| x == 0.0).collect::<Vec<_>>();
        assert_eq!(zeros(&bf16), zeros(&reference), "dropped elements in bf16 on {name}");
    }
}

#[test]
fn draws_and_sites_differ() {
    for (name, device) in devices() {
        let first = run(&device, DType::F32, 7, 1).0;
        assert_ne!(first, run(&device, DType::F32, 8, 1).0, "another draw on {name}");
        assert_ne!(first, run(&device, DType::F32, 7, 2).0, "another site on {name}");
    }
}

#[test]
fn the_dropped_fraction_is_the_probability() {
    for (name, device) in devices() {
        let n = 1 << 20;
        let x = tensor(&vec![1.0; n], [1024, n / 1024], DType::F32, &device);
        let y = host(dropout(x, 0.1, &DropoutStream::new(3, 0, &device)));
        let dropped = y.iter().filter(|&&v| v == 0.0).count() as f64 / n as f64;
        // Four standard deviations of a binomial fraction.
        assert!((dropped - 0.1).abs() < 4.0 * (0.09 / n as f64).sqrt(), "{dropped} dropped on {name}");
        let mean = y.iter().map(|&v| f64::from(v)).sum::<f64>() / n as f64;
        assert!((mean - 1.0).abs() < 2e-3, "mean {mean} on {name}");
    }
}

/// Kernels compare the threshold with sixteen bits.
#[test]
fn a_threshold_has_sixteen_bits() {
    assert_eq!([0.0, 0.1, 0.5, 0.999_999].map(threshold_16), [0, 6_554, 32_768, 65_535]);
}
