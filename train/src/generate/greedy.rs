//! Greedy search: takes the likeliest token at every step.

use burn::tensor::{Int, Tensor, TensorReadError};

use super::bans::Banned;
use super::batching::int_tensor;
use super::batching::likeliest;
use super::sequences::{Begun, Sequences, TokenRules};
use crate::metrics::host_sync::waiting;

/// Finishes every row of `begun` and returns its tokens without the end token.
///
/// The host reads the tokens every `check_every` steps, which waits for the device, and drops rows that have ended. Between
/// two reads, ended rows continue and their tokens are ignored; rows do not influence each other. No row continues beyond its
/// limit, which may be the last position of the model.
///
/// # Errors
/// If the device fails.
pub fn greedy<S: Sequences>(
    begun: Begun<S>,
    rules: &TokenRules,
    check_every: usize,
) -> Result<Vec<Vec<u32>>, TensorReadError> {
    greedy_with(begun, rules, check_every, &mut |_, _| Ok(true))
}

/// Does the same, and passes each token to `accept` with its row once it is read. A row ends where `accept` returns false.
pub(super) fn greedy_with<S: Sequences, E: From<TensorReadError>>(
    begun: Begun<S>,
    rules: &TokenRules,
    check_every: usize,
    accept: &mut dyn FnMut(usize, u32) -> Result<bool, E>,
) -> Result<Vec<Vec<u32>>, E> {
    let Begun { mut sequences, logits, limits } = begun;
    let device = logits.device();
    let never = rules.excluded(logits.dims()[1], &device);
    let allowed = |logits: Tensor<2>, live: &[usize], outputs: &[Vec<u32>]| {
        let banned = rules.bans.after_rows(live.iter().map(|row| (*row, outputs[*row].as_slice())));
        match Banned::of(&banned) {
            Some(banned) => banned.mask(logits),
            None => logits,
        }
    };

    let mut outputs: Vec<Vec<u32>> = vec![Vec::new(); limits.len()];
    // The output that each row of the cache belongs to.
    let mut live: Vec<usize> = (0..limits.len()).collect();
    let mut ids: Tensor<1, Int> = likeliest(allowed(logits, &live, &outputs), &never);
    // A ban depends on the tokens before, which the host must know.
    let check_every = if rules.bans.are_none() { check_every } else { 1 };

    while !live.is_empty() {
        let room = live.iter().map(|&row| limits[row] - outputs[row].len()).min().expect("rows are left");
        let n_steps = check_every.clamp(1, room);
        let mut tokens: Tensor<2, Int> = ids.clone().reshape([live.len(), 1]);
        if n_steps > 1 {
            let further = sequences.follow(ids, n_steps - 1, &never);
            ids = further.clone().narrow(1, n_steps - 2, 1).reshape([live.len()]);
            tokens = Tensor::cat(vec![tokens, further], 1);
        }

        // Host sync: the tokens of the last steps, `[live, steps]`.
        let tokens = waiting(|| tokens.try_into_vec_as::<i64>())?;

        let mut kept = Vec::new();
        for (index, (&row, tokens)) in live.iter().zip(tokens.chunks(n_steps)).enumerate() {
            let output = &mut outputs[row];
            let mut ended = false;
            for token in tokens.iter().map(|&token| token as u32) {
                ended = rules.is_end(token) || output.len() == limits[row];
                if ended {
                    break;
                }
                output.push(token);
                ended = !accept(row, token)?;
                if ended {
                    break;
                }
            }
            if !ended && output.len() < limits[row] {
                kept.push(index);
            }
        }

        if kept.len() < live.len() {
            live = kept.iter().map(|&index| live[index]).collect();
            if live.is_empty() {
                break;
            }
            sequences.select(&kept);
            ids = ids.select(0, int_tensor(kept.into_iter().map(|index| index as i32).collect(), &device));
        }
        ids = if rules.bans.are_none() {
            sequences.follow(ids, 1, &never).reshape([live.len()])
        } else {
            likeliest(allowed(sequences.step(ids), &live, &outputs), &never)
        };
    }
    Ok(outputs)
}
