//! Fused operators for training Transformers, as functions over Burn tensors.
//!
//! The root holds the operators and their arguments. Eight modules hold the rest: [`optim`] (AdamW over all parameters
//! at once), [`collective`] (tensors of several GPUs), [`int8`] (weights for searches on the CPU), [`capture`] (CUDA graphs), [`compilation`] (the cache of
//! compiled kernels), [`calls`] (a record of what was called), [`laps`] (times on the device's clock) and [`ranges`] (names for NVIDIA's
//! tools). [`Settings`] chooses, per thread, between kernels and references.
//!
//! Each operator has a folder. `mod.rs` is the public function with its shapes, dtypes, errors and the source of the
//! algorithm. `reference.rs` is the same function in plain Burn operations, the oracle of the tests. `ops.rs`
//! declares the backend extension. `autodiff.rs` has its backward pass. `cpu.rs` has the CPU loops; short ones are in
//! `ops.rs`. `kernel.rs` or `gpu/` has the CubeCL kernels and their launches. Operators without a kernel run their
//! reference everywhere.
//!
//! By layer, lowest first; a module imports only from layers below it:
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `fp8` numbers of eight bits · `kernel_set` kernels for GPUs of several generations · `device_queue` the queue of a GPU · `ranges` |
//! | 1 | `calls` · `laps` · `gpu` shared by kernels · `host` shared by CPU loops · `settings` · `compilation` · `maybe` · `retained` |
//! | 2 | `readback` reading without waiting · `capture` · `dropout` · `rotary` · `labelled` rows with labels · `row` reductions of rows · `likeliest` columns of rows · `swiglu` · `int8` weights for searches on the CPU |
//! | 3 | `step_attention` attention of decoding · `activation` · `random` · `optim` |
//! | 4 | `reduce` sums of columns · `collective` |
//! | 5 | `linear` |
//! | 6 | `attention` · `norm` · `embedding` · `custom_gradient` |
//! | 7 | `cross_entropy` · `head_norm` |
//! | 8 | `linear_cross_entropy` |
//!
//! Activations are two-dimensional, `[rows, features]`, so that no operator has to guess which dimensions to flatten.
//!
//! Legend of shapes: B batch, T query (target) length, S key (source) length, H heads, G heads of keys and values,
//! K head dimension, D = H * K, M rows, N columns, F feed-forward width, V vocabulary.
//!
//! CubeCL's names and CUDA's: a *cube* is a block, a *plane* is a warp, a *unit* is a thread. Comments use CUDA's
//! words, code uses CubeCL's.
// The fusion types of a deep backend stack need more than the default depth to resolve.
#![recursion_limit = "256"]

mod activation;
mod attention;
pub mod calls;
pub mod capture;
pub mod collective;
pub mod compilation;
mod cross_entropy;
mod custom_gradient;
#[cfg(feature = "cuda")]
mod device_queue;
mod dropout;
mod embedding;
mod fp8;
#[cfg(feature = "cuda")]
mod gpu;
mod head_norm;
mod host;
pub mod int8;
mod kernel_set;
mod labelled;
pub mod laps;
mod likeliest;
mod linear;
mod linear_cross_entropy;
mod maybe;
mod norm;
pub mod optim;
#[cfg(test)]
mod other_backends;
mod random;
pub mod ranges;
mod readback;
mod reduce;
mod retained;
mod rotary;
mod row;
mod settings;
mod step_attention;
mod swiglu;
#[cfg(test)]
mod testing;

pub use activation::Activation;
pub use attention::{
    AttentionConfig, AttentionMask, Projected, attention, attention_is_fused, relative_attention_is_fused,
};
pub use cross_entropy::{CrossEntropy, CrossEntropyConfig, cross_entropy};
pub use custom_gradient::{CustomGradients, LeafGradient, gradients_behind, has_custom_gradients, with_gradient};
pub use dropout::{DropoutStream, dropout};
pub use embedding::{embed, embedding};
pub use head_norm::norm_heads;
pub use kernel_set::{F32Products, KernelChoice, KernelSet};
pub use labelled::labelled_rows;
pub use likeliest::{ColumnSet, likeliest};
pub use linear::{
    batched_product, batched_product_transposed, linear, linear_activated, linear_residual, linear_transposed,
    linear_weight_gradient, linear_weight_gradient_accumulate, product_kernels,
};
pub use linear_cross_entropy::{Projection, linear_cross_entropy, row_losses};
pub use norm::{Branch, NormWeights, add_norm, add_norm_again, layer_norm, rms_norm};
pub use random::random_words;
pub use readback::Readback;
pub use retained::Retained;
pub use rotary::{RotaryScaling, RotaryWavelengths, rotary};
pub use row::{row_argmax, row_sums};
pub use settings::{Settings, SettingsGuard, has_kernels, is_cpu, is_cuda};
pub use step_attention::{StepAttentionConfig, append_and_attend, step_attention, step_attention_is_fused};
pub use swiglu::{geglu, swiglu};

/// The example of the README, compiled and run by the doctests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
