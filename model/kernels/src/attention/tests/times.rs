use burn::backend::Dispatch;
use burn::tensor::{DType, Device, Tensor};

use super::long_rows::want;
use crate::F32Products;
use crate::attention::ops::{FlashOps, FlashSpec};
use crate::maybe::{Maybe, MaybeInts};
use crate::testing::{is_timed, seconds, tensor, timing_device, values};

/// What is timed: name, B, H, T, K, causality, window, bound of the scores. "relative" has relative positions.
type Timed = (&'static str, usize, usize, usize, usize, bool, Option<usize>, Option<f32>);

/// Times forward and backward. `KILN_LONG_ROWS=always` and `never` choose the kernels.
#[test]
fn times() {
    let Some(device) = timing_device() else { return };
    let _wanted = match std::env::var("KILN_LONG_ROWS").as_deref() {
        Ok("always") => Some(want(true)),
        Ok("never") => Some(want(false)),
        _ => None,
    };

    let shapes = [
        ("causal", 16, 12, 1024, 64, true, None, None),
        ("full", 16, 12, 1024, 64, false, None, None),
        ("one tile", 400, 8, 64, 64, false, None, None),
        ("causal", 8, 16, 2048, 128, true, None, None),
        ("causal", 16, 24, 1024, 32, true, None, None),
        ("causal", 16, 10, 1024, 80, true, None, None),
        ("causal", 16, 8, 1024, 96, true, None, None),
        ("causal", 8, 21, 2048, 96, true, None, None),
        ("causal", 8, 25, 2048, 80, true, None, None),
        ("causal", 8, 10, 2048, 192, true, None, None),
        ("causal", 8, 8, 2048, 256, true, None, None),
        ("full", 64, 12, 128, 64, false, None, None),
        ("relative", 64, 12, 128, 64, false, None, None),
        ("relative", 16, 12, 1024, 64, true, None, None),
        ("relative", 16, 12, 1024, 64, false, None, None),
        ("bound 50", 8, 16, 2048, 128, true, None, Some(50.0)),
        ("full", 8, 10, 2048, 192, false, None, None),
        ("full", 8, 8, 2048, 256, false, None, None),
        ("causal", 2, 16, 8192, 128, true, None, None),
        ("window 1024", 2, 16, 8192, 128, true, Some(1024), None),
        ("causal", 2, 32, 8192, 64, true, None, None),
        ("window 1024", 2, 32, 8192, 64, true, Some(1024), None),
        ("full", 2, 16, 8192, 128, false, None, None),
        ("full", 2, 32, 8192, 64, false, None, None),
        ("causal", 1, 12, 32768, 64, true, None, None),
        ("causal", 4, 32, 4096, 64, true, None, None),
        ("causal", 4, 16, 4096, 128, true, None, None),
        ("causal", 8, 32, 2048, 64, true, None, None),
        ("causal", 16, 16, 1024, 128, true, None, None),
        ("causal", 32, 16, 512, 128, true, None, None),
        ("full", 8, 32, 2048, 64, false, None, None),
        ("full", 32, 16, 512, 128, false, None, None),
        ("full", 8, 16, 2048, 128, false, None, None),
    ];
    for shape in shapes {
        time_passes(&device, shape, DType::BF16, F32Products::F32);
    }
}

/// What is timed in f32.
const SHAPES_IN_F32: [Timed; 6] = [
    ("causal", 16, 12, 1024, 64, true, None, None),
    ("full", 16, 12, 1024, 64, false, None, None),
    ("causal", 64, 8, 128, 64, true, None, None),
    ("causal", 8, 16, 2048, 128, true, None, None),
    ("causal", 8, 21, 2048, 96, true, None, None),
    ("causal", 16, 24, 1024, 32, true, None, None),
];

/// Times forward and backward with the accuracy of f32.
#[test]
fn times_in_f32() {
    let Some(device) = timing_device() else { return };
    for shape in SHAPES_IN_F32 {
        time_passes(&device, shape, DType::F32, F32Products::F32);
    }
}

/// Times forward and backward of f32 with products in TF32.
#[test]
fn times_in_tf32() {
    let Some(device) = timing_device() else { return };
    for shape in SHAPES_IN_F32 {
        time_passes(&device, shape, DType::F32, F32Products::Tf32);
    }
}

fn time_passes(device: &Device, shape: Timed, dtype: DType, f32_products: F32Products) {
    let (name, b, h, t, k, causal, window, softcap) = shape;
    let described = format!("{name} {b} x {h} x {t} x {k}");
    if !is_timed(&described) {
        return;
    }
    // Through one row: the backend leaves gaps between the rows of a matrix that it uploads, and those would be copied away in
    // each call. Products leave none.
    let matrix = |[rows, columns]: [usize; 2], seed, dtype| {
        let row: Tensor<1> = tensor(&values(rows * columns, seed), [rows * columns], dtype, device);
        row.reshape([rows, columns]).into_dispatch()
    };
    let (qkv, d_out) = (matrix([b * t, 3 * h * k], 1, dtype), matrix([b * t, h * k], 2, dtype));
    let relative: Maybe<Dispatch> = match name {
        "relative" => Maybe::Some(matrix([h, 2 * t - 1], 3, DType::F32)),
        _ => Maybe::None,
    };
    let spec = FlashSpec {
        batch_size: b,
        n_heads: h,
        n_kv_heads: h,
        head_dim: k,
        causal,
        window,
        scale: (k as f32).sqrt().recip(),
        softcap,
        site: 0,
        dropout: 0.0,
        f32_products,
    };
    let forward = || {
        let relative = relative.clone();
        Dispatch::flash_self(qkv.clone(), relative, MaybeInts::None, MaybeInts::None, MaybeInts::None, spec)
    };
    let (out, lse) = forward();
    let backward = || {
        let (qkv, out, lse, d_out, relative) = (qkv.clone(), out.clone(), lse.clone(), d_out.clone(), relative.clone());
        let none = || MaybeInts::None;
        Dispatch::flash_self_backward(qkv, out, lse, d_out, relative, none(), none(), none(), spec)
    };
    let sum: f32 = Tensor::<2>::from_dispatch(backward().0).cast(DType::F32).abs().sum().into_scalar();
    assert!(sum > 0.0, "nothing was computed");

    // Of a triangle half the square is counted, as for PyTorch.
    let hidden = window.map_or(0, |window| (t - window) * (t - window));
    let seen = (t * t - hidden) as f64 * if causal { 0.5 } else { 1.0 };
    let flops = 4.0 * (b * h * k) as f64 * seen;
    let (first, second) = (seconds(device, forward), seconds(device, backward));
    println!(
        "{described} in {dtype:?} ({f32_products:?}): forward {:.3} ms ({:.0} TFLOP/s), backward {:.3} ms ({:.0})",
        first * 1e3,
        flops / first * 1e-12,
        second * 1e3,
        2.5 * flops / second * 1e-12
    );
}
