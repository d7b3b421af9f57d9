//! Puts sources of similar length into one batch, whatever the order of the lines.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use kiln_kernels::ColumnSet;
use kiln_model::TransformerConfig;

use crate::config::GenerateConfig;
use crate::device::{machine_of, reserved_bytes};

/// Size of a batch where nothing says more: padded tokens times `beam_size`.
const USUAL: usize = 8192;

/// Largest batch that follows from a device's memory. Larger ones are not faster on one GPU
/// (`benches/results/2026-11-27-decoding.md`).
const LARGEST: usize = 200_000;

/// Shortest padded row, which makes the most rows of a batch.
const SHORTEST: usize = 8;

/// A tokenized source and how long its translation may become.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceRow {
    /// Token ids with the end token.
    pub ids: Vec<u32>,
    /// Output limit in tokens, the end token included; at least 1.
    pub limit: usize,
}

impl SourceRow {
    /// Creates a row with the limit that `config` gives: `max_len_ratio * source + max_len_offset`, at most `max_positions`.
    pub fn new(ids: Vec<u32>, config: &GenerateConfig, max_positions: usize) -> Self {
        let limit = (ids.len() as f64 * config.max_len_ratio) as usize + config.max_len_offset;
        Self { limit: limit.clamp(1, max_positions), ids }
    }
}

/// Sources padded to one length.
#[derive(Debug, Clone)]
pub struct SourceBatch {
    /// `[B * S]`
    pub ids: Tensor<1, Int>,
    /// `[B]`
    pub lengths: Tensor<1, Int>,
    /// Output limit of each row, tokens.
    pub limits: Vec<usize>,
}

impl SourceBatch {
    /// Pads `rows` with `pad` to the next multiple of 8 (at most `max_positions`) and uploads them.
    ///
    /// # Panics
    /// If a row is empty or longer than `max_positions`.
    pub fn new(rows: &[&SourceRow], pad: u32, max_positions: usize, device: &Device) -> Self {
        let longest = rows.iter().map(|row| row.ids.len()).max().expect("a batch has rows");
        assert!(longest <= max_positions, "a source of {longest} tokens, but the model has {max_positions} positions");
        assert!(rows.iter().all(|row| !row.ids.is_empty()), "a source without its end token");

        // Few different widths mean few shapes that a GPU must choose kernels for.
        let width = longest.next_multiple_of(8).min(max_positions);
        let mut ids = Vec::with_capacity(rows.len() * width);
        for row in rows {
            ids.extend(row.ids.iter().map(|id| id.cast_signed()));
            ids.resize(ids.len() + width - row.ids.len(), pad.cast_signed());
        }

        let lengths = rows.iter().map(|row| row.ids.len() as i32).collect();
        let limits = rows.iter().map(|row| row.limit).collect();
        Self { ids: int_tensor(ids, device), lengths: int_tensor(lengths, device), limits }
    }

    /// Returns B.
    pub fn batch_size(&self) -> usize {
        self.limits.len()
    }
}

/// Uploads `values` to `device`, without autodiff.
pub(super) fn int_tensor(values: Vec<i32>, device: &Device) -> Tensor<1, Int> {
    let n = values.len();
    Tensor::from_data(TensorData::new(values, [n]), (&device.clone().inner(), DType::I32))
}

/// Returns the likeliest token of each row that is not in `never`, i32.
///
/// # Shapes
/// - `logits`: `[B, V]`
/// - result: `[B]`
pub(super) fn likeliest(logits: Tensor<2>, never: &ColumnSet) -> Tensor<1, Int> {
    let [rows, _] = logits.dims();
    kiln_kernels::likeliest(logits, never, 1).narrow(0, 1, 1).reshape([rows]).int().cast(DType::I32)
}

/// Returns the size of a batch of translations: what `config` says or, for 0, what half of a GPU's free memory holds. On a CPU larger
/// batches are not faster.
pub fn size_for_pairs(config: &GenerateConfig, model: &TransformerConfig, device: &Device) -> usize {
    if config.batch_tokens > 0 {
        return config.batch_tokens;
    }
    let memory = machine_of(device);
    match memory.memory_bytes {
        Some(bytes) if !memory.is_cpu => {
            size_in(bytes.saturating_sub(reserved_bytes(device).unwrap_or(0)) / 2, config, model)
        }
        _ => USUAL,
    }
}

/// Returns how many tokens fit into `bytes`. For each of them a batch has keys and values of a source's and of a target's position
/// in every layer, in at most 4 bytes. Each row has its scores of all tokens, three times in f32.
fn size_in(bytes: u64, config: &GenerateConfig, model: &TransformerConfig) -> usize {
    let per_position = (2 * 4 * model.n_decoder_layers * model.kv_heads() * model.head_dim()) as f64;
    let positions = 1.0 + config.max_len_ratio + config.max_len_offset as f64 / SHORTEST as f64;
    let scores = (3 * 4 * model.target_vocab_size) as f64 / SHORTEST as f64;
    ((bytes as f64 / (positions * per_position + scores)) as usize).clamp(USUAL, LARGEST)
}

/// Returns how many lines fill a batch if they are short, and at least 1,000, so that batches hold lines of similar length.
pub(super) fn lines_for(config: &GenerateConfig) -> usize {
    let tokens = if config.batch_tokens == 0 { USUAL } else { config.batch_tokens };
    (tokens / SHORTEST / config.beam_size.max(1)).max(1000)
}

/// Divides rows of these lengths into batches of similar length, and returns the row numbers of each batch.
///
/// A batch has at most `batch_tokens / beam_size` padded tokens, but at least one row. The longest rows come first, so that
/// a batch that does not fit in memory fails at once.
pub fn plan(lengths: &[usize], config: &GenerateConfig) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&row| (std::cmp::Reverse(lengths[row]), row));
    let tokens = if config.batch_tokens == 0 { USUAL } else { config.batch_tokens };
    let budget = tokens / config.beam_size.max(1);

    let mut batches: Vec<Vec<usize>> = Vec::new();
    let mut width = 0;
    for row in order {
        match batches.last_mut() {
            Some(batch) if (batch.len() + 1) * width <= budget => batch.push(row),
            _ => {
                width = lengths[row].next_multiple_of(8);
                batches.push(vec![row]);
            }
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(len: usize) -> SourceRow {
        SourceRow { ids: vec![9; len], limit: 5 }
    }

    #[test]
    fn lines_of_a_call_fill_a_batch_of_a_gpu() {
        let lines = |batch_tokens, beam_size| {
            lines_for(&GenerateConfig { batch_tokens, beam_size, ..GenerateConfig::default() })
        };
        assert_eq!(lines(200_000, 1), 25_000);
        assert_eq!(lines(200_000, 4), 6_250);
        assert_eq!([lines(0, 4), lines(8192, 1), lines(1, 1)], [1000, 1024, 1000]);
    }

    #[test]
    fn a_batch_follows_the_memory_between_its_limits() {
        let model = TransformerConfig::base().with_vocab_size(37_000);
        let config = GenerateConfig { batch_tokens: 0, ..GenerateConfig::default() };
        let sizes = [0, 4, 24, 80].map(|gib: u64| size_in(gib << 30, &config, &model));
        assert_eq!((sizes[0], sizes[3]), (USUAL, LARGEST));
        assert!(sizes[0] < sizes[1] && sizes[1] < sizes[2], "{sizes:?}");

        let device = Device::flex();
        assert_eq!(size_for_pairs(&config, &model, &device), USUAL, "on a CPU");
        assert_eq!(size_for_pairs(&GenerateConfig { batch_tokens: 7, ..config.clone() }, &model, &device), 7);
        assert_eq!(plan(&[8; 2000], &config).len(), 2, "0 stands for the usual size");
    }

    #[test]
    fn every_row_is_planned_once_within_the_budget() {
        let rows: Vec<_> = (0..50).map(|i| 1 + i * 7 % 23).collect();
        let config = GenerateConfig { batch_tokens: 64, beam_size: 1, ..GenerateConfig::default() };
        let batches = plan(&rows, &config);
        let mut seen: Vec<_> = batches.concat();
        seen.sort();
        assert_eq!(seen, (0..50).collect::<Vec<_>>());
        for batch in &batches {
            let width = batch.iter().map(|&row| rows[row]).max().expect("rows").next_multiple_of(8);
            assert!(batch.len() * width <= 64 || batch.len() == 1, "{} x {width}", batch.len());
        }
        let beams = plan(&rows, &GenerateConfig { beam_size: 4, ..config });
        assert!(beams.len() > batches.len(), "beams share the budget");
        assert_eq!(plan(&[1000], &GenerateConfig { batch_tokens: 1, ..GenerateConfig::default() }), [[0]]);
        assert!(plan(&[], &GenerateConfig::default()).is_empty());
    }

    #[test]
    fn limits_follow_the_source_and_never_pass_the_positions() {
        let config = GenerateConfig { max_len_ratio: 1.5, max_len_offset: 3, ..GenerateConfig::default() };
        assert_eq!(SourceRow::new(vec![1; 4], &config, 100).limit, 9);
        assert_eq!(SourceRow::new(vec![1; 4], &config, 6).limit, 6);
        let none = GenerateConfig { max_len_ratio: 0.0, max_len_offset: 0, ..config };
        assert_eq!(SourceRow::new(vec![1; 4], &none, 6).limit, 1);
    }

    #[test]
    fn padding_fills_to_a_multiple_of_eight_within_the_positions() {
        let (short, long) = (row(2), row(5));
        let batch = SourceBatch::new(&[&short, &long], 3, 64, &Device::flex());
        assert_eq!(batch.ids.into_data(), TensorData::from([9, 9, 3, 3, 3, 3, 3, 3, 9, 9, 9, 9, 9, 3, 3, 3]));
        assert_eq!(batch.lengths.into_data(), TensorData::from([2, 5]));
        assert_eq!(SourceBatch::new(&[&long], 3, 6, &Device::flex()).ids.dims(), [6]);
    }
}
