//! The mean of several checkpoints' weights: a cheap ensemble, usually better than each (Vaswani et al. 2017, section 6.1).

use std::collections::HashMap;
use std::path::PathBuf;

use super::{CheckpointError, NamedTensor, Weights, read_weights};

/// Averages the weights of the checkpoints in `dirs`, summed in f64 and rounded to f32 once. Step, configuration and
/// files are those of the one with the highest step.
///
/// # Errors
/// If one cannot be read or is not of the same model as the others.
///
/// # Panics
/// If `dirs` is empty.
pub fn average(dirs: &[PathBuf]) -> Result<Weights, CheckpointError> {
    let mut newest: Option<Weights> = None;
    let mut sums: HashMap<String, Vec<f64>> = HashMap::new();
    // One checkpoint at a time: the sums and one set of weights are all that is in memory.
    for dir in dirs {
        let read = read_weights(dir)?;
        if let Some(newest) = &newest {
            let shapes = |weights: &[NamedTensor]| {
                weights.iter().map(|tensor| (tensor.name.clone(), tensor.shape.clone())).collect::<HashMap<_, _>>()
            };
            if read.model != newest.model || shapes(&read.weights) != shapes(&newest.weights) {
                let reason = format!("{} is of another model than step {}", dir.display(), newest.step);
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
