use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use super::rotary;
use crate::testing::{assert_close, devices, host, tensor, values};

const THETA: f64 = 10_000.0;

/// Rotates each pair by `direction` times its angle, in f64.
fn expected(x: &[f32], positions: &[i32], columns: usize, heads: usize, head_dim: usize, direction: f64) -> Vec<f32> {
    let mut y = x.to_vec();
    let half = head_dim / 2;
    for (row, &position) in positions.iter().enumerate() {
        for (head, i) in (0..heads).flat_map(|head| (0..half).map(move |i| (head, i))) {
            let angle = direction * f64::from(position) * THETA.powf(-2.0 * i as f64 / head_dim as f64);
            let (at, other) = (row * columns + head * head_dim + i, row * columns + head * head_dim + i + half);
            let (a, b) = (f64::from(x[at]), f64::from(x[other]));
            y[at] = (a * angle.cos() - b * angle.sin()) as f32;
            y[other] = (b * angle.cos() + a * angle.sin()) as f32;
        }
    }
    y
}

fn positions_of(m: usize) -> Vec<i32> {
    (0..m).map(|row| (row * 37 % 1024) as i32).collect()
}

fn ints(values: &[i32], device: &Device) -> Tensor<1, Int> {
    Tensor::from_data(TensorData::new(values.to_vec(), [values.len()]), (device, DType::I32))
}

#[test]
fn values_and_gradients_equal_the_formulas() {
    for (name, device) in devices() {
        let device = device.autodiff();
        for (m, rotated, copied, head_dim) in
            [(1, 1, 0, 2), (5, 3, 1, 8), (33, 8, 4, 64), (17, 4, 0, 128), (9, 2, 3, 6)]
        {
            let columns = (rotated + copied) * head_dim;
            let (x, dy, positions) = (values(m * columns, 1), values(m * columns, 2), positions_of(m));
            let y = expected(&x, &positions, columns, rotated, head_dim, 1.0);
            // The transpose of a rotation is its inverse.
            let dx = expected(&dy, &positions, columns, rotated, head_dim, -1.0);
            for dtype in [DType::F32, DType::BF16] {
                let x = tensor(&x, [m, columns], dtype, &device).require_grad();
                let found = rotary(x.clone(), ints(&positions, &device), rotated, head_dim, THETA);
                let grads = (found.clone() * tensor(&dy, [m, columns], dtype, &device)).sum().backward();
                let what = format!("[{m}, ({rotated} + {copied}) x {head_dim}] on {name}");
                // In f32 an angle of a thousand radians has an error of 6e-5.
                let allowed = if dtype == DType::F32 { 1e-4 } else { 6e-3 };
                for (part, found, wanted) in
                    [("y", host(found), &y), ("dx", host(x.grad(&grads).expect("a gradient")), &dx)]
                {
                    let distance = crate::testing::distance(&found, wanted);
                    assert!(distance < allowed, "{part} of {what} in {dtype:?}: {distance:.1e}");
                }
            }
        }
    }
}

/// The purpose of rotary embedding: scores depend only on the distance of two positions.
#[test]
fn scores_depend_only_on_distance() {
    for (name, device) in devices() {
        let d = 64;
        let score = |query_at: i32, key_at: i32| {
            let rotate = |seed, at| {
                host(rotary(tensor(&values(d, seed), [1, d], DType::F32, &device), ints(&[at], &device), 1, d, THETA))
            };
            rotate(1, query_at).iter().zip(&rotate(2, key_at)).map(|(q, k)| q * k).sum::<f32>()
        };
        assert_close(&format!("moved by 100 on {name}"), DType::BF16, &[score(107, 103)], &[score(7, 3)]);
    }
}

#[test]
#[should_panic(expected = "3 heads of 8 do not fit into 16 columns")]
fn heads_beyond_the_row_are_refused() {
    let device = Device::flex();
    rotary(tensor(&values(32, 1), [2, 16], DType::F32, &device), ints(&[0, 1], &device), 3, 8, THETA);
}
