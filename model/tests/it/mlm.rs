//! Masking for masked language modelling: fractions, excluded tokens, seeds.

use burn::tensor::{Device, Int, Tensor};
use kiln_model::mlm::{MaskConfig, mask_tokens};
use kiln_model::{DropoutStream, TextBatch};

use crate::support::{cuda, ids};

const MASK: i32 = 4;
const VOCAB: usize = 1000;

fn config() -> MaskConfig {
    MaskConfig::new(MASK as u32, vec![0, 1, 2, 3, MASK as u32], VOCAB)
}

fn host(ids: &Tensor<1, Int>) -> Vec<i32> {
    ids.to_data().convert::<i32>().try_to_vec().expect("converted to i32")
}

/// Rows of `[CLS] tokens [SEP]`, the last row half padding.
fn text(rows: usize, len: usize, device: &Device) -> TextBatch {
    let (mut input, mut labels, mut lengths) = (vec![], vec![], vec![]);
    for row in 0..rows {
        let real = if row + 1 == rows { len / 2 } else { len };
        for position in 0..len {
            let token = match position {
                0 => 1,
                _ if position + 1 == real => 2,
                _ if position >= real => 0,
                _ => 5 + ((row * 31 + position * 7) % (VOCAB - 5)) as i32,
            };
            input.push(token);
            labels.push(if position < real { token } else { TextBatch::NOT_COUNTED });
        }
        lengths.push(real as i32);
    }

    TextBatch {
        input: ids(&input, device),
        labels: ids(&labels, device),
        positions: None,
        documents: None,
        token_types: None,
        preference: None,
        max_labels: None,
        lengths: ids(&lengths, device),
        batch_size: rows,
        seq_len: len,
        tokens: (rows * len) as u64,
    }
}

#[test]
fn fifteen_percent_are_chosen_and_divided_80_10_10() {
    let device = Device::flex();
    let batch = text(200, 500, &device);
    let masked = mask_tokens(&batch, &config(), &DropoutStream::new(7, 1, &device));
    let (before, input, labels) = (host(&batch.input), host(&masked.input), host(&masked.labels));

    let eligible = before.iter().filter(|&&id| id > 4).count() as f64;
    let (mut chosen, mut hidden, mut kept, mut replaced) = (0.0, 0.0, 0.0, vec![]);
    for ((&before, &input), &label) in before.iter().zip(&input).zip(&labels) {
        if label == TextBatch::NOT_COUNTED {
            assert_eq!(input, before, "a token that is not chosen does not change");
            continue;
        }
        assert_eq!(label, before, "the label is the original token");
        assert!(before > 4, "special token {before} is chosen");
        chosen += 1.0;
        match input {
            MASK => hidden += 1.0,
            _ if input == before => kept += 1.0,
            _ => replaced.push(f64::from(input)),
        }
    }

    // Ten standard deviations of the counts, about 15,000 of 100,000.
    assert!((chosen / eligible - 0.15).abs() < 0.012, "{chosen} of {eligible}");
    assert!((hidden / chosen - 0.8).abs() < 0.03, "{hidden} of {chosen} are masked");
    assert!((replaced.len() as f64 / chosen - 0.1).abs() < 0.025, "{} of {chosen} are replaced", replaced.len());
    assert!((kept / chosen - 0.1).abs() < 0.025, "{kept} of {chosen} are kept");
    let mean = replaced.iter().sum::<f64>() / replaced.len() as f64;
    assert!((mean - VOCAB as f64 / 2.0).abs() < 40.0, "replacements have a mean of {mean}");
    assert!(replaced.iter().all(|&id| (0.0..VOCAB as f64).contains(&id)));
}

#[test]
fn masks_are_a_function_of_seed_and_step() {
    let device = Device::flex();
    let batch = text(4, 64, &device);
    let labels = |seed, draw| host(&mask_tokens(&batch, &config(), &DropoutStream::new(seed, draw, &device)).labels);
    assert_eq!(labels(1, 1), labels(1, 1));
    assert_ne!(labels(1, 1), labels(1, 2));
    assert_ne!(labels(1, 1), labels(2, 1));
}

#[test]
fn a_gpu_masks_the_same_tokens() {
    let Some(gpu) = cuda() else { return };
    let on = |device: &Device| {
        let masked = mask_tokens(&text(20, 100, device), &config(), &DropoutStream::new(3, 4, device));
        (host(&masked.input), host(&masked.labels))
    };
    assert_eq!(on(&gpu), on(&Device::flex()));
}

#[test]
fn all_of_the_tokens_or_none_of_a_kind() {
    let device = Device::flex();
    let batch = text(4, 64, &device);
    let all = MaskConfig { select_share: 1.0, mask_share: 1.0, random_share: 0.0, ..config() };
    let masked = mask_tokens(&batch, &all, &DropoutStream::new(1, 1, &device));
    let before = host(&batch.input);
    let wanted: Vec<i32> = before.iter().map(|&id| if id > 4 { MASK } else { id }).collect();
    assert_eq!(host(&masked.input), wanted);

    let kept = MaskConfig { special_ids: vec![], select_share: 1.0, mask_share: 0.0, random_share: 0.0, ..config() };
    let masked = mask_tokens(&batch, &kept, &DropoutStream::new(1, 1, &device));
    assert_eq!(host(&masked.input), before);
    assert_eq!(host(&masked.labels), host(&batch.labels));
}

#[test]
fn impossible_shares_and_ids_are_all_named() {
    let config = MaskConfig {
        mask_id: 2000,
        special_ids: vec![0, 1001],
        vocab_size: VOCAB,
        select_share: 0.0,
        mask_share: 0.9,
        random_share: 0.2,
    };
    let problems = config.validate().join("\n");
    for part in ["2000", "1001", "share of 0", "0.9 masked and 0.2 replaced"] {
        assert!(problems.contains(part), "{part} is missing in:\n{problems}");
    }
    assert_eq!(config.validate().len(), 4, "{problems}");
}
