//! Attention of a step on the CPU: a thread takes a row, and reads its keys once for all heads.

use burn::tensor::TensorData;
use burn_flex::{Flex, FlexTensor};
use rayon::prelude::*;

use super::ops::{StepAttentionOps, StepSpec};
use crate::calls;
use crate::capture::OverwriteOps;
use crate::host::vector::{dot, exponentials, max, vectorized_fn};
use crate::host::{ints, tensor, view};

impl StepAttentionOps for Flex {
    fn step_attention(
        query: FlexTensor,
        key_value: FlexTensor,
        places: FlexTensor,
        lengths: FlexTensor,
        spec: StepSpec,
    ) -> FlexTensor {
        let _call = calls::begin(|| calls::of_passes("attention of a step", &query, 2));
        let StepSpec { n_heads, n_kv_heads, head_dim, capacity, per_position, .. } = spec;
        let [rows, columns] = [query.layout().shape()[0], query.layout().shape()[1]];
        let (queries, values) = (view(&query), view(&key_value));
        let (places, lengths) = (ints(places), ints(lengths));
        let (out_width, width) = (n_heads * head_dim, 2 * n_kv_heads * head_dim);
        let place = |row: usize, position: usize| {
            let place = places[if per_position { row * capacity + position } else { row }];
            (place as usize * capacity + position) * width
        };

        let mut out = vec![0.0; rows * out_width];
        out.par_chunks_mut(out_width).enumerate().for_each_init(
            || (Vec::new(), Vec::new()),
            |(starts, scores), (row, out)| {
                starts.clear();
                starts.extend((0..lengths[row] as usize).map(|position| place(row, position)));
                attend(out, scores, &queries[row * columns..][..out_width], &values, starts, spec);
            },
        );
        tensor(out, [rows, out_width], query.dtype())
    }

    fn append_and_attend(
        qkv: FlexTensor,
        key_value: FlexTensor,
        lengths: FlexTensor,
        spec: StepSpec,
    ) -> (FlexTensor, FlexTensor) {
        let [rows, columns] = [qkv.layout().shape()[0], qkv.layout().shape()[1]];
        let width = 2 * spec.n_kv_heads * spec.head_dim;
        let new = view(&qkv).chunks_exact(columns).flat_map(|row| row[columns - width..].to_vec()).collect();
        let last = ints(lengths.clone()).iter().map(|length| length - 1).collect::<Vec<_>>();
        let whole = |numbers: Vec<i32>, shape: &[usize]| FlexTensor::from_data(TensorData::new(numbers, shape));

        let new = tensor(new, [rows, width], key_value.dtype());
        let key_value = Self::overwrite_rows(key_value, new, whole(last, &[rows]));
        let places = whole((0..rows as i32).collect(), &[rows, 1]);
        (Self::step_attention(qkv, key_value.clone(), places, lengths, spec), key_value)
    }
}

vectorized_fn! {
    /// Adds the result of one row to `out`, which is 0. `starts` are the first numbers of the row's positions in `key_value`.
    fn attend(
        out: &mut [f32],
        scores: &mut Vec<f32>,
        query: &[f32],
        key_value: &[f32],
        starts: &[usize],
        spec: StepSpec,
    ) {
        let StepSpec { n_heads, n_kv_heads, head_dim: k, scale, .. } = spec;
        let (n, per_group) = (starts.len(), n_heads / n_kv_heads);
        scores.clear();
        scores.resize(n_heads * n, 0.0);

        for (position, &start) in starts.iter().enumerate() {
            for (head, query) in query.chunks_exact(k).enumerate() {
                let key = &key_value[start + head / per_group * k..][..k];
                scores[head * n + position] = scale * dot(query, key);
            }
        }
        for scores in scores.chunks_exact_mut(n.max(1)) {
            let largest = max(scores);
            let inverse = exponentials(scores, largest).recip();
            scores.iter_mut().for_each(|x| *x *= inverse);
        }
        for (position, &start) in starts.iter().enumerate() {
            for (head, out) in out.chunks_exact_mut(k).enumerate() {
                let value = &key_value[start + (n_kv_heads + head / per_group) * k..][..k];
                let weight = scores[head * n + position];
                out.iter_mut().zip(value).for_each(|(sum, x)| *sum += weight * x);
            }
        }
    }
}
