//! Synthetic batches.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use kiln_model::{Batch, PairBatch, TextBatch};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::Workload;

impl Workload {
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
        let mut ids: Vec<i32> = (0..2 * b * t).map(|_| below(self.model.vocab_size()) as i32).collect();
        if let Some(share) = self.masked_share() {
            let labelled = (share * 1000.0) as usize;
            let hidden = ids[b * t..].iter_mut().filter(|_| below(1000) >= labelled);
            hidden.for_each(|label| *label = TextBatch::NOT_COUNTED);
        }
        ids.extend((0..b).flat_map(|_| 0..t as i32));
        ids.extend(vec![0; b * t]);
        ids.extend(vec![t as i32; b]);
        let batch = TextBatch::from_contiguous(upload(ids, device), [b, t], (b * t) as u64, false);
        Batch::Text(TextBatch { max_labels: self.max_labels(), ..batch })
    }

    /// Padded rows of sources and targets.
    fn pairs(&self, below: &mut impl FnMut(usize) -> usize, device: &Device) -> Batch {
        let [b, t] = [self.batch_size, self.seq_len];
        let shortest = (t as f64 * self.shortest) as usize;
        let mut rows = |vocab_size: usize| -> (Vec<i32>, Vec<usize>) {
            let lengths: Vec<usize> =
                (0..b).map(|i| if i == 0 { t } else { shortest + below(t - shortest + 1) }).collect();
            let row = |length: &usize| -> Vec<i32> {
                (0..t).map(|i| if i < *length { 4 + below(vocab_size - 4) as i32 } else { 0 }).collect()
            };
            (lengths.iter().flat_map(row).collect(), lengths)
        };
        let (source, source_lengths) = rows(self.model.source_vocab_size);
        let (target, target_lengths) = rows(self.model.target_vocab_size);

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
