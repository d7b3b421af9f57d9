//! Features in another order, for a model whose positions stand in another order.
//!
//! Kiln's sinusoidal positions alternate sine and cosine as in the paper; Marian's come in halves. Nothing else in a
//! Transformer knows the order of the features of its hidden states: norms take means over all of them, and every matrix
//! has a row or a column for each. So a model whose rows and columns are reordered computes the same.

use super::tensor::NamedTensor;
use crate::config::{Positions, TransformerConfig};

/// The encoder-decoder of `config` and `weights` with its features in the order of [`Positions::SinusoidalHalves`].
pub(super) fn to_halves(config: &TransformerConfig, weights: &[NamedTensor]) -> (TransformerConfig, Vec<NamedTensor>) {
    let d = config.d_model;
    let order: Vec<usize> = (0..d).step_by(2).chain((1..d).step_by(2)).collect();
    let weights = weights.iter().map(|weight| reordered(weight, &order)).collect();
    (TransformerConfig { positions: Positions::SinusoidalHalves, ..config.clone() }, weights)
}

/// Which dimension of a parameter runs over the features of hidden states.
enum Features {
    Rows,
    Columns,
    None,
}

fn features_of(path: &str) -> Features {
    let ends = |endings: &[&str]| endings.iter().any(|end| path.ends_with(end));
    if path == "output.weight" || ends(&["qkv.weight", "query.weight", "key_value.weight", "feed_forward.input.weight"])
    {
        Features::Rows
    } else if ends(&["embedding.table", "gamma", "beta", "output.weight", "output.bias"]) {
        Features::Columns
    } else {
        Features::None
    }
}

fn reordered(weight: &NamedTensor, order: &[usize]) -> NamedTensor {
    let width = weight.shape.last().copied().unwrap_or(1);
    let rows = || weight.values.chunks_exact(width);
    let values = match features_of(&weight.name) {
        Features::None => weight.values.clone(),
        // A misshaped parameter is left alone: exporting names it.
        Features::Columns if width == order.len() => {
            rows().flat_map(|row| order.iter().map(|feature| row[*feature])).collect()
        }
        Features::Rows if rows().len() == order.len() => {
            order.iter().flat_map(|feature| &weight.values[feature * width..(feature + 1) * width]).copied().collect()
        }
        Features::Columns | Features::Rows => weight.values.clone(),
    };
    NamedTensor { values, ..weight.clone() }
}
