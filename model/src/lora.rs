//! Adds adapters to the weights that they stand next to.

use std::collections::HashMap;

use crate::config::{Product, TransformerConfig};
use crate::named_tensor::NamedTensor;

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
    let (adapters, mut merged): (Vec<_>, Vec<_>) = weights.iter().cloned().partition(|weight| is_adapter(&weight.name));
    let adapters: HashMap<&str, &NamedTensor> = adapters.iter().map(|it| (it.name.as_str(), it)).collect();
    let find = |name: String, shape: [usize; 2]| {
        let found = adapters.get(name.as_str()).filter(|tensor| tensor.shape == shape);
        found.map(|tensor| tensor.values.as_slice()).ok_or(name)
    };

    let (rank, scale) = (config.lora.rank, (config.lora.alpha / config.lora.rank.max(1) as f64) as f32);
    for weight in &mut merged {
        let Some(path) = weight.name.strip_suffix(".weight").map(str::to_owned) else { continue };
        let Some(product) = Product::at(&path) else { continue };
        let [n_in, n_out] = *weight.shape.as_slice() else { continue };
        for (i, columns) in config.adapters_of(product).into_iter().enumerate() {
            let a = find(format!("{path}.lora.{i}.a"), [n_in, rank])?;
            let b = find(format!("{path}.lora.{i}.b"), [rank, columns.width])?;
            for (row, a) in weight.values.chunks_exact_mut(n_out).zip(a.chunks_exact(rank)) {
                let row = &mut row[columns.start..columns.start + columns.width];
                for (a, b) in a.iter().zip(b.chunks_exact(columns.width)) {
                    row.iter_mut().zip(b).for_each(|(w, b)| *w += scale * a * b);
                }
            }
        }
    }
    let lora = crate::config::LoraConfig { rank: 0, ..config.lora.clone() };
    Ok((TransformerConfig { lora, ..config.clone() }, merged))
}
