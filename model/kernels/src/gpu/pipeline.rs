//! Pipelines: stages of shared memory that asynchronous copies fill while the block works on the stages filled before.
//!
//! Each stage has a barrier that says it is loaded. Where different warps load and consume, a second one says it is free:
//!
//! ```text
//! loading warp                                   consuming warps
//! wait for free[s]                               wait for loaded[s]
//! expect the bytes at loaded[s]     -- copy -->  work on stage s
//! start the copies into stage s    <-- arrive -- all arrive at free[s]
//! ```
//!
//! [`pipeline`] makes both kinds of barriers. Where the warps that consume also synchronize the block before a stage is filled
//! again, [`loaded_barriers`] suffice.
//!
//! A barrier passes through phases, and a wait names the parity of the phase that it waits for. There are two ways to know it:
//! - Loops that are unrolled over the stages keep a bit per stage, see [`Phases`] and [`wait_next`].
//! - Loops over a run-time turn compute stage and parity from the turn, see [`await_turn`].
//!
//! The thread that starts copies expects as many bytes at the barrier as it copies. With a wrong number the kernel waits
//! forever.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::barrier::Barrier;
use cubecl::prelude::*;

use super::hardware::is_hopper;

/// Bytes of a vector, and the alignment of bulk copies.
pub(crate) const VECTOR_BYTES: usize = 16;

/// Whether bulk copies can move rows of `tensor` in vectors of `width` elements.
pub(crate) fn can_copy(tensor: &CubeTensor, width: usize) -> bool {
    is_hopper(&tensor.client) && width * tensor.dtype.size() == VECTOR_BYTES
}

/// The barriers of a pipeline whose stages one group of warps fills and another empties. A `Shared<[Barrier]>` cannot be
/// lowered, hence sequences, which loops unroll.
#[derive(CubeType)]
pub(crate) struct Pipeline {
    /// Per stage: its contents are there.
    pub(crate) loaded: Sequence<Shared<Barrier>>,
    /// Per stage: it has been consumed and may be filled again.
    pub(crate) free: Sequence<Shared<Barrier>>,
}

/// Returns a pipeline whose stages are loaded after `producers` arrivals and free after `consumers`. Thread 0 initializes the
/// barriers; the caller fences and synchronizes the block before anyone uses them.
#[cube]
pub(crate) fn pipeline(#[comptime] stages: usize, #[comptime] producers: u32, #[comptime] consumers: u32) -> Pipeline {
    let mut loaded = Sequence::<Shared<Barrier>>::new();
    let mut free = Sequence::<Shared<Barrier>>::new();
    #[unroll]
    for _ in 0..stages {
        loaded.push(Barrier::shared_uninit());
        free.push(Barrier::shared_uninit());
    }
    if UNIT_POS == 0 {
        #[unroll]
        for stage in 0..stages {
            loaded.index(stage).init_manual(producers.runtime());
            free.index(stage).init_manual(consumers.runtime());
        }
    }
    Pipeline { loaded, free }
}

/// The parity of the phase that is next at the barrier of each stage, one bit per stage.
#[derive(CubeType)]
pub(crate) struct Phases {
    bits: u32,
}

/// Returns phases with the parity that every stage waits for first: 0 for the phase that the first arrivals complete, 1 to pass a
/// fresh barrier, which counts as having completed a phase of parity 1.
#[cube]
pub(crate) fn phases(#[comptime] first: u32) -> Phases {
    Phases { bits: comptime![if first == 0 { 0u32 } else { u32::MAX }].runtime() }
}

/// Waits for the phase that is next at `barrier`, which belongs to `stage`.
#[cube]
pub(crate) fn wait_next(barrier: &Barrier, phases: &mut Phases, #[comptime] stage: usize) {
    barrier.wait_parity(phases.bits >> comptime![stage as u32] & 1);
    phases.bits ^= comptime![1u32 << stage];
}

/// Returns a barrier per stage that says the stage is loaded, initialized by thread 0 for a single loading thread. The caller
/// fences and synchronizes the block.
#[cube]
pub(crate) fn loaded_barriers(#[comptime] stages: usize) -> Sequence<Shared<Barrier>> {
    let mut loaded = Sequence::<Shared<Barrier>>::new();
    #[unroll]
    for _ in 0..stages {
        loaded.push(Barrier::shared_uninit());
    }
    if comptime![stages > 0] {
        if UNIT_POS == 0 {
            #[unroll]
            for stage in 0..stages {
                loaded.index(stage).init_manual(1u32);
            }
        }
    }
    loaded
}

/// [`loaded_barriers`], fenced and synchronized: copies may start as soon as this returns.
#[cube]
pub(crate) fn barriers(#[comptime] stages: usize) -> Sequence<Shared<Barrier>> {
    let loaded = loaded_barriers(stages);
    if comptime![stages > 0] {
        sync_async_proxy_shared();
        sync_cube();
    }
    loaded
}

/// Waits for the copies of turn `turn`, where turns take the stages in order, and returns its stage.
#[cube]
pub(crate) fn await_turn(loaded: &Sequence<Shared<Barrier>>, turn: u32, #[comptime] stages: usize) -> u32 {
    let stage = turn % comptime![stages as u32];
    #[unroll]
    for s in 0..stages {
        if stage == comptime![s as u32] {
            loaded.index(s).wait_parity(turn / comptime![stages as u32] % 2);
        }
    }
    stage
}

/// Arrives on behalf of this warp at the barrier of turn `turn`, where turns take the stages in order.
#[cube]
pub(crate) fn arrive_at_turn(barriers: &Sequence<Shared<Barrier>>, turn: u32, #[comptime] stages: usize) {
    if UNIT_POS_PLANE == 0 {
        #[unroll]
        for stage in 0..stages {
            if turn % comptime![stages as u32] == comptime![stage as u32] {
                barriers.index(stage).arrive();
            }
        }
    }
    sync_plane();
}
