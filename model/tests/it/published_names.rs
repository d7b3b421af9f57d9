//! The tensors of published files have names that today's `transformers` no longer writes. It still reads them, and so does
//! Kiln: each family is imported with the names that its published files have, and has the same weights.

use std::fs;
use std::path::Path;

use kiln_model::NamedTensor;
use kiln_model::hf::{self, ElementType, FileTensor};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

/// A tensor that a file has beside the parameters: name, shape, type.
type Extra = (&'static str, &'static [usize], ElementType);

/// A published file of a family.
struct Published {
    /// The fixture whose tensors are renamed.
    fixture: &'static str,
    /// Replacements in names, one after another.
    renamed: &'static [(&'static str, &'static str)],
    /// Names that these files lack.
    absent: &'static [&'static str],
}

const NOTHING: Published = Published { fixture: "", renamed: &[], absent: &[] };

fn integer() -> ElementType {
    ElementType::Other("I64".into())
}

/// The name, shape and elements of each tensor.
type Tensors = Vec<(String, Vec<usize>, Vec<u8>)>;

fn read(fixture: &str) -> (Value, Tensors) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/hf").join(fixture);
    let config = serde_json::from_slice(&fs::read(folder.join("config.json")).expect("committed")).expect("JSON");
    let bytes = fs::read(folder.join("model.safetensors")).expect("committed");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let tensor = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
        assert_eq!(view.dtype(), Dtype::F32, "{name}");
        (name, view.shape().to_vec(), view.data().to_vec())
    };
    (config, file.tensors().into_iter().map(tensor).collect())
}

fn weights(config: &Value, tensors: &Tensors, extra: &[Extra]) -> Vec<NamedTensor> {
    let zeros = vec![0; 1 << 16];
    let mut all: Vec<_> = tensors
        .iter()
        .map(|(name, shape, bytes)| FileTensor {
            name: name.clone(),
            shape: shape.clone(),
            element_type: ElementType::F32,
            bytes,
        })
        .collect();
    for (name, shape, element_type) in extra {
        let n_bytes = shape.iter().product::<usize>() * if *element_type == ElementType::F32 { 4 } else { 8 };
        all.push(FileTensor {
            name: (*name).to_owned(),
            shape: shape.to_vec(),
            element_type: element_type.clone(),
            bytes: &zeros[..n_bytes],
        });
    }
    hf::import(config, &all).unwrap_or_else(|error| panic!("{error}")).weights
}

/// Renames the tensors of a fixture, and expects the weights that it has under today's names.
fn check(published: &Published, extra: &[Extra]) {
    let (config, tensors) = read(published.fixture);
    let wanted = weights(&config, &tensors, &[]);

    let mut n_renamed = 0;
    let mut renamed = Tensors::new();
    for (name, shape, bytes) in &tensors {
        let new = published.renamed.iter().fold(name.clone(), |name, (old, new)| {
            if let Some(rest) = old.strip_prefix('^') {
                name.strip_prefix(rest).map_or(name.clone(), |end| format!("{new}{end}"))
            } else {
                name.replace(old, new)
            }
        });
        n_renamed += usize::from(new != *name);
        if !published.absent.contains(&&*new) {
            renamed.push((new, shape.clone(), bytes.clone()));
        }
    }

    assert!(published.renamed.is_empty() || n_renamed > 0, "{}: no tensor was renamed", published.fixture);
    assert_eq!(weights(&config, &renamed, extra), wanted, "{}", published.fixture);
}

#[test]
fn bert_converted_from_tensorflow_calls_its_norms_gamma_and_beta() {
    let norms = &[("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")];
    let extra = [
        ("cls.seq_relationship.weight", &[2, 32][..], ElementType::F32),
        ("cls.seq_relationship.bias", &[2], ElementType::F32),
        ("bert.embeddings.position_ids", &[1, 64], integer()),
    ];
    check(&Published { fixture: "bert", renamed: norms, ..NOTHING }, &extra);
}

#[test]
fn names_of_published_files_are_read_in_every_family() {
    let bare = |fixture| Published { fixture, ..NOTHING };
    let mask = [
        ("h.0.attn.bias", &[1, 1, 8, 8][..], ElementType::F32),
        ("h.1.attn.bias", &[1, 1, 8, 8], ElementType::Other("U8".into())),
        ("h.0.attn.masked_bias", &[], ElementType::F32),
    ];
    check(&Published { renamed: &[("^transformer.", "")], ..bare("gpt2") }, &mask);
    check(&bare("gpt2"), &[("transformer.h.0.attn.bias", &[1, 1, 8, 8], ElementType::F32)]);

    for family in ["llama", "llama-3", "mistral", "qwen2", "qwen3", "gemma2", "gemma3"] {
        check(&bare(family), &[("model.layers.0.self_attn.rotary_emb.inv_freq", &[4], ElementType::F32)]);
        check(&bare(family), &[("model.rotary_emb.inv_freq", &[4], ElementType::F32)]);
        check(&Published { renamed: &[("^model.", "")], ..bare(family) }, &[]);
    }

    let roberta = Published { renamed: &[("^roberta.", "")], ..bare("roberta") };
    check(&roberta, &[("embeddings.position_ids", &[1, 64], integer())]);
    check(&bare("roberta"), &[("roberta.embeddings.position_ids", &[1, 64], integer())]);
}

#[test]
fn translators_are_read_with_and_without_copies_and_positions() {
    let bare = |fixture| Published { fixture, ..NOTHING };
    let version =
        [("model.encoder.version", &[1][..], ElementType::F32), ("model.decoder.version", &[1], ElementType::F32)];
    for family in ["bart", "marian", "pegasus", "m2m_100"] {
        check(&Published { absent: &["lm_head.weight"], ..bare(family) }, &version);
        check(&Published { renamed: &[("^model.", "")], ..bare(family) }, &[]);
    }

    let positions = [
        ("model.encoder.embed_positions.weights", &[66, 32][..], ElementType::F32),
        ("model.decoder.embed_positions.weights", &[66, 32], ElementType::F32),
    ];
    for family in ["marian", "m2m_100"] {
        check(&bare(family), &positions);
    }

    let unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight";
    for family in ["t5", "t5-1.1"] {
        check(&bare(family), &[(unused, &[32, 4], ElementType::F32)]);
    }
}
