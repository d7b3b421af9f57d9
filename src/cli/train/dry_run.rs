//! `kiln train --dry-run`: everything except the training.

use anyhow::Result;
use kiln_data::{Loader, LoaderConfig, Position, Shape};
use kiln_model::flops::{TrainBytes, n_params, train_bytes};

use crate::device::{compute_dtype, device_name};
use crate::run::Run;
use crate::units::thousands;

/// Batches shown.
const N_BATCHES: usize = 3;

/// Prints the configuration as TOML and everything else as comments, so that the output is a configuration file.
pub(super) fn print(run: &Run, resume: bool) -> Result<()> {
    let device = run.options.device.open()?;
    let (config, data) = run.data(resume)?;
    let dtype = compute_dtype(config.train.precision, &device)?;
    print!("{}", config.to_toml());
    println!("\n# run folder {}, device {}, precision {dtype:?}", run.dir().display(), device_name(&device));

    let params = n_params(&config.model);
    println!(
        "# {} parameters: encoder {}, decoder {}, embeddings {}, output projection {}",
        thousands(params.total() as f64),
        thousands(params.encoder as f64),
        thousands(params.decoder as f64),
        thousands((params.embeddings + params.positions) as f64),
        thousands(params.output_projection as f64)
    );

    // The first batches.
    let inline = LoaderConfig { num_workers: 0, ..config.loader.clone() };
    let mut loader = Loader::new(data.train.clone(), &inline, config.seed, Position::default())?;
    println!("# {} batches per epoch", thousands(loader.batches_per_epoch() as f64));
    let mut seen = Vec::new();
    for number in 1..=N_BATCHES {
        let batch = loader.next_batch()?;
        println!("# batch {number}: {} tokens, padding {:.0}%", batch.shape(), 100.0 * batch.padding_ratio());
        seen.push(batch.shape());
        loader.recycle(batch);
    }
    if let Some(shapes) = loader.shapes() {
        println!("# {} shapes in all", shapes.len());
        seen.extend(shapes.into_keys());
    }

    let bytes =
        |shape: Shape| train_bytes(&config.model, dtype, [shape.batch_size, shape.source_len, shape.target_len]);
    let shape = seen.into_iter().max_by_key(|shape| bytes(*shape).total()).expect("a data set has batches");
    println!("# memory for the largest batch, {shape}: {}", memory(&bytes(shape)));
    if data.valid.is_none() {
        println!("# no validation text: there will be no best checkpoint");
    }
    Ok(())
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
    fn memory_is_told_in_parts() {
        let mib = 1 << 20;
        let bytes =
            TrainBytes { weights: mib, gradients: 2 * mib, master: 3 * mib, moments: 4 * mib, activations: 1990 * mib };
        let text = memory(&bytes);
        assert!(text.starts_with("about 2,000 MiB (weights 1, gradients 2, master weights 3, moments 4"), "{text}");
    }
}
