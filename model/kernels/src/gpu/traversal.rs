//! The order in which a kernel walks over its input.

use cubecl::prelude::*;

/// Returns number `at` of `n`, counted from the last.
///
/// Blocks start in the order of their numbers. A kernel that goes the other way first reads what the kernel before it wrote last
/// and L2 still holds, and leaves in L2 what the next kernel begins with.
#[cube]
pub(crate) fn from_last(at: u32, n: u32) -> u32 {
    n - 1 - at
}
