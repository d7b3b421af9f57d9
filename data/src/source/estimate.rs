//! The number of batches in an epoch, estimated before tokenizer and token cache exist.

use super::BatchSource;
use super::labelled::LabelledSource;
use super::text::row_format;
use crate::batch::Buckets;
use crate::corpus::{
    DocumentPart, Example, LabelledCorpus, Packing, PairCorpus, RowParser, Task, TextConfig, TextCorpus, length_problem,
};
use crate::error::Result;
use crate::loader_config::LoaderConfig;
use crate::tokenizer::{LabelledShape, PairTokenizers, TextTokenizer, TokenizerConfig};

/// More than the mean of any vocabulary on ordinary text.
const MOST_BYTES_PER_TOKEN: f64 = 12.0;

/// Estimates the batches of an epoch from the beginning of a text. The tokenizer is loaded, or trained on this beginning.
/// A text that is not longer is counted exactly.
#[derive(Debug, Clone)]
pub struct BatchEstimate<'a> {
    /// The tokenizer of the run.
    pub tokenizer: &'a TokenizerConfig,
    /// How the run makes batches.
    pub loader: &'a LoaderConfig,
    /// Bytes of text that are tokenized.
    pub sample_bytes: u64,
    /// Reading stops when the text has this many batches.
    pub enough: f64,
    /// Threads that train the tokenizer.
    pub num_threads: usize,
}

impl BatchEstimate<'_> {
    /// Estimates the batches of pairs. Replace limits of 0 first ([`CorpusConfig::resolved`](crate::CorpusConfig::resolved)).
    ///
    /// # Errors
    ///
    /// If the text cannot be read, if the tokenizer cannot be loaded or trained, or if a row is longer than a batch.
    pub fn of_pairs(&self, corpus: &PairCorpus) -> Result<f64> {
        let parser = RowParser::new(corpus.config());
        let (mut examples, mut n_bytes, mut blocks) = (Vec::new(), 0, corpus.blocks());
        while n_bytes < self.sample_bytes {
            let Some(block) = blocks.next().transpose()? else { break };
            n_bytes += block.n_bytes();
            // Batches leave out the rows that cannot be used.
            let pairs = block.rows(&parser).filter_map(|(_, row)| row.ok());
            examples.extend(
                pairs.map(|pair| Example { source: pair.source.into_owned(), target: pair.target.into_owned() }),
            );
        }

        let text_bytes = examples.iter().map(|example| example.source.len().max(example.target.len())).sum();
        if let Some(at_least) = self.surely_enough(text_bytes) {
            return Ok(at_least);
        }

        let tokenizers = match self.tokenizer.path {
            Some(_) => PairTokenizers::load(self.tokenizer)?,
            None => PairTokenizers::train_on_examples(self.tokenizer, &examples, self.num_threads)?,
        };
        let limits = (corpus.config().max_source_len, corpus.config().max_target_len);
        let encoder = tokenizers.encoder().splitting_special_tokens(corpus.config().split_special_tokens);
        let (mut encoder, mut lengths) = (encoder, Vec::with_capacity(examples.len()));
        let (mut source, mut target) = (Vec::new(), Vec::new());
        for example in &examples {
            source.clear();
            target.clear();
            encoder.encode_source(&example.source, &mut source)?;
            encoder.encode_target(&example.target, &mut target)?;
            let (source, target) = (source.len() + 1, target.len() + 1);
            if length_problem(source, target, corpus.config()).is_none() {
                lengths.push((source, target));
            }
        }
        let of_sample = Buckets::new(lengths.into_iter(), limits, self.loader)?.batches_per_epoch();
        self.extended(of_sample, n_bytes, blocks.map(|block| Ok(block?.n_bytes())))
    }

    /// Estimates the batches of plain text for `task`. Replace a `text.seq_len` of 0 first ([`TextConfig::resolved`]).
    ///
    /// # Errors
    ///
    /// As [`Self::of_pairs`].
    pub fn of_text(&self, corpus: &TextCorpus, task: Task) -> Result<f64> {
        let (mut documents, mut n_bytes, mut blocks) = (Vec::<String>::new(), 0, corpus.blocks());
        while n_bytes < self.sample_bytes {
            let Some(block) = blocks.next().transpose()? else { break };
            n_bytes += block.n_bytes();
            for part in block.document_parts(corpus) {
                let DocumentPart { continues, text, .. } = part?;
                match (text, documents.last_mut()) {
                    (Ok(text), Some(last)) if continues => last.push_str(&text),
                    (Ok(text), _) => documents.push(text.into_owned()),
                    (Err(_), _) => {}
                }
            }
        }

        if let Some(at_least) = self.surely_enough(documents.iter().map(String::len).sum()) {
            return Ok(at_least);
        }

        let tokenizer = match self.tokenizer.path {
            Some(_) => TextTokenizer::load(self.tokenizer)?,
            None => TextTokenizer::train_on_documents(self.tokenizer, &documents, self.num_threads)?,
        };
        let of_sample = self.batches_of(&documents, &tokenizer, task, corpus.config())?;
        self.extended(of_sample, n_bytes, blocks.map(|block| Ok(block?.n_bytes())))
    }

    /// Counts the batches of labelled rows, encoded as `shape` says.
    ///
    /// # Errors
    ///
    /// If the tokenizer cannot be loaded or trained, or if a row is longer than a batch.
    pub fn of_labelled(&self, corpus: &LabelledCorpus, shape: LabelledShape) -> Result<f64> {
        let texts = corpus.texts();
        // Longer texts are cut.
        let most = MOST_BYTES_PER_TOKEN as usize * shape.max_len;
        if let Some(at_least) = self.surely_enough(texts.iter().map(|text| text.len().min(most)).sum()) {
            return Ok(at_least);
        }

        let tokenizer = match self.tokenizer.path {
            Some(_) => TextTokenizer::load(self.tokenizer)?,
            None => TextTokenizer::train_on_documents(self.tokenizer, &texts, self.num_threads)?,
        };
        let source = LabelledSource::new(corpus, &tokenizer, shape, self.loader, self.num_threads)?;
        Ok(source.batches_per_epoch() as f64)
    }

    fn batches_of(
        &self,
        documents: &[String],
        tokenizer: &TextTokenizer,
        task: Task,
        config: &TextConfig,
    ) -> Result<u64> {
        tokenizer.check(task)?;
        let around = row_format(tokenizer, task, config.packing).input.len();
        let encoder = tokenizer.encoder().splitting_special_tokens(config.split_special_tokens);
        let (mut encoder, mut ids, mut places) = (encoder, Vec::new(), Vec::with_capacity(documents.len()));
        for document in documents {
            ids.clear();
            encoder.encode(document, &mut ids)?;
            places.push(ids.len() + around);
        }

        let seq_len = config.seq_len.max(1);
        if config.packing == Packing::Sentences {
            let parts = |places: usize| (0..places).step_by(seq_len).map(move |start| (places - start).min(seq_len));
            let lengths: Vec<(usize, usize)> = places.into_iter().flat_map(parts).map(|len| (0, len)).collect();
            return Ok(Buckets::new(lengths.into_iter(), (0, seq_len), self.loader)?.batches_per_epoch());
        }
        let rows = places.iter().sum::<usize>().div_ceil(seq_len);
        Ok(rows.div_ceil(self.loader.rows_of(seq_len).max(1)) as u64)
    }

    /// Returns a number of batches that a text of `text_bytes` has at least, if it is enough: without a tokenizer.
    fn surely_enough(&self, text_bytes: usize) -> Option<f64> {
        let at_least = text_bytes as f64 / MOST_BYTES_PER_TOKEN / self.loader.batch_tokens as f64;
        (at_least >= self.enough).then_some(at_least)
    }

    /// Extends the batches of the first `sample_bytes` to the whole text, whose other blocks have the sizes `others`.
    fn extended(&self, of_sample: u64, sample_bytes: u64, others: impl Iterator<Item = Result<u64>>) -> Result<f64> {
        let (of_sample, mut bytes) = (of_sample as f64, sample_bytes);
        let estimate = |bytes: u64| of_sample * bytes as f64 / sample_bytes.max(1) as f64;
        for more in others {
            if estimate(bytes) >= self.enough {
                break;
            }
            bytes += more?;
        }
        Ok(estimate(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::CorpusConfig;
    use crate::fixtures::{Fixture, TextFixture, multilingual, stories};

    fn estimate<'a>(tokenizer: &'a TokenizerConfig, loader: &'a LoaderConfig, sample_bytes: u64) -> BatchEstimate<'a> {
        BatchEstimate { tokenizer, loader, sample_bytes, enough: f64::INFINITY, num_threads: 2 }
    }

    #[test]
    fn a_short_text_of_pairs_is_counted_and_a_long_one_is_estimated() {
        let rows: Vec<_> = std::iter::repeat_n(multilingual(), 400).flatten().collect();
        let tokenizer = TokenizerConfig { vocab_size: 700, ..TokenizerConfig::default() };
        let fixture = Fixture::new(&rows, &tokenizer, &CorpusConfig::default());
        let loader = LoaderConfig { batch_tokens: 512, ..LoaderConfig::default() };
        let wanted = fixture.cached(&loader).batches_per_epoch() as f64;

        let whole = estimate(&tokenizer, &loader, u64::MAX).of_pairs(&fixture.corpus).expect("an estimate");
        assert_eq!(whole, wanted);
        let part = estimate(&tokenizer, &loader, 1).of_pairs(&fixture.corpus).expect("an estimate");
        assert!(part != wanted && (part / wanted - 1.0).abs() < 0.1, "{part}, wanted {wanted}");
        let enough = BatchEstimate { enough: 1.0, ..estimate(&tokenizer, &loader, 1) };
        assert!(enough.of_pairs(&fixture.corpus).expect("an estimate") < wanted, "it stops reading");
    }

    #[test]
    fn rows_of_text_are_counted_as_they_are_packed() {
        let documents = stories(200, 40);
        let tokenizer = TokenizerConfig { vocab_size: 600, ..TokenizerConfig::default() };
        let fixture = TextFixture::new(&documents, &tokenizer);
        let loader = LoaderConfig { batch_tokens: 256, ..LoaderConfig::default() };
        for packing in [Packing::Documents, Packing::Stream, Packing::Sentences] {
            for task in [Task::Lm, Task::Mlm] {
                let config = TextConfig { seq_len: 32, packing, ..fixture.corpus.config().clone() };
                let files: Vec<_> = fixture.corpus.files().map(Into::into).collect();
                let corpus = TextCorpus::open(&files, &config).expect("a text");
                let wanted = fixture.source(task, &config, &loader).batches_per_epoch() as f64;
                let found = estimate(&tokenizer, &loader, u64::MAX).of_text(&corpus, task).expect("an estimate");
                assert_eq!(found, wanted, "{task:?} {packing:?}");
            }
        }
    }
}
