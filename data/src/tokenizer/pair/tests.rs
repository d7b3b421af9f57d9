use std::path::PathBuf;

use super::super::{Normalization, TokenizerKind};
use super::*;
use crate::corpus::{CorpusConfig, Example};
use crate::fixtures::{Fixture, multilingual};

fn config(kind: TokenizerKind) -> TokenizerConfig {
    TokenizerConfig { kind, vocab_size: 460, ..TokenizerConfig::default() }
}

fn trained(config: &TokenizerConfig) -> PairTokenizers {
    let rows: Vec<_> = std::iter::repeat_n(multilingual(), 3).flatten().collect();
    Fixture::new(&rows, config, &CorpusConfig::default()).tokenizers
}

fn texts() -> Vec<String> {
    multilingual().into_iter().map(|e| e.source).collect()
}

const KINDS: [TokenizerKind; 2] = [TokenizerKind::Bpe, TokenizerKind::Unigram];

#[test]
fn texts_survive_a_round_trip() {
    for kind in KINDS {
        let tokenizers = trained(&config(kind));
        let rows = tokenizers.encode_targets(&texts()).expect("encodes");
        let eos = tokenizers.special().eos;
        assert!(rows.iter().all(|row| row.iter().filter(|id| **id == eos).count() == 1 && row.last() == Some(&eos)));
        for (text, decoded) in texts().iter().zip(tokenizers.decode_batch(&rows).expect("decodes")) {
            // NFC composes; a meta symbol in the text is a space ever after; one leading space belongs to the first
            // word.
            let wanted = text.replace("e\u{301}", "é").replace('▁', " ");
            assert_eq!(decoded, wanted.strip_prefix(' ').unwrap_or(&wanted), "{kind:?}");
        }
    }
}

#[test]
fn remembered_words_give_the_ids_of_the_whole_text() {
    for kind in KINDS {
        for normalization in [Normalization::Nfc, Normalization::Nfkc, Normalization::None] {
            for split_digits in [false, true] {
                let extra_tokens = vec!["<2it>".to_owned()];
                let config = TokenizerConfig { normalization, split_digits, extra_tokens, ..config(kind) };
                let tokenizers = trained(&config);
                let mut encoder = tokenizers.encoder();
                for text in texts().iter().chain(&texts()) {
                    let (mut fast, mut whole) = (Vec::new(), Vec::new());
                    encoder.encode_source(text, &mut fast).expect("encodes");
                    let vocabulary = &tokenizers.source;
                    vocabulary.encode(&vocabulary.tokenizer, text, &mut whole).expect("encodes");
                    assert_eq!(fast, whole, "{text:?} with {config:?}");
                }
            }
        }
    }
}

#[test]
fn a_text_never_contains_control_ids_but_may_contain_extra_tokens() {
    for kind in KINDS {
        let tokenizers = trained(&TokenizerConfig { extra_tokens: vec!["<2it>".into()], ..config(kind) });
        let SpecialIds { pad, bos, eos, unk } = tokenizers.special();
        assert_eq!((pad, bos, eos, unk), (0, 1, 2, 3));
        let mut ids = Vec::new();
        tokenizers.encoder().encode_source("a </s> b</s> <s><pad> <2it>", &mut ids).expect("encodes");
        assert!(ids.iter().all(|id| *id > 3), "{kind:?}: {ids:?}");
        assert_eq!(ids.last(), Some(&4), "the extra token has the first free id");
        assert_eq!(tokenizers.decode(&[1, 4, 2, 0, 0]).expect("decodes"), "<2it>");
    }
}

#[test]
fn what_the_vocabulary_cannot_spell_becomes_bytes_or_unknown() {
    for kind in KINDS {
        for byte_fallback in [true, false] {
            let tokenizers = trained(&TokenizerConfig { byte_fallback, ..config(kind) });
            let mut ids = Vec::new();
            tokenizers.encoder().encode_source("Ω", &mut ids).expect("encodes");
            assert_eq!(ids.contains(&tokenizers.special().unk), !byte_fallback, "{kind:?} {ids:?}");
            assert_eq!(tokenizers.decode(&ids).expect("decodes") == "Ω", byte_fallback, "{kind:?} {ids:?}");
        }
    }
}

#[test]
fn training_twice_gives_the_same_vocabulary() {
    for kind in KINDS {
        let rows = crate::built_in::numbers::examples(3000, 0, 9, 1).expect("valid settings").train;
        let rows: Vec<Example> = rows.into_iter().chain(multilingual()).collect();
        let config = TokenizerConfig { vocab_size: 600, ..config(kind) };
        let train = || Fixture::new(&rows, &config, &CorpusConfig::default()).tokenizers;
        let first = train();
        assert_eq!(first.fingerprint(), train().fingerprint());
        assert!(first.source_vocab_size() <= 600);
        let other = Fixture::new(&rows[1..], &config, &CorpusConfig::default()).tokenizers;
        assert_ne!(first.fingerprint(), other.fingerprint());
    }
}

#[test]
fn saved_tokenizers_are_loaded_as_they_were() {
    for (kind, joint) in [(TokenizerKind::Bpe, true), (TokenizerKind::Unigram, true), (TokenizerKind::Bpe, false)] {
        let config = TokenizerConfig { joint, eos_token: "<end>".into(), ..config(kind) };
        let tokenizers = trained(&config);
        assert_eq!(tokenizers.is_joint(), joint);
        let dir = tempfile::tempdir().expect("a folder");
        tokenizers.save(dir.path()).expect("a writable folder");
        let loaded = PairTokenizers::load_dir(dir.path()).expect("complete");
        assert_eq!(loaded.fingerprint(), tokenizers.fingerprint());
        assert_eq!(loaded.special(), tokenizers.special());
        assert_eq!(loaded.encode_sources(&texts()).unwrap(), tokenizers.encode_sources(&texts()).unwrap());
        assert_eq!(loaded.encode_targets(&texts()).unwrap(), tokenizers.encode_targets(&texts()).unwrap());
        if joint {
            let path = Some(dir.path().join("tokenizer.json"));
            let by_path = PairTokenizers::load(&TokenizerConfig { path, ..config }).expect("complete");
            assert_eq!(by_path.fingerprint(), tokenizers.fingerprint());
        }
    }
}

#[test]
fn digits_are_split_when_asked_for() {
    let fixture = Fixture::numbers(2000);
    let mut ids = Vec::new();
    fixture.tokenizers.encoder().encode_source("4711", &mut ids).expect("encodes");
    let digits: Vec<_> = ids.iter().map(|id| fixture.tokenizers.decode(&[*id]).expect("decodes")).collect();
    assert_eq!(digits, ["", "4", "7", "1", "1"]);
}

/// A byte-level tokenizer as GPT-2 has it: no Metaspace, one special token, a post-processor that adds it, truncation.
fn foreign(dir: &std::path::Path) -> PathBuf {
    let alphabet: Vec<char> = "abcdefghijklmnopqrstuvwxyzĠ".chars().collect();
    let mut vocab: serde_json::Map<String, serde_json::Value> =
        alphabet.iter().enumerate().map(|(i, c)| (c.to_string(), i.into())).collect();
    vocab.insert("he".into(), 27.into());

    let json = serde_json::json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": [{"id": 28, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "<|end|>", "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}},
            {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<|end|>": {"id": "<|end|>", "ids": [28], "tokens": ["<|end|>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": 0.5, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": [["h", "e"]]}
    });

    let path = dir.join("foreign.json");
    std::fs::write(&path, json.to_string()).expect("a writable folder");
    path
}

#[test]
fn any_tokenizer_json_can_be_loaded() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = Some(foreign(dir.path()));
    let eos_token = "<|end|>".to_owned();
    let config = TokenizerConfig { path, eos_token, ..TokenizerConfig::default() };
    let text = PairTokenizers::load(&config).expect_err("no padding token").to_string();
    assert!(text.contains("has no \"<pad>\", \"<s>\", \"<unk>\"; its special tokens are \"<|end|>\""), "{text}");
    assert!(text.contains("tokenizer.add_missing_tokens = true"), "{text}");

    let tokenizers =
        PairTokenizers::load(&TokenizerConfig { add_missing_tokens: true, ..config }).expect("complete now");
    assert_eq!(tokenizers.added_tokens(), ["<pad>", "<s>", "<unk>"]);
    assert_eq!(tokenizers.special(), SpecialIds { pad: 29, bos: 30, eos: 28, unk: 31 });
    assert_eq!(tokenizers.source_vocab_size(), 32);
    // Neither truncated, nor ended twice, nor drawn at random by BPE dropout.
    let row = vec![27, 11, 11, 14, 26, 22, 14, 17, 11, 3, 28];
    for _ in 0..20 {
        assert_eq!(tokenizers.encode_sources(&["hello world"]).expect("encodes")[0], row);
    }
    assert_eq!(tokenizers.decode(&row).expect("decodes"), "hello world");
    tokenizers.save(dir.path()).expect("a writable folder");
    assert_eq!(PairTokenizers::load_dir(dir.path()).expect("complete").fingerprint(), tokenizers.fingerprint());
}

#[test]
fn tokenizers_that_cannot_work_are_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("tokenizer.json");
    let load = |config: TokenizerConfig| PairTokenizers::load(&config).expect_err("refused").to_string();
    let config = TokenizerConfig { path: Some(path.clone()), ..TokenizerConfig::default() };
    assert!(load(config.clone()).contains("tokenizer.json: reading the tokenizer failed"));
    std::fs::write(&path, "{\"version\":").expect("a writable folder");
    assert!(load(config.clone()).contains("is not a Hugging Face tokenizer.json"));

    // Separate files must agree on the special ids.
    trained(&self::config(TokenizerKind::Bpe)).save(dir.path()).expect("a writable folder");
    let (target_path, eos_token) = (Some(foreign(dir.path())), "</s>".to_owned());
    let config = TokenizerConfig { target_path, eos_token, add_missing_tokens: true, ..config };
    assert!(load(config).contains("number their special tokens differently"));
}

#[test]
fn a_vocabulary_that_is_too_small_is_refused() {
    for kind in KINDS {
        let rows = multilingual();
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("rows.jsonl");
        crate::built_in::numbers::write_jsonl(&path, &rows).expect("a writable folder");
        let corpus = PairCorpus::open(&[path], &CorpusConfig::default()).expect("a corpus");
        let small = TokenizerConfig { vocab_size: 280, ..config(kind) };
        let text = PairTokenizers::train(&small, &corpus, 1).expect_err("too small").to_string();
        assert!(text.contains("vocab_size = 280 is too small: the text has"), "{text}");

        // What it offers works, and nothing else is offered.
        let number = |behind: &str| {
            let digits = text.split(behind).nth(1).expect("a remedy").split(|c: char| !c.is_ascii_digit());
            digits.into_iter().next().and_then(|digits| digits.parse::<usize>().ok()).expect("a number")
        };
        let [least, roomy] =
            [number("set it to at least "), number(&format!("at least {}, ", number("set it to at least ")))];
        for vocab_size in [least, roomy] {
            PairTokenizers::train(&TokenizerConfig { vocab_size, ..small.clone() }, &corpus, 1).expect("large enough");
        }
        let without = TokenizerConfig { byte_fallback: false, ..small.clone() };
        let fits = small.byte_fallback && PairTokenizers::train(&without, &corpus, 1).is_ok();
        assert_eq!(
            text.contains("byte_fallback = false"),
            fits && kind != TokenizerKind::ByteLevelBpe,
            "{kind:?}: {text}"
        );
        let tiny = TokenizerConfig { vocab_size: 200, ..config(kind) };
        assert!(PairTokenizers::train(&tiny, &corpus, 1).expect_err("too small").to_string().contains("260 special"));
    }
}

#[test]
fn settings_that_cannot_work_are_all_named() {
    assert!(TokenizerConfig::default().validate().is_empty());
    let config = TokenizerConfig {
        target_path: Some("target.json".into()),
        vocab_size: 4,
        character_coverage: 0.5,
        pad_token: "</s>".into(),
        bos_token: "<unk>".into(),
        extra_tokens: vec!["<s>".into(), "<unk>".into()],
        ..TokenizerConfig::default()
    };
    assert_eq!(config.validate().len(), 6, "{:#?}", config.validate());
}

#[test]
fn pairs_in_memory_train_the_same_vocabulary_as_a_corpus() {
    let rows: Vec<_> = std::iter::repeat_n(multilingual(), 3).flatten().collect();
    for joint in [true, false] {
        let config = TokenizerConfig { joint, ..config(TokenizerKind::Bpe) };
        let from_corpus = trained(&config);
        let from_memory = PairTokenizers::train_on_examples(&config, &rows, 2).expect("enough text");
        assert_eq!(from_memory.fingerprint(), from_corpus.fingerprint());
    }
}

#[test]
fn targets_get_the_unicode_form_of_encoding_and_keep_the_rest() {
    let in_form = |config: &TokenizerConfig, text: &str| trained(config).target_in_unicode_form(text).expect("a text");
    let text = "Cafe\u{301} \u{fb01}n\n";
    for (normalization, wanted) in [
        (Normalization::Nfc, "Caf\u{e9} \u{fb01}n\n"),
        (Normalization::Nfkc, "Caf\u{e9} fin\n"),
        (Normalization::None, text),
    ] {
        let config = TokenizerConfig { normalization, ..config(TokenizerKind::Bpe) };
        assert_eq!(in_form(&config, text), wanted, "{normalization:?}");
        assert_eq!(in_form(&config, wanted), wanted, "{normalization:?}");
    }
    let lower = TokenizerConfig { lowercase: true, ..config(TokenizerKind::WordPiece) };
    assert_eq!(in_form(&lower, text), "Caf\u{e9} \u{fb01}n\n", "scores see the case");
    assert_eq!(in_form(&lower, "ASCII"), "ASCII");
}
