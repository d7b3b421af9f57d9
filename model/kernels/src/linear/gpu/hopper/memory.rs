//! The shared memory of a block, and the pipelines over it.
//!
//! ```text
//! | A: stages x 16 KiB | B: stages x 16 or 32 KiB | panels: 2 warpgroups x 2 or 4 x 8 KiB | activated: 0 or 16 KiB |
//! ```

use cubecl::prelude::*;

use crate::gpu::pipeline::Pipeline;
use crate::linear::gpu::shared::config::{GemmConfig, PANEL_OCTS, TILE_M, WARPGROUPS};
use crate::linear::gpu::shared::vectors::Oct;

/// The buffers in shared memory. Swizzled ones begin at multiples of 1024 bytes.
#[derive(CubeType)]
pub(crate) struct Memory<E: Float> {
    /// The stages of `a` and of `b`.
    pub(crate) a: Shared<[E]>,
    pub(crate) b: Shared<[E]>,
    /// Results on their way to the output; a panel per warpgroup lie next to each other.
    pub(crate) panels: Shared<[Oct<E>]>,
    /// Results of the epilogue warps, where `panels` holds the arguments that are stored as well.
    pub(crate) activated: Shared<[Oct<E>]>,
}

/// Allocates the buffers. One that this kernel does not use has one element.
#[cube]
pub(crate) fn allocate<E: Float>(#[comptime] cfg: GemmConfig) -> Memory<E> {
    let a = Shared::<[E]>::new_aligned_slice(comptime![cfg.stages * TILE_M * cfg.tile_k()], 1024usize);
    let b = Shared::<[E]>::new_aligned_slice(comptime![cfg.stages * cfg.tile_n * cfg.tile_k()], 1024usize);
    let panels_len = comptime![if cfg.stores_registers() { 1 } else { WARPGROUPS as usize * cfg.panels * PANEL_OCTS }];
    let panels_align = comptime![if cfg.stores_registers() { 16usize } else { 1024usize }];
    let panels = Shared::<[Oct<E>]>::new_aligned_slice(panels_len, panels_align);
    let activated_len =
        comptime![if cfg.keeps_input() && !cfg.stores_registers() { WARPGROUPS as usize * PANEL_OCTS } else { 1 }];
    let activated_align = comptime![if cfg.keeps_input() && !cfg.stores_registers() { 1024usize } else { 16usize }];
    let activated = Shared::<[Oct<E>]>::new_aligned_slice(activated_len, activated_align);
    Memory::<E> { a, b, panels, activated }
}

/// What the roles wait for.
#[derive(CubeType)]
pub(crate) struct Pipelines {
    /// K tiles of the operands: from the load warp to the multiply warps.
    pub(crate) stages: Pipeline,
    /// Groups of panels: from the multiply warps to the store warp or the epilogue warps.
    pub(crate) panels: Pipeline,
}
