use super::*;

#[test]
fn parts_of_pairs_come_back_as_they_were_given() {
    let shape = Shape { batch_size: 2, source_len: 3, target_len: 2 };
    let parts = PairParts {
        source: vec![5, 6, 2, 7, 2, 0],
        target_input: vec![1, 8, 1, 0],
        labels: vec![8, 2, 2, 0],
        source_lengths: vec![3, 2],
        target_lengths: vec![2, 1],
    };
    let mut batch = HostBatch::pairs(shape, parts.clone());
    assert_eq!((batch.source(), batch.target_input()), (&parts.source[..], &parts.target_input[..]));
    assert_eq!((batch.labels(), batch.source_lengths()), (&parts.labels[..], &parts.source_lengths[..]));
    assert_eq!((batch.target_lengths(), batch.shape()), (&parts.target_lengths[..], shape));
    assert_eq!((batch.source_tokens, batch.target_tokens, &batch.rows[..]), (5, 3, &[0, 1][..]));
    assert_eq!(batch.pair_parts_mut().labels, parts.labels);
}

#[test]
fn parts_of_text_come_back_as_they_were_given() {
    let parts = TextParts {
        input: vec![1, 5, 6, 1, 0, 0],
        labels: vec![5, 6, 2, 2, -1, -1],
        positions: vec![0, 1, 2, 0, 0, 1],
        documents: vec![0, 0, 0, 0, 1, 1],
        lengths: vec![3, 1],
    };
    let mut batch = HostBatch::text(Shape::text(2, 3), true, parts.clone());
    assert_eq!((batch.target_input(), batch.labels()), (&parts.input[..], &parts.labels[..]));
    assert_eq!((batch.positions(), batch.documents()), (&parts.positions[..], &parts.documents[..]));
    assert_eq!((batch.lengths(), batch.source_tokens, batch.target_tokens), (&parts.lengths[..], 0, 4));
    assert_eq!(batch.text_parts_mut().documents, parts.documents);
    let halves = batch.split(2);
    assert_eq!((halves[0].target_tokens, halves[1].target_tokens, halves[1].lengths()), (3, 1, &[1][..]));
}

#[test]
#[should_panic(expected = "the parts of a batch of 1 x (2 + 2)")]
fn parts_of_another_size_are_refused() {
    let row = || vec![1, 2];
    let parts = PairParts {
        source: row(),
        target_input: row(),
        labels: vec![3],
        source_lengths: vec![2],
        target_lengths: vec![2],
    };
    HostBatch::pairs(Shape { batch_size: 1, source_len: 2, target_len: 2 }, parts);
}
