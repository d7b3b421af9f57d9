//! The model: three heads on Kiln's encoder.
//!
//! Legend of shapes: M tokens, D hidden features, V vocabulary, K candidates per token.

use burn::module::{Module, Param};
use burn::tensor::activation::sigmoid;
use burn::tensor::{DType, Device, IndexingUpdateOp, Int, Tensor, TensorData};
use kiln::Model;
use kiln_data::Shape;
use kiln_kernels::{CrossEntropy, CrossEntropyConfig, cross_entropy, linear, row_argmax};
use kiln_model::flops::train_flops_per_batch;
use kiln_model::{Batch, DropoutStream, EncoderOnly, LossSums, TextBatch};

use super::data::Confusions;

/// Weight of a wrong token in the loss of the detector: few tokens are wrong, and missing one costs as much as three false alarms.
const WRONG_WEIGHT: f32 = 3.0;
const NOT_COUNTED: i64 = TextBatch::NOT_COUNTED as i64;

/// Finds wrong tokens of a text and corrects them.
#[derive(Module, Debug)]
pub(crate) struct ErrorDetector {
    /// Reads the text; its head for masked tokens makes the logits.
    encoder: EncoderOnly,
    /// Says of each token whether it is wrong, `[D, 1]`.
    detector: Param<Tensor<2>>,
    /// `[1]`
    detector_bias: Param<Tensor<1>>,
    /// Maps a hidden state to a query, which is compared with the vectors of the candidates, `[D, D]`.
    query: Param<Tensor<2>>,
    /// Score of the token that stands in the text, `[1]`.
    keep: Param<Tensor<1>>,
    /// Candidates of each token, `[V, K]`. A tensor without [`Param`] is a constant: neither trained nor saved.
    confusions: Tensor<2, Int>,
}

/// What the heads say about M tokens.
#[derive(Debug, Clone)]
pub(crate) struct Scores {
    /// Logits of "this token is wrong", `[M]`, f32.
    pub(crate) wrong: Tensor<1>,
    /// Scores of the candidates, `[M, K]`, f32.
    pub(crate) candidates: Tensor<2>,
    /// Score of the token in the text, `[1]`, f32.
    pub(crate) keep: Tensor<1>,
}

impl Scores {
    /// Adds the gated scores to the logits of all tokens:
    ///
    /// ```text
    /// g = sigmoid(wrong)
    /// corrected[m, v] = logits[m, v] + (1 - g[m]) keep [v = input[m]] + g[m] sum_k candidates[m, k] [v = ids[m, k]]
    /// ```
    ///
    /// The sum changes K + 1 numbers of a row. They are scattered into the logits that the model has computed anyway, so no other tensor
    /// has V columns. The gradient of the scores gathers K + 1 numbers per row; the gradient of the logits passes unchanged.
    ///
    /// # Shapes
    /// - `logits`: `[M, V]`; result the same, in the dtype of the logits
    /// - `input`: `[M]`, the tokens of the text
    /// - `ids`: `[M, K]`, their candidates
    pub(crate) fn add_to(self, logits: Tensor<2>, input: Tensor<1, Int>, ids: Tensor<2, Int>) -> Tensor<2> {
        let gate = sigmoid(self.wrong).unsqueeze_dim::<2>(1);
        let keep = (-gate.clone() + 1.0) * self.keep.unsqueeze::<2>();
        let scores = Tensor::cat(vec![keep, gate * self.candidates], 1);
        let ids = Tensor::cat(vec![input.unsqueeze_dim(1), ids], 1);
        let scores = scores.cast(logits.dtype());
        logits.scatter(1, ids, scores, IndexingUpdateOp::Add)
    }

    /// Returns the binary cross-entropy of each token in nats, `[M]`. `is_wrong` is 1 at wrong tokens and 0 at others.
    fn detection_loss(&self, is_wrong: Tensor<1>) -> Tensor<1> {
        let x = self.wrong.clone();
        x.clone().clamp_min(0.0) - x.clone() * is_wrong + (-x.abs()).exp().log1p()
    }
}

impl ErrorDetector {
    /// Puts new heads on `encoder`, which has a head for masked tokens. At first they call few tokens wrong and prefer none of the
    /// candidates.
    pub(crate) fn on(encoder: EncoderOnly, confusions: &Confusions, device: &Device) -> Self {
        let d = encoder.config().d_model;
        let zeros = |shape: [usize; 2]| Param::from_tensor(Tensor::zeros(shape, (device, DType::F32)));
        let number = |x: f32| Param::from_tensor(Tensor::from_data([x], (device, DType::F32)));
        let table = TensorData::new(confusions.ids.clone(), [confusions.vocab_size(), confusions.k]);
        Self {
            encoder,
            detector: zeros([d, 1]),
            detector_bias: number(-2.0),
            query: zeros([d, d]),
            keep: number(4.0),
            confusions: Tensor::from_data(table, (&device.clone().inner(), DType::I32)),
        }
    }

    /// Returns the logits of the right token at each position, and the scores behind them.
    ///
    /// # Shapes
    /// - logits: `[M, V]`
    pub(crate) fn corrected(&self, batch: &TextBatch, stream: Option<&DropoutStream>) -> (Tensor<2>, Scores) {
        let hidden = self.encoder.read(batch, stream);
        let logits = self.encoder.project(hidden.clone());

        let ids = self.confusions.clone().select(0, batch.input.clone());
        let [m, k] = ids.dims();
        let [_, d] = hidden.dims();
        let vectors = self.encoder.embedding.forward(ids.clone().reshape([m * k])).reshape([m, k, d]);
        let queries = linear(hidden.clone(), self.query.val(), None).reshape([m, 1, d]);
        let candidates = (queries * vectors).cast(DType::F32).sum_dim(2).reshape([m, k]);

        let wrong = linear(hidden, self.detector.val(), Some(self.detector_bias.val())).cast(DType::F32).reshape([m]);
        let scores = Scores { wrong, candidates, keep: self.keep.val().cast(DType::F32) };
        (scores.clone().add_to(logits, batch.input.clone(), ids), scores)
    }

    fn losses(
        &self,
        batch: &TextBatch,
        smoothing: f64,
        stream: Option<&DropoutStream>,
    ) -> (LossSums, Tensor<2>, Scores) {
        let (logits, scores) = self.corrected(batch, stream);
        let config = CrossEntropyConfig { label_smoothing: smoothing, ignore_index: NOT_COUNTED };
        let CrossEntropy { loss_sum, nll_sum, .. } = cross_entropy(logits.clone(), batch.labels.clone(), &config);

        let counts = batch.labels.clone().not_equal_elem(NOT_COUNTED).float().cast(DType::F32);
        let wrong = is_wrong(batch);
        let weights = counts.clone() * (wrong.clone() * (WRONG_WEIGHT - 1.0) + 1.0);
        let detection = scores.detection_loss(wrong) * weights;
        let sums = LossSums { loss_sum: loss_sum + detection.sum(), nll_sum, n_labels: counts.sum() };
        (sums, logits, scores)
    }
}

impl Model for ErrorDetector {
    /// The text has its errors already; Kiln hides nothing.
    const HIDES_TOKENS: bool = false;

    const FIGURES: &'static [&'static str] = &["detection_f1", "correction_accuracy", "kept"];

    /// Cross-entropy of the right tokens, and binary cross-entropy of the detector.
    fn loss(&self, batch: &Batch, label_smoothing: f64, stream: Option<&DropoutStream>) -> LossSums {
        self.losses(text(batch), label_smoothing, stream).0
    }

    /// F1 of the wrong tokens that are called wrong, the share of wrong tokens that are corrected, and the share of right tokens that
    /// stay.
    fn figures(&self, batch: &Batch, label_smoothing: f64) -> Option<(LossSums, Tensor<2>)> {
        let batch = text(batch);
        let (sums, logits, scores) = self.losses(batch, label_smoothing, None);
        let counts = batch.labels.clone().not_equal_elem(NOT_COUNTED).float().cast(DType::F32);
        let wrong = is_wrong(batch) * counts.clone();
        let right = counts.clone() - wrong.clone();
        let called = scores.wrong.greater_elem(0.0).float().cast(DType::F32) * counts;
        let hits = row_argmax(logits).cast(batch.labels.dtype()).equal(batch.labels.clone()).float().cast(DType::F32);

        let parts = [
            (wrong.clone() * called.clone()).sum() * 2.0,
            (wrong.clone() + called).sum(),
            (wrong.clone() * hits.clone()).sum(),
            wrong.sum(),
            (right.clone() * hits).sum(),
            right.sum(),
        ];
        Some((sums, Tensor::cat(parts.into(), 0).reshape([3, 2])))
    }

    fn has_dropout(&self) -> bool {
        self.encoder.config().dropout > 0.0
    }

    /// The encoder with a logit for each token of each row, and the query. What else the heads compute is left out.
    fn train_flops(&self, shape: Shape, _masked_share: Option<f64>) -> Option<f64> {
        let Shape { batch_size, source_len, target_len } = shape;
        let config = self.encoder.config();
        let encoder = train_flops_per_batch(config, [batch_size, source_len, target_len], None).total();
        Some(encoder + 6.0 * (batch_size * target_len * config.d_model * config.d_model) as f64)
    }
}

/// Returns 1 for each wrong token and 0 for the others, `[M]`, f32. The labels are the text without errors.
fn is_wrong(batch: &TextBatch) -> Tensor<1> {
    batch.input.clone().not_equal(batch.labels.clone()).float().cast(DType::F32)
}

fn text(batch: &Batch) -> &TextBatch {
    match batch {
        Batch::Text(batch) => batch,
        Batch::Pairs(_) => panic!("the error detector reads text: train it with task = \"mlm\""),
    }
}
