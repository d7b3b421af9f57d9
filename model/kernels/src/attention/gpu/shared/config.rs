//! What the attention kernels are compiled for.

use cubecl::wgmma::{Major, Swizzle, WgmmaTileLayout};

use crate::gpu::constant::Constant;
use crate::gpu::mma_f32::Arithmetic;

/// Rows of a tile.
pub(crate) const TILE: usize = 64;

/// Threads of a warpgroup. A block is one or two, see [`FlashConfig::groups`] and [`FlashConfig::forward_groups`].
pub(crate) const UNITS: u32 = 128;

/// What a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FlashConfig {
    pub(crate) n_heads: usize,
    pub(crate) n_kv_heads: usize,
    /// A multiple of 8 up to 256; of 16 for the kernels for Hopper.
    pub(crate) head_dim: usize,
    /// Queries, keys and values are columns of one matrix.
    pub(crate) packed: bool,
    pub(crate) causal: bool,
    /// Key lengths are given.
    pub(crate) lengths: bool,
    /// Documents are given.
    pub(crate) documents: bool,
    /// Keys that a query sees at most.
    pub(crate) window: Option<u32>,
    /// Factor of the scores, unless it is `1 / sqrt(head_dim)`.
    pub(crate) scale: Option<Constant>,
    /// Numbers of distances are added to the scores, which have no bound.
    pub(crate) relative: bool,
    /// Bound of the scores.
    pub(crate) softcap: Option<Constant>,
    /// Probabilities are dropped, and a random state is given.
    pub(crate) dropout: bool,
    /// How products are computed; of 16 bits for the kernels for Hopper.
    pub(crate) arithmetic: Arithmetic,
}

impl FlashConfig {
    /// Returns the keys that a query sees at most; 0 without a window.
    pub(crate) fn window_or_0(&self) -> u32 {
        self.window.unwrap_or(0)
    }

    /// Returns the blocks of most kernels on a multiprocessor at a time: as many as leave registers for products in
    /// flight.
    pub(crate) fn cubes(&self) -> usize {
        match self.head_dim {
            ..=64 => 4,
            ..=96 => 3,
            ..=128 => 2,
            _ => 1,
        }
    }

    /// Returns the warpgroups of a block on Hopper. Two share what is streamed past a wide head's tiles: a thread lacks the
    /// registers, and a multiprocessor the memory, for two blocks.
    pub(crate) fn groups(&self) -> usize {
        if self.head_dim > 128 { 2 } else { 1 }
    }

    /// Returns [`Self::groups`] of forward. Two also share the tiles of heads of 80 and 96: TMA copies the three lines of each
    /// row more slowly than one warpgroup multiplies them.
    pub(crate) fn forward_groups(&self) -> usize {
        if self.spans() == 3 { 2 } else { self.groups() }
    }

    /// Returns [`Self::cubes`] of forward on Hopper.
    pub(crate) fn forward_cubes(&self) -> usize {
        if self.forward_groups() == 1 { self.cubes() } else { 1 }
    }

    /// Returns [`Self::cubes`] of the gradient of the queries.
    pub(crate) fn query_gradient_cubes(&self) -> usize {
        if self.documents && self.dropout { self.cubes().min(2) } else { self.cubes() }
    }

    /// Returns whether three blocks of the gradient of keys and values fit on a multiprocessor. They then lack the
    /// registers to keep the products of one tile in flight while the next tile's start. Otherwise there are two
    /// blocks.
    pub(crate) fn three_key_value_cubes(&self) -> bool {
        self.head_dim <= 64 && !self.dropout
    }

    /// Returns the columns of the matrix with the queries.
    pub(crate) fn query_columns(&self) -> usize {
        if self.packed { (self.n_heads + 2 * self.n_kv_heads) * self.head_dim } else { self.n_heads * self.head_dim }
    }

    /// Returns the columns of the matrix with keys and values.
    pub(crate) fn key_value_columns(&self) -> usize {
        if self.packed { self.query_columns() } else { 2 * self.n_kv_heads * self.head_dim }
    }

    /// Returns the factor of the scores.
    pub(crate) fn scale(&self) -> f32 {
        self.scale.map_or_else(|| (self.head_dim as f32).powf(-0.5), Constant::value)
    }

    /// Returns the bound of the products of queries and keys, which the factor of the scores multiplies with them.
    pub(crate) fn softcap_of_products(&self) -> f32 {
        self.softcap.map_or(f32::INFINITY, |cap| cap.value() / self.scale())
    }

    pub(crate) fn first_key_column(&self) -> u32 {
        if self.packed { (self.n_heads * self.head_dim) as u32 } else { 0 }
    }

    pub(crate) fn first_value_column(&self) -> u32 {
        self.first_key_column() + (self.n_kv_heads * self.head_dim) as u32
    }

    /// Returns the layout of a tile whose columns a product sums over.
    pub(crate) fn rows_layout(&self) -> WgmmaTileLayout {
        WgmmaTileLayout { major: Major::K, swizzle: swizzle(self.tile_columns()), rows: TILE, k: self.tile_columns() }
    }

    /// Returns the layout of the same tile if a product sums over its rows.
    pub(crate) fn columns_layout(&self) -> WgmmaTileLayout {
        WgmmaTileLayout { major: Major::MN, swizzle: swizzle(self.tile_columns()), rows: self.head_dim, k: TILE }
    }

    /// Returns the columns of a tile: a head's, and enough of its neighbours for lines of 64 bytes. Shorter lines take TMA longer than
    /// columns that no product reads.
    fn tile_columns(&self) -> usize {
        self.head_dim.next_multiple_of(32)
    }

    /// Returns the boxes of a tile.
    pub(crate) fn spans(&self) -> usize {
        self.tile_columns() / self.span()
    }

    /// Returns the columns of a TMA box, one line of the swizzle: a tile is one or more boxes, side by side.
    pub(crate) fn span(&self) -> usize {
        self.rows_layout().panel_elems(2)
    }

    /// Returns whether the columns of a head are one line of 128 bytes. The memory that two lines take for their results would leave
    /// room for one block only of the gradient of keys and values.
    pub(crate) fn is_a_line(&self) -> bool {
        self.head_dim == 64
    }

    /// Returns whether the columns of a head are one or two lines of 128 bytes.
    pub(crate) fn has_lines(&self) -> bool {
        matches!(self.head_dim, 64 | 128)
    }

    /// Returns whether each batch row's `t` queries and `s` keys fit into one tile, each head has keys of its own, and a thread has
    /// registers for three gradients one after another.
    pub(crate) fn one_tile(&self, t: usize, s: usize) -> bool {
        self.groups() == 1 && t <= TILE && s <= TILE && self.n_heads == self.n_kv_heads
    }

    /// Returns the elements of a tile.
    pub(crate) fn tile_len(&self) -> usize {
        TILE * self.tile_columns()
    }
}

/// Returns the widest swizzle whose lines fill the columns of a tile.
fn swizzle(columns: usize) -> Swizzle {
    if columns.is_multiple_of(64) { Swizzle::B128 } else { Swizzle::B64 }
}
