//! The kernels for long rows, in calls that are too short to take them by themselves.

use std::sync::atomic::{AtomicU8, Ordering};

use burn::backend::Dispatch;
use burn::tensor::{DType, Device, Tensor};

use super::cases::{Case, cases, inputs};
use super::run;
use crate::F32Products;
use crate::attention::ops::{FlashOps, FlashSpec};
use crate::maybe::{Maybe, MaybeInts};
use crate::testing::{cuda_alone, distance, part, tensor, values};

/// Whether calls take those kernels that compute them: 0 if they decide themselves, 1 for all of them, 2 for none.
static WANTED: AtomicU8 = AtomicU8::new(0);

/// While it lives, calls do not decide themselves. Only for tests that have the device alone.
pub(super) struct Wanted(());

/// Sends all calls through the kernels that compute them, or none.
pub(super) fn want(all: bool) -> Wanted {
    WANTED.store(if all { 1 } else { 2 }, Ordering::Relaxed);
    Wanted(())
}

impl Drop for Wanted {
    fn drop(&mut self) {
        WANTED.store(0, Ordering::Relaxed);
    }
}

/// Returns what a test wants, if it does.
#[cfg(feature = "cuda")]
pub(in crate::attention) fn wanted() -> Option<bool> {
    match WANTED.load(Ordering::Relaxed) {
        0 => None,
        wanted => Some(wanted == 1),
    }
}

/// Whether the kernels compute the case.
fn is_served(case: &Case) -> bool {
    matches!(case.k, 64 | 128) && case.softcap.is_none() && !case.relative
}

#[test]
fn long_rows_follow_f32() {
    let device = match cuda_alone() {
        Ok(device) => device,
        Err(reason) => return eprintln!("skipped on CUDA: {reason}"),
    };
    let _wanted = want(true);
    let all = cases().into_iter().filter(is_served).chain(longer_cases()).collect();
    for (at, ref case) in part(all) {
        let inputs = inputs(case);
        let (f32_out, f32) = run(&Device::flex(), DType::F32, case, &inputs);
        // The results of queries without keys are undefined.
        let is_defined = case.lengths.is_none_or(|lengths| !lengths.contains(&0));
        for dtype in [DType::BF16, DType::F16] {
            let (out, found) = run(&device, dtype, case, &inputs);
            let off = distance(&out, &f32_out);
            assert!(off < 1e-2 || !is_defined, "out of case {at} in {dtype:?}: relative distance {off:.1e}");
            for (part, (a, b)) in found.iter().zip(&f32).enumerate() {
                let found = distance(a, b);
                assert!(found < 1.5e-2, "gradient {part} of case {at} in {dtype:?}: relative distance {found:.1e}");
            }
        }
    }
}

/// Several blocks of keys, of which the last is partial, and tiles of queries that some blocks or all never see.
fn longer_cases() -> Vec<Case> {
    let base = Case { h: 2, g: 2, t: 700, s: 700, k: 128, causal: true, ..cases()[0] };

    let cases = [
        base,
        Case { g: 1, causal: false, ..base },
        Case { window: Some(150), ..base },
        Case { window: Some(150), lengths: Some(&[700, 300]), g: 1, ..base },
        Case { lengths: Some(&[1, 640]), ..base },
        Case { documents: Some(|i| (i / 170) as i32), ..base },
        Case { t: 300, s: 900, packed: false, ..base },
        Case { t: 300, s: 900, packed: false, causal: false, lengths: Some(&[900, 0]), ..base },
        Case { t: 300, s: 900, packed: false, causal: false, window: Some(200), lengths: Some(&[900, 500]), ..base },
        Case { scale: Some(0.3), t: 130, s: 130, ..base },
    ];

    cases.into_iter().flat_map(|case| [case, Case { k: 64, ..case }]).collect()
}

/// Equal rows of a batch, each of which is a trial.
const ROWS: usize = 64;

/// The results and gradients of four kinds of calls, of nine blocks of keys, repeat bit for bit. `KILN_TRIALS` says how often each.
#[test]
fn long_rows_repeat() {
    let device = match cuda_alone() {
        Ok(device) => device,
        Err(reason) => return eprintln!("skipped on CUDA: {reason}"),
    };
    let trials = std::env::var("KILN_TRIALS").map_or(640, |trials| trials.parse().expect("a number"));
    let _wanted = want(true);

    let calls = [
        ("causal", 4, true, None),
        ("full", 4, false, None),
        ("window", 4, true, Some(500)),
        ("grouped", 2, true, None),
    ];
    for (kind, n_kv_heads, causal, window) in calls {
        for head_dim in [64, 128] {
            let spec = FlashSpec {
                batch_size: ROWS,
                n_heads: 4,
                n_kv_heads,
                head_dim,
                causal,
                window,
                scale: (head_dim as f32).sqrt().recip(),
                softcap: None,
                site: 0,
                dropout: 0.0,
                f32_products: F32Products::F32,
            };
            assert_repeats(&device, kind, spec, trials);
        }
    }
}

fn assert_repeats(device: &Device, kind: &str, spec: FlashSpec, trials: usize) {
    let t = 1100;
    let FlashSpec { n_heads, n_kv_heads, head_dim, .. } = spec;

    let matrix = |columns: usize, seed| -> Tensor<2> {
        let row: Tensor<1> = tensor(&values(t * columns, seed), [t * columns], DType::BF16, device);
        row.reshape([1, t * columns]).repeat_dim(0, ROWS).reshape([ROWS * t, columns])
    };
    let qkv = matrix((n_heads + 2 * n_kv_heads) * head_dim, 1).into_dispatch();
    let d_out = matrix(n_heads * head_dim, 2).into_dispatch();
    let none = || MaybeInts::<Dispatch>::None;
    let forward = || Dispatch::flash_self(qkv.clone(), Maybe::None, none(), none(), none(), spec);
    let (out, lse) = forward();
    let first_out = Tensor::<2>::from_dispatch(out.clone());
    let backward = || {
        let (qkv, out, lse, d_out) = (qkv.clone(), out.clone(), lse.clone(), d_out.clone());
        let gradient = Dispatch::flash_self_backward(qkv, out, lse, d_out, Maybe::None, none(), none(), none(), spec).0;
        Tensor::<2>::from_dispatch(gradient)
    };

    let columns = (n_heads + 2 * n_kv_heads) * head_dim;
    let row = backward().slice([0..t, 0..columns]).reshape([1, t * columns]);
    let first = row.repeat_dim(0, ROWS).reshape([ROWS * t, columns]);
    let mut done = 0;
    while done < trials {
        let some = (trials - done).div_ceil(ROWS).min(20);
        let mut different = Tensor::<1>::zeros([1], (device, DType::F32));
        for _ in 0..some {
            let out = Tensor::<2>::from_dispatch(forward().0);
            different = different + out.not_equal(first_out.clone()).float().cast(DType::F32).sum();
            different = different + backward().not_equal(first.clone()).float().cast(DType::F32).sum();
        }
        let different: f32 = different.into_scalar();
        let trials = some * ROWS;
        assert!(
            different == 0.0,
            "{different} numbers of {kind} calls of heads of {head_dim} differ in {trials} trials"
        );
        done += some * ROWS;
    }
    let norm: f32 = first.cast(DType::F32).abs().sum().into_scalar();
    assert!(norm > 0.0 && norm.is_finite(), "nothing was computed");
}
