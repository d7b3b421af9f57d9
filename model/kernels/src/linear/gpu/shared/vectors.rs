//! The vectors that threads load and store.

use cubecl::prelude::*;

pub(crate) type Pair<E> = Vector<E, Const<2>>;
pub(crate) type Quad<E> = Vector<E, Const<4>>;
/// 16 bytes of 16-bit numbers.
pub(crate) type Oct<E> = Vector<E, Const<8>>;
