//! Multi-head attention (Vaswani et al. 2017, section 3.2): the projections before and after [`kiln_kernels::attention`].

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};
use kiln_kernels::{
    AttentionConfig, AttentionMask, Branch, DropoutStream, Projected, RotaryWavelengths, StepAttentionConfig,
    append_and_attend, step_attention, step_attention_is_fused,
};

use crate::config::{Positions, Product, TransformerConfig};
use crate::init::{Init, Role};
use crate::kv_cache::KeyValueBuffer;
use crate::linear::Linear;
use crate::norm::Norm;
use crate::places::Step;
use crate::rows::Rows;

/// How features divide into heads, and the settings of the attention operator.
#[derive(Debug, Clone)]
struct Heads {
    /// H.
    n: usize,
    /// G.
    n_kv: usize,
    /// K.
    dim: usize,
    /// If positions are rotary.
    wavelengths: Option<RotaryWavelengths>,
    /// Positions that a position sees in self-attention.
    window: Option<usize>,
    /// Factor of the scores, unless it is `1 / sqrt(K)`.
    scale: Option<f64>,
    /// Bound of the scores.
    softcap: Option<f64>,
    /// Fraction of the probabilities dropped in training.
    dropout: f64,
}

impl Heads {
    /// The heads of `layer`, counted from 0.
    fn of_layer(config: &TransformerConfig, layer: usize) -> Self {
        Self {
            n: config.n_heads,
            n_kv: config.kv_heads(),
            dim: config.head_dim(),
            wavelengths: (config.positions == Positions::Rotary).then(|| config.rotary_wavelengths(layer)),
            window: config.window_of(layer),
            scale: config.score_scale(layer),
            softcap: config.score_softcap(),
            dropout: config.attention_dropout,
        }
    }

    /// Columns of the queries, H * K.
    fn query_width(&self) -> usize {
        self.n * self.dim
    }

    /// Columns of keys and values together, 2 * G * K.
    fn key_value_width(&self) -> usize {
        2 * self.n_kv * self.dim
    }

    /// Whether [`step_attention`] serves these heads on `device`.
    fn take_single_steps(&self, device: &Device) -> bool {
        self.window.is_none() && self.softcap.is_none() && step_attention_is_fused(device, self.dim)
    }

    fn attend_step(
        &self,
        query: Tensor<2>,
        key_value: Tensor<3>,
        places: &Tensor<2, Int>,
        lengths: &Tensor<1, Int>,
    ) -> Tensor<2> {
        step_attention(query, key_value, places.clone(), lengths.clone(), &self.of_step(false))
    }

    /// The settings of [`step_attention`]. Texts become long and are few, so that several warps divide their positions; beams are many.
    fn of_step(&self, divided: bool) -> StepAttentionConfig {
        let Self { n: n_heads, n_kv: n_kv_heads, dim: head_dim, scale, .. } = *self;
        StepAttentionConfig { n_heads, n_kv_heads, head_dim, scale, divided }
    }

    fn attend(
        &self,
        projected: Projected,
        mask: &AttentionMask,
        batch_size: usize,
        causal: bool,
        stream: Option<&DropoutStream>,
    ) -> Tensor<2> {
        let config = AttentionConfig {
            batch_size,
            n_heads: self.n,
            n_kv_heads: self.n_kv,
            causal,
            window: self.window,
            scale: self.scale,
            softcap: self.softcap,
        };
        let dropout = stream.filter(|_| self.dropout > 0.0).map(|stream| (self.dropout, stream));
        kiln_kernels::attention(projected, mask, dropout, &config)
    }
}

/// Attention of a sequence to itself. One product computes queries, keys and values.
#[derive(Module, Debug)]
pub struct SelfAttention {
    /// D to (H + 2 G) K, columns `q | k | v`, heads next to each other in each.
    pub qkv: Linear,
    /// Norm of each head of the queries; models with `qk_norm`.
    pub query_norm: Option<Norm>,
    /// Norm of each head of the keys; models with `qk_norm`.
    pub key_norm: Option<Norm>,
    /// H K to D.
    pub output: Linear,
    #[module(skip)]
    heads: Heads,
}

impl SelfAttention {
    /// Initializes the attention of `layer`, counted from 0.
    pub(crate) fn init(init: &Init, layer: usize, n_layers: usize) -> Self {
        let (heads, d) = (Heads::of_layer(init.config, layer), init.config.d_model);
        let width = heads.query_width() + heads.key_value_width();
        let output = [heads.query_width(), d];
        let (qkv, role) = (init.at("qkv"), Role::Projection { fan_out: width });
        let head_norm = || init.config.qk_norm.then(|| Norm::init_rms(init, heads.dim));
        Self {
            qkv: if init.config.has_qkv_bias() {
                Linear::init_with_bias(&qkv, [d, width], role)
            } else {
                Linear::init_without_bias(&qkv, [d, width], role)
            }
            .adapted(&qkv, Product::SelfProjections),
            query_norm: head_norm(),
            key_norm: head_norm(),
            output: Linear::init(&init.at("output"), output, Role::EndOfBranch { n_layers })
                .adapted(&init.at("output"), Product::AttentionOutput),
            heads,
        }
    }

    /// Attends within each row, with dropout if there is a `stream`.
    ///
    /// With `causal`, a position sees itself and earlier ones only. That hides right padding from all real positions, so
    /// the lengths of `rows` are not used.
    ///
    /// # Shapes
    /// - `x`: `[B * T, D]`; result the same
    pub fn forward(&self, x: Tensor<2>, rows: &Rows, causal: bool, stream: Option<&DropoutStream>) -> Tensor<2> {
        self.output.forward(self.attend(self.project(x, rows, stream), rows, causal, stream), stream)
    }

    /// [`Self::forward`] without the last product, which the residual sum computes:
    ///
    /// ```text
    /// Q, K, V = x Wqkv                        Q and K normalized by head and rotated, if the model does
    /// branch  = Softmax(Q K' / sqrt(K)) V     Wo is the pending product
    /// ```
    ///
    /// # Shapes
    /// - `x`: `[B * T, D]`. The returned branch evaluates to `[B * T, D]`.
    pub(crate) fn branch(&self, x: Tensor<2>, rows: &Rows, causal: bool, stream: Option<&DropoutStream>) -> Branch {
        self.output.branch(self.attend(self.project(x, rows, stream), rows, causal, stream), stream)
    }

    /// Causal [`Self::branch`] that keeps keys and values in `buffer` for later steps.
    ///
    /// # Shapes
    /// - `x`: `[B * T, D]`. The returned branch evaluates to `[B * T, D]`.
    pub(crate) fn prefill(&self, x: Tensor<2>, rows: &Rows, buffer: &mut KeyValueBuffer) -> Branch {
        let qkv = self.project(x, rows, None);
        buffer.fill(qkv.clone().narrow(1, self.heads.query_width(), self.heads.key_value_width()), rows);
        self.output.branch(self.attend(qkv, rows, true, None), None)
    }

    /// [`Self::prefill`] of further positions of a single text, whose earlier ones are in `buffer` without room for more.
    ///
    /// # Shapes
    /// - `x`: `[T, D]`. The returned branch evaluates to `[T, D]`.
    pub(crate) fn extend(
        &self,
        x: Tensor<2>,
        rows: &Rows,
        mask: &AttentionMask,
        buffer: &mut KeyValueBuffer,
    ) -> Branch {
        let qkv = self.project(x, rows, None);
        let (q, kv) = (self.heads.query_width(), self.heads.key_value_width());
        let key_value = buffer.append(qkv.clone().narrow(1, q, kv));
        let projected = Projected::Cross { query: qkv.narrow(1, 0, q), key_value };
        self.output.branch(self.heads.attend(projected, mask, 1, true, None), None)
    }

    /// Attends from the next position of each row to itself and to the positions in `buffer`, after adding its key and
    /// value there.
    ///
    /// # Shapes
    /// - `x`: `[B, D]`. The returned branch evaluates to `[B, D]`.
    pub(crate) fn step(&self, x: Tensor<2>, buffer: &mut KeyValueBuffer, step: &Step) -> Branch {
        let [batch_size, _] = x.dims();
        let qkv = self.rotate(self.norm_heads(self.qkv.forward(x, None)), || step.positions.clone());

        if step.appends {
            let [_, columns] = qkv.dims();
            let keys = buffer.with_room_for(&step.slots, [batch_size, columns - self.heads.query_width()], &qkv);
            let (attended, keys) = append_and_attend(qkv, keys, step.lengths.clone(), &self.heads.of_step(true));
            buffer.buffer = Some(keys);
            return self.output.branch(attended, None);
        }
        let (q, kv) = (self.heads.query_width(), self.heads.key_value_width());
        buffer.write(qkv.clone().narrow(1, q, kv), &step.slots);
        if let Some(places) = &step.places {
            let attended = self.heads.attend_step(qkv, buffer.buffer(), places.targets(), &step.lengths);
            return self.output.branch(attended, None);
        }
        let query = qkv.narrow(1, 0, q);

        let projected = Projected::Cross { query, key_value: buffer.rows() };
        let mask = AttentionMask { bias: step.bias.clone(), ..AttentionMask::key_lengths(step.lengths.clone()) };
        self.output.branch(self.heads.attend(projected, &mask, batch_size, false, None), None)
    }

    /// Whether [`Self::step`] can look up keys and values by [`Step::places`].
    pub(crate) fn takes_places(&self, device: &Device) -> bool {
        self.heads.take_single_steps(device)
    }

    fn project(&self, x: Tensor<2>, rows: &Rows, stream: Option<&DropoutStream>) -> Tensor<2> {
        let ([n, _], device) = (x.dims(), x.device());
        self.rotate(self.norm_heads(self.qkv.forward(x, stream)), || rows.position_ids(n, &device))
    }

    /// Normalizes each head of the queries and keys, if the model does.
    fn norm_heads(&self, qkv: Tensor<2>) -> Tensor<2> {
        let (Some(query_norm), Some(key_norm)) = (&self.query_norm, &self.key_norm) else { return qkv };
        let Heads { n, n_kv, .. } = self.heads;
        kiln_kernels::norm_heads(qkv, query_norm.gamma.val(), key_norm.gamma.val(), [n, n_kv], query_norm.eps())
    }

    fn rotate(&self, qkv: Tensor<2>, positions: impl FnOnce() -> Tensor<1, Int>) -> Tensor<2> {
        let Heads { n, n_kv, dim, wavelengths, .. } = &self.heads;
        match wavelengths {
            Some(wavelengths) => kiln_kernels::rotary(qkv, positions(), n + n_kv, *dim, wavelengths.clone()),
            None => qkv,
        }
    }

    fn attend(&self, qkv: Tensor<2>, rows: &Rows, causal: bool, stream: Option<&DropoutStream>) -> Tensor<2> {
        let mut mask = rows.mask();
        if causal {
            mask.key_lengths = None;
        }
        self.heads.attend(Projected::SelfAttention { qkv }, &mask, rows.batch_size, causal, stream)
    }
}

/// Attention of a target to the encoded source.
#[derive(Module, Debug)]
pub struct CrossAttention {
    /// D to H K, of the target.
    pub query: Linear,
    /// D to 2 G K, of the source, columns `k | v`.
    pub key_value: Linear,
    /// H K to D.
    pub output: Linear,
    #[module(skip)]
    heads: Heads,
}

impl CrossAttention {
    pub(crate) fn init(init: &Init, n_layers: usize) -> Self {
        // Its scores have no positions.
        let heads = Heads { window: None, scale: init.config.attention_scale, ..Heads::of_layer(init.config, 0) };
        let d = init.config.d_model;
        let (q, kv) = (heads.query_width(), heads.key_value_width());
        let role = Role::Projection { fan_out: q + kv };
        Self {
            query: Linear::init(&init.at("query"), [d, q], role).adapted(&init.at("query"), Product::CrossQuery),
            key_value: Linear::init(&init.at("key_value"), [d, kv], role)
                .adapted(&init.at("key_value"), Product::CrossKeyValue),
            output: Linear::init(&init.at("output"), [q, d], Role::EndOfBranch { n_layers })
                .adapted(&init.at("output"), Product::AttentionOutput),
            heads,
        }
    }

    /// Computes keys and values of an encoded source, once for all target positions; with the dropout of adapters if there is a
    /// `stream`.
    ///
    /// # Shapes
    /// - `source`: `[B * S, D]`
    /// - result: `[B * S, 2 * G * K]`
    pub fn project(&self, source: Tensor<2>, stream: Option<&DropoutStream>) -> Tensor<2> {
        // Next to adapters, two products read the source. Their gradients are added here, before other layers add theirs, as with
        // activation checkpointing.
        let source = if self.key_value.lora.is_empty() { source } else { source * 1.0 };
        self.key_value.forward(source, stream)
    }

    /// Attends from each target position to the real positions of its source, with dropout if there is a `stream`.
    ///
    /// # Shapes
    /// - `x`: `[B * T, D]`; result the same
    /// - `key_value`: `[B * S, 2 * G * K]`, from [`Self::project`]
    /// - `lengths`: `[B]`, non-padding source positions
    pub fn forward(
        &self,
        x: Tensor<2>,
        key_value: Tensor<2>,
        lengths: &Tensor<1, Int>,
        batch_size: usize,
        stream: Option<&DropoutStream>,
    ) -> Tensor<2> {
        self.output.forward(self.attend(x, key_value, lengths, batch_size, stream), stream)
    }

    /// [`Self::forward`] without the last product, which the residual sum computes.
    ///
    /// # Shapes
    /// As [`Self::forward`]. The returned branch evaluates to `[B * T, D]`.
    pub(crate) fn branch(
        &self,
        x: Tensor<2>,
        key_value: Tensor<2>,
        lengths: &Tensor<1, Int>,
        batch_size: usize,
        stream: Option<&DropoutStream>,
    ) -> Branch {
        self.output.branch(self.attend(x, key_value, lengths, batch_size, stream), stream)
    }

    /// Whether there is a [`Self::step`] on `device`.
    pub(crate) fn takes_places(&self, device: &Device) -> bool {
        self.heads.take_single_steps(device)
    }

    /// [`Self::branch`] of a single target position per row, which looks up its source.
    ///
    /// # Shapes
    /// - `x`: `[R, D]`. The returned branch evaluates to `[R, D]`.
    /// - `key_value`: `[N, S, 2 * G * K]`
    /// - `sources`: `[R, 1]`, each in `0..N`
    /// - `lengths`: `[R]`, non-padding source positions
    pub(crate) fn step(
        &self,
        x: Tensor<2>,
        key_value: Tensor<3>,
        sources: &Tensor<2, Int>,
        lengths: &Tensor<1, Int>,
    ) -> Branch {
        let query = self.query.forward(x, None);
        self.output.branch(self.heads.attend_step(query, key_value, sources, lengths), None)
    }

    fn attend(
        &self,
        x: Tensor<2>,
        key_value: Tensor<2>,
        lengths: &Tensor<1, Int>,
        batch_size: usize,
        stream: Option<&DropoutStream>,
    ) -> Tensor<2> {
        let projected = Projected::Cross { query: self.query.forward(x, stream), key_value };
        let mask = AttentionMask::key_lengths(lengths.clone());
        self.heads.attend(projected, &mask, batch_size, false, stream)
    }
}
