//! Shapes and options of attention, and inputs for them.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use crate::attention::{AttentionConfig, AttentionMask};
use crate::testing::values;

#[derive(Clone, Copy)]
pub(super) struct Case {
    pub(super) b: usize,
    pub(super) h: usize,
    pub(super) g: usize,
    pub(super) t: usize,
    pub(super) s: usize,
    pub(super) k: usize,
    pub(super) causal: bool,
    pub(super) lengths: Option<&'static [i32]>,
    pub(super) documents: Option<fn(usize) -> i32>,
    pub(super) packed: bool,
    pub(super) window: Option<usize>,
    pub(super) scale: Option<f64>,
    pub(super) softcap: Option<f64>,
    /// Each head adds a number for each distance to its scores.
    pub(super) relative: bool,
}

impl Case {
    pub(super) fn mask_and_config(&self, device: &Device) -> (AttentionMask, AttentionConfig) {
        let Case { b, h, g, t, causal, window, scale, softcap, .. } = *self;
        let ints = |values: Vec<i32>| {
            let n = values.len();
            Tensor::<1, Int>::from_data(TensorData::new(values, [n]), (device, DType::I32))
        };
        let mask = AttentionMask {
            key_lengths: self.lengths.map(|lengths| ints(lengths.to_vec())),
            documents: self.documents.map(|of| ints((0..b * t).map(|row| of(row % t)).collect())),
            relative: None,
            bias: None,
        };
        (mask, AttentionConfig { batch_size: b, n_heads: h, n_kv_heads: g, causal, window, scale, softcap })
    }
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = without_windows();
    cases.extend(with_windows());
    cases.extend(with_scores_of_their_own());
    cases.extend(with_relative_positions());
    cases
}

/// A small case and one of a whole tile.
fn bases() -> [Case; 2] {
    let base = Case {
        b: 2,
        h: 3,
        g: 3,
        t: 5,
        s: 5,
        k: 8,
        causal: false,
        lengths: None,
        documents: None,
        packed: true,
        window: None,
        scale: None,
        softcap: None,
        relative: false,
    };
    let wide = Case { b: 2, h: 4, g: 4, t: 128, s: 128, k: 64, ..base };
    [base, wide]
}

fn without_windows() -> Vec<Case> {
    let [base, wide] = bases();

    vec![
        base,
        Case { causal: true, ..base },
        Case { lengths: Some(&[5, 2]), ..base },
        Case { lengths: Some(&[1, 4]), causal: true, ..base },
        Case { packed: false, s: 9, ..base },
        Case { packed: false, s: 9, lengths: Some(&[9, 3]), ..base },
        Case { packed: false, t: 2, s: 6, causal: true, ..base },
        Case { packed: false, t: 1, s: 7, causal: true, ..base },
        Case { h: 4, g: 2, causal: true, ..base },
        Case { h: 6, g: 1, packed: false, s: 7, lengths: Some(&[7, 2]), ..base },
        Case { documents: Some(|i| (i as i32) / 2), ..base },
        Case { documents: Some(|i| i32::from(i > 2)), causal: true, lengths: Some(&[5, 5]), ..base },
        Case { b: 3, h: 8, g: 8, t: 64, s: 64, k: 64, causal: true, lengths: Some(&[64, 33, 1]), ..base },
        Case { b: 3, h: 8, g: 8, t: 40, s: 72, k: 64, lengths: Some(&[72, 33, 1]), packed: false, ..base },
        // One tile, full and partial, self-attention and cross-attention, in both head dimensions.
        Case { t: 33, s: 33, documents: Some(|i| (i / 9) as i32), causal: true, ..wide },
        Case { t: 40, s: 57, packed: false, lengths: Some(&[57, 20]), ..wide },
        Case { t: 20, s: 60, packed: false, causal: true, ..wide },
        Case { h: 2, g: 2, t: 50, s: 50, k: 128, causal: true, ..wide },
        Case { h: 2, g: 2, t: 64, s: 9, k: 128, packed: false, lengths: Some(&[9, 1]), ..wide },
        wide,
        Case { causal: true, ..wide },
        Case { causal: true, t: 200, s: 200, g: 2, ..wide },
        Case { t: 72, s: 200, packed: false, lengths: Some(&[200, 65]), ..wide },
        Case { t: 72, s: 136, causal: true, packed: false, ..wide },
        Case { t: 200, s: 200, documents: Some(|i| [0, 1, 1, 4][i / 50]), causal: true, ..wide },
        Case { t: 200, s: 200, documents: Some(|i| i32::from(i >= 70)), lengths: Some(&[200, 130]), ..wide },
        // Many turns of the pipeline, odd and even.
        Case { b: 1, h: 2, g: 1, t: 520, s: 520, causal: true, ..wide },
        Case { h: 1, g: 1, t: 500, s: 500, causal: true, lengths: Some(&[500, 130]), ..wide },
        Case { b: 1, h: 1, g: 1, t: 500, s: 500, documents: Some(|i| (i / 170) as i32), causal: true, ..wide },
        Case { h: 2, g: 1, t: 130, s: 130, k: 128, causal: true, ..wide },
        Case { h: 2, g: 2, t: 70, s: 130, k: 128, packed: false, lengths: Some(&[129, 64]), ..wide },
        // Heads of other sizes: multiples of 16 and 8, more and less than a tile's 64 columns.
        Case { t: 150, s: 150, k: 96, causal: true, ..wide },
        Case { h: 2, g: 1, t: 140, s: 140, k: 80, causal: true, lengths: Some(&[140, 70]), ..wide },
        Case { h: 2, g: 1, t: 130, s: 130, k: 80, documents: Some(|i| (i / 47) as i32), ..wide },
        Case { h: 2, g: 2, t: 65, s: 200, k: 32, packed: false, lengths: Some(&[150, 64]), ..wide },
        Case { h: 2, g: 2, t: 40, s: 40, k: 72, causal: true, ..wide },
        Case { h: 2, g: 1, t: 100, s: 100, k: 24, causal: true, lengths: Some(&[100, 3]), ..wide },
        Case { h: 1, g: 1, t: 70, s: 70, k: 120, causal: true, ..wide },
        Case { h: 2, g: 2, t: 50, s: 50, k: 96, causal: true, ..wide },
        Case { h: 2, g: 2, t: 40, s: 57, k: 48, packed: false, lengths: Some(&[57, 20]), ..wide },
        Case { h: 1, g: 1, t: 140, s: 140, k: 112, causal: true, ..wide },
        // Wide heads: whole and partial tiles of 64 and of 32 rows, all masks, grouped queries, several turns.
        Case { h: 2, g: 1, t: 150, s: 150, k: 192, causal: true, ..wide },
        Case { h: 2, g: 1, t: 130, s: 130, k: 256, causal: true, ..wide },
        Case { h: 2, g: 2, t: 65, s: 200, k: 192, packed: false, lengths: Some(&[150, 64]), ..wide },
        Case { h: 2, g: 1, t: 70, s: 100, k: 256, packed: false, lengths: Some(&[100, 33]), ..wide },
        Case { h: 2, g: 2, t: 24, s: 40, k: 256, causal: true, packed: false, ..wide },
        Case { h: 1, g: 1, t: 300, s: 300, k: 256, documents: Some(|i| (i / 110) as i32), causal: true, ..wide },
        Case { h: 1, g: 1, t: 200, s: 200, k: 192, documents: Some(|i| (i / 47) as i32), ..wide },
        Case { t: 99, s: 99, k: 136, documents: Some(|i| (i / 47) as i32), lengths: Some(&[99, 95]), ..wide },
        Case { h: 1, g: 1, t: 70, s: 70, k: 160, causal: true, lengths: Some(&[70, 3]), ..wide },
        Case { h: 2, g: 2, t: 97, s: 97, k: 200, causal: true, ..wide },
        Case { h: 2, g: 1, t: 130, s: 130, k: 240, causal: true, ..wide },
        Case { h: 1, g: 1, t: 40, s: 33, k: 248, packed: false, ..wide },
    ]
}

fn with_windows() -> Vec<Case> {
    let [base, wide] = bases();

    vec![
        // Windows: smaller and larger than the keys, with padding, documents, and in a step of decoding.
        Case { causal: true, window: Some(1), ..base },
        Case { causal: true, window: Some(3), ..base },
        Case { causal: true, window: Some(5), ..base },
        Case { lengths: Some(&[5, 2]), causal: true, window: Some(2), ..base },
        Case { documents: Some(|i| i32::from(i > 2)), causal: true, window: Some(2), ..base },
        Case { packed: false, t: 1, s: 7, lengths: Some(&[7, 2]), window: Some(3), ..base },
        Case { packed: false, t: 2, s: 6, causal: true, window: Some(2), ..base },
        Case { packed: false, s: 9, window: Some(4), ..base },
        Case { t: 200, s: 200, g: 2, causal: true, window: Some(70), ..wide },
        Case { t: 200, s: 200, documents: Some(|i| [0, 1, 1, 4][i / 50]), causal: true, window: Some(65), ..wide },
        // Some tiles of keys are hidden from all queries of a block, and some of queries from all keys.
        Case { b: 1, h: 2, g: 1, t: 330, s: 330, causal: true, window: Some(64), ..wide },
        Case { h: 2, g: 1, t: 260, s: 260, k: 128, causal: true, lengths: Some(&[260, 70]), window: Some(33), ..wide },
        Case { h: 1, g: 1, t: 72, s: 200, packed: false, lengths: Some(&[200, 65]), window: Some(50), ..wide },
        Case { h: 1, g: 1, t: 72, s: 264, packed: false, causal: true, window: Some(90), ..wide },
        Case { t: 50, s: 50, causal: true, window: Some(7), ..wide },
        Case { b: 1, h: 2, g: 1, t: 270, s: 270, k: 96, causal: true, window: Some(40), ..wide },
        Case { b: 1, h: 2, g: 1, t: 280, s: 280, k: 192, causal: true, window: Some(70), ..wide },
        Case { h: 1, g: 1, t: 200, s: 200, k: 256, causal: true, lengths: Some(&[200, 90]), window: Some(30), ..wide },
        Case { b: 1, h: 1, g: 1, t: 200, s: 200, k: 136, causal: true, window: Some(65), ..wide },
    ]
}

fn with_scores_of_their_own() -> Vec<Case> {
    let [base, wide] = bases();

    vec![
        Case { scale: Some(1.0), ..base },
        Case { causal: true, scale: Some(0.1), lengths: Some(&[5, 2]), ..base },
        // Scores far below and far above the bound.
        Case { softcap: Some(50.0), causal: true, ..base },
        Case { softcap: Some(0.3), scale: Some(1.0), h: 4, g: 2, causal: true, ..base },
        Case { softcap: Some(0.5), packed: false, s: 9, lengths: Some(&[9, 3]), ..base },
        Case { softcap: Some(0.5), packed: false, t: 1, s: 7, lengths: Some(&[7, 2]), window: Some(3), ..base },
        Case { softcap: Some(2.0), scale: Some(0.3), t: 200, s: 200, g: 2, causal: true, window: Some(70), ..wide },
        Case { softcap: Some(0.5), t: 50, s: 50, causal: true, ..wide },
        Case { softcap: Some(0.5), h: 2, g: 1, t: 140, s: 140, k: 128, documents: Some(|i| (i / 47) as i32), ..wide },
        Case { softcap: Some(0.5), scale: Some(0.2), h: 2, g: 1, t: 150, s: 150, k: 256, causal: true, ..wide },
        Case { softcap: Some(0.5), b: 1, h: 2, g: 2, t: 140, s: 140, k: 96, causal: true, window: Some(60), ..wide },
    ]
}

fn with_relative_positions() -> Vec<Case> {
    let [base, wide] = bases().map(|case| Case { relative: true, ..case });
    let of_t5 = Case { scale: Some(1.0), ..base };

    vec![
        of_t5,
        Case { causal: true, ..of_t5 },
        Case { b: 1, t: 2, s: 2, ..of_t5 },
        Case { lengths: Some(&[5, 2]), h: 4, g: 2, ..base },
        Case { softcap: Some(2.0), ..base },
        Case { documents: Some(|i| (i as i32) / 2), window: Some(2), causal: true, ..base },
        wide,
        Case { causal: true, ..wide },
        Case { causal: true, t: 200, s: 200, g: 2, scale: Some(0.2), ..wide },
        Case { t: 200, s: 200, lengths: Some(&[200, 65]), ..wide },
        Case { t: 50, s: 50, lengths: Some(&[50, 20]), ..wide },
        Case { h: 2, g: 1, t: 140, s: 140, k: 128, causal: true, documents: Some(|i| (i / 47) as i32), ..wide },
        Case { b: 1, h: 2, g: 2, t: 270, s: 270, k: 96, causal: true, window: Some(40), ..wide },
        Case { h: 2, g: 2, t: 70, s: 70, k: 72, lengths: Some(&[70, 3]), ..wide },
        Case { b: 1, h: 1, g: 1, t: 70, s: 70, k: 192, causal: true, ..wide },
    ]
}

pub(super) fn inputs(case: &Case) -> Vec<Vec<f32>> {
    inputs_of(case, values)
}

/// Returns the numbers of the case's matrices, which `values` makes from a length and a seed.
pub(super) fn inputs_of(case: &Case, values: fn(usize, u64) -> Vec<f32>) -> Vec<Vec<f32>> {
    let Case { b, h, g, t, s, k, packed, .. } = *case;
    match packed {
        true if case.relative => vec![values(b * t * (h + 2 * g) * k, 1), values(h * (2 * t - 1), 4)],
        true => vec![values(b * t * (h + 2 * g) * k, 1)],
        false => vec![values(b * t * h * k, 1), values(b * s * 2 * g * k, 2)],
    }
}
