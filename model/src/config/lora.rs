//! Low-rank adaptation (LoRA, Hu et al. 2021): which products get adapters.

use serde::{Deserialize, Serialize};

use super::{Architecture, TransformerConfig};

/// Adapters of a model whose other weights are not trained: `x · W + alpha / rank * (x · A) · B`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoraConfig {
    /// Rank of every adapter (r), the columns of A and rows of B. 0: no adapters, all weights are trained.
    pub rank: usize,
    /// The product of an adapter is multiplied by `alpha / rank`.
    pub alpha: f64,
    /// Fraction of the features dropped before an adapter in training, in [0, 1).
    pub dropout: f64,
    /// The projections that get an adapter, in every layer.
    pub targets: Vec<LoraTarget>,
}

impl Default for LoraConfig {
    fn default() -> Self {
        Self { rank: 0, alpha: 16.0, dropout: 0.0, targets: vec![LoraTarget::Query, LoraTarget::Value] }
    }
}

/// A projection that an adapter can stand next to. The names that models of `transformers` have for it are read, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoraTarget {
    /// Queries of self- and cross-attention.
    #[serde(alias = "q_proj", alias = "q", alias = "to_q", alias = "q_lin")]
    Query,
    /// Keys of self- and cross-attention.
    #[serde(alias = "k_proj", alias = "k", alias = "k_lin")]
    Key,
    /// Values of self- and cross-attention.
    #[serde(alias = "v_proj", alias = "v", alias = "v_lin")]
    Value,
    /// Queries, keys and values together: one adapter for the three, as GPT-2's `c_attn`.
    #[serde(alias = "c_attn", alias = "query_key_value", alias = "qkv_proj", alias = "Wqkv")]
    Qkv,
    /// The projection after attention.
    #[serde(alias = "o_proj", alias = "out_proj", alias = "o", alias = "out_lin")]
    Output,
    /// The gate of SwiGLU and GEGLU.
    #[serde(alias = "gate_proj", alias = "wi_0")]
    Gate,
    /// The first projection of the feed-forward layer.
    #[serde(alias = "up_proj", alias = "fc1", alias = "c_fc", alias = "lin1", alias = "wi", alias = "wi_1")]
    Up,
    /// The second projection of the feed-forward layer.
    #[serde(alias = "down_proj", alias = "fc2", alias = "lin2", alias = "wo")]
    Down,
}

/// A product of a layer that adapters can stand next to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Product {
    /// Columns `q | k | v`.
    SelfProjections,
    CrossQuery,
    /// Columns `k | v`.
    CrossKeyValue,
    AttentionOutput,
    FeedForwardInput,
    FeedForwardOutput,
}

/// The columns of a product that an adapter adds to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AdapterColumns {
    pub(crate) target: LoraTarget,
    pub(crate) start: usize,
    pub(crate) width: usize,
}

impl Product {
    /// The product whose weight is at `path`, such as `decoder.layers.0.self_attention.qkv`.
    pub(crate) fn at(path: &str) -> Option<Self> {
        let ends = [
            (".self_attention.qkv", Self::SelfProjections),
            (".cross_attention.query", Self::CrossQuery),
            (".cross_attention.key_value", Self::CrossKeyValue),
            ("_attention.output", Self::AttentionOutput),
            (".feed_forward.input", Self::FeedForwardInput),
            (".feed_forward.output", Self::FeedForwardOutput),
        ];
        ends.into_iter().find(|(end, _)| path.ends_with(end)).map(|(_, product)| product)
    }
}

impl TransformerConfig {
    /// Whether the model has adapters. Its other weights are not trained then.
    pub fn has_adapters(&self) -> bool {
        self.lora.rank > 0
    }

    /// The adapters next to a product, in the order of its columns.
    pub(crate) fn adapters_of(&self, product: Product) -> Vec<AdapterColumns> {
        let (q, kv) = (self.n_heads * self.head_dim(), self.kv_heads() * self.head_dim());
        let has = |target: LoraTarget| self.has_adapters() && self.lora.targets.contains(&target);
        let parts = match product {
            Product::SelfProjections if has(LoraTarget::Qkv) => vec![(LoraTarget::Qkv, q + 2 * kv)],
            Product::SelfProjections => vec![(LoraTarget::Query, q), (LoraTarget::Key, kv), (LoraTarget::Value, kv)],
            Product::CrossQuery => vec![(LoraTarget::Query, q)],
            Product::CrossKeyValue => vec![(LoraTarget::Key, kv), (LoraTarget::Value, kv)],
            Product::AttentionOutput => vec![(LoraTarget::Output, self.d_model)],
            Product::FeedForwardInput if self.activation.is_gated() => {
                vec![(LoraTarget::Gate, self.d_ff), (LoraTarget::Up, self.d_ff)]
            }
            Product::FeedForwardInput => vec![(LoraTarget::Up, self.d_ff)],
            Product::FeedForwardOutput => vec![(LoraTarget::Down, self.d_model)],
        };

        let mut start = 0;
        let columns = parts.into_iter().map(|(target, width)| {
            start += width;
            AdapterColumns { target, start: start - width, width }
        });
        columns.filter(|columns| has(columns.target)).collect()
    }

    pub(super) fn validate_lora(&self, problems: &mut Vec<String>) {
        let LoraConfig { rank, alpha, dropout, .. } = &self.lora;
        if *rank == 0 {
            return;
        }
        if *rank > self.d_model {
            problems.push(format!(
                "model.lora.rank {rank} is above model.d_model {}, so an adapter would be larger than its matrix; 4 to 64 is usual",
                self.d_model
            ));
        }
        if !(*alpha > 0.0 && alpha.is_finite()) {
            problems.push(format!(
                "model.lora.alpha {alpha} is not a finite number above 0; one to two times the rank is usual"
            ));
        }
        if !(0.0..1.0).contains(dropout) {
            problems.push(format!("model.lora.dropout {dropout} is outside [0, 1); 0 to 0.1 is usual"));
        }
        if let Some(problem) = self.wrong_target() {
            problems.push(format!("model.lora.targets {problem}"));
        }
    }

    fn wrong_target(&self) -> Option<String> {
        use LoraTarget::{Gate, Key, Qkv, Query, Value};
        let targets = &self.lora.targets;
        let has = |target| targets.contains(&target);
        let mut sorted = targets.clone();
        sorted.sort_unstable();
        sorted.dedup();

        if targets.is_empty() {
            return Some("is empty; name projections such as \"query\" and \"value\"".into());
        }
        if sorted.len() < targets.len() {
            return Some("names a projection twice; name each once".into());
        }
        if has(Qkv) && (has(Query) || has(Key) || has(Value)) {
            return Some("has \"qkv\", one adapter for all three, next to one of its parts; remove one of them".into());
        }
        if has(Qkv) && self.architecture == Architecture::EncoderDecoder {
            return Some(
                "has \"qkv\", which cross-attention has no product for; name \"query\", \"key\" and \"value\"".into(),
            );
        }
        if has(Gate) && !self.activation.is_gated() {
            return Some("has \"gate\", which only model.activation = \"swiglu\" and \"geglu\" have; remove it".into());
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_impossible_adapter_is_one_problem_that_begins_with_its_key() {
        type Change = fn(&mut TransformerConfig);
        let cases: [(&str, Change); 10] = [
            ("model.lora.rank", |c| c.lora.rank = 10_000),
            ("model.lora.alpha", |c| c.lora.alpha = 0.0),
            ("model.lora.alpha", |c| c.lora.alpha = f64::NAN),
            ("model.lora.dropout", |c| c.lora.dropout = 1.0),
            ("model.lora.targets", |c| c.lora.targets.clear()),
            ("model.lora.targets", |c| c.lora.targets = vec![LoraTarget::Up, LoraTarget::Up]),
            ("model.lora.targets", |c| c.lora.targets = vec![LoraTarget::Qkv, LoraTarget::Key]),
            ("model.lora.targets", |c| c.lora.targets = vec![LoraTarget::Qkv]),
            ("model.lora.targets", |c| c.lora.targets = vec![LoraTarget::Gate]),
            ("model.lora.targets", |c| c.lora.targets.push(LoraTarget::Query)),
        ];
        for (key, change) in cases {
            let mut config = TransformerConfig::tiny();
            config.lora.rank = 4;
            assert_eq!(config.validate(), Vec::<String>::new());
            change(&mut config);
            let problems = config.validate();
            assert_eq!(problems.len(), 1, "{key}: {problems:#?}");
            assert!(problems[0].starts_with(key), "{key}: {problems:#?}");
        }
    }

    #[test]
    fn adapters_stand_at_the_columns_of_their_projection() {
        let mut config = TransformerConfig::llama_125m();
        config.lora = LoraConfig { rank: 2, targets: vec![LoraTarget::Value, LoraTarget::Up], ..LoraConfig::default() };
        let (q, kv) = (config.n_heads * config.head_dim(), config.kv_heads() * config.head_dim());
        let value = AdapterColumns { target: LoraTarget::Value, start: q + kv, width: kv };
        assert_eq!(config.adapters_of(Product::SelfProjections), [value]);
        let up = AdapterColumns { target: LoraTarget::Up, start: config.d_ff, width: config.d_ff };
        assert_eq!(config.adapters_of(Product::at("decoder.layers.3.feed_forward.input").expect("a product")), [up]);
        assert_eq!(config.adapters_of(Product::AttentionOutput), []);
        assert_eq!(Product::at("output"), None);
        config.lora.rank = 0;
        assert_eq!(config.adapters_of(Product::SelfProjections), []);
    }
}
