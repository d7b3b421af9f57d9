//! ReLU of a number in a register.

use cubecl::prelude::*;

/// Returns the positive part of `x`.
#[cube]
pub(crate) fn positive(x: f32) -> f32 {
    select(x > 0.0f32, x, 0.0f32)
}
