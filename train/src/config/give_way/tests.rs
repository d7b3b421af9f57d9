use kiln_model::{Positions, TieEmbeddings};

use super::super::{Sources, presets, resolve};
use super::*;

/// Resolves a preset with these keys set.
fn resolved(preset: &str, set: &[&str]) -> (Config, Vec<String>) {
    let set = set.iter().map(|&set| set.to_owned()).collect();
    let resolved = resolve(&Sources { preset: Some(preset.into()), set, ..Sources::default() });
    let resolved = resolved.unwrap_or_else(|error| panic!("{error}"));
    (resolved.config, resolved.notes)
}

#[test]
fn the_warm_up_follows_the_steps_and_the_note_says_so() {
    for (preset, warmup) in [("base", 800), ("gpt2-tiny", 50), ("transformer-base", 4000)] {
        let (config, notes) = resolved(preset, &["train.steps=40"]);
        let is_noam = preset == "transformer-base";
        assert_eq!(config.optim.warmup_steps, if is_noam { warmup } else { 4 }, "{preset}");
        let note = format!("optim.warmup_steps = 4 instead of {warmup}, because train.steps = 40");
        assert_eq!(notes, if is_noam { vec![] } else { vec![note] });
    }

    let (config, _) = resolved("base", &["train.steps=1"]);
    assert_eq!(config.optim.warmup_steps, 0);
    let (config, notes) = resolved("base", &["train.steps=2000"]);
    assert_eq!((config.optim.warmup_steps, notes), (800, vec![]), "no collision, no change");
    let (config, notes) = resolved("tiny", &["optim.warmup_steps=5000"]);
    assert_eq!(config.train.steps, 9000, "{notes:?}");
}

/// Each of these was refused although the other key of the collision is a default.
#[test]
fn a_default_never_refuses_a_set_key() {
    let cases: [(&str, &[&str], &str); 29] = [
        ("base", &["optim.warmup_steps=6000"], "train.steps"),
        ("transformer-base", &["optim.schedule=cosine"], "optim.lr"),
        ("transformer-base", &["optim.warmup_steps=0"], "optim.schedule"),
        ("base", &["optim.schedule=noam"], "optim.lr"),
        ("base", &["tokenizer.joint=false"], "model.tie_embeddings"),
        ("base", &["tokenizer.path=a.json", "tokenizer.target_path=b.json"], "model.tie_embeddings"),
        ("base", &["model.source_vocab_size=20000"], "model.target_vocab_size"),
        ("base", &["model.source_vocab_size=20000", "model.target_vocab_size=9000"], "model.tie_embeddings"),
        ("base", &["data.corpus.max_source_len=1000"], "model.max_positions"),
        ("base", &["loader.batch_tokens=100"], "data.corpus.max_source_len"),
        ("tiny", &["model.max_positions=10000"], "loader.batch_tokens"),
        ("base", &["data.corpus.source_field=trg"], "data.corpus.target_field"),
        ("base", &["data.corpus.target_column=0"], "data.corpus.source_column"),
        ("base", &["model.d_model=100"], "model.n_heads"),
        ("base", &["model.d_model=97"], "model.positions"),
        ("base", &["model.n_heads=7"], "model.d_model"),
        ("llama-125m", &["model.n_heads=8"], "model.n_kv_heads"),
        ("llama-125m", &["model.n_kv_heads=2"], "model.n_heads"),
        ("gpt2-tiny", &["loader.batch_tokens=100"], "data.text.seq_len"),
        ("gpt2-tiny", &["model.max_positions=2000"], "loader.batch_tokens"),
        ("bert-small", &["data.text.seq_len=1000"], "model.max_positions"),
        ("base", &["train.loss_scale.floor=1e6"], "train.loss_scale.init"),
        ("base", &["train.loss_scale.init=0.5"], "train.loss_scale.floor"),
        ("gpt2-mini", &["generate.beam_size=4"], "generate.sample"),
        ("base", &["loader.prefetch_factor=0"], "loader.num_workers"),
        ("base", &["loader.bucket_multiple=20000"], "loader.batch_tokens"),
        ("base", &["tokenizer.vocab_size=200"], "tokenizer.byte_fallback"),
        ("numbers", &["tokenizer.kind=byte_level_bpe", "tokenizer.byte_fallback=true"], "tokenizer.vocab_size"),
        ("tiny", &["loader.batch_tokens=4"], "loader.bucket_multiple"),
    ];

    for (preset, set, follows) in cases {
        let (_, notes) = resolved(preset, set);
        assert!(notes.iter().any(|note| note.starts_with(follows)), "{preset} {set:?}: {notes:#?}");
    }
}

#[test]
fn two_set_keys_are_refused() {
    for (key, set) in [
        ("optim.warmup_steps", ["optim.warmup_steps=40", "train.steps=40"]),
        ("model.d_model", ["model.d_model=100", "model.n_heads=8"]),
        ("loader.batch_tokens", ["loader.batch_tokens=100", "model.max_positions=512"]),
        ("model.tie_embeddings", ["tokenizer.joint=false", "model.tie_embeddings=three_way"]),
        ("data.corpus.max_source_len", ["data.corpus.max_source_len=100", "model.max_positions=50"]),
        ("train.loss_scale.init", ["train.loss_scale.init=1", "train.loss_scale.floor=2"]),
    ] {
        let set = set.map(str::to_owned).to_vec();
        // Rows that give way to a small batch are the third way out; it is closed here.
        let set = [set, vec!["data.corpus.max_target_len=500".into(), "data.corpus.max_source_len=500".into()]];
        let set = if key == "loader.batch_tokens" { set.concat() } else { set[0].clone() };
        let error = resolve(&Sources { preset: Some("base".into()), set, ..Sources::default() }).expect_err(key);
        assert!(error.problems.iter().any(|problem| problem.contains(&format!(": {key} "))), "{key}: {error}");
    }
}

#[test]
fn another_schedule_starts_from_the_same_peak() {
    let (config, _) = resolved("transformer-base", &["optim.schedule=linear"]);
    assert_eq!((config.optim.lr, config.optim.warmup_steps), (7e-4, 4000), "the peak of Vaswani et al. 2017");
    let (config, _) = resolved("transformer-base", &["optim.schedule=linear", "optim.lr=0.5"]);
    assert_eq!(config.optim.lr, 0.5);
}

#[test]
fn the_shape_that_follows_is_the_nearest() {
    let (config, _) = resolved("base", &["model.d_model=100"]);
    assert_eq!(config.model.n_heads, 10);
    let (config, _) = resolved("base", &["model.n_heads=7"]);
    assert_eq!(config.model.d_model, 518);
    for (preset, heads) in [("gpt2-tiny", 7), ("bert-tiny", 3), ("tiny", 5), ("small", 9)] {
        let (config, _) = resolved(preset, &[&format!("model.n_heads={heads}")]);
        assert!(config.model.d_model.is_multiple_of(2 * heads), "{preset}: {}", config.model.d_model);
    }
    let (config, _) = resolved("llama-125m", &["model.n_heads=8"]);
    assert_eq!((config.model.n_heads, config.model.n_kv_heads, config.model.d_model), (8, 2, 576));
    let (config, _) = resolved("base", &["model.d_model=97"]);
    assert_eq!((config.model.positions, config.model.d_model), (Positions::Learned, 97));
    let (config, _) = resolved("base", &["tokenizer.joint=false"]);
    assert_eq!(config.model.tie_embeddings, TieEmbeddings::Output);
}

/// The weights of another run fix the model and the vocabulary; everything else is a default of the new run.
#[test]
fn settings_of_the_run_that_a_run_starts_from_give_way_but_its_model_does_not() {
    let from = |set: &[&str]| {
        let set = set.iter().map(|&set| set.to_owned()).collect();
        resolve(&Sources { base: Some(presets::base()), set, ..Sources::default() })
    };
    let resolved = from(&["train.steps=40"]).expect("valid");
    assert_eq!((resolved.config.optim.warmup_steps, resolved.notes.len()), (4, 1));
    let error = from(&["data.corpus.max_source_len=1000"]).expect_err("the model is given");
    assert!(error.problems[0].contains("is above model.max_positions 512"), "{error}");
}

#[test]
fn packing_of_another_run_gives_way_to_the_format_of_the_rows() {
    let mut run = presets::gpt2_tiny();
    run.data.train = vec!["a.jsonl".into()];
    for (packing, format) in [(Packing::Sentences, "preferences"), (Packing::Stream, "chat")] {
        run.data.text.packing = packing;
        let from = |more: &[String]| {
            let set = [&[format!("data.text.format={format}")][..], more].concat();
            resolve(&Sources { base: Some(run.clone()), set, ..Sources::default() })
        };
        let resolved = from(&[]).expect("valid");
        assert_eq!(resolved.config.data.text.packing, Packing::Documents);
        assert!(resolved.notes.iter().any(|note| note.starts_with("data.text.packing = ")), "{:?}", resolved.notes);
        let set = [format!("data.text.packing={}", written(&packing).trim_matches('"'))];
        let error = from(&set).expect_err("two set keys");
        assert!(error.to_string().contains("data.text.packing"), "{error}");
    }
}
