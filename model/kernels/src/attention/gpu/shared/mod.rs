//! What the kernels of both architectures have in common: arguments, positions, masks, and the work on scores in registers.
//!
//! [`position`] says where tiles and threads are, and [`rows`] stores rows. [`bound`], [`relative`], [`mask`], [`softmax`] and
//! [`dropout`] work on the scores of a product, whose layout in registers is the same for `wgmma` and `mma.sync`. [`call`] holds the
//! tensors of a call, [`config`] what its kernels are compiled for, and [`program`] what programs take.

pub(super) mod arguments;
pub(super) mod bound;
pub(super) mod call;
pub(super) mod config;
pub(super) mod dropout;
pub(super) mod key_tile;
pub(super) mod mask;
pub(super) mod position;
pub(super) mod program;
pub(super) mod relative;
pub(super) mod rows;
pub(super) mod softmax;

use cubecl::prelude::*;

pub(crate) type Pair<E> = Vector<E, Const<2>>;
/// What a thread stores at once: 16 bytes.
pub(crate) type Oct<E> = Vector<E, Const<8>>;
