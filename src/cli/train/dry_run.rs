//! `kiln train --dry-run`: everything but the training.

use std::path::Path;

use anyhow::Result;
use burn::tensor::Device;
use kiln_data::{Loader, LoaderConfig, Position, Shape};
use kiln_model::flops::{TrainBytes, n_params, train_bytes};

use crate::config::Config;
use crate::device::{compute_dtype, device_name};
use crate::logging::console::thousands;
use crate::train::RunData;

/// Batches shown.
const N_BATCHES: usize = 3;

/// Prints the configuration as TOML and the rest as its comments, so that the output is a configuration file.
pub(super) fn print(config: &Config, data: &RunData, device: &Device, dir: &Path) -> Result<()> {
    let dtype = compute_dtype(config.train.precision, device)?;
    print!("{}", config.to_toml());
    println!("\n# run folder {}, device {}, precision {dtype:?}", dir.display(), device_name(device));

    let params = n_params(&config.model);
    println!(
        "# {} parameters: encoder {}, decoder {}, embeddings {}, output projection {}",
        thousands(params.total() as f64),
        thousands(params.encoder as f64),
        thousands(params.decoder as f64),
        thousands((params.embeddings + params.positions) as f64),
        thousands(params.output_projection as f64)
    );

    let inline = LoaderConfig { num_workers: 0, ..config.loader.clone() };
    let mut loader = Loader::new(data.train.clone(), &inline, config.seed, Position::default())?;
    println!("# {} batches an epoch", thousands(loader.batches_per_epoch() as f64));
    let mut largest = None;
    for number in 1..=N_BATCHES {
        let batch = loader.next_batch()?;
        println!("# batch {number}: {} tokens, padding {:.0}%", batch.shape(), 100.0 * batch.padding_ratio());
        largest = larger(largest, batch.shape());
        loader.recycle(batch);
    }
    if let Some(shapes) = loader.shapes() {
        println!("# {} shapes in all", shapes.len());
        largest = shapes.into_keys().fold(largest, larger);
    }
    if let Some(shape) = largest {
        let bytes = train_bytes(&config.model, dtype, [shape.batch_size, shape.source_len, shape.target_len]);
        println!("# memory for the largest batch, {shape}: {}", memory(&bytes));
    }
    if data.valid.is_none() {
        println!("# no validation text: there will be no best checkpoint");
    }
    Ok(())
}

fn larger(before: Option<Shape>, shape: Shape) -> Option<Shape> {
    before.into_iter().chain([shape]).max_by_key(Shape::padded_tokens)
}

fn memory(bytes: &TrainBytes) -> String {
    let mib = |bytes: u64| thousands(bytes as f64 / f64::from(1 << 20));
    format!(
        "about {} MiB (weights {}, gradients {}, master weights {}, moments {}, activations {})",
        mib(bytes.total()),
        mib(bytes.weights),
        mib(bytes.gradients),
        mib(bytes.master),
        mib(bytes.moments),
        mib(bytes.activations)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_shape_is_the_one_with_most_positions() {
        let shape = |batch_size, source_len, target_len| Shape { batch_size, source_len, target_len };
        let found = [shape(10, 8, 8), shape(4, 40, 16), shape(100, 1, 1)].into_iter().fold(None, larger);
        assert_eq!(found, Some(shape(4, 40, 16)));
    }

    #[test]
    fn memory_is_told_in_parts() {
        let mib = 1 << 20;
        let bytes =
            TrainBytes { weights: mib, gradients: 2 * mib, master: 3 * mib, moments: 4 * mib, activations: 1990 * mib };
        let text = memory(&bytes);
        assert!(text.starts_with("about 2,000 MiB (weights 1, gradients 2, master weights 3, moments 4"), "{text}");
    }
}
