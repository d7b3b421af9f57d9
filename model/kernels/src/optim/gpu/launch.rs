//! Launches of the optimizer's kernels, which work in place.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::gather::{ChunksLaunch, gather};
use super::prepare::{Overflow, PolicyLaunch, prepare};
use super::step::{FactorsLaunch, RandomLaunch, StateLaunch, step, step_rounded};
use super::{PREPARE_UNITS, UNITS};
use crate::calls;
use crate::gpu::memory::empty;
use crate::optim::flat::{ALIGNMENT, CHUNK};
use crate::optim::ops::{AdamWOps, Factors, Parts, Segment, record_gather, record_update};
use crate::optim::rounding::OCTET;
use crate::optim::{LossScaling, Rounding, StepPolicy, slots};

/// Elements of a vector: f32 in 16 bytes.
const WIDTH: usize = 4;

impl AdamWOps for CubeBackend {
    fn flat_gather(
        parts: Parts<Self>,
        values: CubeTensor,
        squares: CubeTensor,
        segments: Vec<Segment>,
        accumulate: bool,
    ) -> (CubeTensor, CubeTensor) {
        let _call = record_gather(&values, &segments, accumulate);
        let parts: Vec<_> = parts.into_vec().into_iter().map(into_contiguous).collect();
        let dtype = parts[0].dtype;
        let mut width = 16 / dtype.size();
        while segments.iter().any(|segment| !segment.len.is_multiple_of(width)) {
            width /= 2;
        }

        let (mut firsts, mut offsets, mut lens) = (SequenceArg::new(), SequenceArg::new(), SequenceArg::new());
        let first_slot = segments[0].first_chunk;
        let mut chunks = 0;
        for i in 0..parts.len() {
            firsts.push(chunks);
            // Parts behind the last segment fill up the list and have no chunk.
            let (offset, len) = segments.get(i).map_or((0, 0), |segment| (segment.offset, segment.len));
            offsets.push((offset / width) as u32);
            lens.push((len / width) as u32);
            chunks += len.next_multiple_of(ALIGNMENT).div_ceil(CHUNK) as u32;
        }
        firsts.push(chunks);

        let dtypes = [dtype_to_storage_type(dtype), dtype_to_storage_type(values.dtype)];
        let mut sequence = SequenceArg::new();
        for part in parts {
            sequence.push(part.into_buffer_arg());
        }

        // SAFETY: chunks end where their part's padded segment does, which the caller has checked to lie in `values`;
        // `squares` has a slot for every chunk.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            gather::launch_unchecked(
                &values.client,
                CubeCount::Static(chunks, 1, 1),
                CubeDim::new_1d(UNITS),
                width,
                sequence,
                values.clone().into_buffer_arg(),
                squares.clone().into_buffer_arg(),
                ChunksLaunch::new(firsts, offsets, lens, first_slot as u32),
                accumulate,
                dtypes,
            );
        }
        (values, squares)
    }

    fn flat_view(flat: CubeTensor, offset: usize, shape: Vec<usize>) -> CubeTensor {
        part_of(&into_contiguous(flat), offset, shape)
    }

    fn adamw_prepare(
        squares: CubeTensor,
        divisor: CubeTensor,
        loss: CubeTensor,
        coefficients: CubeTensor,
        progress: CubeTensor,
        policy: StepPolicy,
    ) -> (CubeTensor, CubeTensor) {
        let _call = calls::begin(|| calls::of_passes("norm of the gradient", &squares, 1));
        let [squares, divisor, loss, coefficients] = [squares, divisor, loss, coefficients].map(into_contiguous);
        let (n, rows) = (squares.meta.shape()[0], (coefficients.meta.shape()[0] - 1) / slots::COLUMNS);
        let out = empty(&squares, [slots::step::LEN], DType::F32);
        let unscaled =
            LossScaling { unit: 1.0, growth_factor: 1.0, growth_interval: 1, backoff_factor: 1.0, floor: 0.0 };
        let scaling = policy.scaling.unwrap_or(unscaled);
        let overflow = match policy.scaling {
            Some(_) => Overflow::Rescales,
            None if policy.stops => Overflow::Stops,
            None => Overflow::Skips,
        };
        let numbers = PolicyLaunch::new(
            n as u32,
            rows as u32,
            policy.max_norm as f32,
            scaling.unit,
            scaling.growth_factor,
            scaling.growth_interval as f32,
            scaling.backoff_factor,
            scaling.floor,
        );

        // SAFETY: `n` sums are read and one of `rows` rows, the numbers of a step and all of `progress` are written.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            prepare::launch_unchecked(
                &out.client,
                CubeCount::Static(1, 1, 1),
                CubeDim::new_1d(PREPARE_UNITS),
                squares.into_buffer_arg(),
                divisor.into_buffer_arg(),
                loss.into_buffer_arg(),
                coefficients.into_buffer_arg(),
                progress.clone().into_buffer_arg(),
                out.clone().into_buffer_arg(),
                numbers,
                overflow,
            );
        }
        (out, progress)
    }

    fn adamw(
        master: CubeTensor,
        m: CubeTensor,
        v: CubeTensor,
        gradient: CubeTensor,
        numbers: CubeTensor,
        factors: Factors,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        launch_step([&master, &m, &v], None, gradient, numbers, factors);
        (master, m, v)
    }

    fn adamw_mixed(
        master: CubeTensor,
        m: CubeTensor,
        v: CubeTensor,
        weights: CubeTensor,
        gradient: CubeTensor,
        numbers: CubeTensor,
        factors: Factors,
    ) -> (CubeTensor, CubeTensor, CubeTensor, CubeTensor) {
        launch_step([&master, &m, &v], Some(&weights), gradient, numbers, factors);
        (master, m, v, weights)
    }

    fn adamw_rounded(
        master: CubeTensor,
        m: CubeTensor,
        v: CubeTensor,
        gradient: CubeTensor,
        numbers: CubeTensor,
        (factors, rounding): (Factors, Rounding),
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        let _call = record_update(&master, &gradient, None);
        let (gradient, numbers) = (into_contiguous(gradient), into_contiguous(numbers));
        let dtypes = [dtype_to_storage_type(master.dtype), dtype_to_storage_type(gradient.dtype)];
        let vectors = master.meta.shape()[0] / OCTET;
        let [seed_low, seed_high] = rounding.key();

        // SAFETY: all flat tensors have as many whole vectors; threads beyond them do nothing.
        #[expect(unsafe_code, reason = "launching without bounds checks")]
        unsafe {
            step_rounded::launch_unchecked(
                &master.client,
                CubeCount::Static(vectors.div_ceil(UNITS as usize) as u32, 1, 1),
                CubeDim::new_1d(UNITS),
                OCTET,
                StateLaunch::new(
                    master.clone().into_buffer_arg(),
                    m.clone().into_buffer_arg(),
                    v.clone().into_buffer_arg(),
                ),
                gradient.into_buffer_arg(),
                numbers.into_buffer_arg(),
                factors_argument(factors, vectors, OCTET),
                RandomLaunch::new(rounding.first_octet(), seed_low, seed_high),
                dtypes,
            );
        }
        (master, m, v)
    }
}

/// Returns a view of a contiguous flat tensor.
pub(crate) fn part_of(flat: &CubeTensor, offset: usize, shape: Vec<usize>) -> CubeTensor {
    let (size, len) = (flat.dtype.size(), shape.iter().product::<usize>());
    let behind = flat.meta.shape()[0] - offset - len;
    let handle = flat.handle.clone().offset_start((offset * size) as u64).offset_end((behind * size) as u64);
    CubeTensor::new_contiguous(flat.client.clone(), flat.device.clone(), shape.into(), handle, flat.dtype)
}

/// Overwrites the buffers of `state` and `weights` even if clones of them exist, as
/// [`adamw_step`](crate::optim::adamw_step) documents.
pub(crate) fn launch_step(
    state: [&CubeTensor; 3],
    weights: Option<&CubeTensor>,
    gradient: CubeTensor,
    numbers: CubeTensor,
    factors: Factors,
) {
    let [master, m, v] = state;
    let _call = record_update(master, &gradient, weights);
    let (gradient, numbers) = (into_contiguous(gradient), into_contiguous(numbers));
    let n = master.meta.shape()[0];
    assert!(n.is_multiple_of(WIDTH), "flat tensors are made of whole vectors");
    // Without weights of their own the argument is passed but not touched.
    let written = weights.unwrap_or(master);
    let dtypes = [dtype_to_storage_type(written.dtype), dtype_to_storage_type(gradient.dtype)];
    let vectors = n / WIDTH;

    // SAFETY: all flat tensors have `n` elements; threads beyond them do nothing.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        step::launch_unchecked(
            &master.client,
            CubeCount::Static(vectors.div_ceil(UNITS as usize) as u32, 1, 1),
            CubeDim::new_1d(UNITS),
            WIDTH,
            StateLaunch::new(
                master.clone().into_buffer_arg(),
                m.clone().into_buffer_arg(),
                v.clone().into_buffer_arg(),
            ),
            written.clone().into_buffer_arg(),
            gradient.into_buffer_arg(),
            numbers.into_buffer_arg(),
            factors_argument(factors, vectors, WIDTH),
            weights.is_some(),
            dtypes,
        );
    }
}

/// Returns the factors of an update of `vectors` vectors of `width` numbers.
fn factors_argument(factors: Factors, vectors: usize, width: usize) -> FactorsLaunch {
    let Factors { beta1, beta2, rest1, rest2, eps, n_decayed } = factors;
    FactorsLaunch::new(vectors as u32, n_decayed.div_ceil(width) as u32, beta1, beta2, rest1, rest2, eps)
}
