//! Configurations that cannot work, and what is said about them.

use kiln_data::Task;

use super::super::{
    BestMetric, F32Products::Tf32, MasterWeights, OptimizerChoice, Precision, Precision::Fp16, presets,
};
use super::*;

/// Returns the problems of `base` after one change.
fn problems(change: impl FnOnce(&mut Config)) -> Vec<String> {
    let mut config = presets::base();
    change(&mut config);
    config.validate()
}

#[test]
fn each_impossible_value_is_one_problem_that_begins_with_its_key() {
    type Change = fn(&mut Config);
    let cases: [(&str, Change); 43] = [
        ("seed", |c| c.seed = u64::MAX),
        ("data.valid", |c| c.data.valid = vec!["dev.jsonl".into()]),
        ("data.corpus.max_bad_rows", |c| c.data.corpus.max_bad_rows = 2.0),
        ("data.corpus.max_source_len", |c| c.data.corpus.max_source_len = 1000),
        ("tokenizer.vocab_size", |c| c.tokenizer.vocab_size = 100),
        ("loader.max_buckets", |c| c.loader.max_buckets = 0),
        ("loader.batch_tokens", |c| c.loader.batch_tokens = 100),
        ("model.dropout", |c| c.model.dropout = 1.5),
        ("model.tie_embeddings", |c| c.tokenizer.joint = false),
        ("task", |c| c.task = Task::Lm),
        ("optim.lr", |c| c.optim.lr = 0.0),
        ("optim.lr", |c| c.optim.lr = f64::NAN),
        ("optim.beta2", |c| c.optim.beta2 = 1.0),
        ("optim.eps", |c| c.optim.eps = 0.0),
        ("optim.weight_decay", |c| c.optim.weight_decay = -0.1),
        ("optim.min_lr_ratio", |c| c.optim.min_lr_ratio = 1.1),
        ("optim.decay_fraction", |c| c.optim.decay_fraction = 0.0),
        ("optim.warmup_steps", |c| (c.optim.schedule, c.optim.warmup_steps) = (Schedule::Noam, 0)),
        ("optim.warmup_steps", |c| c.train.steps = 500),
        ("train.log_every", |c| c.train.log_every = 0),
        ("train.label_smoothing", |c| c.train.label_smoothing = 1.0),
        ("train.masked_share", |c| c.train.masked_share = 0.0),
        ("train.max_minutes", |c| c.train.max_minutes = -1.0),
        ("train.f32_products", |c| (c.train.precision, c.train.f32_products) = (Fp16, Tf32)),
        ("train.loss_scale.init", |c| c.train.loss_scale.init = 0.5),
        ("train.loss_scale.init", |c| c.train.loss_scale.init = f32::INFINITY),
        ("train.loss_scale.growth_factor", |c| c.train.loss_scale.growth_factor = 0.5),
        ("train.loss_scale.backoff_factor", |c| c.train.loss_scale.backoff_factor = 1.0),
        ("train.loss_scale.growth_interval", |c| c.train.loss_scale.growth_interval = 0),
        ("train.loss_scale.floor", |c| c.train.loss_scale.floor = 0.0),
        ("train.loss_scale.floor", |c| c.train.loss_scale.floor = f32::NAN),
        ("generate.beam_size", |c| c.generate.beam_size = 0),
        ("generate.temperature", |c| c.generate.temperature = -0.1),
        ("generate.temperature", |c| c.generate.temperature = f64::NAN),
        ("generate.top_p", |c| c.generate.top_p = 0.0),
        ("generate.top_p", |c| c.generate.top_p = 1.5),
        ("generate.repetition_penalty", |c| c.generate.repetition_penalty = -1.0),
        ("generate.sample", |c| (c.generate.sample, c.generate.beam_size) = (true, 4)),
        ("generate.max_new_tokens", |c| c.generate.max_new_tokens = 0),
        ("generate.stop", |c| c.generate.stop = vec![String::new()]),
        ("generate.stop_tokens", |c| c.generate.stop_tokens = vec![String::new()]),
        ("generate.seed", |c| c.generate.seed = u64::MAX),
        ("generate.max_len_ratio", |c| (c.generate.max_len_ratio, c.generate.max_len_offset) = (0.0, 0)),
    ];

    for (key, change) in cases {
        let problems = problems(change);
        assert_eq!(problems.len(), 1, "{key}: {problems:#?}");
        assert!(problems[0].starts_with(key), "{key}: {problems:#?}");
    }
}

#[test]
fn master_weights_in_bf16_are_refused_by_name_where_they_cannot_be_kept() {
    type Change = fn(&mut Config);
    let cases: [(&str, Change); 4] = [
        ("train.precision", |c| c.train.precision = Precision::F32),
        ("train.precision", |c| c.train.precision = Fp16),
        ("train.optimizer", |c| c.train.optimizer = OptimizerChoice::Muon),
        ("train.sync_every", |c| c.train.sync_every = 10),
    ];
    for (key, change) in cases {
        let both = |c: &mut Config| {
            change(c);
            c.train.master_weights = MasterWeights::Bf16;
        };
        let (found, without) = (problems(both), problems(change));
        assert!(found.len() == 1 && without.is_empty(), "{found:#?}");
        assert!(found[0].starts_with("train.master_weights = \"bf16\" ") && found[0].contains(key), "{found:#?}");
    }
    for precision in [Precision::Auto, Precision::Bf16, Precision::Fp8] {
        let rounded = |c: &mut Config| (c.train.precision, c.train.master_weights) = (precision, MasterWeights::Bf16);
        assert_eq!(problems(rounded), Vec::<String>::new());
    }
}

#[test]
fn what_cannot_work_with_text_is_named() {
    type Change = fn(&mut Config);
    let cases: [(&str, Config, Change); 7] = [
        ("tokenizer.joint", presets::gpt2_mini(), |c| c.tokenizer.joint = false),
        ("loader.batch_tokens", presets::gpt2_mini(), |c| c.loader.batch_tokens = 511),
        ("data.text.seq_len", presets::bert_small(), |c| c.data.text.seq_len = 513),
        ("data.text.max_bad_rows", presets::bert_small(), |c| c.data.text.max_bad_rows = 2.0),
        ("model.mlm_head", presets::bert_small(), |c| c.model.mlm_head = false),
        ("task", presets::bert_small(), |c| c.task = Task::Translation),
        ("train.best_metric", presets::gpt2_mini(), |c| c.train.best_metric = BestMetric::Chrf),
    ];
    for (key, mut config, change) in cases {
        change(&mut config);
        let problems = config.validate();
        assert_eq!(problems.len(), 1, "{key}: {problems:#?}");
        assert!(problems[0].starts_with(key), "{key}: {problems:#?}");
    }
}

#[test]
fn all_problems_come_at_once() {
    let problems = problems(|config| {
        config.optim.lr = -1.0;
        config.model.n_heads = 7;
        config.train.steps = 0;
        config.generate.beam_size = 0;
        config.loader.batch_tokens = 0;
    });
    for key in ["optim.lr", "model.d_model", "train.steps", "generate.beam_size", "loader.batch_tokens"] {
        assert!(problems.iter().any(|problem| problem.starts_with(key)), "{key} is missing in {problems:#?}");
    }
}

#[test]
fn a_constant_schedule_may_warm_up_to_the_end() {
    assert!(problems(|config| (config.optim.schedule, config.train.steps) = (Schedule::Constant, 500)).is_empty());
}
