//! Symbols that the trainer of a model defined, with the names of usual special tokens.

use serde_json::Value;

use super::{fixtures, load};
use crate::tokenizer::{TextTokenizer, TokenizerConfig};

/// What `sentencepiece` makes of texts that spell them: `fixtures/sentencepiece/make_symbols.py`.
fn expected() -> Value {
    serde_json::from_slice(&std::fs::read(fixtures().join("symbols.json")).expect("committed")).expect("JSON")
}

#[test]
fn a_text_has_the_symbols_that_it_spells_and_so_has_its_decoding() {
    let expected = expected();
    for (name, of_model) in expected["models"].as_object().expect("models") {
        let tokenizer = load(name);
        let unknown = tokenizer.special().unk.expect("an unknown token");
        for (i, text) in expected["texts"].as_array().expect("texts").iter().enumerate() {
            let text = text.as_str().expect("a text");
            let wanted: Vec<u32> = serde_json::from_value(of_model["ids"][i].clone()).expect("ids");
            assert_eq!(tokenizer.encode(text).expect("encodes"), wanted, "{name}: {text:?}");
            if !wanted.contains(&unknown) {
                assert_eq!(tokenizer.decode(&wanted).expect("decodes"), of_model["decoded"][i], "{name}: {text:?}");
                let mut stream = tokenizer.decode_stream();
                let mut found: String = wanted.iter().map(|id| stream.push(*id).expect("decodes")).collect();
                found += &stream.finish().expect("decodes");
                assert_eq!(found, of_model["decoded"][i], "{name}: {text:?}, id by id");
            }
        }

        for symbol in expected["symbols"].as_array().expect("symbols") {
            let symbol = symbol.as_str().expect("a text");
            let lacking = tokenizer.lacking_in(&[symbol]).expect("counts");
            assert_eq!(
                lacking,
                TextTokenizer::lacking_in::<&str>(&tokenizer, &[]).expect("counts"),
                "{name}: {symbol}"
            );
            let id = tokenizer.id(symbol).expect("a piece");
            assert!(!tokenizer.ids_outside_text().contains(&id), "{name}: no text is generated with {symbol}");
        }
    }
}

/// A role that the user gives it takes the end token out of texts, and the text is spelled in other pieces.
#[test]
fn a_symbol_that_ends_texts_is_not_part_of_them() {
    let path = Some(fixtures().join("symbols-unigram.model"));
    let config = TokenizerConfig { path, eos_token: "<sep>".into(), ..TokenizerConfig::default() };
    let tokenizer = TextTokenizer::load(&config).expect("a model");
    let end = tokenizer.special().eos.expect("an end token");
    assert_eq!(tokenizer.id("<sep>"), Some(end));
    let ids = tokenizer.encode("one<sep>two<cls>").expect("encodes");
    assert!(!ids.contains(&end), "{ids:?}");
    assert!(ids.contains(&tokenizer.id("<cls>").expect("a piece")), "{ids:?}");
    assert!(ids.len() > 6, "spelled: {ids:?}");
}
