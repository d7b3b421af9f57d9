//! Predicts the classes of texts, or of the words of texts.

use burn::module::Module;
use burn::tensor::activation::softmax;
use burn::tensor::{DType, Device};
use kiln_data::{LabelledInput, LabelledRow, LabelledShape, TextTokenizer};
use kiln_model::{Batch, TextBatch, Transformer};

use super::GenerateError;
use super::batching::{self, int_tensor};
use super::error::Interruption;
use crate::config::GenerateConfig;
use crate::metrics::host_sync::waiting;

/// The classes of one input: of a text, or of each of its words.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Classified {
    /// The probability of each class: one list for a text, one per word for words. A word that was cut off or has no
    /// tokens has an empty list.
    pub probabilities: Vec<Vec<f64>>,
    /// Whether the input was longer than the model reads.
    pub is_cut: bool,
}

/// Predicts classes.
#[derive(Debug)]
pub struct ClassPredictor {
    model: Transformer,
    tokenizer: TextTokenizer,
    rows: LabelledShape,
    config: GenerateConfig,
    device: Device,
}

impl ClassPredictor {
    /// Creates a predictor on the device of `model`. The tokenizer must be the one that the model was trained with. Inputs
    /// are encoded as `rows` says.
    ///
    /// # Errors
    /// If the tokenizer has more tokens than the model.
    pub fn new(
        model: &Transformer,
        tokenizer: &TextTokenizer,
        rows: LabelledShape,
        config: GenerateConfig,
    ) -> Result<Self, GenerateError> {
        let (found, wanted) = (tokenizer.vocab_size(), model.config().vocab_size());
        if found > wanted {
            return Err(GenerateError::OtherVocabulary { side: "text", tokenizer: found, model: wanted });
        }
        let device = model.devices().into_iter().next().expect("a model has parameters").inner();
        Ok(Self { model: model.valid(), tokenizer: tokenizer.clone(), rows, config, device })
    }

    /// Predicts the classes of each input, in order. Inputs of similar length share a batch.
    ///
    /// # Errors
    /// If the tokenizer or the device fails.
    ///
    /// # Panics
    /// If the model has no head for classes.
    pub fn classify(&self, inputs: &[LabelledInput]) -> Result<Vec<Classified>, GenerateError> {
        let mut encoder = self.rows.encoder(&self.tokenizer)?;
        let rows = inputs.iter().map(|input| encoder.encode(input)).collect::<kiln_data::Result<Vec<_>>>()?;

        let mut found = vec![Classified::default(); rows.len()];
        let lengths: Vec<usize> = rows.iter().map(|row| row.ids.len()).collect();
        for batch in batching::plan(&lengths, &self.config) {
            let of_batch: Vec<&LabelledRow> = batch.iter().map(|row| &rows[*row]).collect();
            let longest = of_batch.iter().map(|row| row.ids.len()).max().unwrap_or(0);
            let width = longest.next_multiple_of(8).min(self.model.config().text_positions());
            let all = self.probabilities(&of_batch, width).map_err(|failed| failed.on_batch(batch.len(), longest))?;
            let is_per_token = all.len() != batch.len();
            for (place, row) in batch.iter().enumerate() {
                let probabilities = match (&inputs[*row], is_per_token) {
                    (LabelledInput::Words(_), true) => {
                        let of_word =
                            |at: &Option<u32>| at.map_or(Vec::new(), |at| all[place * width + at as usize].clone());
                        rows[*row].words.iter().map(of_word).collect()
                    }
                    _ => vec![all[place].clone()],
                };
                found[*row] = Classified { probabilities, is_cut: rows[*row].is_cut };
            }
        }
        Ok(found)
    }

    /// Returns the probabilities of the classes, of each row or of each position.
    fn probabilities(&self, rows: &[&LabelledRow], width: usize) -> Result<Vec<Vec<f64>>, Interruption> {
        let (mut input, mut types) = (Vec::with_capacity(rows.len() * width), Vec::with_capacity(rows.len() * width));
        for row in rows {
            let end = input.len() + width;
            input.extend(row.ids.iter().map(|id| id.cast_signed()));
            input.resize(end, self.model.config().pad_id.cast_signed());
            types.extend(row.types.iter().map(|kind| i32::from(*kind)));
            types.resize(end, 0);
        }

        let input = int_tensor(input, &self.device);
        let has_types = self.model.config().n_token_types > 1;
        let batch = TextBatch {
            labels: input.clone(),
            input,
            positions: None,
            documents: None,
            token_types: has_types.then(|| int_tensor(types, &self.device)),
            preference: None,
            max_labels: None,
            lengths: int_tensor(rows.iter().map(|row| row.ids.len() as i32).collect(), &self.device),
            batch_size: rows.len(),
            seq_len: width,
            tokens: rows.iter().map(|row| row.ids.len() as u64).sum(),
        };
        let logits = self.model.class_logits(&Batch::Text(batch)).expect("a model with a head for classes");
        let n_classes = logits.dims()[1];
        let probabilities = softmax(logits.cast(DType::F32), 1);
        // Host sync: the probabilities of every class.
        let read = waiting(|| probabilities.try_into_vec_as::<f32>())?;
        Ok(read.chunks(n_classes).map(|row| row.iter().map(|p| f64::from(*p)).collect()).collect())
    }
}
