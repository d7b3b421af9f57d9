//! Rows on their way through shared memory: while a cube works on those of one turn, bulk copies bring those of the next. A turn has
//! a slot of shared memory, which it gives up when all units have read it; turns take the slots in order.
//!
//! Unit 0 alone asks for copies. It expects as many bytes at a slot's barrier as it has copied: of a wrong number the
//! kernel waits forever.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::barrier::Barrier;
use cubecl::prelude::*;

use crate::gpu::hardware::is_hopper;

/// Bytes of a vector, and the alignment of what is copied.
pub(crate) const VECTOR_BYTES: usize = 16;

/// Whether bulk copies bring rows of `tensor`, in vectors of `width` numbers.
pub(crate) fn can_copy(tensor: &CubeTensor, width: usize) -> bool {
    is_hopper(&tensor.client) && width * tensor.dtype.size() == VECTOR_BYTES
}

/// Of each slot: what was asked for is there. Copies may be asked for when this returns.
#[cube]
pub(crate) fn barriers(#[comptime] slots: usize) -> Sequence<Shared<Barrier>> {
    let mut full = Sequence::<Shared<Barrier>>::new();
    #[unroll]
    for _ in 0..slots {
        full.push(Barrier::shared_uninit());
    }
    if comptime![slots > 0] {
        if UNIT_POS == 0 {
            #[unroll]
            for slot in 0..slots {
                full.index(slot).init_manual(1u32);
            }
        }
        sync_async_proxy_shared();
        sync_cube();
    }
    full
}

/// Waits for what was asked for turn `turn`, and returns its slot.
#[cube]
pub(crate) fn await_turn(full: &Sequence<Shared<Barrier>>, turn: u32, #[comptime] slots: usize) -> u32 {
    let slot = turn % comptime![slots as u32];
    #[unroll]
    for s in 0..slots {
        if slot == comptime![s as u32] {
            full.index(s).wait_parity(turn / comptime![slots as u32] % 2);
        }
    }
    slot
}
