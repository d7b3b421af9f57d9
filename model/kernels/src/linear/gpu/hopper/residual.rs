//! The residual that an epilogue adds. After the store warp has stored a panel, it loads the next tile's residual
//! into that panel.

use cubecl::prelude::*;

use super::memory::Memory;
use crate::gpu::pipeline::Pipeline;
use crate::linear::gpu::shared::config::{GemmConfig, PANEL, PANEL_OCTS, WARPGROUPS};

/// Loads the residual of the panel group that begins at (`row0`, `col`) into group `group` of shared memory, which is empty. The
/// group counts as free, for results, once the residual is there.
#[cube]
pub(super) fn load_residual<E: Float>(
    memory: &mut Memory<E>,
    residual: &TensorMap<E, Tiled>,
    panels: &Pipeline,
    row0: u32,
    col: u32,
    #[comptime] group: usize,
    #[comptime] cfg: GemmConfig,
) {
    let free = panels.free.index(group);
    free.arrive_and_expect_tx(1, comptime![(cfg.group_octs() * 16) as u32]);
    #[unroll]
    for nth in 0..comptime![cfg.panels_per_group() * WARPGROUPS as usize] {
        let from = comptime![group * cfg.group_octs() + nth * PANEL_OCTS];
        let row = row0 + comptime![nth as u32 % WARPGROUPS * 64];
        let col = col + comptime![(nth as u32 / WARPGROUPS) * PANEL as u32];
        free.tma_load_2d(residual, &mut memory.panels[from..comptime![from + PANEL_OCTS]], row as i32, col as i32);
    }
}
