use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use super::embedding;
use crate::testing::{devices, distance, host, tensor, time, timing_device, values};

fn ids(values: &[i32], device: &Device) -> Tensor<1, Int> {
    Tensor::from_data(TensorData::new(values.to_vec(), [values.len()]), (device, DType::I32))
}

/// Returns ids like those of a text: one id makes up a third, some never occur, and runs of one id end anywhere in a
/// segment.
fn text(n: usize, vocabulary: usize) -> Vec<i32> {
    let noise = values(n, 9);
    let id = |(i, x): (usize, &f32)| {
        let drawn = ((x + 1.0) / 2.0 * vocabulary as f32) as i32;
        match i % 3 {
            0 => 1,
            1 => drawn / 4,
            _ => drawn,
        }
    };
    noise.iter().enumerate().map(id).map(|id| id.clamp(0, vocabulary as i32 - 1)).collect()
}

#[test]
fn rows_and_their_gradient_equal_a_loop() {
    let mut wrong = Vec::new();
    for (name, device) in devices() {
        let device = device.autodiff();
        for (n, vocabulary, d) in [
            (1, 3, 8),
            (7, 5, 6),
            (32, 2, 16),
            (33, 1, 8),
            (1000, 300, 64),
            (2100, 50, 768),
            (70, 9, 1032),
            (3000, 7, 100),
        ] {
            let (tokens, dy) = (text(n, vocabulary), values(n * d, 2));
            let table = values(vocabulary * d, 1);
            let y: Vec<f32> = tokens.iter().flat_map(|&id| table[id as usize * d..][..d].to_vec()).collect();
            let mut gradient = vec![0f64; vocabulary * d];
            for (&id, dy) in tokens.iter().zip(dy.chunks(d)) {
                gradient[id as usize * d..][..d].iter_mut().zip(dy).for_each(|(sum, &x)| *sum += f64::from(x));
            }
            let gradient: Vec<f32> = gradient.into_iter().map(|x| x as f32).collect();
            for dtype in [DType::F32, DType::BF16] {
                let what = format!("{n} tokens of {vocabulary} x {d} on {name}");
                let table = tensor(&table, [vocabulary, d], dtype, &device).require_grad();
                let run = || {
                    let found = embedding(ids(&tokens, &device), table.clone());
                    let grads = (found.clone() * tensor(&dy, [n, d], dtype, &device)).sum().backward();
                    (host(found), host(table.grad(&grads).expect("a gradient")))
                };
                let (found, found_gradient) = run();
                assert_eq!(found, y, "rows of {what}");
                let allowed = if dtype == DType::F32 { 2e-6 } else { 6e-3 };
                let distance = distance(&found_gradient, &gradient);
                if distance > allowed {
                    wrong.push(format!("gradient of {what} in {dtype:?}: relative distance {distance:.1e}"));
                }
                if run().1 != found_gradient {
                    wrong.push(format!("the gradient of {what} in {dtype:?} differs the second time"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// GPT-2 124M at 16 x 1024, a joint vocabulary of 16k at 400 x 64.
#[test]
fn times() {
    use burn::backend::Dispatch;

    use super::ops::{EmbeddingOps, Lookup};
    use crate::dropout::Mask;
    let Some(device) = timing_device() else { return };
    for (n, vocabulary, d) in [(16_384, 50_304, 768), (25_600, 16_000, 512)] {
        let dy = Tensor::<2>::ones([n, d], (&device, DType::BF16)).into_dispatch();
        let tokens = ids(&text(n, vocabulary), &device).into_dispatch();
        let bytes = 2 * (n * d + vocabulary * d);
        time(&format!("table gradient {n} tokens of {vocabulary} x {d}"), bytes, &device, || {
            let lookup = Lookup { scale: 1.0, rows: vocabulary, length: 1 };
            Dispatch::table_gradient(dy.clone(), tokens.clone(), Mask::None, lookup)
        });
    }
}
