//! Averages the weights of several checkpoints: a cheap ensemble, usually better than each of them (Vaswani et al. 2017,
//! section 6.1).

use std::collections::HashMap;
use std::path::PathBuf;

use super::{CheckpointError, NamedTensor, Weights, read_weights};

/// Averages the weights of the checkpoints in `dirs`, summed in f64 and rounded to f32 once. Step, configuration and files
/// come from the checkpoint with the highest step.
///
/// # Errors
/// If a checkpoint cannot be read, or belongs to another model than the others.
///
/// # Panics
/// If `dirs` is empty.
pub fn average(dirs: &[PathBuf]) -> Result<Weights, CheckpointError> {
    let mut newest: Option<Weights> = None;
    let mut sums: HashMap<String, Vec<f64>> = HashMap::new();
    // One checkpoint at a time: memory holds only the sums and two sets of weights.
    for dir in dirs {
        let read = read_weights(dir)?;
        if let Some(newest) = &newest {
            let shapes = |weights: &[NamedTensor]| {
                weights.iter().map(|tensor| (tensor.name.clone(), tensor.shape.clone())).collect::<HashMap<_, _>>()
            };
            if read.model != newest.model || shapes(&read.weights) != shapes(&newest.weights) {
                let reason = format!("{} belongs to another model than step {}", dir.display(), newest.step);
                return Err(CheckpointError::Mismatch(reason));
            }
        }

        for tensor in &read.weights {
            let sum = sums.entry(tensor.name.clone()).or_insert_with(|| vec![0.0; tensor.values.len()]);
            sum.iter_mut().zip(&tensor.values).for_each(|(sum, value)| *sum += f64::from(*value));
        }

        if newest.as_ref().is_none_or(|newest| read.step >= newest.step) {
            newest = Some(read);
        }
    }

    let mut averaged = newest.expect("at least one checkpoint");
    for tensor in &mut averaged.weights {
        let sum = &sums[&tensor.name];
        tensor.values = sum.iter().map(|sum| (sum / dirs.len() as f64) as f32).collect();
    }
    Ok(averaged)
}
