//! What stands in for marks in builds without CUDA. None can be made.

use std::sync::Arc;

use burn::tensor::Device;

use super::Lap;

/// Marks that do not exist.
#[derive(Debug)]
pub(crate) enum Marks {}

impl Marks {
    pub(super) fn of(_device: &Device) -> Option<Self> {
        None
    }

    pub(super) fn take(marks: &Arc<Self>) -> Vec<Lap> {
        match **marks {}
    }
}
