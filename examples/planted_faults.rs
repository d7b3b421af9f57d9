//! A corrector of wrong tokens with five faults of real training programs, each planted by name. `diagnose` finds them:
//!
//! ```text
//! cargo run --release --example planted_faults -- diagnose --task lm --preset gpt2-tiny --device cpu
//! FAULT=loop cargo run --release --example planted_faults -- diagnose --task lm --preset gpt2-tiny --device cpu
//! ```
//!
//! | `FAULT` | what is wrong |
//! |---|---|
//! | `loop` | scores of candidates are computed one by one: 768 for 128 rows of 6 candidates |
//! | `parse` | the loader parses and tokenizes the text of each row again, in one thread with `loader.num_workers=1` |
//! | `sync` | the loss is read in each step |
//! | `flush` | caches are emptied every 50 steps |
//!
//! The fifth, an exchange per micro-batch, is a setting: `--devices cpu,cpu --set train.grad_accum_steps=1`. `docs/case-study.md` tells
//! the story, and `tests/it/planted_faults.rs` checks what `diagnose` says with each fault and without it.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use anyhow::{Context, Result, bail};
use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Distribution, IndexingUpdateOp, Int, Tensor, TensorData};
use kiln::dataset::{RunData, Vocabulary};
use kiln::{Config, Model};
use kiln_data::{
    BatchSource, BatchWorker, Buckets, EpochPlan, HostBatch, Order, Shape, TextParts, TextTokenizer, TokenizerConfig,
};
use kiln_kernels::{Activation, CrossEntropyConfig, cross_entropy, embed, linear, linear_activated};
use kiln_model::{Batch, DropoutStream, LossSums, TextBatch, TransformerConfig};

/// Tokens of a row.
const ROW: usize = 8;
/// Rows of the data set.
const ROWS: usize = 2048;
/// Candidates of each token.
const CANDIDATES: usize = 6;
/// Steps from one flush of the caches to the next.
const FLUSH_EVERY: u64 = 50;

/// What is wrong with this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    Loop,
    Parse,
    Sync,
    Flush,
}

impl Fault {
    fn from_env() -> Result<Self> {
        Ok(match std::env::var("FAULT").as_deref() {
            Err(_) | Ok("") => Self::None,
            Ok("loop") => Self::Loop,
            Ok("parse") => Self::Parse,
            Ok("sync") => Self::Sync,
            Ok("flush") => Self::Flush,
            Ok(other) => bail!("no fault {other:?}; FAULT is loop, parse, sync or flush"),
        })
    }
}

static FAULT: OnceLock<Fault> = OnceLock::new();

fn fault() -> Fault {
    FAULT.get().copied().unwrap_or(Fault::None)
}

/// How the tokens of the vocabulary are written.
static SPELLED: OnceLock<Vec<String>> = OnceLock::new();
/// The candidates of each token, `[V, K]`, once they are computed.
static TABLE: Mutex<Option<Vec<i32>>> = Mutex::new(None);

/// Returns the tokens that each of `n_tokens` tokens may be confused with: the nearest ones in spelling.
fn confusions(n_tokens: usize) -> Vec<i32> {
    let mut table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    let spelled = SPELLED.get().map(Vec::as_slice).unwrap_or_default();
    let nearest = |token: usize| {
        let own = spelled.get(token).map(String::as_str).unwrap_or_default();
        let mut others: Vec<(usize, usize)> =
            (0..n_tokens).map(|other| (distance(own, spelled.get(other).map_or("", String::as_str)), other)).collect();
        others.sort_unstable();
        others.into_iter().skip(1).take(CANDIDATES).map(|(_, other)| other as i32).collect::<Vec<i32>>()
    };
    table.get_or_insert_with(|| (0..n_tokens).flat_map(nearest).collect()).clone()
}

/// The edit distance of Levenshtein.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// Reads tokens and says which ones they should be. Legend of shapes: M tokens, D hidden features, V vocabulary, K candidates.
#[derive(Module, Debug)]
struct Corrector {
    /// `[V, D]`
    embedding: Param<Tensor<2>>,
    /// `[D, D]`
    hidden: Param<Tensor<2>>,
    /// `[D, V]`
    output: Param<Tensor<2>>,
}

impl Corrector {
    fn init(config: &TransformerConfig, device: &Device) -> Self {
        let (v, d) = (config.vocab_size(), config.d_model);
        let weight =
            |shape: [usize; 2]| Param::from_tensor(Tensor::random(shape, Distribution::Normal(0.0, 0.05), device));
        Self { embedding: weight([v, d]), hidden: weight([d, d]), output: weight([d, v]) }
    }

    /// Returns the scores of all tokens for M positions. The candidates of the token that stands there count by themselves.
    ///
    /// # Shapes
    /// - `input`: `[M]`; `candidates`: `[M, K]`; rows have `len` tokens
    /// - result: `[M, V]`
    fn logits(&self, input: Tensor<1, Int>, candidates: Tensor<2, Int>, len: usize) -> Tensor<2> {
        let read = self.read(input.clone());
        let scores = match fault() {
            Fault::Loop => self.scores_in_a_loop(&input, &candidates, len),
            _ => self.scores(read.clone(), candidates.clone()),
        };
        linear(read, self.output.val(), None).scatter(1, candidates, scores, IndexingUpdateOp::Add)
    }

    /// Returns the score of each candidate, `[M, K]`.
    fn scores(&self, read: Tensor<2>, candidates: Tensor<2, Int>) -> Tensor<2> {
        let [m, k] = candidates.dims();
        let [_, d] = read.dims();
        let vectors = self.vectors(candidates.reshape([m * k])).reshape([m, k, d]);
        (vectors * read.reshape([m, 1, d])).sum_dim(2).reshape([m, k])
    }

    /// Returns the same, computed as one would write it first: row by row, and candidate by candidate.
    fn scores_in_a_loop(&self, input: &Tensor<1, Int>, candidates: &Tensor<2, Int>, len: usize) -> Tensor<2> {
        let [m, k] = candidates.dims();
        let row = |row: usize| {
            let read = self.read(input.clone().narrow(0, row * len, len));
            let candidates = candidates.clone().narrow(0, row * len, len);
            let score = |at: usize| {
                let vectors = self.vectors(candidates.clone().narrow(1, at, 1).reshape([len]));
                (vectors * read.clone()).sum_dim(1)
            };
            Tensor::cat((0..k).map(score).collect(), 1)
        };
        Tensor::cat((0..m / len).map(row).collect(), 0)
    }

    fn read(&self, input: Tensor<1, Int>) -> Tensor<2> {
        linear_activated(self.vectors(input), self.hidden.val(), None, Activation::Gelu, None)
    }

    fn vectors(&self, ids: Tensor<1, Int>) -> Tensor<2> {
        embed(ids, self.embedding.val(), 1.0, None, None)
    }
}

impl Model for Corrector {
    /// The text has its errors already.
    const HIDES_TOKENS: bool = false;

    fn loss(&self, batch: &Batch, label_smoothing: f64, _stream: Option<&DropoutStream>) -> LossSums {
        static LOSSES: AtomicU64 = AtomicU64::new(0);
        let Batch::Text(batch) = batch else { panic!("this model learns from text: train it with task = \"lm\"") };
        let device = batch.input.device();
        let number = LOSSES.fetch_add(1, Ordering::Relaxed);
        if fault() == Fault::Flush && number.is_multiple_of(FLUSH_EVERY) {
            *TABLE.lock().unwrap_or_else(PoisonError::into_inner) = None;
            device.memory_cleanup();
        }

        let n_tokens = self.embedding.val().dims()[0];
        let table = TensorData::new(confusions(n_tokens), [n_tokens, CANDIDATES]);
        let table = Tensor::<2, Int>::from_data(table, (&device, DType::I32));
        let candidates = table.select(0, batch.input.clone());
        let logits = self.logits(batch.input.clone(), candidates, batch.seq_len);

        let ignore_index = TextBatch::NOT_COUNTED.into();
        let config = CrossEntropyConfig { label_smoothing, ignore_index };
        let sums = cross_entropy(logits, batch.labels.clone(), &config);
        if fault() == Fault::Sync {
            let loss: f32 = sums.loss_sum.clone().into_scalar();
            assert!(loss.is_finite(), "the loss is {loss}");
        }
        let counts = batch.labels.clone().not_equal_elem(ignore_index).int();
        LossSums { loss_sum: sums.loss_sum, nll_sum: sums.nll_sum, n_labels: counts.sum().float().cast(DType::F32) }
    }

    fn has_dropout(&self) -> bool {
        false
    }
}

/// Rows of text with errors.
struct Lines {
    /// As the text is stored: a JSON object per row.
    stored: Vec<String>,
    /// Read and right tokens of each row; empty if rows are parsed for each batch.
    parsed: Vec<(Vec<i32>, Vec<i32>)>,
    tokenizer: TextTokenizer,
    buckets: Buckets,
}

impl Lines {
    /// Parses the row as it is stored.
    fn parse(tokenizer: &TextTokenizer, stored: &str) -> Result<(Vec<i32>, Vec<i32>)> {
        let row: BTreeMap<String, String> = serde_json::from_str(stored).context("a row")?;
        let tokens = |field: &str| -> Result<Vec<i32>> {
            let ids = tokenizer.encode(row.get(field).context("a field")?)?;
            Ok(ids.into_iter().map(|id| id as i32).chain(std::iter::repeat(0)).take(ROW).collect())
        };
        Ok((tokens("read")?, tokens("right")?))
    }
}

impl BatchSource for Lines {
    fn plan(&self, order: Order) -> EpochPlan {
        self.buckets.plan(order)
    }

    fn batches_per_epoch(&self) -> u64 {
        self.buckets.batches_per_epoch()
    }

    fn shapes(&self) -> Option<BTreeMap<Shape, usize>> {
        Some(self.buckets.shapes())
    }

    fn fingerprint(&self) -> String {
        blake3::hash(self.stored.concat().as_bytes()).to_hex().to_string()
    }

    fn worker(self: Arc<Self>) -> Box<dyn BatchWorker> {
        Box::new(LinesWorker(self))
    }
}

struct LinesWorker(Arc<Lines>);

impl BatchWorker for LinesWorker {
    fn fill(&mut self, plan: &EpochPlan, index: usize, batch: &mut HostBatch) -> kiln_data::Result<()> {
        let (numbers, _) = plan.batch(index);
        let (mut input, mut labels) = (Vec::new(), Vec::new());
        for number in numbers {
            let at = *number as usize;
            let parsed =
                self.0.parsed.get(at).cloned().map_or_else(|| Lines::parse(&self.0.tokenizer, &self.0.stored[at]), Ok);
            let (read, right) = parsed.map_err(|error| kiln_data::Error::Invalid(format!("row {at}: {error:#}")))?;
            input.extend(read);
            labels.extend(right);
        }
        let n = numbers.len();
        let positions = (0..n).flat_map(|_| 0..ROW as i32).collect();
        let parts = TextParts { input, labels, positions, documents: vec![0; n * ROW], lengths: vec![ROW as i32; n] };
        *batch = HostBatch::text(Shape::text(n, ROW), false, parts);
        batch.rows = numbers.to_vec();
        Ok(())
    }
}

/// Makes rows of words, in some of which a letter is wrong.
fn data(config: &Config) -> Result<RunData> {
    const WORDS: [&str; 12] =
        ["kiln", "clay", "glaze", "fires", "oven", "brick", "potter", "wheel", "slowly", "cools", "heats", "vessel"];
    let word = |row: usize, at: usize| WORDS[(row * 7 + at * at * 5 + at) % WORDS.len()];
    let text = |row: usize| (0..600).map(|at| word(row, at)).collect::<Vec<_>>().join(" ");
    let stored: Vec<String> = (0..ROWS)
        .map(|row| {
            let right = text(row);
            let read: String =
                right.chars().enumerate().map(|(at, c)| if (at + row) % 23 == 0 { 'x' } else { c }).collect();
            serde_json::json!({"read": read, "right": right, "source": format!("row {row}")}).to_string()
        })
        .collect();

    let texts: Vec<String> = (0..64).map(text).collect();
    let settings = TokenizerConfig { vocab_size: 300, ..config.tokenizer.clone() };
    let tokenizer = TextTokenizer::train_on_documents(&settings, &texts, 2)?;
    let spelled =
        (0..tokenizer.vocab_size() as u32).map(|id| tokenizer.decode(&[id])).collect::<kiln_data::Result<_>>()?;
    SPELLED.get_or_init(|| spelled);

    let parsed = match fault() {
        Fault::Parse => Vec::new(),
        _ => stored.iter().map(|row| Lines::parse(&tokenizer, row)).collect::<Result<_>>()?,
    };
    let buckets = Buckets::new(stored.iter().map(|_| (0, ROW)), (0, ROW), &config.loader)?;
    let lines = Lines { stored, parsed, tokenizer: tokenizer.clone(), buckets };
    Ok(RunData::new(Vocabulary::Text(tokenizer), Arc::new(lines)))
}

fn main() -> Result<ExitCode> {
    let fault = Fault::from_env()?;
    FAULT.get_or_init(|| fault);
    Ok(kiln::cli::main_on(data, Corrector::init))
}
