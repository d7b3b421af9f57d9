//! Attention on the CPU: a tile of queries at a time, with only the keys that it sees, so that its scores stay in the cache.
//!
//! A task is a head of a batch row, or in backward the heads that share keys. It computes on one thread, so that sums do not
//! depend on the number of threads.

mod backward;
mod forward;
mod operands;

use backward::{Gradients, backward};
use burn::tensor::{DType, Shape};
use burn_flex::{Flex, FlexTensor};
use forward::forward;
use operands::{Operands, place};
use rayon::prelude::*;

use super::ops::{FlashOps, FlashSpec};
use crate::host::{tensor, view};
use crate::maybe::{Maybe, MaybeInts};

impl FlashOps for Flex {
    fn flash_self(
        qkv: FlexTensor,
        relative: Maybe<Self>,
        lengths: MaybeInts<Self>,
        documents: MaybeInts<Self>,
        random: MaybeInts<Self>,
        spec: FlashSpec,
    ) -> (FlexTensor, FlexTensor) {
        let _call = spec.record_forward(&qkv, None);
        let (values, relative) = (view(&qkv), relative.into_option());
        let relative = relative.as_ref().map(view);
        let operands = Operands::packed(&values, relative.as_deref(), spec);
        forward(&operands, &operands.visible(lengths, documents, random), qkv.dtype())
    }

    fn flash_self_backward(
        qkv: FlexTensor,
        out: FlexTensor,
        lse: FlexTensor,
        d_out: FlexTensor,
        relative: Maybe<Self>,
        lengths: MaybeInts<Self>,
        documents: MaybeInts<Self>,
        random: MaybeInts<Self>,
        spec: FlashSpec,
    ) -> (FlexTensor, FlexTensor) {
        let _call = spec.record_backward(&qkv, None);
        let (values, relative) = (view(&qkv), relative.into_option());
        let relative = relative.as_ref().map(view);
        let operands = Operands::packed(&values, relative.as_deref(), spec);
        let tasks = backward(&operands, &operands.visible(lengths, documents, random), &out, &lse, &d_out);
        let (h, g) = (spec.n_heads, spec.n_kv_heads);

        let d_relative = match relative {
            Some(_) => sum_by_distance(&tasks, spec),
            None => tensor(vec![0.0], [1], DType::F32),
        };
        let d_qkv = side_by_side(&tasks, spec, h + 2 * g, qkv.dtype(), |task, group| {
            let queries = task.query.iter().enumerate().map(move |(i, head)| (group * h / g + i, head));
            queries.chain([(h + group, &task.key), (h + g + group, &task.value)]).collect()
        });
        (d_qkv, d_relative)
    }

    fn flash_cross(
        query: FlexTensor,
        key_value: FlexTensor,
        lengths: MaybeInts<Self>,
        random: MaybeInts<Self>,
        spec: FlashSpec,
    ) -> (FlexTensor, FlexTensor) {
        let _call = spec.record_forward(&query, Some(&key_value));
        let values = [view(&query), view(&key_value)];
        let operands = Operands::cross([&values[0], &values[1]], spec);
        forward(&operands, &operands.visible(lengths, MaybeInts::None, random), query.dtype())
    }

    fn flash_cross_backward(
        query: FlexTensor,
        key_value: FlexTensor,
        out: FlexTensor,
        lse: FlexTensor,
        d_out: FlexTensor,
        lengths: MaybeInts<Self>,
        random: MaybeInts<Self>,
        spec: FlashSpec,
    ) -> (FlexTensor, FlexTensor) {
        let _call = spec.record_backward(&query, Some(&key_value));
        let values = [view(&query), view(&key_value)];
        let operands = Operands::cross([&values[0], &values[1]], spec);
        let visible = operands.visible(lengths, MaybeInts::None, random);
        let tasks = backward(&operands, &visible, &out, &lse, &d_out);

        let (h, g, dtype) = (spec.n_heads, spec.n_kv_heads, query.dtype());
        let d_query = side_by_side(&tasks, spec, h, dtype, |task, group| {
            task.query.iter().enumerate().map(|(i, head)| (group * h / g + i, head)).collect()
        });
        let d_key_value =
            side_by_side(&tasks, spec, 2 * g, dtype, |task, group| vec![(group, &task.key), (g + group, &task.value)]);
        (d_query, d_key_value)
    }
}

/// Writes gradients into one matrix, whose rows have `n` heads. `heads` gives the place of each matrix of a task.
fn side_by_side<'a>(
    tasks: &'a [Gradients],
    spec: FlashSpec,
    n: usize,
    dtype: DType,
    heads: impl Fn(&'a Gradients, usize) -> Vec<(usize, &'a Vec<f32>)> + Sync,
) -> FlexTensor {
    let (k, groups) = (spec.head_dim, spec.n_kv_heads);
    let len = heads(&tasks[0], 0)[0].1.len() / k;
    let mut all = vec![0.0; spec.batch_size * len * n * k];
    all.par_chunks_mut((len * n * k).max(1)).zip(tasks.par_chunks(groups)).for_each(|(rows, tasks)| {
        for (group, task) in tasks.iter().enumerate() {
            heads(task, group).into_iter().for_each(|(head, values)| place(rows, n * k, head * k, values, k));
        }
    });
    tensor(all, Shape::new([spec.batch_size * len, n * k]), dtype)
}

/// Adds up what the batch rows contribute to the gradient of the numbers of distances, `[H, T + S - 1]`.
fn sum_by_distance(tasks: &[Gradients], spec: FlashSpec) -> FlexTensor {
    let groups = tasks.chunks(spec.n_kv_heads).map(|groups| groups.iter().flat_map(|group| &group.relative).flatten());
    let mut total = vec![0.0; tasks[0].relative.iter().map(Vec::len).sum::<usize>() * spec.n_kv_heads];
    for of_batch_row in groups {
        total.iter_mut().zip(of_batch_row).for_each(|(sum, x)| *sum += x);
    }
    let n = total.len() / spec.n_heads;
    tensor(total, [spec.n_heads, n], DType::F32)
}
