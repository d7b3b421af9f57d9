mod symbols;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::tokenizer::{PairTokenizers, TextTokenizer, TokenizerConfig, sentencepiece_json};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/sentencepiece")
}

/// Odd texts, and what the `sentencepiece` library makes of them: `fixtures/sentencepiece/make.py`.
fn expected() -> (Vec<String>, BTreeMap<String, Value>) {
    let json = std::fs::read(fixtures().join("expected.json")).expect("committed");
    let json: Value = serde_json::from_slice(&json).expect("JSON");
    let texts = serde_json::from_value(json["texts"].clone()).expect("texts");
    (texts, serde_json::from_value(json["models"].clone()).expect("models"))
}

fn load(name: &str) -> TextTokenizer {
    let path = Some(fixtures().join(format!("{name}.model")));
    TextTokenizer::load(&TokenizerConfig { path, ..TokenizerConfig::default() }).expect("a model")
}

#[test]
fn odd_texts_get_the_ids_and_the_text_of_the_sentencepiece_library() {
    let (texts, models) = expected();
    assert!(models.len() >= 7 && texts.len() > 150);
    let mut problems = Vec::new();
    for (name, expected) in &models {
        let tokenizer = load(name);
        // Kiln leaves the unknown token out of texts, the library writes U+2047.
        let unknown = tokenizer.special().unk.expect("an unknown token");
        for (i, text) in texts.iter().enumerate() {
            let wanted: Vec<u32> = serde_json::from_value(expected["ids"][i].clone()).expect("ids");
            let found = tokenizer.encode(text).expect("encodes");
            if found != wanted {
                problems.push(format!("{name}: {text:?} gives {found:?}, wanted {wanted:?}"));
            }
            let decoded = tokenizer.decode(&wanted).expect("decodes");
            if !wanted.contains(&unknown) && decoded != expected["decoded"][i].as_str().expect("a text") {
                problems.push(format!("{name}: {wanted:?} spells {decoded:?}, wanted {}", expected["decoded"][i]));
            }
        }
    }
    assert!(problems.is_empty(), "{} differences:\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn a_saved_vocabulary_is_loaded_with_its_model() {
    let (texts, models) = expected();
    for name in models.keys() {
        let tokenizer = load(name);
        let folder = tempfile::tempdir().expect("a folder");
        tokenizer.save(folder.path()).expect("writable");
        let again = TextTokenizer::load_dir(folder.path()).expect("loads");
        assert_eq!(again.fingerprint(), tokenizer.fingerprint(), "{name}");
        for text in &texts {
            assert_eq!(
                again.encode(text).expect("encodes"),
                tokenizer.encode(text).expect("encodes"),
                "{name}: {text:?}"
            );
        }
    }
}

/// The pieces of a stream are the text of all ids.
#[test]
fn a_stream_of_ids_spells_the_text() {
    let (texts, _) = expected();
    let tokenizer = load("bpe-llama");
    for text in &texts {
        let ids = tokenizer.encode(text).expect("encodes");
        let mut stream = tokenizer.decode_stream();
        let mut found: String = ids.iter().map(|id| stream.push(*id).expect("decodes")).collect();
        found += &stream.finish().expect("decodes");
        assert_eq!(found, tokenizer.decode(&ids).expect("decodes"), "{text:?}");
    }
}

/// As `MarianTokenizer` has it: ids by `vocab.json`, an unknown piece that the other language knows, a language code.
#[test]
fn ids_of_a_vocabulary_of_its_own() {
    let model = std::fs::read(fixtures().join("unigram.model")).expect("committed");
    let own = load("unigram");
    let pieces: Vec<String> = (0..own.vocab_size() as u32).filter_map(|id| own.vocabulary_token(id)).collect();
    let mut ids = BTreeMap::new();
    let of_vocabulary = ["</s>", "<unk>", "\u{5b57}", ">>ita<<", "<pad>"].map(str::to_owned);
    for token in of_vocabulary.into_iter().chain(pieces.into_iter().filter(|piece| piece != "<s>")) {
        let next = ids.len() as u32;
        ids.entry(token).or_insert(next);
    }

    let folder = tempfile::tempdir().expect("a folder");
    let json = sentencepiece_json(&model, Some(&ids), Path::new("source.spm")).expect("converts");
    for side in ["source", "target"] {
        std::fs::write(folder.path().join(format!("{side}.tokenizer.json")), &json).expect("writable");
        std::fs::write(folder.path().join(format!("{side}.spm")), &model).expect("writable");
    }
    let names = r#"{"pad_token": "<pad>", "bos_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}"#;
    std::fs::write(folder.path().join("tokenizer_config.json"), names).expect("writable");
    let pairs = PairTokenizers::load_dir(folder.path()).expect("loads");
    let row = |text: &str| pairs.encode_sources(&[text]).expect("encodes").remove(0);

    let plain: Vec<u32> = own
        .encode("file")
        .expect("encodes")
        .into_iter()
        .map(|id| ids[&own.vocabulary_token(id).expect("a piece")])
        .collect();
    let end = ids["</s>"];
    assert_eq!(row("file"), [plain.clone(), vec![end]].concat());
    assert_eq!(row(">>ita<< file"), [vec![ids[">>ita<<"]], plain.clone(), vec![end]].concat());
    assert_eq!(row(">>xyz<< file"), [vec![ids["<unk>"]], plain, vec![end]].concat());
    let meta = ids["\u{2581}"];
    assert_eq!(row("\u{5b57}"), [meta, ids["\u{5b57}"], end], "the other side's piece");
    assert_eq!(row("\u{4f60}"), [meta, ids["<unk>"], end]);
    assert_eq!(pairs.decode(&row("file")).expect("decodes"), "file");
}

#[test]
fn a_file_that_is_not_a_model_is_named_with_the_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.spm");
    let refusal = |bytes: &[u8]| {
        std::fs::write(&path, bytes).expect("writable");
        let config = TokenizerConfig { path: Some(path.clone()), ..TokenizerConfig::default() };
        TextTokenizer::load(&config).expect_err("refused").to_string()
    };
    let piece = |text: &str, kind: u8| {
        let inner = [&[0x0a, text.len() as u8], text.as_bytes(), &[0x18, kind]].concat();
        [&[0x0a, inner.len() as u8], inner.as_slice()].concat()
    };

    let unknown = piece("<unk>", 2);
    let whole = std::fs::read(fixtures().join("bpe-llama.model")).expect("committed");
    let cases: HashMap<&str, Vec<u8>> = HashMap::from([
        ("has no pieces", Vec::new()),
        ("does not continue a protocol buffer", b"{\"version\": 1}".to_vec()),
        ("is truncated", whole[..whole.len() / 2].to_vec()),
        ("has 0 unknown pieces", piece("a", 1)),
        ("has the piece \"<unk>\" twice", [unknown.clone(), piece("<unk>", 1)].concat()),
        ("has the unknown type 9 at piece 0", piece("a", 9)),
        ("has an empty piece (number 0)", piece("", 1)),
        ("has the model type word", [unknown.clone(), vec![0x12, 2, 0x18, 3]].concat()),
        ("no piece <0x00>", [unknown.clone(), vec![0x12, 3, 0x98, 0x02, 1]].concat()),
        ("damaged rules of normalization", [unknown.clone(), vec![0x1a, 6, 0x12, 4, 0xff, 0xff, 0xff, 0x7f]].concat()),
        ("denormalizer_spec", [unknown, vec![0x2a, 3, 0x12, 1, 7]].concat()),
    ]);
    for (wanted, bytes) in cases {
        let message = refusal(&bytes);
        assert!(message.contains(wanted) && message.contains("x.spm"), "{wanted:?} is missing in {message:?}");
    }
}
