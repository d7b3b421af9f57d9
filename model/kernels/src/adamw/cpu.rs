//! The optimizer on the CPU: chunks in parallel, sums in a fixed order.

use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, Shape, Slice};
use burn_flex::{Flex, FlexTensor};
use rayon::prelude::*;

use super::StepPolicy;
use super::flat::{ALIGNMENT, CHUNK};
use super::ops::{AdamWOps, Factors, Parts, Segment};
use super::progress::{BLOCK, COLUMNS};
use crate::host::{floats, tensor};

impl AdamWOps for Flex {
    fn flat_gather(
        parts: Parts<Self>,
        values: FlexTensor,
        squares: FlexTensor,
        segments: Vec<Segment>,
        accumulate: bool,
    ) -> (FlexTensor, FlexTensor) {
        let dtype = values.dtype();
        let (mut values, mut squares) = (floats(values), floats(squares));
        for (part, segment) in parts.into_vec().into_iter().zip(segments) {
            let part = floats(part);
            let place = &mut values[segment.offset..segment.offset + segment.len.next_multiple_of(ALIGNMENT)];
            let squares = &mut squares[segment.first_chunk..];
            place.par_chunks_mut(CHUNK).zip(squares).enumerate().for_each(|(i, (place, square))| {
                let part = &part[(i * CHUNK).min(part.len())..];
                for (j, place) in place.iter_mut().enumerate() {
                    let added = part.get(j).copied().unwrap_or(0.0);
                    *place = if accumulate { *place + added } else { added };
                }
                *square = place.iter().map(|x| x * x).sum();
            });
        }
        (flat(values, dtype), flat(squares, DType::F32))
    }

    fn flat_view(flat: FlexTensor, offset: usize, shape: Vec<usize>) -> FlexTensor {
        let len: usize = shape.iter().product();
        Self::float_reshape(Self::float_slice(flat, &[Slice::from(offset..offset + len)]), Shape::from(shape))
    }

    fn adamw_prepare(
        squares: FlexTensor,
        divisor: FlexTensor,
        loss: FlexTensor,
        coefficients: FlexTensor,
        progress: FlexTensor,
        policy: StepPolicy,
    ) -> (FlexTensor, FlexTensor) {
        let (progress, coefficients) = (floats(progress), floats(coefficients));
        let [mut scale, mut good, mut block, mut row, mut stopped] = *progress.as_slice() else {
            panic!("five counters: {progress:?}")
        };
        let unscale = policy.scaling.map_or(1.0, |scaling| f64::from(scaling.unit) / f64::from(scale));
        let share = unscale / f64::from(floats(divisor)[0].max(1.0));
        let norm = floats(squares).into_iter().map(f64::from).sum::<f64>().sqrt() * share;
        let clip = if policy.max_norm > 0.0 { (policy.max_norm / (norm + 1e-6)).min(1.0) } else { 1.0 };
        let finite = (norm as f32).is_finite() && floats(loss)[0].is_finite();
        let taken = finite && stopped == 0.0;
        let rows = &coefficients[1..];
        let at = ((block - coefficients[0]).max(0.0) as usize * BLOCK + row as usize).min(rows.len() / COLUMNS - 1);
        let flag = |is: bool| f32::from(u8::from(is));
        let mut numbers = vec![norm as f32, (clip * share) as f32, flag(taken)];
        numbers.extend(&rows[COLUMNS * at..][..COLUMNS]);
        numbers.extend([scale, block, row]);
        if taken {
            row += 1.0;
            if row == BLOCK as f32 {
                (block, row) = (block + 1.0, 0.0);
            }
        }
        match policy.scaling {
            Some(scaling) if stopped == 0.0 => {
                good = if finite { good + 1.0 } else { 0.0 };
                if good >= scaling.growth_interval as f32 {
                    let grown = scale * scaling.growth_factor;
                    (scale, good) = (if grown.is_finite() { grown } else { scale }, 0.0);
                }
                let lowered = scale * scaling.backoff_factor;
                if !finite && lowered < scaling.floor {
                    stopped = 1.0;
                } else if !finite {
                    scale = lowered;
                }
            }
            None if policy.stops && !finite => stopped = 1.0,
            _ => {}
        }
        numbers.push(stopped);
        (flat(numbers, DType::F32), flat(vec![scale, good, block, row, stopped], DType::F32))
    }

    fn adamw(
        master: FlexTensor,
        m: FlexTensor,
        v: FlexTensor,
        gradient: FlexTensor,
        numbers: FlexTensor,
        factors: Factors,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let numbers = floats(numbers);
        if numbers[2] == 0.0 {
            return (master, m, v);
        }
        let (scale, schedule, gradient) = (numbers[1], &numbers[3..], floats(gradient));
        let [mut master, mut m, mut v] = [master, m, v].map(floats);
        let chunks = master.par_chunks_mut(CHUNK).zip(m.par_chunks_mut(CHUNK).zip(v.par_chunks_mut(CHUNK)));
        chunks.zip(gradient.par_chunks(CHUNK)).enumerate().for_each(|(i, ((master, (m, v)), gradient))| {
            for j in 0..gradient.len() {
                let decay = if i * CHUNK + j < factors.n_decayed { 1.0 - schedule[2] } else { 1.0 };
                let g = gradient[j] * scale;
                m[j] = factors.beta1 * m[j] + factors.rest1 * g;
                v[j] = factors.beta2 * v[j] + factors.rest2 * g * g;
                master[j] = master[j] * decay - schedule[0] * m[j] / (v[j].sqrt() * schedule[1] + factors.eps);
            }
        });
        (flat(master, DType::F32), flat(m, DType::F32), flat(v, DType::F32))
    }

    fn adamw_mixed(
        master: FlexTensor,
        m: FlexTensor,
        v: FlexTensor,
        weights: FlexTensor,
        gradient: FlexTensor,
        numbers: FlexTensor,
        factors: Factors,
    ) -> (FlexTensor, FlexTensor, FlexTensor, FlexTensor) {
        let dtype = weights.dtype();
        let (master, m, v) = Self::adamw(master, m, v, gradient, numbers, factors);
        let weights = flat(floats(master.clone()), dtype);
        (master, m, v, weights)
    }
}

fn flat(values: Vec<f32>, dtype: DType) -> FlexTensor {
    let n = values.len();
    tensor(values, [n], dtype)
}
