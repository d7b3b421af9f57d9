//! One switch that makes every operator take its plain definition.

use std::sync::atomic::{AtomicBool, Ordering};

static PLAIN: AtomicBool = AtomicBool::new(false);

/// Makes every operator compute by its definition in plain Burn operations (`reference.rs` of its folder) instead of its
/// kernel, in the whole process, from the next call on: what a training run or a time is compared with. Gradients then are
/// those of the backend's own autodiff, products are the backend's, arithmetic between them is f32.
///
/// The random bits of dropout and masking are the same either way, and so is the copy that makes gradients flat: what is
/// compared drops the same elements. It is slow and keeps scores of size T x S.
pub fn set_plain_operators(plain: bool) {
    PLAIN.store(plain, Ordering::Relaxed);
}

/// Whether operators compute by their plain definitions, see [`set_plain_operators`].
pub fn plain_operators() -> bool {
    PLAIN.load(Ordering::Relaxed)
}
