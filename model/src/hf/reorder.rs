//! Reorders features, to export a model whose sinusoidal positions have another order.
//!
//! Kiln's positions alternate sine and cosine as in the paper. Marian's have all sines before all cosines. The rest of a
//! Transformer does not depend on the order of hidden features: norms average over all of them, and each matrix has one row
//! or column per feature. Reordering these rows and columns therefore leaves the result unchanged.

use crate::config::{Positions, TransformerConfig};
use crate::named_tensor::NamedTensor;

/// Reorders the features of an encoder-decoder to [`Positions::SinusoidalHalves`].
pub(super) fn to_halves(config: &TransformerConfig, weights: &[NamedTensor]) -> (TransformerConfig, Vec<NamedTensor>) {
    let d = config.d_model;
    let order: Vec<usize> = (0..d).step_by(2).chain((1..d).step_by(2)).collect();
    let weights = weights.iter().map(|weight| reordered(weight, &order)).collect();
    (TransformerConfig { positions: Positions::SinusoidalHalves, ..config.clone() }, weights)
}

/// The dimension of a parameter that runs over hidden features.
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
        // A misshaped parameter stays as it is: the export reports it.
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
