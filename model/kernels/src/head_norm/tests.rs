use burn::tensor::{DType, Device};

use super::ops::HeadNorms;
use super::{norm_heads, reference};
use crate::testing::{assert_close, devices, host, tensor, values};

const EPS: f32 = 1e-6;

/// Returns the result and the gradients of the projections and both scales.
fn run(device: &Device, dtype: DType, rows: usize, n_heads: usize, spec: HeadNorms, plain: bool) -> [Vec<f32>; 4] {
    let HeadNorms { n_query_heads, n_key_heads, head_dim: k, .. } = spec;
    let columns = n_heads * k;
    let device = device.clone().autodiff();
    let qkv = tensor(&values(rows * columns, 1), [rows, columns], dtype, &device).require_grad();
    let [query, key] = [2, 3].map(|seed| tensor(&values(k, seed), [k], dtype, &device).require_grad());
    let y = match plain {
        true => reference::norm_heads(qkv.clone(), [query.clone(), key.clone()], spec),
        false => {
            let heads = [n_query_heads, n_key_heads];
            norm_heads(qkv.clone(), query.clone(), key.clone(), heads, f64::from(EPS))
        }
    };
    let weights = tensor(&values(rows * columns, 9), [rows, columns], dtype, &device);
    let gradients = (y.clone() * weights).sum().backward();
    let of_scale = |gamma: &burn::tensor::Tensor<1>| gamma.grad(&gradients).map_or(vec![0.0; k], host);
    [host(y), host(qkv.grad(&gradients).expect("a gradient")), of_scale(&query), of_scale(&key)]
}

/// Returns the same by the formulas, in f64.
fn expected(rows: usize, n_heads: usize, spec: HeadNorms) -> [Vec<f32>; 4] {
    let (HeadNorms { n_query_heads, n_key_heads, head_dim: k, .. }, n) = (spec, rows * n_heads * spec.head_dim);
    let of = |len, seed| -> Vec<f64> { values(len, seed).into_iter().map(f64::from).collect() };
    let (x, gammas, dy) = (of(n, 1), [of(k, 2), of(k, 3)], of(n, 9));
    let (mut y, mut dx, mut d_gammas) = (x.clone(), dy.clone(), [vec![0.0; k], vec![0.0; k]]);
    for head in 0..rows * n_heads {
        let which = match head % n_heads {
            of_row if of_row < n_query_heads => 0,
            of_row if of_row < n_query_heads + n_key_heads => 1,
            _ => continue,
        };
        let (here, gamma) = (head * k..(head + 1) * k, &gammas[which]);
        let (x, dy) = (&x[here.clone()], &dy[here.clone()]);
        let inverse = (x.iter().map(|x| x * x).sum::<f64>() / k as f64 + f64::from(EPS)).powf(-0.5);
        let mean = (0..k).map(|i| dy[i] * gamma[i] * x[i] * inverse).sum::<f64>() / k as f64;
        for (i, at) in here.enumerate() {
            y[at] = x[i] * inverse * gamma[i];
            dx[at] = inverse * (dy[i] * gamma[i] - x[i] * inverse * mean);
            d_gammas[which][i] += dy[i] * x[i] * inverse;
        }
    }
    let [d_query, d_key] = d_gammas;
    [y, dx, d_query, d_key].map(|values| values.into_iter().map(|x| x as f32).collect())
}

/// Heads that are a part of a warp wide, a whole one, and two vectors per lane; odd widths; grouped keys, none of them, no values; more
/// heads than all blocks of a GPU take at a time.
#[test]
fn values_and_gradients_equal_the_formulas() {
    for (name, device) in devices() {
        for (rows, n_heads, n_query_heads, n_key_heads, head_dim) in [
            (1, 3, 1, 1, 8),
            (5, 8, 4, 2, 64),
            (333, 16, 8, 4, 128),
            (2500, 6, 4, 1, 256),
            (40, 6, 2, 2, 96),
            (33, 3, 1, 1, 80),
            (9, 4, 2, 2, 20),
            (9, 5, 3, 0, 32),
            (9, 5, 0, 3, 32),
            (500, 6, 2, 2, 16),
        ] {
            let spec = HeadNorms { n_query_heads, n_key_heads, head_dim, eps: EPS };
            let wanted = expected(rows, n_heads, spec);
            let dtypes = [DType::F32, DType::BF16, DType::F16];
            // The CPU has no sums in f16.
            let dtypes = if device == Device::flex() { &dtypes[..2] } else { &dtypes[..] };

            for &dtype in dtypes {
                for plain in [false, true] {
                    let found = run(&device, dtype, rows, n_heads, spec, plain);
                    let parts = ["y", "dx", "d query", "d key"].iter().zip(found.iter().zip(&wanted));
                    // Sums of the reference over many rows are less exact.
                    for (part, (found, wanted)) in parts.filter(|(part, _)| !plain || !part.starts_with("d ")) {
                        let what = format!("{part} of {rows} x {n_heads} heads of {head_dim}, {dtype:?} on {name}");
                        assert_close(&what, dtype, found, wanted);
                    }
                }
            }
        }
    }
}

/// Rows of zeros have no direction: eps alone decides.
#[test]
fn heads_of_zeros_stay_zero() {
    for (name, device) in devices() {
        let qkv = tensor(&[0.0; 64], [2, 32], DType::F32, &device);
        let ones = tensor(&[1.0; 8], [8], DType::F32, &device);
        assert_eq!(host(norm_heads(qkv, ones.clone(), ones, [2, 1], 1e-6)), [0.0; 64], "{name}");
    }
}
