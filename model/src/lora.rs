//! Adds adapters to the weights that they stand next to.

use std::collections::HashMap;

use crate::config::{Product, TransformerConfig};
use crate::named_tensor::{Elements, FloatType, LazyTensor, NamedTensor};

/// Returns whether the parameter at `path` is of an adapter.
pub fn is_adapter(path: &str) -> bool {
    path.split('.').any(|name| name == "lora")
}

/// Returns the model without adapters that computes the same: `W + alpha / rank * A · B` in place of each adapted `W`. Sums are f32.
///
/// # Errors
/// The path of an adapter's parameter that is missing or has another shape.
pub fn merge_adapters(
    config: &TransformerConfig,
    weights: &[NamedTensor],
) -> Result<(TransformerConfig, Vec<NamedTensor>), String> {
    let (config, merged) = plan_merge(config, weights.iter().map(LazyTensor::borrowed).collect())?;
    Ok((config, merged.iter().map(LazyTensor::read).collect()))
}

/// Does the same as [`merge_adapters`], but adds adapters only when a weight is read.
pub(crate) fn plan_merge<'a>(
    config: &TransformerConfig,
    weights: Vec<LazyTensor<'a>>,
) -> Result<(TransformerConfig, Vec<LazyTensor<'a>>), String> {
    let (adapters, weights): (Vec<_>, Vec<_>) = weights.into_iter().partition(|weight| is_adapter(&weight.name));
    let adapters: HashMap<String, LazyTensor<'a>> = adapters.into_iter().map(|it| (it.name.clone(), it)).collect();
    let find = |name: String, shape: [usize; 2]| {
        let found = adapters.get(&name).filter(|tensor| tensor.shape == shape);
        found.cloned().ok_or(name)
    };

    let (rank, scale) = (config.lora.rank, (config.lora.alpha / config.lora.rank.max(1) as f64) as f32);
    let mut merged = Vec::with_capacity(weights.len());
    for weight in weights {
        let path = weight.name.strip_suffix(".weight").map(str::to_owned);
        let product = path.and_then(|path| Some((Product::at(&path)?, path)));
        let (Some((product, path)), &[n_in, n_out]) = (product, weight.shape.as_slice()) else {
            merged.push(weight);
            continue;
        };
        let mut added = Vec::new();
        for (i, columns) in config.adapters_of(product).into_iter().enumerate() {
            let a = find(format!("{path}.lora.{i}.a"), [n_in, rank])?;
            let b = find(format!("{path}.lora.{i}.b"), [rank, columns.width])?;
            added.push(Added { first: columns.start, width: columns.width, a, b });
        }
        merged.push(if added.is_empty() { weight } else { with_adapters(weight, added, n_out, (rank, scale)) });
    }
    let lora = crate::config::LoraConfig { rank: 0, ..config.lora.clone() };
    Ok((TransformerConfig { lora, ..config.clone() }, merged))
}

/// What an adapter adds to some columns of a matrix.
struct Added<'a> {
    first: usize,
    width: usize,
    a: LazyTensor<'a>,
    b: LazyTensor<'a>,
}

fn with_adapters<'a>(
    weight: LazyTensor<'a>,
    added: Vec<Added<'a>>,
    n_out: usize,
    (rank, scale): (usize, f32),
) -> LazyTensor<'a> {
    LazyTensor::new(weight.name.clone(), weight.shape.clone(), FloatType::F32, move || {
        let mut values = weight.elements().into_f32();
        for Added { first, width, a, b } in &added {
            let (a, b) = (a.elements().into_f32(), b.elements().into_f32());
            for (row, a) in values.chunks_exact_mut(n_out).zip(a.chunks_exact(rank)) {
                let row = &mut row[*first..first + width];
                for (a, b) in a.iter().zip(b.chunks_exact(*width)) {
                    row.iter_mut().zip(b).for_each(|(w, b)| *w += scale * a * b);
                }
            }
        }
        Elements::F32(values)
    })
}
