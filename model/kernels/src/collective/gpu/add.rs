//! Adds up the ranks' gradients of one rank's slice.

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use crate::collective::slice::{Run, SliceLayout};
use crate::gpu::reduce::{cube_sum, sum_of};
use crate::optim::{ALIGNMENT, CHUNK, UNITS};

/// Where a launch reads. Positions and lengths count vectors.
#[derive(CubeType, CubeLaunch)]
struct Place {
    /// The number of this rank, and where its slice begins in its own gradients.
    rank: u32,
    own: u32,
    /// Length of a slice: of the sum, and of each other rank's slot in what was received.
    len: u32,
    first_chunk: u32,
}

/// Writes the sum over all ranks, in their order, and the sum of squares of each chunk: one chunk per block. Threads and vectors
/// take the elements of a chunk in the order of the kernel that accumulates on one rank, so the sums of squares have the same bits.
#[cube(launch_unchecked)]
fn add_up<G: Float, N: Size>(
    own: &[Vector<G, N>],
    received: &[Vector<G, N>],
    table: &[i32],
    sum: &mut [Vector<f32, N>],
    squares: &mut [f32],
    place: Place,
    #[comptime] ranks: u32,
    #[define(G)] _dtype: ElemType,
) {
    let width = N::value().comptime();
    let turns = comptime![(CHUNK / width) as u32 / UNITS];
    let alignment = comptime![(ALIGNMENT / width) as u32];
    let chunk = place.first_chunk + CUBE_POS as u32;
    let start = u32::cast_from(table[(2 * chunk) as usize]) * alignment;
    let end = u32::cast_from(table[(2 * chunk + 1) as usize]) * alignment;

    let mut square = 0.0f32;
    #[unroll]
    for turn in 0..turns {
        let at = start + turn * UNITS + UNIT_POS;
        if at < end {
            let mut value = Vector::<f32, N>::zeroed();
            #[unroll]
            for rank in 0..ranks {
                let mut term = Vector::<G, N>::zeroed();
                if place.rank == rank {
                    term = own[(place.own + at) as usize];
                }
                if place.rank != rank {
                    let behind_own = comptime![if rank > 0 { rank - 1 } else { 0 }];
                    let slot = select(place.rank < rank, behind_own, rank);
                    term = received[(place.len * slot + at) as usize];
                }
                if comptime![rank == 0] {
                    value = Vector::cast_from(term);
                } else {
                    value += Vector::<f32, N>::cast_from(term);
                }
            }
            sum[at as usize] = value;
            square += sum_of::<N>(value * value);
        }
    }

    let total = cube_sum(square, UNITS);
    if UNIT_POS == 0 {
        squares[chunk as usize] = total;
    }
}

/// The tensors of an addition.
pub(super) struct Terms<'a> {
    /// This rank's gradients of the whole model.
    pub(super) own: &'a CubeTensor,
    /// A slot for each other rank's gradients of the slice, in the order of the ranks.
    pub(super) received: &'a CubeTensor,
    pub(super) table: &'a CubeTensor,
    pub(super) sum: &'a CubeTensor,
    pub(super) squares: &'a CubeTensor,
}

/// Adds up the chunks of `run`.
pub(super) fn launch(terms: &Terms<'_>, layout: &SliceLayout, Run { chunks, width }: Run) {
    let Terms { own, received, table, sum, squares } = *terms;
    let rank = layout.rank();
    let vectors = |elements: usize| (elements / width) as u32;
    let place =
        PlaceLaunch::new(rank as u32, vectors(layout.bounds()[rank]), vectors(layout.len()), chunks.start as u32);

    // SAFETY: the chunks lie in the slice, whose length `sum` and each slot have; each has a slot in `squares` and two numbers in the
    // table.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        add_up::launch_unchecked(
            &sum.client,
            CubeCount::Static(chunks.len() as u32, 1, 1),
            CubeDim::new_1d(UNITS),
            width,
            own.clone().into_buffer_arg(),
            received.clone().into_buffer_arg(),
            table.clone().into_buffer_arg(),
            sum.clone().into_buffer_arg(),
            squares.clone().into_buffer_arg(),
            place,
            layout.bounds().len() as u32 - 1,
            dtype_to_storage_type(own.dtype),
        );
    }
}

#[cfg(test)]
pub(in crate::collective) mod tests {
    use std::sync::OnceLock;

    use burn::tensor::DType;

    use super::*;
    use crate::gpu::offline::{Compiled, buffer, settings};

    /// The kernels that `ptx.lock` records.
    pub(crate) fn offline_kernels() -> &'static [Compiled] {
        static KERNELS: OnceLock<Vec<Compiled>> = OnceLock::new();
        KERNELS.get_or_init(|| {
            let b = buffer;
            let compile = |(dtype, width)| {
                let (launch, properties, target) = settings(UNITS);
                let place = PlaceCompilationArg { rank: (), own: (), len: (), first_chunk: () };
                #[rustfmt::skip]
                let kernel = add_up::AddUp::new(
                    launch, properties, target, b(), b(), b(), b(), b(), place, width, 2, dtype_to_storage_type(dtype),
                );
                Compiled::new(format!("collective/add-up/{dtype:?}").to_lowercase(), kernel)
            };
            [(DType::BF16, 8), (DType::F32, 4)].map(compile).into()
        })
    }

    #[test]
    fn kernels_compile_without_a_device() {
        for kernel in offline_kernels() {
            assert!(kernel.ptx.is_some(), "{}", kernel.label);
        }
    }
}
