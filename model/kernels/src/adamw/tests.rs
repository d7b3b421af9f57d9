use burn::tensor::DType;

use super::{AdamWHyper, AdamWState, adamw_step, clip_coefficient, sum_of_squares};
use crate::testing::{assert_close, devices, distance, host, tensor, values};

/// Ten steps against PyTorch's update, one scalar at a time in f64.
#[test]
fn ten_steps_equal_the_scalar_recurrence() {
    let n = 103;
    let (lr, beta1, beta2, eps, weight_decay) = (1e-2, 0.9, 0.98, 1e-9, 0.1);
    for (name, device) in devices() {
        let start = values(n, 1);
        let mut state = AdamWState::new(tensor(&start, [n], DType::F32, &device));
        let mut p: Vec<f64> = start.iter().map(|&x| f64::from(x)).collect();
        let (mut m, mut v) = (vec![0f64; n], vec![0f64; n]);
        for step in 1..=10u64 {
            let grad = values(n, 100 + step);
            let scale = 0.5f32;
            let hyper = AdamWHyper { lr, beta1, beta2, eps, weight_decay, step };
            let scale_tensor = tensor(&[scale], [1], DType::F32, &device);
            state = adamw_step(state, tensor(&grad, [n], DType::F32, &device), scale_tensor, &hyper);
            for i in 0..n {
                let g = f64::from(grad[i] * scale);
                m[i] = beta1 * m[i] + (1.0 - beta1) * g;
                v[i] = beta2 * v[i] + (1.0 - beta2) * g * g;
                let m_hat = m[i] / (1.0 - beta1.powi(step as i32));
                let v_hat = v[i] / (1.0 - beta2.powi(step as i32));
                p[i] = p[i] * (1.0 - lr * weight_decay) - lr * m_hat / (v_hat.sqrt() + eps);
            }
        }
        let f32s = |x: &[f64]| x.iter().map(|&x| x as f32).collect::<Vec<_>>();
        assert_close(&format!("weights on {name}"), DType::F32, &host(state.master), &f32s(&p));
        assert_close(&format!("first moment on {name}"), DType::F32, &host(state.m), &f32s(&m));
        assert_close(&format!("second moment on {name}"), DType::F32, &host(state.v), &f32s(&v));
    }
}

#[test]
fn clipping_limits_the_global_norm() {
    for (name, device) in devices() {
        let x = values(10_000, 1);
        let norm = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let measured = sum_of_squares(tensor(&x, [x.len()], DType::F32, &device)).sqrt();
        assert!(distance(&host(measured.clone()), &[norm as f32]) < 1e-5, "norm on {name}");
        let coefficient = |max: f64| host(clip_coefficient(measured.clone(), max))[0];
        assert!((f64::from(coefficient(1.0)) - 1.0 / norm).abs() < 1e-6, "clipped on {name}");
        assert_eq!(coefficient(1e6), 1.0, "a small gradient is left alone on {name}");
        assert_eq!(coefficient(0.0), 1.0, "0 switches clipping off on {name}");
    }
}
