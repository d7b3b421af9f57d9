//! The rate of `mma.sync` by itself, the bound of every kernel for Ampere. Run it with `KILN_TIMES=mma`.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::backend::{DType, DispatchDevice};
use cubecl::prelude::*;

use super::hardware::multiprocessors;
use super::mma::{Pair, half_of, multiply, zeroed};
use crate::testing::timing_device;

/// Products of a warp that do not wait for each other.
const CHAINS: usize = 16;
const TURNS: u32 = 4096;

/// Multiplies fragments that never leave the registers.
#[cube(launch_unchecked)]
fn products<E: Float>(out: &mut [f32], turns: u32, #[define(E)] _dtype: ElemType) {
    let mut left = Array::<Pair<E>>::new(4usize);
    let mut right = Array::<Pair<E>>::new(4usize);
    #[unroll]
    for i in 0..4usize {
        left[i] = Pair::cast_from(UNIT_POS_PLANE * comptime![i as u32 + 1]);
        right[i] = Pair::cast_from(UNIT_POS_PLANE + comptime![i as u32]);
    }

    let mut acc = Sequence::<Array<Pair<f32>>>::new();
    #[unroll]
    for _ in 0..CHAINS {
        acc.push(zeroed());
    }
    for _ in 0..turns {
        #[unroll]
        for i in 0..CHAINS {
            multiply::<E, Const<2>>(acc.index_mut(i), &left, &half_of::<E, Const<2>>(&right, comptime![i % 2]));
        }
    }

    let mut sum = 0.0f32;
    #[unroll]
    for i in 0..CHAINS {
        sum += acc.index(i)[0].extract(0usize) + acc.index(i)[1].extract(1usize);
    }
    out[ABSOLUTE_POS] = sum;
}

#[test]
fn mma_peak() {
    let Some(device) = timing_device() else { return };
    let DispatchDevice::Cube(cube) = device.as_dispatch() else { return };
    let client = cube.client();
    let blocks = multiprocessors(&client);

    for warps in [4u32, 8, 16] {
        let out = client.empty((blocks * warps * 32 * 4) as usize);
        let run = || {
            // SAFETY: a thread writes the number of its own place.
            #[expect(unsafe_code, reason = "launching without bounds checks")]
            unsafe {
                products::launch_unchecked(
                    &client,
                    CubeCount::Static(blocks, 1, 1),
                    CubeDim::new_1d(warps * 32),
                    BufferArg::from_raw_parts(out.clone(), (blocks * warps * 32) as usize),
                    TURNS,
                    dtype_to_storage_type(DType::BF16),
                );
            }
        };

        let secs = crate::testing::seconds(&device, run);
        let flop = f64::from(blocks * warps * TURNS) * CHAINS as f64 * 4096.0;
        println!("mma.sync alone, {warps} warps: {:.0} TFLOP/s", flop / secs * 1e-12);
    }
}
