//! Log-probabilities of the tokens of translations that are there already.

use burn::tensor::{DType, Device, Int, Tensor};
use kiln_data::{PairTokenizers, SpecialIds};
use kiln_kernels::{CrossEntropyConfig, cross_entropy};
use kiln_model::{EncoderDecoder, PairBatch};

use super::GenerateError;
use super::batching::{int_tensor, plan};
use super::error::Interruption;
use crate::config::GenerateConfig;
use crate::metrics::host_sync::waiting;

/// Most logits of a batch, which are there three times in f32: 200 MB.
const MAX_LOGITS: usize = 1 << 24;

/// A token of a translation.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenScore {
    /// As the vocabulary spells it.
    pub token: String,
    /// Its log-probability behind the tokens before it, among the tokens that a translation may have.
    pub log_prob: f64,
}

/// Scores each target with its source, which has its end token. The tokens `never` count as impossible.
pub(super) fn score(
    model: &EncoderDecoder,
    tokenizers: &PairTokenizers,
    device: &Device,
    never: &[u32],
    sources: &[Vec<u32>],
    targets: &[Vec<u32>],
) -> Result<Vec<Vec<TokenScore>>, GenerateError> {
    let (special, first) = (tokenizers.special(), tokenizers.before_target());
    let (n_columns, n_positions) = (model.config().target_vocab_size, model.config().max_positions);
    let mut allowed = vec![0.0f32; n_columns];
    never.iter().for_each(|id| allowed[*id as usize] = f32::NEG_INFINITY);
    let allowed = Tensor::<1>::from_floats(allowed.as_slice(), device).unsqueeze::<2>();

    let lengths: Vec<usize> =
        sources.iter().zip(targets).map(|(a, b)| a.len().max(first.len() + b.len() + 1)).collect();
    let budget =
        GenerateConfig { batch_tokens: (MAX_LOGITS / n_columns).max(1), beam_size: 1, ..GenerateConfig::default() };
    let mut scored: Vec<Vec<TokenScore>> = vec![Vec::new(); targets.len()];
    for batch in plan(&lengths, &budget) {
        let of = |rows: &[Vec<u32>]| -> Vec<Vec<u32>> { batch.iter().map(|row| rows[*row].clone()).collect() };
        let (batch_sources, batch_targets) = (of(sources), of(targets));
        // The end token behind the model's last position has no score.
        let whole = |row: &Vec<u32>| [first, row, &[special.eos]].concat().into_iter().take(n_positions).collect();
        let labels: Vec<Vec<u32>> = batch_targets.iter().map(whole).collect();
        let log_probs = log_probs(model, special, &allowed, &batch_sources, &labels)
            .map_err(|error| error.on_batch(batch.len(), lengths[batch[0]]))?;
        for ((row, labels), log_probs) in batch.iter().zip(&labels).zip(&log_probs) {
            let one = |(id, log_prob): (&u32, &f32)| TokenScore {
                token: tokenizers.target_token(*id).unwrap_or_default(),
                log_prob: f64::from(*log_prob),
            };
            scored[*row] = labels.iter().zip(log_probs).skip(first.len()).map(one).collect();
        }
    }
    Ok(scored)
}

/// Returns the log-probability of each label, in rows that are padded to one length.
fn log_probs(
    model: &EncoderDecoder,
    special: SpecialIds,
    allowed: &Tensor<2>,
    sources: &[Vec<u32>],
    labels: &[Vec<u32>],
) -> Result<Vec<Vec<f32>>, Interruption> {
    let (batch, target_len) = pairs(special, sources, labels, &allowed.device());
    let ids = batch.labels.clone();
    let logits = model.logits(&batch, None).cast(DType::F32) + allowed.clone();
    // Sums of a row in a fixed order: the backend's own softmax chooses its order by the number of rows.
    let all = CrossEntropyConfig { label_smoothing: 0.0, ignore_index: -1 };
    let chosen = cross_entropy(logits, ids, &all).nll_of_rows() * -1.0 + 0.0;
    let values = waiting(|| chosen.try_into_vec_as::<f32>())?;
    Ok(values.chunks(target_len).map(<[f32]>::to_vec).collect())
}

/// Makes a batch of pairs, with the length of its targets.
fn pairs(special: SpecialIds, sources: &[Vec<u32>], labels: &[Vec<u32>], device: &Device) -> (PairBatch, usize) {
    let longest = |rows: &[Vec<u32>]| rows.iter().map(Vec::len).max().expect("a batch has rows");
    let (s, t) = (longest(sources), longest(labels));
    let padded = |row: &[u32], len: usize| -> Vec<i32> {
        row.iter().copied().chain(std::iter::repeat(special.pad)).take(len).map(u32::cast_signed).collect()
    };
    let input = |row: &Vec<u32>| padded(&[&[special.bos], &row[..row.len() - 1]].concat(), t);
    let lengths = |rows: &[Vec<u32>]| rows.iter().map(|row| row.len() as i32).collect::<Vec<_>>();
    let ids: Vec<i32> = sources
        .iter()
        .flat_map(|row| padded(row, s))
        .chain(labels.iter().flat_map(input))
        .chain(labels.iter().flat_map(|row| padded(row, t)))
        .chain(lengths(sources))
        .chain(lengths(labels))
        .collect();
    let ids: Tensor<1, Int> = int_tensor(ids, device);
    (PairBatch::from_contiguous(ids, [sources.len(), s, t], 0, 0), t)
}
