//! Fills in masked tokens with a trained masked language model.

use burn::module::Module;
use burn::tensor::{DType, Device, Tensor};
use kiln_data::{MaskedEncoder, TextTokenizer};
use kiln_model::{EncoderOnly, TextBatch};

use super::GenerateError;
use super::batching::{self, int_tensor};
use super::error::Interruption;
use crate::config::GenerateConfig;
use crate::metrics::host_sync::waiting;

/// A text whose masks are filled in.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Filled {
    /// The line with the likeliest token in place of each mask.
    pub text: String,
    /// The candidates of each mask, likeliest first.
    pub masks: Vec<Vec<Candidate>>,
}

/// A token that may stand in place of a mask.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The text of the token. A space in front belongs to it, as does WordPiece's `##` of a part of a word.
    pub token: String,
    /// Its probability among the tokens that a text can contain, 0 to 1.
    pub probability: f64,
}

/// Fills in masked tokens. Each mask is filled in as if it were the only unknown: the candidates of one do not depend on
/// the choice for another.
#[derive(Debug)]
pub struct MaskFiller {
    model: EncoderOnly,
    encoder: MaskedEncoder,
    /// Tokens that are never candidates: special ones, and embedding rows without a token.
    never: Vec<u32>,
    config: GenerateConfig,
    device: Device,
}

impl MaskFiller {
    /// Creates a filler on the device of `model`. The tokenizer must be the one that the model was trained with.
    ///
    /// # Errors
    /// If the tokenizer has no mask token or more tokens than the model.
    ///
    /// # Panics
    /// If the model has no head for masked tokens.
    pub fn new(model: &EncoderOnly, tokenizer: &TextTokenizer, config: GenerateConfig) -> Result<Self, GenerateError> {
        assert!(model.config().mlm_head, "a model without a head for masked tokens");
        let (found, wanted) = (tokenizer.vocab_size(), model.config().vocab_size());
        if found > wanted {
            return Err(GenerateError::OtherVocabulary { side: "text", tokenizer: found, model: wanted });
        }
        let never = tokenizer.special_ids().into_iter().chain(found as u32..wanted as u32).collect();
        let device = model.devices().into_iter().next().expect("a model has parameters").inner();
        Ok(Self { model: model.valid(), encoder: MaskedEncoder::new(tokenizer)?, never, config, device })
    }

    /// Returns the spelling of the mask token.
    pub fn mask_token(&self) -> &str {
        self.encoder.mask_token()
    }

    /// Returns a line without its masks: the text that the model reads.
    pub fn without_masks(&self, line: &str) -> String {
        self.encoder.without_masks(line)
    }

    /// Fills in each line, with nothing for a line of white space, with up to `top_k` candidates for each mask. `n_before` lines were filled in before.
    ///
    /// # Errors
    /// If a line has no mask or is too long, or if the device fails.
    pub fn fill<S: AsRef<str>>(
        &self,
        lines: &[S],
        top_k: usize,
        n_before: usize,
    ) -> Result<Vec<Filled>, GenerateError> {
        let limit = self.model.config().text_positions();
        let mut rows = Vec::with_capacity(lines.len());
        for (line, text) in (n_before + 1..).zip(lines) {
            if text.as_ref().trim().is_empty() {
                rows.push(Vec::new());
                continue;
            }
            let ids = self.encoder.encode(text.as_ref())?;
            if ids.len() > limit {
                return Err(GenerateError::TooLong { line, found: ids.len(), limit, others: Vec::new() });
            }
            if !ids.contains(&self.encoder.mask()) {
                return Err(GenerateError::NoMask { line, mask: self.mask_token().to_owned() });
            }
            rows.push(ids);
        }

        let mut filled: Vec<Option<Filled>> = rows.iter().map(|_| None).collect();
        let asked: Vec<usize> = (0..rows.len()).filter(|row| !rows[*row].is_empty()).collect();
        let lengths: Vec<usize> = asked.iter().map(|row| rows[*row].len()).collect();
        for batch in batching::plan(&lengths, &self.config) {
            let batch: Vec<usize> = batch.into_iter().map(|at| asked[at]).collect();
            let of_batch: Vec<&[u32]> = batch.iter().map(|&row| rows[row].as_slice()).collect();
            let longest = of_batch.iter().map(|ids| ids.len()).max().unwrap_or(0);
            let logits = self.logits(&of_batch, longest).map_err(|failed| failed.on_batch(batch.len(), longest))?;
            let mut logits = logits.into_iter();
            for row in batch {
                let n_masks = rows[row].iter().filter(|id| **id == self.encoder.mask()).count();
                let masks = self.candidates(logits.by_ref().take(n_masks), top_k, n_before + row)?;
                filled[row] = Some(self.filled(lines[row].as_ref(), masks, top_k));
            }
        }
        Ok(filled.into_iter().map(Option::unwrap_or_default).collect())
    }

    /// Returns the logits of each mask of some rows, in order.
    fn logits(&self, rows: &[&[u32]], longest: usize) -> Result<Vec<Vec<f32>>, Interruption> {
        // Few different widths mean few shapes that a GPU must choose kernels for.
        let width = longest.next_multiple_of(8).min(self.model.config().text_positions());
        let (mut input, mut masks) = (Vec::with_capacity(rows.len() * width), Vec::new());
        for ids in rows {
            let start = input.len();
            masks.extend((start as i32..).zip(*ids).filter(|(_, id)| **id == self.encoder.mask()).map(|(at, _)| at));
            input.extend(ids.iter().map(|id| id.cast_signed()));
            input.resize(start + width, self.model.config().pad_id.cast_signed());
        }

        let input = int_tensor(input, &self.device);
        let lengths = rows.iter().map(|ids| ids.len() as i32).collect();
        let batch = TextBatch {
            labels: input.clone(),
            input,
            positions: None,
            documents: None,
            token_types: None,
            preference: None,
            max_labels: None,
            lengths: int_tensor(lengths, &self.device),
            batch_size: rows.len(),
            seq_len: width,
            tokens: rows.iter().map(|ids| ids.len() as u64).sum(),
        };
        let hidden: Tensor<2> = self.model.read(&batch, None).select(0, int_tensor(masks, &self.device));
        let logits = self.model.project(hidden).cast(DType::F32);
        let vocab_size = logits.dims()[1];
        // Host sync: the logits of every mask.
        let read = waiting(|| logits.try_into_vec_as::<f32>())?;
        Ok(read.chunks(vocab_size).map(<[f32]>::to_vec).collect())
    }

    /// Chooses at least one candidate for each mask of a line from its logits. `line` counts from 0.
    fn candidates(
        &self,
        logits: impl Iterator<Item = Vec<f32>>,
        top_k: usize,
        line: usize,
    ) -> Result<Vec<Vec<Candidate>>, GenerateError> {
        let of_mask = |mut logits: Vec<f32>| {
            self.never.iter().for_each(|id| logits[*id as usize] = f32::NEG_INFINITY);
            let likeliest = likeliest(&logits, top_k.max(1));
            if likeliest.is_empty() {
                return Err(GenerateError::NoToken { row: line as u64 + 1 });
            }
            let candidate = |(id, probability)| Ok(Candidate { token: self.encoder.token(id)?, probability });
            likeliest.into_iter().map(candidate).collect()
        };
        logits.map(of_mask).collect()
    }

    fn filled(&self, line: &str, mut masks: Vec<Vec<Candidate>>, top_k: usize) -> Filled {
        let best: Vec<String> = masks.iter().map(|candidates| candidates[0].token.clone()).collect();
        masks.iter_mut().for_each(|candidates| candidates.truncate(top_k));
        Filled { text: self.encoder.filled(line, &best), masks }
    }
}

/// Returns the `n` likeliest tokens with their probabilities, likeliest first; ties by id. Empty if no logit is a number.
fn likeliest(logits: &[f32], n: usize) -> Vec<(u32, f64)> {
    let mut ids: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).filter(|(_, x)| x.is_finite()).collect();
    ids.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let Some(largest) = ids.first().map(|(_, logit)| f64::from(*logit)) else { return Vec::new() };
    let weight = |logit: f32| (f64::from(logit) - largest).exp();
    let sum: f64 = ids.iter().map(|(_, logit)| weight(*logit)).sum();
    ids.into_iter().take(n).map(|(id, logit)| (id, weight(logit) / sum)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_the_softmax_over_what_is_left() {
        let ln = f32::ln;
        let logits = [ln(1.0), ln(5.0), f32::NEG_INFINITY, ln(1.0), ln(3.0)];
        let found = likeliest(&logits, 3);
        let ids: Vec<u32> = found.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, [1, 4, 0]);
        for ((_, found), wanted) in found.iter().zip([0.5, 0.3, 0.1]) {
            assert!((found - wanted).abs() < 1e-6, "{found}, wanted {wanted}");
        }
        assert_eq!(likeliest(&[f32::NAN, f32::NEG_INFINITY], 3), []);
    }
}
