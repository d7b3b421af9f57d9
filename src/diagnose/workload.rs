//! The workloads that `kiln bench` times: a model, its optimizer, and synthetic batches of one shape. The PyTorch baseline has
//! the same workloads, so that the figures can be compared.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use kiln_model::{Batch, FeedForwardActivation, PairBatch, Positions, TextBatch, TransformerConfig, flops};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::config::{Config, OptimConfig, Schedule, TrainConfig};

/// A model and the batches it is timed on.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Its name on the command line.
    pub name: &'static str,
    /// A description.
    pub title: String,
    /// Optimizer, precision, label smoothing.
    pub config: Config,
    /// The model, with its vocabulary sizes.
    pub model: TransformerConfig,
    /// Rows per batch.
    pub batch_size: usize,
    /// Positions per row (of source and of target each).
    pub seq_len: usize,
    /// Batches that steps alternate between.
    pub n_batches: usize,
    /// The shortest row as a fraction of `seq_len`; 1 for full rows.
    shortest: f64,
}

/// Names that [`Workload::named`] knows.
pub const NAMES: [&str; 5] = ["gpt", "gpt64", "mt", "tiny", "tiny-mt"];

impl Workload {
    /// Returns the workload called `name`, one of [`NAMES`].
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "gpt" => Some(Self::gpt("gpt", 16)),
            "gpt64" => Some(Self::gpt("gpt64", 64)),
            "mt" => Some(Self::mt()),
            "tiny" => Some(Self::tiny()),
            "tiny-mt" => Some(Self::tiny_mt()),
            _ => None,
        }
    }

    /// GPT-2 124M on full rows of 1,024 tokens, without dropout; the vocabulary padded to 50,304 as is usual.
    fn gpt(name: &'static str, batch_size: usize) -> Self {
        let model = TransformerConfig {
            target_vocab_size: 50_304,
            dropout: 0.0,
            attention_dropout: 0.0,
            ..TransformerConfig::gpt2_124m()
        };
        Self::of(name, format!("GPT-2 124M, {batch_size} x 1024"), model, 0.0, [batch_size, 1024], 2, 1.0)
    }

    /// Transformer base, pre-norm, 32,000 joint tokens, on 400 padded pairs of 48 to 64 tokens; dropout 0.1 also inside the
    /// feed-forward, label smoothing 0.1.
    fn mt() -> Self {
        let model = TransformerConfig {
            source_vocab_size: 32_000,
            target_vocab_size: 32_000,
            positions: Positions::Learned,
            activation: FeedForwardActivation::GeluTanh,
            dropout: 0.1,
            ..TransformerConfig::base()
        };
        Self::of("mt", "Transformer base, 400 x (64 + 64) padded".into(), model, 0.1, [400, 64], 4, 0.75)
    }

    /// A model that a CPU can train, to try the command out.
    fn tiny() -> Self {
        let model = TransformerConfig {
            target_vocab_size: 512,
            d_model: 64,
            n_heads: 2,
            d_ff: 128,
            n_decoder_layers: 2,
            max_positions: 64,
            dropout: 0.0,
            attention_dropout: 0.0,
            ..TransformerConfig::gpt2_124m()
        };
        Self::of("tiny", "a small GPT, 4 x 64".into(), model, 0.0, [4, 64], 2, 1.0)
    }

    /// A translator that a CPU can train.
    fn tiny_mt() -> Self {
        let vocabulary = 512;
        let model = TransformerConfig {
            source_vocab_size: vocabulary,
            target_vocab_size: vocabulary,
            d_model: 64,
            n_heads: 2,
            d_ff: 128,
            n_encoder_layers: 1,
            n_decoder_layers: 1,
            ..Self::mt().model
        };
        Self::of("tiny-mt", "a small translator, 8 x (16 + 16) padded".into(), model, 0.1, [8, 16], 2, 0.75)
    }

    fn of(
        name: &'static str,
        title: String,
        model: TransformerConfig,
        label_smoothing: f64,
        [batch_size, seq_len]: [usize; 2],
        n_batches: usize,
        shortest: f64,
    ) -> Self {
        let config = Config {
            optim: OptimConfig {
                lr: 1e-4,
                beta2: 0.999,
                eps: 1e-8,
                weight_decay: 0.1,
                max_grad_norm: 1.0,
                schedule: Schedule::Constant,
                warmup_steps: 0,
                ..OptimConfig::default()
            },
            train: TrainConfig { label_smoothing, ..TrainConfig::default() },
            model: model.clone(),
            ..Config::default()
        };
        Self { name, title, config, model, batch_size, seq_len, n_batches, shortest }
    }

    /// Whether batches have sources and targets.
    fn is_pairs(&self) -> bool {
        self.model.source_vocab_size > 0
    }

    /// Returns the floating-point operations of a step, as the baseline counts them: 6 per parameter and position (of the target,
    /// for pairs). Causal attention over text adds `6 * T * D` per position and layer.
    pub fn flops(&self) -> f64 {
        let parameters = flops::n_params(&self.model).total() as f64;
        let positions = (self.batch_size * self.seq_len) as f64;
        let attention =
            if self.is_pairs() { 0 } else { self.model.n_decoder_layers * self.seq_len * self.model.d_model };
        6.0 * (parameters + attention as f64) * positions
    }

    /// Returns the padded shape of a batch, `[B, S, T]`; S is 0 for text.
    pub fn shape(&self) -> [usize; 3] {
        [self.batch_size, if self.is_pairs() { self.seq_len } else { 0 }, self.seq_len]
    }

    /// Returns the positions of a batch, source and target together.
    pub fn n_positions(&self) -> usize {
        let [b, s, t] = self.shape();
        b * (s + t)
    }

    /// Makes synthetic batches: uniform tokens, row lengths uniform between the shortest and `seq_len`.
    pub fn batches(&self, device: &Device) -> Vec<Batch> {
        let mut random = ChaCha8Rng::seed_from_u64(17);
        let mut below = |n: usize| (random.next_u64() % n as u64) as usize;
        let device = device.clone().inner();
        (0..self.n_batches)
            .map(|_| if self.is_pairs() { self.pairs(&mut below, &device) } else { self.text(&mut below, &device) })
            .collect()
    }

    /// Full rows; `below(n)` is a random number less than `n`.
    fn text(&self, below: &mut impl FnMut(usize) -> usize, device: &Device) -> Batch {
        let [b, t] = [self.batch_size, self.seq_len];
        let mut ids: Vec<i32> = (0..2 * b * t).map(|_| below(self.model.target_vocab_size) as i32).collect();
        ids.extend((0..b).flat_map(|_| 0..t as i32));
        ids.extend(vec![0; b * t]);
        ids.extend(vec![t as i32; b]);
        Batch::Text(TextBatch::from_contiguous(upload(ids, device), [b, t], (b * t) as u64, false))
    }

    /// Padded rows of sources and targets.
    fn pairs(&self, below: &mut impl FnMut(usize) -> usize, device: &Device) -> Batch {
        let [b, t] = [self.batch_size, self.seq_len];
        let shortest = (t as f64 * self.shortest) as usize;
        let mut rows = |first: i32| -> (Vec<i32>, Vec<usize>) {
            let lengths: Vec<usize> =
                (0..b).map(|i| if i == 0 { t } else { shortest + below(t - shortest + 1) }).collect();
            let row = |length: &usize| -> Vec<i32> {
                (0..t)
                    .map(|i| if i < *length { first + below(self.model.source_vocab_size - 4) as i32 } else { 0 })
                    .collect()
            };
            (lengths.iter().flat_map(row).collect(), lengths)
        };
        let (source, source_lengths) = rows(4);
        let (target, target_lengths) = rows(4);

        let labels = target.chunks(t).flat_map(|row| row[1..].iter().copied().chain([0]));
        let tokens = |lengths: &[usize]| lengths.iter().sum::<usize>() as u64;
        let (source_tokens, target_tokens) = (tokens(&source_lengths), tokens(&target_lengths));

        let mut ids = source;
        ids.extend_from_slice(&target);
        ids.extend(labels);
        ids.extend(source_lengths.iter().chain(&target_lengths).map(|&n| n as i32));
        Batch::Pairs(PairBatch::from_contiguous(upload(ids, device), [b, t, t], source_tokens, target_tokens))
    }
}

fn upload(ids: Vec<i32>, device: &Device) -> Tensor<1, Int> {
    let n = ids.len();
    Tensor::from_data(TensorData::new(ids, [n]), (device, DType::I32))
}

/// Returns the non-padding tokens of a batch, source and target together.
pub fn effective_tokens(batch: &Batch) -> u64 {
    match batch {
        Batch::Pairs(batch) => batch.source_tokens + batch.target_tokens,
        Batch::Text(batch) => batch.tokens,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_are_the_workloads_of_the_baseline() {
        for name in NAMES {
            let workload = Workload::named(name).expect("a listed name");
            assert_eq!(workload.name, name);
            assert_eq!(workload.model.validate(), Vec::<String>::new(), "{name}");
        }
        // The baseline's figures: 124.5 M parameters, 6 P + 6 * 12 * T * 768 operations per token.
        let gpt = Workload::named("gpt").expect("a listed name");
        let per_token = gpt.flops() / (16.0 * 1024.0);
        assert!((per_token / 6.0 - 124.48e6 - 12.0 * 1024.0 * 768.0).abs() < 0.1e6, "{per_token}");
        assert!(Workload::named("gtp").is_none());
    }

    #[test]
    fn batches_have_the_padding_of_the_baseline() {
        let mt = Workload { batch_size: 100, n_batches: 1, ..Workload::named("mt").expect("a listed name") };
        let batch = mt.batches(&Device::flex()).remove(0);
        let share = effective_tokens(&batch) as f64 / (100.0 * 128.0);
        assert!((0.85..0.90).contains(&share), "about an eighth is padding, not {share}");
        let Batch::Pairs(pairs) = batch else { panic!("pairs") };
        let data = pairs.source.into_data().try_to_vec::<i32>().expect("ids");
        let real = data.iter().filter(|&&id| id != 0).count();
        assert_eq!(real as u64, pairs.source_tokens);
    }
}
