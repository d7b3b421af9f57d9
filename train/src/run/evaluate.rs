//! Scores of a checkpoint on raw text.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use burn::tensor::Device;
use kiln_data::built_in::numbers;
use kiln_data::{
    BatchSource, CorpusConfig, Example, OnePass, PairCorpus, PairSource, PairTokenizers, RowReport, Split,
};
use kiln_model::Transformer;
use kiln_ranks::{Phase, Ranks};

use super::error::RunError;
use super::ranks::compare_use;
use super::trained_model::TrainedModel;
use kiln_kernels::int8::Int8;

use crate::config::GenerateConfig;
use crate::config::task::{Reads, traits_of};
use crate::dataset::labelled::valid_rows;
use crate::dataset::pairs::{open_cache, translatable, without_spaces};
use crate::dataset::text::{Division, OpenedText, valid_text};
use crate::dataset::{built_in, check_rows, find_files, mix};
use crate::eval::{
    self, ClassScores, Evaluation, Init, Masking, Model, ValidationLoss, class_scores, evaluate, validation_loss,
};
use crate::generate::Translator;

/// The scores of a checkpoint on a text.
#[derive(Debug, Clone, PartialEq)]
pub struct Scores {
    /// Optimizer steps of the checkpoint.
    pub step: u64,
    /// Losses, and the accuracy on masked tokens.
    pub loss: ValidationLoss,
    /// lm: length of the text in UTF-8 bytes, for [`ValidationLoss::bits_per_byte`].
    pub n_bytes: Option<u64>,
    /// lm and mlm: how the documents lie in rows, which the losses depend on.
    pub division: Option<Division>,
    /// Classification and tagging: accuracy and F1.
    pub classes: Option<ClassScores>,
    /// Translation: scores of the translated text.
    pub translation: Option<Evaluation>,
    /// A model of a program's own: its [`Model::FIGURES`].
    pub figures: BTreeMap<String, f64>,
}

/// A checkpoint to score.
pub struct Scoring<'a> {
    /// The checkpoint.
    pub run: &'a TrainedModel,
    /// How pairs are translated.
    pub generate: GenerateConfig,
    /// What is rounded to int8 when pairs are translated. Losses are computed without it.
    pub int8: Option<Int8>,
    /// Where the model computes.
    pub device: &'a Device,
    /// The processes that share the text. Each gets all scores, the same to the last digit as one process alone.
    pub ranks: &'a Ranks,
}

/// Whether nothing has this name, which is neither a pattern nor the names of two files.
fn is_missing(file: &Path) -> bool {
    !file.exists() && !file.to_string_lossy().contains(['*', '?', ','])
}

impl Scoring<'_> {
    /// Scores on `files`, or on the run's validation text if there are none. `note` gets lines for the user.
    ///
    /// # Errors
    /// If there is no text, if it cannot be read, or if the device or another rank fails.
    pub fn score(self, files: &[PathBuf], note: &mut dyn FnMut(&str)) -> Result<Scores> {
        let row = traits_of(self.run.config.task);
        check_rows(&self.run.config, files, &[])?;
        if let Some(missing) =
            self.run.config.data.valid_files().iter().find(|file| files.is_empty() && is_missing(file))
        {
            return Err(RunError::NoSuchValidationText(missing.clone()).into());
        }
        match row.reads {
            Reads::Text if row.classes.is_some() => self.score_classes(files, note),
            Reads::Pairs => self.score_pairs(files, note),
            Reads::Text => self.score_text(files, note),
        }
    }

    fn score_pairs(self, files: &[PathBuf], note: &mut dyn FnMut(&str)) -> Result<Scores> {
        let Self { run, device, ranks, .. } = self;
        let (examples, n_bad) = self.examples(files, note)?;
        let n_rows = examples.len() + n_bad;
        let (model, tokenizers) = run.translation(run.dtype_on(device)?, device)?;
        let (examples, left_out) = translatable(examples, &tokenizers, model.config().max_positions)?;
        left_out.iter().chain(&without_spaces(&examples)).for_each(|line| note(line));
        if examples.len() < n_rows {
            let n = examples.len();
            note(&format!(
                "{n} of {n_rows} rows are translated and scored: --hypotheses writes a line for each of these alone"
            ));
        }
        note(&format!("scoring {} on {} pairs", run.path.display(), examples.len()));

        let translator = Translator::new(&model, tokenizers.clone(), self.generate.clone())?.in_int8(self.int8)?;
        let loss = self.loss(&Transformer::EncoderDecoder(model), &tokenizers, &examples, note)?;
        ranks.enter(Phase::Translate);
        let translation = evaluate(&translator, &examples, ranks)?;
        Ok(Scores {
            step: run.step,
            loss,
            n_bytes: None,
            division: None,
            classes: None,
            translation: Some(translation),
            figures: BTreeMap::new(),
        })
    }

    /// Reads the named text, or the run's validation text. Returns how many rows cannot be used, too.
    fn examples(&self, files: &[PathBuf], note: &mut dyn FnMut(&str)) -> Result<(Vec<Example>, usize)> {
        let config = &self.run.config;
        if files.is_empty() && config.is_built_in_task() {
            self.check_trained()?;
            return Ok((built_in::rows(config)?.held_out, 0));
        }
        let files = if files.is_empty() { &config.data.valid } else { files };
        if files.is_empty() && !config.data.valid_files().is_empty() {
            return Ok((mix::valid_examples(config)?, 0));
        }
        if files.is_empty() {
            return Err(RunError::NoValidationText("text pairs").into());
        }

        let files = find_files(config, files, Split::Valid)?;
        let corpus = PairCorpus::open(&files, &config.data.corpus)?;
        corpus.notes().iter().for_each(|line| note(line));
        let (examples, report) = corpus.read_all()?;
        if report.bad() > 0 {
            note(&report.to_string());
        }
        if let Some(missing) = mix::missing_tags(config, &examples) {
            note(&missing);
        }
        Ok((examples, report.bad() as usize))
    }

    /// Computes the loss over `examples`, through a token cache in a temporary folder.
    fn loss(
        &self,
        model: &Transformer,
        tokenizers: &PairTokenizers,
        examples: &[Example],
        note: &mut dyn FnMut(&str),
    ) -> Result<ValidationLoss> {
        let scratch = Scratch::new()?;
        let source = self.pairs(&scratch, tokenizers, examples, note)?;
        self.loss_over(model, source, None)
    }

    /// Tokenizes `examples` into a cache in a temporary folder.
    fn pairs(
        &self,
        scratch: &Scratch,
        tokenizers: &PairTokenizers,
        examples: &[Example],
        note: &mut dyn FnMut(&str),
    ) -> Result<Arc<PairSource>> {
        let config = &self.run.config;
        let rows = scratch.path("rows.jsonl");
        numbers::write_jsonl(&rows, examples)?;

        let limits = config.data.corpus.resolved(self.run.model.max_positions);
        let corpus = CorpusConfig {
            max_source_len: limits.max_source_len,
            max_target_len: limits.max_target_len,
            max_bad_rows: limits.max_bad_rows,
            split_special_tokens: limits.split_special_tokens,
            ..CorpusConfig::default()
        };
        let corpus = PairCorpus::open(&[rows], &corpus)?;
        let cache = open_cache(&scratch.path("rows.tokens"), &corpus, tokenizers, &mut |_| {})?;
        note_report(cache.report(), note);

        Ok(Arc::new(PairSource::new(cache, tokenizers, &config.loader)?))
    }

    /// Scores a model of a program's own: its loss, and its figures.
    ///
    /// # Errors
    /// As [`Self::score`], and if the model has other parameters than the checkpoint.
    pub fn score_own<M: Model>(
        self,
        init: &Init<'_, M>,
        files: &[PathBuf],
        note: &mut dyn FnMut(&str),
    ) -> Result<Scores> {
        let Self { run, ref generate, device, ranks, .. } = self;
        check_rows(&run.config, files, &[])?;
        let scratch = Scratch::new()?;
        let source = self.source(&scratch, files, note)?;
        let module = init.make(&run.model, run.config.seed, device);
        let model = run.load_into(module, run.dtype_on(device)?)?.valid();
        let masking = if M::HIDES_TOKENS { Masking::of(&run.config, &run.vocabulary)? } else { None };

        note(&format!("scoring {}", run.path.display()));
        compare_use(ranks, run, generate, &source.fingerprint())?;
        let batches = OnePass::for_rank(source, &run.config.loader, ranks.part())?;
        let smoothing = run.config.train.label_smoothing;
        let (loss, figures) = match M::FIGURES {
            [] => (validation_loss(&model, batches, smoothing, masking.as_ref(), device, ranks)?, BTreeMap::new()),
            _ => eval::figures(&model, batches, smoothing, masking.as_ref(), device, ranks)?,
        };
        Ok(Scores { step: run.step, loss, n_bytes: None, division: None, classes: None, translation: None, figures })
    }

    /// Opens the named text, or the run's validation text, through caches in a temporary folder.
    fn source(&self, scratch: &Scratch, files: &[PathBuf], note: &mut dyn FnMut(&str)) -> Result<Arc<dyn BatchSource>> {
        let run = self.run;
        let task = traits_of(run.config.task);
        if let (Reads::Pairs, Some(tokenizers)) = (task.reads, run.vocabulary.pairs()) {
            let (examples, _) = self.examples(files, note)?;
            return Ok(self.pairs(scratch, tokenizers, &examples, note)?);
        }
        if files.is_empty() && run.config.is_built_in_task() {
            self.check_trained()?;
        }
        let found = match task.classes.is_some() {
            true => valid_rows(&run.config, files, &scratch.0, &run.vocabulary, note)?
                .map(|rows| rows as Arc<dyn BatchSource>),
            false => valid_text(&run.config, files, &scratch.0, &run.vocabulary, &mut |_| {})?.map(|text| text.source),
        };
        found.ok_or_else(|| RunError::NoValidationText("text").into())
    }

    fn score_text(self, files: &[PathBuf], note: &mut dyn FnMut(&str)) -> Result<Scores> {
        let run = self.run;
        let task = traits_of(run.config.task);
        if task.hides_tokens {
            run.check_masked_model()?;
        }
        if files.is_empty() && run.config.is_built_in_task() {
            self.check_trained()?;
        }
        let scratch = Scratch::new()?;
        // The cache is temporary: nobody needs to know of it.
        let opened = valid_text(&run.config, files, &scratch.0, &run.vocabulary, &mut |_| {})?;
        let Some(OpenedText { source, n_bytes, report, division, notes, .. }) = opened else {
            return Err(RunError::NoValidationText("text").into());
        };
        notes.iter().for_each(|line| note(line));
        if report.bad() > 0 || report.unknown.tokens > 0 {
            note(&report.to_string());
        }

        let model = run.load_with_reference(run.dtype_on(self.device)?, self.device)?;
        note(&format!("scoring {} on {n_bytes} bytes of text", run.path.display()));
        let masking = Masking::of(&run.config, &run.vocabulary)?;
        let loss = self.loss_over(&model, source, masking.as_ref())?;
        let n_bytes = (task.continues_text && !run.config.data.text.is_chat()).then_some(n_bytes);
        Ok(Scores {
            step: run.step,
            loss,
            n_bytes,
            division,
            classes: None,
            translation: None,
            figures: BTreeMap::new(),
        })
    }

    fn score_classes(self, files: &[PathBuf], note: &mut dyn FnMut(&str)) -> Result<Scores> {
        if files.is_empty() && self.run.config.is_built_in_task() {
            self.check_trained()?;
        }
        let Self { run, generate, device, ranks, .. } = self;
        let scratch = Scratch::new()?;
        let Some(source) = valid_rows(&run.config, files, &scratch.0, &run.vocabulary, note)? else {
            return Err(RunError::NoValidationText("labelled rows").into());
        };
        let model = run.load_model(run.dtype_on(device)?, device)?;
        note(&format!("scoring {}", run.path.display()));
        compare_use(ranks, run, &generate, &source.fingerprint())?;
        let batches = OnePass::for_rank(source, &run.config.loader, ranks.part())?;
        let (smoothing, names) = (run.config.train.label_smoothing, &run.config.data.labels.names);
        let (loss, scores) = class_scores(&model, batches, smoothing, names, device, ranks)?;
        let (step, classes, figures) = (run.step, Some(scores), BTreeMap::new());
        Ok(Scores { step, loss, n_bytes: None, division: None, classes, translation: None, figures })
    }

    /// Refuses to score an imported model on the built-in text, which it has never seen.
    fn check_trained(&self) -> Result<(), RunError> {
        let what = if traits_of(self.run.config.task).reads == Reads::Pairs { "text pairs" } else { "text" };
        if self.run.step == 0 { Err(RunError::NoValidationText(what)) } else { Ok(()) }
    }

    /// Computes the loss over the batches of `source`, which the ranks share.
    fn loss_over(
        &self,
        model: &Transformer,
        source: Arc<dyn BatchSource>,
        masking: Option<&Masking>,
    ) -> Result<ValidationLoss> {
        let Self { run, generate, device, ranks, .. } = self;
        compare_use(ranks, run, generate, &source.fingerprint())?;
        let batches = OnePass::for_rank(source, &run.config.loader, ranks.part())?;
        validation_loss(model, batches, run.config.train.label_smoothing, masking, device, ranks)
    }
}

/// Says which pairs the loss leaves out, and what the vocabulary lacks. Their file is temporary: only the number of a pair
/// means something.
fn note_report(report: &RowReport, note: &mut dyn FnMut(&str)) {
    for row in &report.shown {
        note(&format!("left out of the loss: pair {}: {}", row.line, row.problem));
    }
    let more = report.bad() - report.shown.len() as u64;
    if more > 0 {
        note(&format!("left out of the loss: {more} more"));
    }
    if report.unknown.tokens > 0 {
        note(&report.unknown.to_string());
    }
}

/// A temporary folder for the token cache of a text. Removed when dropped.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new() -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("kiln-evaluate-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| {
            format!("{}: cannot make this folder; set TMPDIR to one that can be written", folder.display())
        })?;
        Ok(Self(folder))
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
