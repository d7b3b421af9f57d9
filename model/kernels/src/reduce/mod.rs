//! Sums over the rows of a matrix, in f32 and in a fixed order.

#[cfg(feature = "cuda")]
pub(crate) mod columns;
pub(crate) mod cpu;

#[cfg(all(test, feature = "cuda"))]
pub(crate) use columns::tests::offline_kernels;
