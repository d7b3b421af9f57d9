//! The likeliest token, again and again.

use burn::tensor::{Int, Tensor, TensorReadError};
use kiln_data::SpecialIds;
use kiln_model::EncoderDecoder;

use super::batching::{SourceBatch, int_tensor};
use super::forbidden;

/// Decodes every row of `sources` and returns its tokens without the end token.
///
/// The host looks at the tokens every `check_every` steps only (a wait for the device each time) and drops the rows that have
/// ended. In between, ended rows run on; what they say is ignored, and rows do not influence each other.
pub fn greedy(
    model: &EncoderDecoder,
    sources: &SourceBatch,
    special: SpecialIds,
    check_every: usize,
) -> Result<Vec<Vec<u32>>, TensorReadError> {
    let device = sources.ids.device();
    let memory = model.encode(sources.ids.clone(), sources.lengths.clone(), sources.batch_size(), None);
    let mut cache = model.start(&memory);
    let never = forbidden(model.config().target_vocab_size, special, &device);
    let mut outputs: Vec<Vec<u32>> = vec![Vec::new(); sources.batch_size()];
    // Which source each row of the cache belongs to.
    let mut live: Vec<usize> = (0..sources.batch_size()).collect();
    let mut ids = int_tensor(vec![special.bos.cast_signed(); live.len()], &device);
    while !live.is_empty() {
        let room = live.iter().map(|&row| sources.limits[row] - outputs[row].len()).max().expect("rows are left");
        let mut steps = Vec::new();
        for _ in 0..check_every.clamp(1, room) {
            let logits = model.decode_step(ids, &mut cache).cast(never.dtype()) + never.clone();
            ids = logits.argmax(1).reshape([-1]);
            steps.push(ids.clone());
        }
        // Host sync: the tokens of the last steps, `[live, steps]`.
        let n_steps = steps.len();
        let tokens = Tensor::stack::<2>(steps, 1).try_into_vec_as::<i64>()?;
        let mut kept = Vec::new();
        for (index, (&row, tokens)) in live.iter().zip(tokens.chunks(n_steps)).enumerate() {
            let tokens = tokens.iter().map(|&token| token as u32);
            let output = &mut outputs[row];
            let mut ended = false;
            for token in tokens {
                ended = token == special.eos || output.len() == sources.limits[row];
                if ended {
                    break;
                }
                output.push(token);
            }
            if !ended && output.len() < sources.limits[row] {
                kept.push(index);
            }
        }
        if kept.len() < live.len() {
            live = kept.iter().map(|&index| live[index]).collect();
            if !live.is_empty() {
                let rows: Tensor<1, Int> = int_tensor(kept.into_iter().map(|index| index as i32).collect(), &device);
                cache.select(&rows);
                ids = ids.select(0, rows);
            }
        }
    }
    Ok(outputs)
}
