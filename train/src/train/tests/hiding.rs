//! Masked fine-tuning: `train.hidden_share`.

use burn::tensor::{Int, Tensor};
use kiln_model::{DropoutStream, TextBatch};

use super::ranks::run_on;
use super::*;
use crate::eval::Hiding;

fn read(ids: &Tensor<1, Int>) -> Vec<i32> {
    ids.clone().into_data().iter::<i32>().collect()
}

#[test]
fn a_share_of_the_sources_is_hidden_and_nothing_else() {
    let corpora = Corpora::new(60);
    let mut config = corpora.config();
    let vocabulary = Vocabulary::Pairs(corpora.tokenizers.clone());
    assert_eq!(Hiding::of(&config, &vocabulary).expect("nothing to hide"), None);
    config.train.hidden_share = 0.3;
    let hiding = Hiding::of(&config, &vocabulary).expect("an unknown token").expect("a share");
    let Batch::Pairs(batch) = upload(&host_batch(&toy_rows(64)), &Device::flex()) else { panic!("pairs") };
    let hidden = |seed: u64, number: u64| {
        let stream = DropoutStream::new(seed, number, &Device::flex());
        let Batch::Pairs(found) = hiding.hide(&Batch::Pairs(batch.clone()), &stream) else { panic!("pairs") };
        assert_eq!(read(&found.labels), read(&batch.labels));
        assert_eq!(read(&found.target_input), read(&batch.target_input));
        read(&found.source)
    };
    assert_eq!(hidden(1, 0), hidden(1, 0));
    assert_ne!(hidden(1, 0), hidden(2, 0));
    assert_ne!(hidden(1, 0), hidden(1, 1));

    let special = corpora.tokenizers.special();
    let is_special = |id: i32| [special.pad, special.bos, special.eos].contains(&(id as u32));
    let (mut n_hidden, mut n) = (0, 0);
    for number in 0..50 {
        for (before, after) in read(&batch.source).into_iter().zip(hidden(7, number)) {
            assert!(before == after || (after == special.unk as i32 && !is_special(before)), "{before} {after}");
            n += i32::from(!is_special(before) && before != special.unk as i32);
            n_hidden += i32::from(before != after);
        }
    }
    let share = f64::from(n_hidden) / f64::from(n);
    assert!((0.27..0.33).contains(&share), "{share}");
}

#[test]
fn of_a_text_only_tokens_that_are_no_label_are_hidden() {
    let ids = |ids: &[i32]| Tensor::<1, Int>::from_ints(ids, &Device::flex());
    let not = TextBatch::NOT_COUNTED;
    // Two rows: a question of three tokens, and an answer of two that is learned.
    let batch = TextBatch {
        input: ids(&[11, 12, 13, 14, 15, 21, 22, 23, 24, 25]),
        labels: ids(&[not, not, 14, 15, not, not, not, 24, 25, not]),
        positions: None,
        documents: None,
        token_types: None,
        preference: None,
        max_labels: None,
        lengths: ids(&[5, 5]),
        batch_size: 2,
        seq_len: 5,
        tokens: 10,
    };
    let config = kiln_model::hiding::HideConfig { token: 1, special_ids: vec![11], share: 0.999 };
    let stream = DropoutStream::new(1, 0, &Device::flex());
    let found = kiln_model::hiding::hide_prompt(&batch, &config, &stream);
    assert_eq!(read(&found.input), [11, 1, 1, 14, 15, 1, 1, 1, 24, 25]);
    assert_eq!(read(&found.labels), read(&batch.labels));
}

/// Labels that are classes leave the text free: the choice is the one that a loop over the random words makes.
#[test]
fn of_a_text_with_classes_any_token_is_hidden_as_a_loop_would() {
    let device = Device::flex();
    let (n_rows, len, not) = (8, 16, TextBatch::NOT_COUNTED);
    let read_ids: Vec<i32> = (0..n_rows * len).map(|at| if at % len == 0 { 3 } else { 10 + at }).collect();
    let labels: Vec<i32> = (0..n_rows * len).map(|at| if at % len == 0 { at % 3 } else { not }).collect();
    let ids = |ids: &[i32]| Tensor::<1, Int>::from_ints(ids, &device);
    let batch = TextBatch {
        input: ids(&read_ids),
        labels: ids(&labels),
        positions: None,
        documents: None,
        token_types: None,
        preference: None,
        max_labels: None,
        lengths: ids(&vec![len; n_rows as usize]),
        batch_size: n_rows as usize,
        seq_len: len as usize,
        tokens: (n_rows * len) as u64,
    };
    let config = kiln_model::hiding::HideConfig { token: 1, special_ids: vec![3], share: 0.25 };
    let stream = || DropoutStream::new(5, 2, &device);
    let found = kiln_model::hiding::hide_text(&batch, &config, &stream());
    assert_eq!(read(&found.labels), labels);

    let n = read_ids.len();
    let words = kiln_kernels::random_words(n, &stream()).narrow(0, 0, 1).into_data().iter::<i32>().collect::<Vec<_>>();
    let mut wanted = read_ids.clone();
    for (id, word) in wanted.iter_mut().zip(&words) {
        if *id != 3 && f64::from(*word) < 0.25 * 2_147_483_648.0 {
            *id = 1;
        }
    }
    assert_eq!(read(&found.input), wanted);
    let n_hidden = wanted.iter().filter(|id| **id == 1).count();
    assert!((15..50).contains(&n_hidden), "{n_hidden} of {n}");
}

#[test]
fn a_run_that_hides_tokens_resumes_bit_for_bit_on_any_number_of_ranks() {
    let corpora = Corpora::new(200);
    let mut config = corpora.config();
    config.train.hidden_share = 0.3;
    let weights = |dir: &Path| last_snapshot(dir).1.weights;
    let dir = |name: &str| corpora.dir.path().join(name);
    corpora.run(&config, &dir("whole"), None, u64::MAX);
    corpora.run(&config, &dir("parts"), None, 6);
    let resume = corpora.find(&config, &dir("parts"), &[]).expect("the same run");
    corpora.run(&config, &dir("parts"), Some(resume), u64::MAX);
    assert_eq!(weights(&dir("parts")), weights(&dir("whole")));

    let mut alone = config.clone();
    alone.train.grad_accum_steps = 1;
    run_on(2, &corpora, &alone, &dir("two"), None);
    assert_eq!(weights(&dir("two")), weights(&dir("whole")));

    config.train.hidden_share = 0.0;
    corpora.run(&config, &dir("nothing"), None, u64::MAX);
    assert_ne!(weights(&dir("nothing")), weights(&dir("whole")));
}
