//! The loss by the rows of a batch. The loss itself keeps its bits.

use burn::tensor::DType;
use kiln_model::{Batch, RowSums, TextBatch, Transformer, TransformerConfig};

use crate::support::{
    batch, bert_config, gpt2_config, gradients, ids, random_rows, small_config, text_batch, train_device, values,
};

/// Compares the loss by rows with the loss, bit for bit, and returns the sums of the rows.
fn by_row(model: &Transformer, batch: &Batch) -> RowSums {
    let wanted = model.loss(batch, 0.1, None);
    let (found, rows) = model.loss_by_row(batch, 0.1, None).expect("losses of rows");
    let bits = |sums: &kiln_model::LossSums| {
        [&sums.loss_sum, &sums.nll_sum, &sums.n_labels].map(|sum| values(sum.clone())[0].to_bits())
    };
    assert_eq!(bits(&found), bits(&wanted));
    assert_eq!(gradients(model, &found.loss_sum.backward()), gradients(model, &wanted.loss_sum.backward()));
    rows
}

/// Each row has the sums that it has in a batch of its own.
#[track_caller]
fn assert_rows(rows: &RowSums, alone: &[(f32, f32)]) {
    let (nll, n_labels) = (values(rows.nll.clone()), values(rows.n_labels.clone()));
    assert_eq!((nll.len(), n_labels.len()), (alone.len(), alone.len()));
    for (found, wanted) in nll.iter().zip(&n_labels).zip(alone) {
        assert_eq!(*found.1, wanted.1);
        assert!((found.0 - wanted.0).abs() <= 1e-4 * wanted.0.abs(), "{found:?}, wanted {wanted:?}");
    }
}

fn alone(model: &Transformer, batch: Batch) -> (f32, f32) {
    let sums = model.loss(&batch, 0.1, None);
    (values(sums.nll_sum)[0], values(sums.n_labels)[0])
}

/// Settings with one chunk of logits, and with several.
fn chunked(config: &TransformerConfig) -> [TransformerConfig; 2] {
    [None, Some(5)].map(|logits_chunk_rows| TransformerConfig { logits_chunk_rows, ..config.clone() })
}

#[test]
fn rows_of_pairs_have_their_own_losses() {
    let device = train_device();
    for config in chunked(&small_config()) {
        let model = config.init(1, DType::F32, &device);
        let pairs: Vec<_> = random_rows(4, 1..=6, 11).into_iter().zip(random_rows(4, 1..=7, 12)).collect();
        let rows = by_row(&model, &Batch::Pairs(batch(&pairs, [0, 0], &device)));
        let of = |pair: &_| alone(&model, Batch::Pairs(batch(std::slice::from_ref(pair), [0, 0], &device)));
        assert_rows(&rows, &pairs.iter().map(of).collect::<Vec<_>>());
    }
}

#[test]
fn rows_of_text_have_their_own_losses() {
    let device = train_device();
    let bounded = TransformerConfig { logits_softcap: 5.0, ..gpt2_config() };
    for config in chunked(&gpt2_config()).into_iter().chain(chunked(&bounded)) {
        let model = config.init(1, DType::F32, &device);
        let texts = random_rows(4, 2..=7, 11);
        let rows = by_row(&model, &Batch::Text(text_batch(&texts, 0, &device)));
        let of = |text: &Vec<i32>| alone(&model, Batch::Text(text_batch(std::slice::from_ref(text), 0, &device)));
        assert_rows(&rows, &texts.iter().map(of).collect::<Vec<_>>());
    }
}

#[test]
fn rows_of_masked_text_have_their_own_losses_wherever_the_head_reads() {
    let device = train_device();
    let model = bert_config().init(1, DType::F32, &device);
    let texts = random_rows(4, 6..=6, 11);
    // Row i has i labels: the head reads as many places as there are labels, and one that has none.
    let labelled = |texts: &[Vec<i32>], n_labels: &[usize], max_labels| {
        let labels = texts.iter().zip(n_labels).flat_map(|(text, n)| {
            text.iter().enumerate().map(move |(at, id)| if at < *n { *id } else { TextBatch::NOT_COUNTED })
        });
        let labels = ids(&labels.collect::<Vec<_>>(), &device);
        Batch::Text(TextBatch { labels, max_labels, ..text_batch(texts, 0, &device) })
    };
    let of = |(i, text): (usize, &Vec<i32>)| alone(&model, labelled(std::slice::from_ref(text), &[i], None));
    let wanted: Vec<_> = texts.iter().enumerate().map(of).collect();
    for max_labels in [None, Some(7), Some(100)] {
        assert_rows(&by_row(&model, &labelled(&texts, &[0, 1, 2, 3], max_labels)), &wanted);
    }
}
