//! The activation of the feed-forward layers: an element-wise one, or one that gates a product.

use std::fmt;
use std::sync::LazyLock;

use burn::tensor::Tensor;
use kiln_kernels::Activation;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The activation of the feed-forward layers: an element-wise [`Activation`], by itself or of a gate. In configurations it is a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeedForwardActivation {
    by: Activation,
    is_gated: bool,
}

/// Computes `activation(gate) * up` from `gate | up`.
type GatedOperator = fn(Tensor<2>) -> Tensor<2>;

/// The gated products that have an operator, and their names.
const GATED: [(&str, Activation, GatedOperator); 2] =
    [("swiglu", Activation::Silu, kiln_kernels::swiglu), ("geglu", Activation::GeluTanh, kiln_kernels::geglu)];

/// The names of all, as a configuration spells them.
static NAMES: LazyLock<Vec<&'static str>> = LazyLock::new(|| FeedForwardActivation::all().map(|a| a.name()).collect());

impl FeedForwardActivation {
    /// `silu(gate) * up` (Shazeer 2020). One product computes gate and up, so `2 * d_ff` inner features become `d_ff`.
    pub const SWIGLU: Self = Self { by: Activation::Silu, is_gated: true };
    /// `gelu_tanh(gate) * up` (Shazeer 2020; Gemma, T5 1.1), as [`Self::SWIGLU`].
    pub const GEGLU: Self = Self { by: Activation::GeluTanh, is_gated: true };

    /// An activation by itself, without a gate.
    pub const fn element_wise(by: Activation) -> Self {
        Self { by, is_gated: false }
    }

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        Activation::ALL.map(Self::element_wise).into_iter().chain([Self::SWIGLU, Self::GEGLU])
    }

    /// The name in configurations.
    pub fn name(self) -> &'static str {
        if self.is_gated { self.gated().0 } else { self.by.name() }
    }

    /// Whether one product computes a gate and its operand.
    pub fn is_gated(self) -> bool {
        self.is_gated
    }

    /// The element-wise activation, of the gate if there is one.
    pub fn by(self) -> Activation {
        self.by
    }

    /// The operator that computes `[M, F]` from `gate | up`, `[M, 2 F]`, if there is a gate.
    pub(crate) fn gated_operator(self) -> Option<GatedOperator> {
        self.is_gated.then(|| self.gated().2)
    }

    fn gated(self) -> &'static (&'static str, Activation, GatedOperator) {
        GATED.iter().find(|(_, by, _)| *by == self.by).expect("one of the constants")
    }
}

impl From<Activation> for FeedForwardActivation {
    fn from(by: Activation) -> Self {
        Self::element_wise(by)
    }
}

impl fmt::Display for FeedForwardActivation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for FeedForwardActivation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for FeedForwardActivation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::all().find(|known| known.name() == name).ok_or_else(|| D::Error::unknown_variant(&name, &NAMES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Saved configurations and checkpoints have these names.
    #[test]
    fn names_are_spelled_as_in_saved_configurations() {
        let names = ["relu", "gelu", "gelu_tanh", "silu", "relu_squared", "swiglu", "geglu"];
        let found: Vec<String> =
            FeedForwardActivation::all().map(|a| serde_json::to_string(&a).expect("a name")).collect();
        assert_eq!(found, names.map(|name| format!("\"{name}\"")));

        for activation in FeedForwardActivation::all() {
            let read: FeedForwardActivation = serde_json::from_value(activation.name().into()).expect("a known name");
            assert_eq!(read, activation);
        }
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let error =
            serde_json::from_str::<FeedForwardActivation>("\"mish\"").expect_err("not an activation").to_string();
        assert!(error.contains("unknown variant `mish`"), "{error}");
        for activation in FeedForwardActivation::all() {
            assert!(error.contains(&format!("`{}`", activation.name())), "{error}");
        }
    }
}
