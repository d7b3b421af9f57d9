//! The vectors that threads load and store.

use cubecl::prelude::*;

pub(super) type Pair<E> = Vector<E, Const<2>>;
pub(super) type Quad<E> = Vector<E, Const<4>>;
/// 16 bytes of 16-bit numbers.
pub(super) type Oct<E> = Vector<E, Const<8>>;
