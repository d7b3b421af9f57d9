//! What the loop does about failures: losses and gradients that are not finite, and errors of the device.

mod device_failure;
mod non_finite;

pub(super) use device_failure::{allocation, explained, in_step};
pub(super) use non_finite::{StepStart, Watch};
