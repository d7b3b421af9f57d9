//! Reads a whole `config.json`: the model, its special tokens, and what this does not match.

use super::fields::Fields;
use super::{Family, TokenIds, bert, classes, gemma, gpt2, llama, seq2seq, t5};
use crate::config::{Architecture, TransformerConfig};

/// Reads the model and its tokens. `has` looks for a tensor by the end of its name.
pub(super) fn read(
    fields: &mut Fields<'_>,
    family: Family,
    has: &dyn Fn(&str) -> bool,
) -> (TransformerConfig, TokenIds) {
    check_other_names(fields, family);
    let mut config = match family {
        Family::Gpt2 => gpt2::read(fields),
        Family::Llama | Family::Mistral | Family::Qwen2 | Family::Qwen3 => llama::read(fields, family),
        Family::Gemma2 | Family::Gemma3 => gemma::read(fields, family),
        Family::Bert | Family::Roberta => bert::read(fields, family, has),
        Family::Bart => seq2seq::read_bart(fields),
        Family::Marian => seq2seq::read_marian(fields),
        Family::Pegasus => seq2seq::read_pegasus(fields),
        Family::M2m100 => seq2seq::read_m2m_100(fields),
        Family::T5 => t5::read(fields, has),
    };
    let is_pair = config.architecture == Architecture::EncoderDecoder;
    fields.only("is_encoder_decoder", is_pair, "the family has one architecture in Kiln");
    if config.architecture == Architecture::DecoderOnly {
        (config.class_head, config.n_classes) = classes::of_decoder(fields);
    }

    let mut tokens = TokenIds {
        pad: fields.token_id("pad_token_id"),
        bos: fields.token_id("bos_token_id"),
        eos: fields.token_id("eos_token_id"),
        decoder_start: fields.token_id("decoder_start_token_id"),
    };
    if family == Family::T5 {
        // Newer files name it in generation_config.json only.
        tokens.decoder_start = tokens.decoder_start.or(tokens.pad);
    }
    config.pad_id = tokens.pad.unwrap_or(if family == Family::Roberta { bert::ROBERTA_PAD } else { 0 });
    (config, tokens)
}

/// Second names of fields, `attribute_map` in `transformers`. There, a field of such a name replaces the first.
fn other_names(family: Family) -> &'static [(&'static str, &'static str)] {
    match family {
        Family::Gpt2 => &[
            ("hidden_size", "n_embd"),
            ("max_position_embeddings", "n_positions"),
            ("num_attention_heads", "n_head"),
            ("num_hidden_layers", "n_layer"),
        ],
        Family::Bart | Family::Marian | Family::Pegasus | Family::M2m100 => {
            &[("hidden_size", "d_model"), ("num_attention_heads", "encoder_attention_heads")]
        }
        Family::T5 => &[
            ("hidden_size", "d_model"),
            ("num_attention_heads", "num_heads"),
            ("num_hidden_layers", "num_layers"),
            ("head_dim", "d_kv"),
        ],
        _ => &[],
    }
}

/// Refuses two different values of one field.
fn check_other_names(fields: &mut Fields<'_>, family: Family) {
    for (other, name) in other_names(family) {
        if let (Some(x), Some(y)) = (fields.get(other), fields.get(name))
            && x != y
        {
            fields.problems.push(format!(
                "{other} {x} and {name} {y} differ, but are two names of one number; remove the wrong one, and keep {name}"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Map, Value, json};

    use super::super::harmless::{OF_ALL, OF_FAMILY};
    use super::*;

    /// Fields that are read of one of several files, so that no switch hides one.
    fn read_fields(family: Family, stem: &str) -> BTreeSet<String> {
        let head = |end: &str| json!({"architectures": [format!("{stem}For{end}Classification")]});
        let files = [json!({}), head("Sequence"), head("Token"), json!({"use_sliding_window": true})];
        let mut all = BTreeSet::new();
        for file in files {
            let mut fields = Fields::new(file.as_object().expect("an object"));
            read(&mut fields, family, &|_| false);
            all.extend(fields.read.into_inner());
        }
        // `Family::of_json` reads it.
        all.insert("model_type".to_owned());
        all
    }

    /// A new version of transformers fails here until somebody decides what its new fields mean.
    #[test]
    fn every_field_of_transformers_is_read_or_harmless() {
        let text = include_str!("../../fixtures/settings/configurations.json");
        let document: Map<String, Value> = serde_json::from_str(text).expect("written by make.py");
        let families = document["families"].as_object().expect("an object");
        assert_eq!(families.len(), Family::ALL.len() + 1, "mt5 is a t5");
        for (model_type, names) in families {
            let file = Map::from_iter([("model_type".to_owned(), json!(model_type))]);
            let family = Family::of_json(&file).expect("a family");
            let stem = if family == Family::Roberta { "Roberta" } else { "Bert" };
            let read = read_fields(family, stem);
            let is_harmless = |name: &str| {
                let of_family = OF_FAMILY.iter().filter(|(known, ..)| *known == family).map(|(_, name, _)| name);
                of_family.chain(OF_ALL.iter().map(|(name, _)| name)).any(|known| *known == name)
            };

            let names: Vec<&str> = names.as_array().expect("a list").iter().filter_map(Value::as_str).collect();
            assert!(names.len() > 20, "{model_type}");
            for name in &names {
                assert!(read.contains(*name) != is_harmless(name), "{model_type}: {name} is in no list, or in two");
            }
            for (_, name, why) in OF_FAMILY.iter().filter(|(known, ..)| *known == family) {
                // What is gone from transformers needs no reason.
                let is_known = names.contains(name) || family == Family::T5;
                assert!(is_known && why.len() > 10, "{model_type}: {name}");
            }
        }
    }

    #[test]
    fn one_number_has_one_value() {
        let file = json!({"n_embd": 32, "hidden_size": 64, "n_head": 4, "num_attention_heads": 4});
        let mut fields = Fields::new(file.as_object().expect("an object"));
        check_other_names(&mut fields, Family::Gpt2);
        assert_eq!(
            fields.problems,
            [
                "hidden_size 64 and n_embd 32 differ, but are two names of one number; remove the wrong one, and keep n_embd"
            ]
        );
    }
}
