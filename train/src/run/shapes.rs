//! Shapes that do not suit the tensor cores of a GPU.

use burn::tensor::FloatDType;
use kiln_metrics::units::thousands;
use kiln_model::{Architecture, TransformerConfig};

/// Numbers of 16 bits in a vector that a kernel copies at once. Rows of other lengths are copied number by number.
const VECTOR: usize = 8;

/// Says which sizes of a model do not divide into vectors, and which ones would; `None` if all do. Products in f32 have kernels without
/// vectors.
pub(super) fn unsuited(model: &TransformerConfig, dtype: FloatDType) -> Option<String> {
    if !matches!(dtype, FloatDType::BF16 | FloatDType::F16) {
        return None;
    }
    let (source, target) = ("model.source_vocab_size", "model.target_vocab_size");
    let vocabularies = match model.architecture {
        Architecture::EncoderDecoder => vec![(source, model.source_vocab_size), (target, model.target_vocab_size)],
        Architecture::EncoderOnly => vec![(source, model.source_vocab_size)],
        Architecture::DecoderOnly => vec![(target, model.target_vocab_size)],
    };
    let sizes = vocabularies.into_iter().chain([("model.d_model", model.d_model), ("model.d_ff", model.d_ff)]);

    let of_size = |(key, size): (&str, usize)| {
        let (found, suited) = (thousands(size as f64), size.next_multiple_of(VECTOR));
        (!size.is_multiple_of(VECTOR)).then(|| format!("{key} is {found}, and {suited} would"))
    };
    let found: Vec<String> = sizes.filter_map(of_size).collect();
    (!found.is_empty()).then(|| {
        format!(
            "shapes: kernels copy {VECTOR} numbers at once where sizes divide by {VECTOR}: {}. A new model may have more rows than its \
             vocabulary has tokens (docs/gpus.md#shapes)",
            found.join("; ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vocabulary_of_gpt2_is_named_with_the_size_that_suits() {
        let gpt2 = |size| TransformerConfig::gpt2_124m().with_vocab_size(size);
        let note = unsuited(&gpt2(50_257), FloatDType::BF16).expect("an odd size");
        assert!(
            note.contains("model.target_vocab_size is 50,257, and 50264 would") && !note.contains("d_model"),
            "{note}"
        );
        assert_eq!(unsuited(&gpt2(50_264), FloatDType::BF16), None);
        assert_eq!(unsuited(&gpt2(50_257), FloatDType::F32), None, "no tensor cores");
    }

    #[test]
    fn odd_widths_are_named_too() {
        let odd = TransformerConfig { d_model: 100, d_ff: 402, ..TransformerConfig::gpt2_124m().with_vocab_size(64) };
        let note = unsuited(&odd, FloatDType::F16).expect("odd sizes");
        assert!(note.contains("model.d_model is 100, and 104 would; model.d_ff is 402, and 408 would"), "{note}");
    }
}
