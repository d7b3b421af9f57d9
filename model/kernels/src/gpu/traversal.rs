//! The order in which a kernel walks over its input.

use cubecl::prelude::*;

/// Number `at` of `n`, counted from the last. Cubes start in the order of their numbers: a kernel that goes the other way reads first
/// what the one before wrote last, which L2 still has, and leaves there what the next one begins with.
#[cube]
pub(crate) fn from_last(at: u32, n: u32) -> u32 {
    n - 1 - at
}
