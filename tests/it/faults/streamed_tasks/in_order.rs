//! `data.cache_limit` in the order of the files (`loader.shuffle = false`): the bits of a run without a limit.

use super::*;

/// Behind the first validation.
const WHOLE_STEPS: usize = 56;

/// Checks that a run in the order of the files has the losses of a run without a limit.
fn has_the_losses_of_the_whole(subject: &Subject) {
    subject.run_to_end("runs/limited", "cpu", &["--set", &format!("train.steps={WHOLE_STEPS}")]);
    let whole = subject.without_limit_to("runs/whole", WHOLE_STEPS);
    subject.place.run(&whole.iter().map(String::as_str).collect::<Vec<_>>()).ok();
    assert_same_end(&subject.place, "runs/limited", "runs/whole", WHOLE_STEPS);
}

#[test]
fn texts_in_the_order_of_the_files_give_the_bits_of_a_whole_cache_and_go_on_when_killed() {
    for packing in ["documents", "sentences"] {
        let subject = texts(&["loader.shuffle=false", &format!("data.text.packing={packing}")]);
        has_the_losses_of_the_whole(&subject);
        subject.ends_alike_when_killed();
    }
}

#[test]
fn pairs_and_classes_in_the_order_of_the_files_give_the_bits_of_a_whole_cache_on_one_rank_and_two() {
    let pairs = mixture_of_pairs();
    let task = ["--task", "translation"].map(String::from).into();
    let sets = ["data.train=rows/*.tsv", "data.valid=dev.tsv", "model.n_encoder_layers=1", "model.n_decoder_layers=1"];
    let pairs = Subject { task, shards: vec!["cache/train-shards"], ..pairs }.with(&sets);
    for subject in [pairs, classes("data.valid=dev.jsonl")] {
        // Each bucket is a pass over the text.
        let subject = subject.with(&["loader.shuffle=false", "loader.max_buckets=2"]);
        has_the_losses_of_the_whole(&subject);
        subject.ends_alike_on_two_ranks();
    }
}
