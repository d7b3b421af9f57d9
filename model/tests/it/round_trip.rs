//! Export and import, one after the other.

use burn::tensor::{DType, Device};
use kiln_model::hf::{self, Family, TokenIds};
use kiln_model::{NamedTensor, TransformerConfig};

use crate::hf::{file_bytes, file_tensors, sorted};
use crate::support::{shapes, weights};

/// Exports a model with initial weights and imports it again, to the same configuration and weights. Returns its family.
pub(crate) fn round_trip(config: &TransformerConfig, tokens: &TokenIds, what: &str) -> Family {
    let model = config.init(3, DType::F32, &Device::flex());
    let values = weights(&model);
    let named: Vec<_> = shapes(&model)
        .into_iter()
        .map(|(name, shape)| NamedTensor { values: values[&name].clone(), name, shape })
        .collect();

    let exported = hf::export(config, &named, tokens).unwrap_or_else(|error| panic!("{what}: {error}"));
    let bytes: Vec<_> = exported.tensors.iter().map(file_bytes).collect();
    let again = hf::import(&exported.config, &file_tensors(&exported.tensors, &bytes))
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(again.config, *config, "{what}");
    assert_eq!(sorted(again.weights), sorted(named), "{what}");
    exported.family
}
