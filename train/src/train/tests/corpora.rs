//! A tiny corpus with its tokenizer, a tiny run on it, and a sink that records and stops the run.

use super::*;

/// A corpus of number words with its tokenizer and cache.
pub(super) struct Corpora {
    pub(super) dir: tempfile::TempDir,
    pub(super) tokenizers: PairTokenizers,
    pub(super) rows: Vec<Example>,
    /// Chooses the optimizers of the runs.
    pub(super) optimizers: fn(&Config, FloatDType) -> Groups,
}

impl Corpora {
    pub(super) fn new(n_rows: usize) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let rows = numbers::examples(n_rows, 8, 4, 1).expect("numbers");
        numbers::write_jsonl(&dir.path().join("train.jsonl"), &rows.train).expect("writable");
        numbers::write_jsonl(&dir.path().join("valid.jsonl"), &rows.held_out).expect("writable");
        let corpus = Self::corpus(&dir.path().join("train.jsonl"));
        let tokenizers = PairTokenizers::train(&numbers::tokenizer_config(), &corpus, 1).expect("a tokenizer");
        Self { dir, tokenizers, rows: rows.held_out, optimizers: Groups::of }
    }

    pub(super) fn corpus(path: &Path) -> PairCorpus {
        PairCorpus::open(&[path.to_path_buf()], &CorpusConfig::default()).expect("a corpus")
    }

    pub(super) fn source(&self, name: &str, config: &LoaderConfig) -> Arc<dyn BatchSource> {
        let cache = self.dir.path().join(format!("{name}.tokens"));
        let corpus = Self::corpus(&self.dir.path().join(format!("{name}.jsonl")));
        let prepared = prepare_pairs(&cache, &corpus, &self.tokenizers, 1, &mut |_| {}).expect("a cache");
        Arc::new(PairSource::new(prepared.cache, &self.tokenizers, config).expect("a source"))
    }

    pub(super) fn config(&self) -> Config {
        let model = TransformerConfig {
            d_model: 16,
            n_heads: 2,
            d_ff: 32,
            n_encoder_layers: 1,
            n_decoder_layers: 1,
            max_positions: 32,
            dropout: 0.1,
            ..TransformerConfig::tiny()
        };

        let mut config = Config {
            seed: 3,
            loader: LoaderConfig { batch_tokens: 128, num_workers: 0, ..LoaderConfig::default() },
            model,
            optim: OptimConfig { lr: 1e-2, warmup_steps: 4, ..OptimConfig::default() },
            train: TrainConfig {
                steps: 16,
                grad_accum_steps: 2,
                log_every: 3,
                validate_every: 5,
                save_every: 4,
                keep_last: 2,
                ..TrainConfig::default()
            },
            ..Config::default()
        };
        Vocabulary::Pairs(self.tokenizers.clone()).complete(&mut config.model).expect("a model that fits");
        config
    }

    pub(super) fn setup(&self, config: &Config, run_dir: &Path, logging: Logging, stop: Arc<AtomicBool>) -> Setup {
        Setup {
            config: config.clone(),
            run_dir: run_dir.to_path_buf(),
            device: Device::flex(),
            vocabulary: Vocabulary::Pairs(self.tokenizers.clone()),
            weights: None,
            train: self.source("train", &config.loader),
            validation: Validation {
                parts: Vec::new(),
                source: Some(self.source("valid", &config.loader)),
                examples: self.rows.clone(),
                ..Validation::default()
            },
            logging,
            signals: Signals { stop, ..Signals::default() },
            checkpointing: config.train.activation_checkpointing.chosen().unwrap_or_default(),
            auto_micro_batch: false,
            reference_operators: false,
            ranks: Ranks::alone(),
            optimizers: self.optimizers,
            profiler: None,
        }
    }

    pub(super) fn find(&self, config: &Config, run_dir: &Path, allowed: &[String]) -> Result<Resume> {
        let train = self.source("train", &config.loader);
        find_resume(run_dir, config, &train.fingerprint(), &self.tokenizers.fingerprint(), allowed)
    }

    /// Runs until the end, or until the first report at or after `stop_at`. Returns the records as text.
    pub(super) fn run(
        &self,
        config: &Config,
        run_dir: &Path,
        resume: Option<Resume>,
        stop_at: u64,
    ) -> (Outcome, Vec<String>) {
        let (stop, records) = (Arc::new(AtomicBool::new(false)), Rc::new(RefCell::new(Vec::new())));
        let mut logging = Logging::silent();
        logging.add(Recorder { records: records.clone(), stop: stop.clone(), stop_at });
        let mut trainer = Trainer::new(self.setup(config, run_dir, logging, stop), resume).expect("a trainer");
        let outcome = trainer.run().expect("a run");
        drop(trainer);
        (outcome, Rc::try_unwrap(records).expect("the trainer is gone").into_inner())
    }
}

/// Keeps what is exact about the records, and stops the run.
pub(super) struct Recorder {
    pub(super) records: Rc<RefCell<Vec<String>>>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) stop_at: u64,
}

impl Sink for Recorder {
    fn write(&mut self, record: &Record<'_>) -> Result<()> {
        let text = match record {
            Record::Step(step) => {
                if step.step >= self.stop_at {
                    self.stop.store(true, Ordering::Relaxed);
                }
                format!("{step:?}")
            }
            Record::Validation(valid) => format!("valid {} {} {:?}", valid.loss, valid.nll, valid.bleu),
            Record::Sample(sample) => format!("{sample:?}"),
            Record::Note(note) => format!("note {note}"),
            Record::Preparing(what, done, of) => format!("{what} {done} {of}"),
            Record::Start(_) | Record::Window(_) | Record::Begin(_) | Record::End(_) | Record::Finished => {
                return Ok(());
            }
        };
        self.records.borrow_mut().push(text);
        Ok(())
    }
}

pub(super) fn last_snapshot(run_dir: &Path) -> (PathBuf, Snapshot) {
    let path = Checkpoints::of_run(run_dir).resolve("last").expect("a checkpoint");
    let mut snapshot = crate::checkpoint::read(&path).expect("a sound checkpoint");
    snapshot.state.train_secs = 0.0; // the one thing that a clock decides
    (path, snapshot)
}
