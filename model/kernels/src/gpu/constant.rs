//! Numbers that kernels are compiled with.

/// A number that a kernel is compiled with: its bits, since such values are compared and hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Constant(u32);

impl Constant {
    pub(crate) fn new(value: f32) -> Self {
        Self(value.to_bits())
    }

    pub(crate) fn value(self) -> f32 {
        f32::from_bits(self.0)
    }
}
