//! Which layers multiply in FP8 while they train.

use kiln_kernels::{Settings, SettingsGuard};
use serde::{Deserialize, Serialize};

/// The layers whose products, and the gradients of these, take operands in FP8 while the model trains, see
/// [`Settings::fp8_products`]. Without a graph (validation, search) every layer computes as before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fp8Layers {
    /// None.
    #[default]
    None,
    /// All layers of each stack.
    All,
    /// All but the first and the last layer of each stack.
    Inner,
}

impl Fp8Layers {
    /// Makes the operators on this thread multiply as layer `layer` of `n` does, while the guard lives.
    pub(crate) fn install(self, layer: usize, n: usize) -> Option<SettingsGuard> {
        let fp8_products = match self {
            Self::None => return None,
            Self::All => true,
            Self::Inner => layer > 0 && layer + 1 < n,
        };
        Some(Settings { fp8_products, ..Settings::current() }.install())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inner_layers_are_all_but_the_ends() {
        let chosen = |layers: Fp8Layers| -> Vec<bool> {
            let one = |layer| {
                let _products = layers.install(layer, 4);
                Settings::current().fp8_products
            };
            (0..4).map(one).collect()
        };
        assert_eq!(chosen(Fp8Layers::None), [false; 4]);
        assert_eq!(chosen(Fp8Layers::All), [true; 4]);
        assert_eq!(chosen(Fp8Layers::Inner), [false, true, true, false]);
        assert!(!Settings::current().fp8_products);
    }
}
