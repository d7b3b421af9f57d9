//! Weights of a trained model in int8, for searches on the CPU.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
use kiln_kernels::Projection;
use kiln_kernels::int8::{Int8, Int8Weights};

/// Rounds the weights of all linear layers of a model, and of its output projection. Norms, biases and adapters stay as they are.
///
/// # Panics
/// If the model does not lie on the CPU.
pub(crate) fn int8_weights<M: Module>(model: &M, projection: Option<&Projection>, kind: Int8) -> Int8Weights {
    let mut layers = Layers { weights: Int8Weights::new(kind), field: None };
    model.visit(&mut layers);
    let mut weights = layers.weights;
    if let Some(Projection { weight, transposed, .. }) = projection {
        weights.add(weight, *transposed);
    }
    weights
}

/// Finds the weights of linear layers.
struct Layers {
    weights: Int8Weights,
    /// The field that is visited and the module that has it.
    field: Option<(String, String)>,
}

impl ModuleVisitor for Layers {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.field = Some((name.to_owned(), container.to_owned()));
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let is_weight = |(name, module): (String, String)| name == "weight" && module.ends_with("Linear");
        if D == 2 && self.field.take().is_some_and(is_weight) {
            self.weights.add(&Tensor::from_dispatch(param.val().into_dispatch()), false);
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, FloatDType};

    use crate::TransformerConfig;

    use super::*;

    #[test]
    fn all_products_of_a_search_have_weights_in_int8() {
        let device = Device::flex();
        let small = TransformerConfig::transformer_base().with_vocab_size(40);
        let small =
            TransformerConfig { d_model: 16, n_heads: 2, d_ff: 32, n_encoder_layers: 2, n_decoder_layers: 3, ..small };
        let model = small.init_encoder_decoder(1, FloatDType::F32, &device);
        // Of an encoder layer: attention's two products and two more; of a decoder layer, three for the source besides.
        let of_layers = model.int8_weights(Int8::Both).len() - 1;
        assert_eq!(of_layers, 2 * 4 + 3 * 7);
    }
}
