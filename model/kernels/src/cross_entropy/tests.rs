use burn::tensor::{DType, Int, Tensor, TensorData};

use super::{CrossEntropyConfig, cross_entropy, reference};
use crate::testing::{assert_close, devices, host, tensor, values};

const PAD: i64 = 0;

/// Returns `(loss, nll, dlogits)` by the definition, in f64.
fn expected(logits: &[f32], labels: &[i32], vocabulary: usize, smoothing: f64) -> (f32, f32, Vec<f32>) {
    let (mut loss, mut nll, mut gradient) = (0.0, 0.0, vec![0f32; logits.len()]);
    for (row, &label) in labels.iter().enumerate().filter(|&(_, &label)| i64::from(label) != PAD) {
        let z: Vec<f64> = logits[row * vocabulary..][..vocabulary].iter().map(|&x| f64::from(x)).collect();
        let log_sum = z.iter().map(|z| z.exp()).sum::<f64>().ln();
        let target = |v: usize| smoothing / vocabulary as f64 + if v == label as usize { 1.0 - smoothing } else { 0.0 };
        nll += log_sum - z[label as usize];
        for v in 0..vocabulary {
            loss += target(v) * (log_sum - z[v]);
            gradient[row * vocabulary + v] = ((z[v] - log_sum).exp() - target(v)) as f32;
        }
    }
    (loss as f32, nll as f32, gradient)
}

#[test]
fn values_and_gradients_equal_the_definition() {
    for (name, device) in devices() {
        let device = device.autodiff();
        for (rows, vocabulary) in [(4, 8), (33, 100), (64, 1000)] {
            let logits: Vec<f32> = values(rows * vocabulary, 1).iter().map(|x| x * 4.0).collect();
            // Every fifth row is padding.
            let labels: Vec<i32> = (0..rows)
                .map(|i| if i % 5 == 4 { PAD as i32 } else { 1 + (i * 37 % (vocabulary - 1)) as i32 })
                .collect();
            for label_smoothing in [0.0, 0.1] {
                let (loss, nll, gradient) = expected(&logits, &labels, vocabulary, label_smoothing);
                for dtype in [DType::F32, DType::BF16] {
                    let z = tensor(&logits, [rows, vocabulary], dtype, &device).require_grad();
                    let y = Tensor::<1, Int>::from_data(TensorData::new(labels.clone(), [rows]), (&device, DType::I32));
                    let got = cross_entropy(z.clone(), y, &CrossEntropyConfig { label_smoothing, ignore_index: PAD });
                    let grads = got.loss_sum.backward();
                    let what = |part: &str| {
                        format!("{part} of [{rows}, {vocabulary}], smoothing {label_smoothing}, on {name}")
                    };
                    assert_close(&what("loss"), DType::F32, &host(got.loss_sum), &[loss]);
                    assert_close(&what("nll"), DType::F32, &host(got.nll_sum), &[nll]);
                    assert_close(&what("gradient"), dtype, &host(z.grad(&grads).expect("a gradient")), &gradient);
                }
            }
        }
    }
}

#[test]
fn kernel_and_reference_agree() {
    for (name, device) in devices() {
        let (rows, vocabulary) = (40, 520);
        let labels: Vec<i32> = (0..rows as i32).map(|i| i * 13 % vocabulary as i32).collect();
        let z = tensor(&values(rows * vocabulary, 1), [rows, vocabulary], DType::F32, &device);
        let y = Tensor::<1, Int>::from_data(TensorData::new(labels, [rows]), (&device, DType::I32));
        let config = CrossEntropyConfig { label_smoothing: 0.1, ignore_index: PAD };
        let plain = reference::cross_entropy(z.clone(), y.clone(), &config);
        let fused = cross_entropy(z, y, &config);
        assert_close(&format!("loss on {name}"), DType::F32, &host(fused.loss_sum), &host(plain.loss_sum));
        assert_close(&format!("nll on {name}"), DType::F32, &host(fused.nll_sum), &host(plain.nll_sum));
    }
}
