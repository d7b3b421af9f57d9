//! Multi-head attention (Vaswani et al. 2017, section 3.2): the projections around [`kiln_kernels::attention`], which
//! does the rest.

use burn::module::Module;
use burn::tensor::{Int, Tensor};
use kiln_kernels::{AttentionConfig, AttentionMask, Projected};

use crate::init::{Init, Role};
use crate::kv_cache::KeyValueBuffer;
use crate::linear::Linear;

/// A sequence looks at itself. Queries, keys and values come from one product.
#[derive(Module, Debug)]
pub struct SelfAttention {
    /// D to 3 D, columns `q | k | v`, heads side by side in each.
    pub qkv: Linear,
    /// D to D.
    pub output: Linear,
    n_heads: usize,
}

impl SelfAttention {
    pub(crate) fn init(init: &Init, n_layers: usize) -> Self {
        let d = init.config.d_model;
        Self {
            qkv: Linear::init(&init.at("qkv"), [d, 3 * d], Role::Projection { fan_out: 3 * d }),
            output: Linear::init(&init.at("output"), [d, d], Role::EndOfBranch { n_layers }),
            n_heads: init.config.n_heads,
        }
    }

    /// `lengths` are the keys of each row that are no padding; None looks at all. Causal positions look at no later
    /// one, which hides right padding from all real positions by itself.
    ///
    /// # Shapes
    /// - `x`: `[B * T, D]`; result the same
    /// - `lengths`: `[B]`
    pub fn forward(
        &self,
        x: Tensor<2>,
        lengths: Option<&Tensor<1, Int>>,
        batch_size: usize,
        causal: bool,
    ) -> Tensor<2> {
        let projected = Projected::SelfAttention { qkv: self.qkv.forward(x) };
        let config = AttentionConfig { batch_size, n_heads: self.n_heads, n_kv_heads: self.n_heads, causal };
        self.output.forward(kiln_kernels::attention(
            projected,
            &AttentionMask { key_lengths: lengths.cloned(), documents: None },
            None,
            &config,
        ))
    }

    /// The next position of each row looks at itself and at the positions kept in `buffer`, where its own key and value
    /// are added at `position`. `lengths` is `position + 1` for every row.
    ///
    /// # Shapes
    /// - `x`: `[B, D]`; result the same
    /// - `lengths`: `[B]`
    pub(crate) fn step(
        &self,
        x: Tensor<2>,
        buffer: &mut KeyValueBuffer,
        position: usize,
        lengths: &Tensor<1, Int>,
    ) -> Tensor<2> {
        let [batch_size, d] = x.dims();
        let qkv = self.qkv.forward(x);
        let query = qkv.clone().narrow(1, 0, d);
        buffer.write(qkv.narrow(1, d, 2 * d), position);
        let config = AttentionConfig { batch_size, n_heads: self.n_heads, n_kv_heads: self.n_heads, causal: false };
        let projected = Projected::Cross { query, key_value: buffer.rows() };
        self.output.forward(kiln_kernels::attention(
            projected,
            &AttentionMask::key_lengths(lengths.clone()),
            None,
            &config,
        ))
    }
}

/// A target looks at the encoded source.
#[derive(Module, Debug)]
pub struct CrossAttention {
    /// D to D, of the target.
    pub query: Linear,
    /// D to 2 D, of the source, columns `k | v`.
    pub key_value: Linear,
    /// D to D.
    pub output: Linear,
    n_heads: usize,
}

impl CrossAttention {
    pub(crate) fn init(init: &Init, n_layers: usize) -> Self {
        let d = init.config.d_model;
        Self {
            query: Linear::init(&init.at("query"), [d, d], Role::Projection { fan_out: 3 * d }),
            key_value: Linear::init(&init.at("key_value"), [d, 2 * d], Role::Projection { fan_out: 3 * d }),
            output: Linear::init(&init.at("output"), [d, d], Role::EndOfBranch { n_layers }),
            n_heads: init.config.n_heads,
        }
    }

    /// Keys and values of an encoded source, once for all target positions.
    ///
    /// # Shapes
    /// - `source`: `[B * S, D]`
    /// - result: `[B * S, 2 * D]`
    pub fn project(&self, source: Tensor<2>) -> Tensor<2> {
        self.key_value.forward(source)
    }

    /// # Shapes
    /// - `x`: `[B * T, D]`; result the same
    /// - `key_value`: `[B * S, 2 * D]`, of [`Self::project`]
    /// - `lengths`: `[B]`, source positions that are no padding
    pub fn forward(
        &self,
        x: Tensor<2>,
        key_value: Tensor<2>,
        lengths: &Tensor<1, Int>,
        batch_size: usize,
    ) -> Tensor<2> {
        let projected = Projected::Cross { query: self.query.forward(x), key_value };
        let config = AttentionConfig { batch_size, n_heads: self.n_heads, n_kv_heads: self.n_heads, causal: false };
        self.output.forward(kiln_kernels::attention(
            projected,
            &AttentionMask::key_lengths(lengths.clone()),
            None,
            &config,
        ))
    }
}
