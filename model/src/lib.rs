//! Transformers for Burn, built from the fused operators of `kiln-kernels`.

mod config;

pub use config::{Activation, InitScheme, NormPlacement, Positions, TieEmbeddings, TransformerConfig};
