//! Estimates the device memory of training.

use burn::tensor::{DType, Device};

use super::{Sizes, attention_has_kernel, in_front, n_params, n_trained, state_numbers};
use crate::checkpointing::ActivationCheckpointing;
use crate::config::{Architecture, NormPlacement, TransformerConfig};
use crate::mlm::max_labels;

/// Free blocks of a GPU's memory pools: a share of what is in use, and in any case (`benches/results/2026-11-25-h100-x2-profile.md`).
const POOL_SHARE: f64 = 0.045;
const LEAST_POOL_BYTES: u64 = 10 << 20;

/// What decides the memory of a training step, apart from model, device and batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainSetting {
    /// The compute dtype.
    pub dtype: DType,
    /// The activations that are kept.
    pub checkpointing: ActivationCheckpointing,
    /// Whether a step adds up the gradients of several micro-batches, which it does in f32.
    pub accumulates: bool,
    /// The probability that a token is masked; None if all labels of an encoder-only model may count.
    pub masked_share: Option<f64>,
    /// Devices that train together.
    pub n_ranks: u64,
    /// Whether master weights and the optimizer's state are in bf16, not in f32.
    pub bf16_state: bool,
    /// Numbers that the optimizer keeps as state for each weight of a matrix of a layer, and for each other parameter.
    pub optimizer_state: [u64; 2],
    /// Whether each rank keeps only its slice of master weights and optimizer state.
    pub shards_optimizer: bool,
    /// Whether ranks take steps alone and exchange weights now and then.
    pub takes_local_steps: bool,
    /// Whether the run keeps a moving average of the weights.
    pub keeps_average: bool,
    /// Whether answers are compared with a copy of the model.
    pub has_reference: bool,
}

impl TrainSetting {
    /// A step of one device, over one micro-batch, that keeps all activations.
    pub fn plain(dtype: impl Into<DType>) -> Self {
        Self {
            dtype: dtype.into(),
            checkpointing: ActivationCheckpointing::Off,
            accumulates: false,
            masked_share: None,
            n_ranks: 1,
            bf16_state: false,
            optimizer_state: [2; 2],
            shards_optimizer: false,
            takes_local_steps: false,
            keeps_average: false,
            has_reference: false,
        }
    }
}

/// Device memory of a training run on one rank, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TrainBytes {
    /// Weights in the compute dtype; 0 where the model computes with the master weights.
    pub weights: u64,
    /// Master weights; 0 for bf16 ones that are a slice of `weights`.
    pub master: u64,
    /// The state of the optimizer, such as both moments of AdamW.
    pub optimizer_state: u64,
    /// Whether both are in bf16, not in f32.
    pub bf16_state: bool,
    /// The gradients of one backward pass in the compute dtype.
    pub gradients: u64,
    /// Accumulated gradients in f32; 0 for a step over one micro-batch.
    pub accumulator: u64,
    /// The moving average of the weights in f32, if the run keeps one.
    pub average: u64,
    /// The weights of the model that answers are compared with, in the compute dtype, if there is one.
    pub reference: u64,
    /// What the ranks' exchange of gradients or weights needs: slices that arrive, their sum, and the state of the outer optimizer.
    pub exchange: u64,
    /// An estimate of what one forward pass keeps for backward.
    pub activations: ActivationBytes,
    /// The gradients of one backward pass, end to end in one tensor for the optimizer. They take the place of the activations.
    pub flat_gradients: u64,
    /// Free blocks of a GPU's memory pools, by experience; 0 on the CPU.
    pub pools: u64,
}

/// What one forward pass keeps for backward, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ActivationBytes {
    /// Residual sums.
    pub residual: u64,
    /// Normed sums, and at the ends of the stacks embeddings and the final norm.
    pub norms: u64,
    /// Queries, keys, values, results and statistics of attention; scores, where attention has no kernel.
    pub attention: u64,
    /// Both sides of the feed-forward's activation.
    pub feed_forward: u64,
    /// Logits of one chunk, which their gradient overwrites, and the gradient of the hidden states.
    pub logits: u64,
    /// The f32 gradient of the output projection, which chunks of logits add to.
    pub projection_gradient: u64,
}

impl ActivationBytes {
    /// The sum of all kinds.
    pub fn total(&self) -> u64 {
        self.residual + self.norms + self.attention + self.feed_forward + self.logits + self.projection_gradient
    }
}

impl TrainBytes {
    /// What does not depend on the batch: weights, gradients, the state of the optimizer, and the reference.
    pub fn state(&self) -> u64 {
        let of_optimizer = self.master + self.optimizer_state + self.gradients + self.accumulator + self.average;
        self.weights + of_optimizer + self.reference + self.exchange
    }

    /// The memory at the peak of a step, without workspaces. Activations are freed before the gradients are put end to end, so the larger
    /// of the two counts.
    pub fn total(&self) -> u64 {
        self.in_use() + self.pools
    }

    fn in_use(&self) -> u64 {
        self.state() + self.activations.total().max(self.flat_gradients)
    }
}

/// Estimates the memory of training on `device`, on batches of at most padded shape `[B, S, T]`. For text, S is 0 and T the
/// length of a row.
///
/// Weights, master weights, optimizer state and gradients are counted from the parameters ([`n_params`]):
///
/// - In f32, the model computes with the master weights. Only a sharded optimizer needs both. In bf16 it does so, too, if the master
///   weights are bf16; a sharded optimizer then keeps them in the model's weights.
/// - A single micro-batch leaves its gradients in the compute dtype. Several are added up in f32.
/// - A sharded optimizer (ZeRO-1, Rajbhandari et al. 2020) keeps a slice of master weights and optimizer state.
///
/// Activations are what backward reads:
///
/// - Per position of a layer: the residual sums (norms are recomputed from them), the inputs of its products (normed sum,
///   attention output, activation), queries, keys and values, and both sides of the activation; of ReLU, the result alone. Dropout
///   keeps a seed only.
/// - Per head of attention that has a kernel ([`attention_has_kernel`]): one f32 number per query, since backward recomputes
///   probabilities. Other attention keeps two f32 matrices of queries by keys, and one in `dtype`; two more with dropout, and a mask
///   more where the decoder of pairs hides both padding and later tokens.
/// - At the output: one chunk of logits (`logits_chunk`), which its gradient overwrites, the gradient of the hidden states,
///   and the f32 gradient of the projection.
///
/// Activation checkpointing keeps less of each layer; the layer that is computed again needs the rest.
///
/// The memory pools of a GPU hold free blocks, too: with the presets, 2 to 8 % of what is in use, and some MiB. Temporary buffers of operators
/// are not counted.
pub fn train_bytes(
    config: &TransformerConfig,
    device: &Device,
    shape: [usize; 3],
    setting: &TrainSetting,
) -> TrainBytes {
    let (n, trained) = (n_params(config).total(), n_trained(config));
    let TrainSetting { dtype, n_ranks, shards_optimizer, takes_local_steps, .. } = *setting;
    let (element, slice) = (dtype.size() as u64, trained.div_ceil(n_ranks.max(1)));
    let of_optimizer = if shards_optimizer { slice } else { trained };
    let master_dtype = if setting.bf16_state { DType::BF16 } else { DType::F32 };
    let computes_with_master = dtype == master_dtype && !shards_optimizer;
    let kept = master_dtype.size() as u64;
    let gradient_element = if setting.accumulates { 4 } else { element };

    // The slices of the other ranks arrive and are added up in f32. Local steps keep the last weights and the momentum of a slice
    // instead; during an exchange, three tensors travel and new weights are made.
    let exchange = match (n_ranks, takes_local_steps) {
        (..=1, _) => 0,
        (_, false) => (trained - slice) * gradient_element + 4 * of_optimizer,
        (_, true) => 4 * (trained + slice) + (3 * element + 4) * trained,
    };
    let mut bytes = TrainBytes {
        weights: if computes_with_master { (n - trained) * element } else { n * element },
        master: if setting.bf16_state && dtype == master_dtype && shards_optimizer { 0 } else { of_optimizer * kept },
        optimizer_state: kept * state_numbers(config, of_optimizer, setting.optimizer_state),
        bf16_state: setting.bf16_state,
        gradients: trained * element,
        accumulator: if setting.accumulates { trained * 4 } else { 0 },
        average: if setting.keeps_average { of_optimizer * 4 } else { 0 },
        reference: if setting.has_reference { n * element } else { 0 },
        exchange,
        activations: activation_bytes(config, shape, attention_has_kernel(config, device, dtype), setting),
        flat_gradients: if setting.accumulates { 0 } else { trained * element },
        pools: 0,
    };
    if device.clone().inner() != Device::flex() {
        bytes.pools = (bytes.in_use() as f64 * POOL_SHARE) as u64 + LEAST_POOL_BYTES;
    }
    bytes
}

/// The bytes of one kind that a layer keeps for backward.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Kept {
    /// The residual sum at its start.
    sum: u64,
    /// Results of its products and attention.
    expensive: u64,
    /// Everything else.
    cheap: u64,
}

impl Kept {
    /// The bytes of `n` such layers.
    fn times(self, n: u64, checkpointing: ActivationCheckpointing) -> u64 {
        let Self { sum, expensive, cheap } = self;
        let (kept, again) = match checkpointing {
            ActivationCheckpointing::Off => (sum + expensive + cheap, 0),
            ActivationCheckpointing::Selective => (sum + expensive, cheap),
            ActivationCheckpointing::Layer => (sum, expensive + cheap),
        };
        n * kept + again.min(n * again)
    }

    fn plus(self, other: Self) -> Self {
        Self { sum: self.sum + other.sum, expensive: self.expensive + other.expensive, cheap: self.cheap + other.cheap }
    }
}

/// What a layer keeps, by kind.
#[derive(Debug, Clone, Copy, Default)]
struct Layer {
    residual: Kept,
    norms: Kept,
    attention: Kept,
    feed_forward: Kept,
}

impl Layer {
    fn plus(self, other: Self) -> Self {
        Self {
            residual: self.residual.plus(other.residual),
            norms: self.norms.plus(other.norms),
            attention: self.attention.plus(other.attention),
            feed_forward: self.feed_forward.plus(other.feed_forward),
        }
    }
}

fn activation_bytes(
    config: &TransformerConfig,
    shape: [usize; 3],
    fused_attention: bool,
    setting: &TrainSetting,
) -> ActivationBytes {
    let element = setting.dtype.size() as u64;
    let Sizes { d, f, inner, query, key_value, head_norms, n_encoder, n_decoder, .. } = Sizes::of(config);
    let [b, s, t] = in_front(config, shape).map(|n| n as u64);
    let n_heads = config.n_heads as u64;
    let expensive = |bytes: u64| Kept { expensive: bytes, ..Kept::default() };
    let cheap = |bytes: u64| Kept { cheap: bytes, ..Kept::default() };

    // Attention without its kernel is computed again. With dropout it keeps what is multiplied, too.
    let score = 2 * 4 + element + if config.attention_dropout > 0.0 { 2 * 4 } else { 0 };
    let attended = |queries: u64, keys: u64| match fused_attention {
        true => expensive(queries * (element * query + n_heads * 4)),
        false => cheap(queries * (element * query + keys * n_heads * score)),
    };
    // The decoder's own attention hides padding and later tokens, one after the other.
    let second_mask = cheap(if fused_attention { 0 } else { t * t * n_heads * 4 });

    // Two residual sums and their norms, the projections and the feed-forward.
    // Norms of heads keep their inputs, and give another matrix of queries, keys and values.
    let of_heads = if head_norms > 0 { 2 * query + 2 * key_value } else { 0 };
    // A norm of a branch's result keeps the result, and gives another.
    let of_results = if config.norm == NormPlacement::Sandwich { 2 * d } else { 0 };
    let layer = |len: u64| Layer {
        residual: Kept { sum: len * element * d, ..expensive(len * element * d) },
        norms: cheap(len * element * (2 * d + 2 * of_results + of_heads)),
        attention: expensive(len * element * (query + key_value)).plus(attended(len, len)),
        feed_forward: match config.activation {
            activation if !activation.is_gated() && activation.by().keeps_result() => expensive(len * element * f),
            _ => Kept { cheap: len * element * f, ..expensive(len * element * inner) },
        },
    };
    let cross = || Layer {
        residual: expensive(element * t * d),
        norms: cheap(t * element * (d + of_results)),
        attention: expensive(element * (t * query + s * key_value)).plus(attended(t, s)).plus(second_mask),
        feed_forward: Kept::default(),
    };

    let stacks = match config.architecture {
        Architecture::EncoderDecoder => vec![(layer(s), n_encoder), (layer(t).plus(cross()), n_decoder)],
        Architecture::DecoderOnly => vec![(layer(t), n_decoder)],
        Architecture::EncoderOnly => vec![(layer(t), n_encoder)],
    };
    let of = |kind: fn(&Layer) -> Kept| -> u64 {
        b * stacks.iter().map(|(layer, n)| kind(layer).times(*n, setting.checkpointing)).sum::<u64>()
    };
    let predicted = match setting.masked_share {
        Some(share) if config.architecture == Architecture::EncoderOnly => max_labels((b * t) as usize, share) as u64,
        _ => b * t,
    };
    let (logits, projection_gradient) = head_bytes(config, element, predicted);
    ActivationBytes {
        residual: of(|layer| layer.residual),
        norms: of(|layer| layer.norms) + b * (s + t) * element * 2 * d,
        attention: of(|layer| layer.attention),
        feed_forward: of(|layer| layer.feed_forward),
        logits,
        projection_gradient,
    }
}

/// Logits of one chunk with the gradient of the hidden states, and the gradients of all chunks.
fn head_bytes(config: &TransformerConfig, element: u64, rows: u64) -> (u64, u64) {
    let (vocabulary, d) = (config.n_predicted() as u64, config.d_model as u64);
    match config.logits_chunk(rows as usize) as u64 {
        chunk_rows if chunk_rows == 0 || config.has_classes() => (rows * vocabulary * element, 0),
        chunk_rows => (chunk_rows.min(rows) * vocabulary * element + rows * d * element, 4 * vocabulary * d),
    }
}

#[cfg(test)]
mod tests;
