//! Language models: a text learned by heart, masked words guessed from their neighbours, both resumed bit for bit.

use kiln_data::{Packing, TextConfig, TextFormat, TokenizerConfig, TokenizerKind};
use kiln_model::ActivationCheckpointing;
use kiln_model::TransformerConfig;

use super::*;
use crate::config::{Task, presets};
use crate::dataset::RunData;
use crate::eval::Masking;

/// A run on `text`, a document a line, with a model that takes milliseconds a step.
struct TextRun {
    dir: tempfile::TempDir,
    config: Config,
}

impl TextRun {
    fn new(task: Task, text: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let file = dir.path().join("text.txt");
        fs::write(&file, text).expect("writable");

        let preset = if task == Task::Lm { presets::gpt2_tiny() } else { presets::bert_tiny() };
        let kind = if task == Task::Lm { TokenizerKind::ByteLevelBpe } else { TokenizerKind::WordPiece };
        let mut config = Config {
            seed: 5,
            tokenizer: TokenizerConfig { kind, vocab_size: 300, ..TokenizerConfig::default() },
            loader: LoaderConfig { batch_tokens: 128, num_workers: 0, ..LoaderConfig::default() },
            model: TransformerConfig {
                d_model: 32,
                n_heads: 2,
                d_ff: 64,
                n_encoder_layers: if task == Task::Lm { 0 } else { 1 },
                n_decoder_layers: if task == Task::Lm { 1 } else { 0 },
                max_positions: 32,
                ..preset.model
            },
            optim: OptimConfig { lr: 1e-2, warmup_steps: 4, ..preset.optim },
            train: TrainConfig { steps: 16, log_every: 3, validate_every: 5, save_every: 4, ..preset.train },
            ..preset
        };

        config.data.train = vec![file.clone()];
        config.data.valid = vec![file];
        config.data.text = TextConfig { format: TextFormat::Lines, ..TextConfig::default() };
        Self { dir, config }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The data, and the configuration with what the model takes from it.
    fn data(&self, config: &Config) -> (RunData, Config) {
        let data = RunData::open(config, &self.path("data"), None, &mut |_| {}).expect("data");
        let mut config = config.clone();
        data.vocabulary.complete(&mut config.model).expect("a model that fits");
        (data, config)
    }

    /// Runs until the end, or until the first report at or after `stop_at`.
    fn run(&self, config: &Config, run_dir: &Path, resume: bool, stop_at: u64) -> (Outcome, Vec<String>) {
        let (data, config) = self.data(config);
        let resume = resume.then(|| {
            let (of_data, of_vocabulary) = (data.train.fingerprint(), data.vocabulary.fingerprint());
            find_resume(run_dir, &config, &of_data, &of_vocabulary, &[]).expect("the same run")
        });

        let (stop, records) = (Arc::new(AtomicBool::new(false)), Rc::new(RefCell::new(Vec::new())));
        let mut logging = Logging::silent();
        logging.add(Recorder { records: records.clone(), stop: stop.clone(), stop_at });
        let setup = Setup {
            config,
            run_dir: run_dir.to_path_buf(),
            device: Device::flex(),
            vocabulary: data.vocabulary,
            weights: None,
            train: data.train,
            validation: Validation {
                source: data.valid,
                parts: Vec::new(),
                n_bytes: data.valid_bytes,
                examples: data.valid_examples,
                prompt: data.prompt,
            },
            logging,
            signals: Signals { stop, ..Signals::default() },
            checkpointing: ActivationCheckpointing::Off,
            auto_micro_batch: false,
            reference_operators: false,
            ranks: Ranks::alone(),
            optimizers: Groups::of,
            profiler: None,
        };
        let outcome = Trainer::new(setup, resume).expect("a trainer").run().expect("a run");
        (outcome, Rc::try_unwrap(records).expect("the trainer is gone").into_inner())
    }
}

/// Rows of one word each, said several times: a hidden word is the one beside it.
fn echoes() -> String {
    let words = ["apple", "bridge", "cloud", "dragon", "engine", "forest", "garden", "harbor"];
    (0..64).map(|row| format!("{}\n", [words[row * 5 % 8]; 6].join(" "))).collect()
}

#[test]
fn a_text_that_is_always_the_same_is_learned_by_heart() {
    let mut run = TextRun::new(Task::Lm, &"the quick brown fox jumps over the lazy dog and then it rests\n".repeat(40));
    // Rows of whole lines: what follows a cut could not be known.
    run.config.data.text.packing = Packing::Sentences;
    run.config.model.max_positions = 96;
    run.config.loader.batch_tokens = 512;
    run.config.train.steps = 80;
    run.config.train.validate_every = 0;
    let (outcome, _) = run.run(&run.config, &run.path("run"), false, u64::MAX);
    let found = outcome.validation.expect("a validation");
    assert!(found.nll < 0.05, "{found:?}");
    // 61 characters a line; every token but a start, and an end for each line, is a label.
    let bits = found.nll * found.target_tokens as f64 / std::f64::consts::LN_2 / (40.0 * 61.0);
    assert!((found.bits_per_byte.expect("lm measures it") / bits - 1.0).abs() < 1e-9, "{found:?}");
    assert!(found.masked_accuracy.is_none() && found.bleu.is_none());
}

#[test]
fn masked_words_are_guessed_far_better_than_by_their_frequency() {
    let mut run = TextRun::new(Task::Mlm, &echoes());
    run.config.train.steps = 150;
    run.config.train.validate_every = 0;
    let (outcome, _) = run.run(&run.config, &run.path("run"), false, u64::MAX);
    let found = outcome.validation.expect("a validation");
    let (model, unigram) = (found.masked_accuracy.expect("mlm"), found.unigram_accuracy.expect("mlm"));
    assert!(unigram < 0.4 && model > unigram + 0.4, "{found:?}");
    assert!(found.bits_per_byte.is_none());
}

#[test]
fn language_models_resume_bit_for_bit_in_the_middle_of_an_epoch() {
    for task in [Task::Lm, Task::Mlm] {
        let mut run = TextRun::new(task, &echoes());
        run.config.model.dropout = 0.1;
        run.config.model.attention_dropout = 0.1;
        run.config.train.grad_accum_steps = 2;
        let per_epoch = run.data(&run.config).0.train.batches_per_epoch();

        let whole = run.path("whole");
        let (outcome, whole_records) = run.run(&run.config, &whole, false, u64::MAX);
        assert_eq!((outcome.ended, outcome.step), (Ended::Steps, 16));
        let (_, wanted) = last_snapshot(&whole);
        assert!(wanted.state.position.epoch >= 1 && per_epoch > 2, "{:?} of {per_epoch}", wanted.state.position);

        let dir = run.path("often");
        let (mut records, mut in_the_middle) = (Vec::new(), false);
        for (nth, stop_at) in [2, 6, 7, 12, u64::MAX].into_iter().enumerate() {
            let mut config = run.config.clone();
            config.train.log_every = 1;
            config.loader.num_workers = nth % 3; // neither order nor masks may depend on it
            let (outcome, more) = run.run(&config, &dir, nth > 0, stop_at);
            records.extend(more);
            in_the_middle |= outcome.ended == Ended::Stopped && last_snapshot(&dir).1.state.position.batch > 0;
        }

        assert!(in_the_middle, "{task:?}: no stop inside an epoch");
        let (_, mut found) = last_snapshot(&dir);
        assert_eq!(found.weights, wanted.weights, "{task:?}: weights");
        found.files = wanted.files.clone(); // config.toml says how often to log and how many workers
        assert_eq!(found, wanted, "{task:?}: moments, counters and position");
        assert_eq!(records, whole_records, "{task:?}: every measurement of every step");
    }
}

#[test]
fn masks_depend_on_seed_and_micro_step_and_leave_special_tokens_alone() {
    let run = TextRun::new(Task::Mlm, &echoes());
    let (data, config) = run.data(&run.config);
    let masking = Masking::of(&config, &data.vocabulary).expect("a mask token").expect("mlm");
    let batch = kiln_data::OnePass::new(data.train.clone(), &config.loader).expect("batches").next();
    let batch = upload(&batch.expect("a batch").expect("readable"), &Device::flex());
    let masked = |seed: u64, draw: u64| {
        let stream = kiln_model::DropoutStream::new(seed, draw, &Device::flex());
        let Batch::Text(masked) = masking.mask(&batch, &stream) else { panic!("text stays text") };
        let read = |ids: burn::tensor::Tensor<1, burn::tensor::Int>| ids.into_data().iter::<i32>().collect::<Vec<_>>();
        (read(masked.input), read(masked.labels))
    };
    assert_eq!(masked(1, 0), masked(1, 0));
    assert_ne!(masked(1, 0), masked(2, 0));
    assert_ne!(masked(1, 0), masked(1, 1));
    let special: Vec<i32> =
        data.vocabulary.text().expect("text").special_ids().into_iter().map(u32::cast_signed).collect();
    let hidden: Vec<i32> = (0..50).flat_map(|draw| masked(3, draw).1).filter(|label| *label >= 0).collect();
    assert!(!hidden.is_empty() && hidden.iter().all(|label| !special.contains(label)));
    let share = hidden.len() as f64 / (50.0 * masked(3, 0).1.len() as f64);
    assert!((0.08..0.17).contains(&share), "15 % of the tokens that are not special: {share}");
}

#[test]
fn a_vocabulary_without_a_mask_is_refused() {
    let mut run = TextRun::new(Task::Mlm, &echoes());
    let tokenizer = run.path("words.json");
    let words = r#"{"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "[SEP]": 1, "apple": 2}, "unk_token": "[UNK]"}}"#;
    fs::write(&tokenizer, words).expect("writable");
    run.config.tokenizer.path = Some(tokenizer);
    let error = RunData::open(&run.config, &run.path("data"), None, &mut |_| {}).err().expect("no mask token");
    assert!(format!("{error:#}").contains("has no mask token"), "{error:#}");
}
