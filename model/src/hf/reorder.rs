//! Reorders features, to export a model whose sinusoidal positions have another order.
//!
//! Kiln's positions alternate sine and cosine as in the paper. Marian's have all sines before all cosines. The rest of a
//! Transformer does not depend on the order of hidden features: norms average over all of them, and each matrix has one row
//! or column per feature. Reordering these rows and columns therefore leaves the result unchanged.

use crate::config::{Positions, TransformerConfig};
use crate::named_tensor::{Elements, LazyTensor};

/// Reorders the features of an encoder-decoder to [`Positions::SinusoidalHalves`].
pub(super) fn to_halves<'a>(
    config: &TransformerConfig,
    weights: Vec<LazyTensor<'a>>,
) -> (TransformerConfig, Vec<LazyTensor<'a>>) {
    let d = config.d_model;
    let order: Vec<usize> = (0..d).step_by(2).chain((1..d).step_by(2)).collect();
    let weights = weights.into_iter().map(|weight| reordered(weight, order.clone())).collect();
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

fn reordered(weight: LazyTensor<'_>, order: Vec<usize>) -> LazyTensor<'_> {
    let (name, shape, float_type) = (weight.name.clone(), weight.shape.clone(), weight.float_type);
    LazyTensor::new(name, shape, float_type, move || {
        let width = weight.shape.last().copied().unwrap_or(1);
        match weight.elements() {
            Elements::F32(elements) => Elements::F32(in_order(&weight.name, elements, width, &order)),
            Elements::F16(elements) => Elements::F16(in_order(&weight.name, elements, width, &order)),
            Elements::Bf16(elements) => Elements::Bf16(in_order(&weight.name, elements, width, &order)),
        }
    })
}

fn in_order<T: Copy>(path: &str, elements: Vec<T>, width: usize, order: &[usize]) -> Vec<T> {
    let rows = || elements.chunks_exact(width);
    match features_of(path) {
        // A misshaped parameter stays as it is: the export reports it.
        Features::Columns if width == order.len() => {
            rows().flat_map(|row| order.iter().map(|feature| row[*feature])).collect()
        }
        Features::Rows if rows().len() == order.len() => {
            order.iter().flat_map(|feature| &elements[feature * width..(feature + 1) * width]).copied().collect()
        }
        Features::None | Features::Columns | Features::Rows => elements,
    }
}
