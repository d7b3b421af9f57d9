//! What the families have in common when a model is written: names of activations, and what a family demands.

use std::fmt::Debug;

use serde_json::{Map, Value};

use crate::config::Activation;

/// Names of the activations that are no gated products; the first of equal ones is written.
pub(super) const ACTIVATIONS: [(&str, Activation); 8] = [
    ("gelu", Activation::Gelu),
    ("gelu_new", Activation::GeluTanh),
    ("relu", Activation::Relu),
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu_fast", Activation::GeluTanh),
    ("gelu_python", Activation::Gelu),
];

/// Places in [`ACTIVATIONS`].
pub(super) const GELU: usize = 0;
pub(super) const GELU_NEW: usize = 1;

/// What a family demands of a model: what was found is named where it differs.
pub(super) struct Demands(pub(super) Vec<String>);

impl Demands {
    pub(super) fn new() -> Self {
        Self(Vec::new())
    }

    /// `found` must be `wanted`.
    pub(super) fn equal<T: PartialEq + Debug>(&mut self, field: &str, found: T, wanted: T) {
        if found != wanted {
            self.0.push(format!("model.{field} is {found:?}, this family has {wanted:?}"));
        }
    }

    /// The activation's name, if it has one.
    pub(super) fn activation(&mut self, activation: Activation) -> &'static str {
        let found = ACTIVATIONS.iter().find(|(_, known)| *known == activation);
        found.map_or_else(
            || {
                self.0.push(format!("model.activation is {activation:?}, this family has ungated activations"));
                ""
            },
            |(name, _)| name,
        )
    }
}

/// The content of a JSON object literal.
pub(super) fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => unreachable!("{other} is no object"),
    }
}
