//! The operators a Transformer trains with, as functions over Burn tensors.
//!
//! Each operator lives in a folder of its own: `mod.rs` is the public function (shapes, dtypes, errors, source of the
//! algorithm), `reference.rs` the same function in plain Burn operations (the CPU path and the test oracle), `kernel.rs`
//! the CubeCL kernel for CUDA and `autodiff.rs` its backward. Operators without a kernel run their reference everywhere.
//!
//! Activations are two-dimensional, `[rows, features]`, so that no operator has to guess which dimensions fold.
//!
//! Legend of shapes: B batch, T query (target) length, S key (source) length, H heads, K head dimension, D = H * K,
//! M rows, N columns, V vocabulary.

// The fusion types of a deep backend stack need more than the default depth to resolve.
#![recursion_limit = "256"]

mod activation;
mod adamw;
mod attention;
mod capture;
mod compilation;
mod cross_entropy;
mod deterministic;
mod dropout;
mod embedding;
#[cfg(feature = "cuda")]
mod gpu;
mod host;
mod linear;
mod linear_cross_entropy;
mod maybe;
mod norm;
mod plain;
mod random;
mod reduce;
mod rotary;
mod swiglu;
#[cfg(test)]
mod testing;

pub use activation::Activation;
pub use adamw::{
    ALIGNMENT, AdamWHyper, AdamWState, Coefficients, Counters, Flat, LossScaling, Part, Place, Progress, StepNumbers,
    StepPolicy, StepReport, adamw_step, gather, prepare, view,
};
pub use attention::{AttentionConfig, AttentionMask, Projected, attention, attention_is_fused};
pub use capture::{CaptureError, Captured, can_capture, capture, overwrite};
pub use compilation::{KernelCount, keep_kernels, kernel_count};
pub use cross_entropy::{CrossEntropy, CrossEntropyConfig, cross_entropy};
pub use deterministic::set_deterministic;
pub use dropout::{DropoutStream, dropout};
pub use embedding::{embed, embedding};
pub use linear::{
    linear, linear_activated, linear_residual, linear_transposed, linear_weight_gradient, linear_weight_gradient_onto,
};
pub use linear_cross_entropy::{Projection, linear_cross_entropy};
pub use norm::{Branch, Norm, add_norm, layer_norm, rms_norm};
pub use plain::{plain_operators, set_plain_operators};
pub use random::random_words;
pub use rotary::rotary;
pub use swiglu::swiglu;
