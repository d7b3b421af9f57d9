//! Classes of rows or tokens: the heads of an encoder, and of a decoder.

use burn::module::Module;
use burn::tensor::{Int, Tensor};
use kiln_kernels::DropoutStream;

use crate::config::ClassHead;
use crate::init::{Init, Role};
use crate::linear::Linear;

/// Predicts a class for each row, or for each token: see [`ClassHead`].
#[derive(Module, Debug)]
pub struct Classifier {
    /// D to D, followed by tanh; [`ClassHead::Dense`] only.
    pub dense: Option<Linear>,
    /// D to C; without bias in [`ClassHead::Last`].
    pub output: Linear,
    #[module(skip)]
    dropout: f64,
}

impl Classifier {
    /// # Panics
    /// If the number of classes is still 0.
    pub(crate) fn init(init: &Init) -> Option<Self> {
        let (d, c) = (init.config.d_model, init.config.n_classes);
        let head = init.config.class_head;
        if head == ClassHead::None {
            return None;
        }
        assert!(c > 0, "the number of classes is still 0");
        // The families with this head have neither a bias nor dropout in it.
        let is_last = head == ClassHead::Last;
        let output = if is_last { Linear::init_without_bias } else { Linear::init_with_bias };
        Some(Self {
            dense: (head == ClassHead::Dense).then(|| Linear::init_with_bias(&init.at("dense"), [d, d], Role::Plain)),
            output: output(&init.at("output"), [d, c], Role::Plain),
            dropout: if is_last { 0.0 } else { init.config.dropout },
        })
    }

    /// Returns the logits of the classes.
    ///
    /// # Shapes
    /// - `x`: `[M, D]`: outputs of the pooler, first, last or all hidden states
    /// - result: `[M, C]`
    pub fn forward(&self, x: Tensor<2>, stream: Option<&DropoutStream>) -> Tensor<2> {
        let mut x = self.dropped(x, stream);
        if let Some(dense) = &self.dense {
            x = self.dropped(dense.forward(x, stream).tanh(), stream);
        }
        self.output.forward(x, stream)
    }

    fn dropped(&self, x: Tensor<2>, stream: Option<&DropoutStream>) -> Tensor<2> {
        match stream {
            Some(stream) if self.dropout > 0.0 => kiln_kernels::dropout(x, self.dropout, stream),
            _ => x,
        }
    }
}

/// Selects what is at the first position of each row.
///
/// # Shapes
/// - `labels`: `[B * T]`
/// - result: `[B]`
pub(crate) fn first_of_rows(labels: Tensor<1, Int>, batch_size: usize) -> Tensor<1, Int> {
    let [n] = labels.dims();
    labels.reshape([batch_size, n / batch_size]).narrow(1, 0, 1).reshape([batch_size])
}
