mod spelled;

use std::path::PathBuf;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde::Deserialize;

use super::super::pieces::Pieces;
use super::super::{Normalization, TokenizerKind};
use super::*;
use crate::fixtures::{TextFixture, multilingual, stories};
use crate::sampler::below;

/// The tokenizers of `data/fixtures`, made with `make_tokenizers.py`.
const WORLD: [&str; 6] = ["gpt2", "roberta", "llama3", "bert", "llama", "t5"];

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(format!("{name}.json"))
}

fn world(name: &str) -> TextTokenizer {
    TextTokenizer::load(&TokenizerConfig { path: Some(path(name)), ..TokenizerConfig::default() }).expect("a tokenizer")
}

#[derive(Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
    with_special: Vec<u32>,
    decoded: String,
}

fn golden(name: &str) -> Vec<Case> {
    let json = std::fs::read_to_string(path("golden")).expect("committed");
    let mut all: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    serde_json::from_value(all[name].take()).expect("cases")
}

fn trained(kind: TokenizerKind) -> TextTokenizer {
    let config = TokenizerConfig { kind, vocab_size: 700, ..TokenizerConfig::default() };
    let documents: Vec<String> = multilingual().into_iter().map(|pair| pair.source).chain(stories(50, 20)).collect();
    TextFixture::new(&documents, &config).tokenizer
}

const KINDS: [TokenizerKind; 4] =
    [TokenizerKind::Bpe, TokenizerKind::Unigram, TokenizerKind::ByteLevelBpe, TokenizerKind::WordPiece];

fn everything() -> Vec<(String, TextTokenizer)> {
    let trained = KINDS.map(|kind| (format!("{kind:?}"), trained(kind)));
    WORLD.map(|name| (name.to_owned(), world(name))).into_iter().chain(trained).collect()
}

#[test]
fn ids_and_texts_are_those_of_the_tokenizers_library() {
    for name in WORLD {
        let tokenizer = world(name);
        let mut encoder = tokenizer.encoder();
        let (before, behind) = tokenizer.around.clone();
        // Twice: the second time everything is remembered.
        for case in golden(name).iter().chain(&golden(name)) {
            let mut ids = Vec::new();
            encoder.encode(&case.text, &mut ids).expect("encodes");
            assert_eq!(ids, case.ids, "{name}: {:?}", case.text);
            assert_eq!([&before[..], &ids, &behind].concat(), case.with_special, "{name}: {:?}", case.text);
            assert_eq!(tokenizer.decode(&ids).expect("decodes"), case.decoded, "{name}: {:?}", case.text);
        }
    }
}

#[test]
fn how_texts_are_divided_is_read_off_the_file() {
    for (name, tokenizer) in everything() {
        let pieces = &tokenizer.vocabulary.pieces;
        let expected = match name.as_str() {
            "gpt2" | "roberta" | "llama3" | "ByteLevelBpe" => matches!(pieces, Pieces::Pattern { .. }),
            "bert" | "WordPiece" => matches!(pieces, Pieces::WhiteSpace),
            "llama" => matches!(pieces, Pieces::Prefixed { meta: '▁' }),
            "t5" => matches!(pieces, Pieces::Whole),
            _ => matches!(pieces, Pieces::Spaces { .. }),
        };
        assert!(expected, "{name}: {pieces:?}");
    }
}

/// Text of fragments that meet in every way.
fn random_text(random: &mut ChaCha8Rng, fragments: &[&str]) -> String {
    let n = below(random, 12);
    (0..n).map(|_| fragments[below(random, fragments.len() as u32) as usize]).collect()
}

#[test]
fn remembered_pieces_give_the_ids_of_the_whole_text() {
    let fragments = [
        " ",
        " ",
        "  ",
        "\n",
        "\n\n",
        "\r\n",
        "\t",
        "\u{a0}",
        "\u{3000}",
        "\u{200b}",
        "\u{b}",
        "\u{c}",
        "▁",
        "a",
        "the",
        "The",
        " sea",
        "don't",
        "I'LL",
        "'s",
        ".",
        "...",
        " (",
        "12",
        "3456789",
        "½",
        "é",
        "e\u{301}",
        "\u{301}",
        "Å",
        "ΟΔΥΣ",
        "ς",
        "日本",
        "语",
        "👩‍👩‍👧",
        "ﬁ",
        "<s>",
        "</s>",
        "<|endoftext|>",
        "[MASK]",
        "[UNK]",
        "<0x41>",
        "<unk>",
        "<|reserved_special_token_0|>",
        "\u{ad}",
        "\u{7}",
        "\u{fffd}",
        "ab",
        "##ab",
    ];

    let mut random = ChaCha8Rng::seed_from_u64(1);
    for (name, tokenizer) in everything() {
        let mut encoder = tokenizer.encoder();
        for _ in 0..3000 {
            let text = random_text(&mut random, &fragments);
            let (mut fast, mut whole) = (Vec::new(), Vec::new());
            encoder.encode(&text, &mut fast).expect("encodes");
            tokenizer.vocabulary.encode(&tokenizer.vocabulary.tokenizer, &text, &mut whole).expect("encodes");
            assert_eq!(fast, whole, "{name}: {text:?}");
        }
    }
}

#[test]
fn a_stream_of_ids_becomes_the_text_that_they_make_together() {
    for (name, tokenizer) in everything() {
        let texts = golden("gpt2").into_iter().map(|case| case.text).chain(stories(5, 30));
        for text in texts {
            let ids = tokenizer.encode(&text).expect("encodes");
            let mut stream = tokenizer.decode_stream();
            let mut pieces: Vec<String> = ids.iter().map(|id| stream.push(*id).expect("decodes")).collect();
            pieces.push(stream.finish().expect("decodes"));
            assert_eq!(pieces.concat(), tokenizer.decode(&ids).expect("decodes"), "{name}: {text:?}");
            assert!(pieces.iter().all(|piece| !piece.contains('\u{fffd}')), "{name}: half a character in {pieces:?}");
            // It does come bit by bit.
            assert!(ids.len() < 8 || pieces.iter().filter(|piece| !piece.is_empty()).count() > 1, "{name}: {pieces:?}");
        }
    }
}

#[test]
fn a_stream_shows_what_was_never_completed_at_its_end() {
    for name in ["gpt2", "llama"] {
        let tokenizer = world(name);
        let ids = tokenizer.encode("ok \u{13000}").expect("encodes");
        let mut stream = tokenizer.decode_stream();
        let before: String = ids[..ids.len() - 1].iter().map(|id| stream.push(*id).expect("decodes")).collect();
        assert_eq!(before.trim_end(), "ok", "{name}");
        assert!(stream.finish().expect("decodes").contains('\u{fffd}'), "{name}");
        assert_eq!(stream.finish().expect("decodes"), "", "{name}: nothing is left");
        // Bytes that never become a character do not pile up.
        let byte = *ids.last().expect("not empty");
        let shown: String = (0..50).map(|_| stream.push(byte).expect("decodes")).collect();
        assert!(shown.chars().count() > 30, "{name}: {shown}");
        // Special tokens are not shown.
        let end = tokenizer.special().eos.expect("there");
        let mut stream = tokenizer.decode_stream();
        assert_eq!(stream.push(end).expect("decodes") + &stream.finish().expect("decodes"), "");
    }
}

#[test]
fn special_tokens_are_found_by_their_usual_names() {
    let ids = |name: &str| world(name).special();
    let none = TextSpecialIds::default();
    let gpt2 = TextSpecialIds { bos: Some(0), eos: Some(0), cls: Some(0), sep: Some(0), ..none };
    assert_eq!(ids("gpt2"), gpt2);
    let roberta = TextSpecialIds { pad: Some(1), unk: Some(3), mask: Some(4), ..of(0, 2) };
    assert_eq!(ids("roberta"), roberta);
    assert_eq!(ids("llama3"), of(0, 1));
    assert_eq!(ids("bert"), TextSpecialIds { pad: Some(0), unk: Some(1), mask: Some(4), ..of(2, 3) });
    assert_eq!(ids("llama"), TextSpecialIds { unk: Some(0), ..of(1, 2) });
    let t5 = TextSpecialIds { pad: Some(0), unk: Some(2), ..of(1, 1) };
    assert_eq!(ids("t5"), t5);
    assert_eq!(world("llama3").special_ids(), [0, 1, 2]);
    assert_eq!((world("bert").around(), world("llama").around()), ((vec![2], vec![3]), (vec![1], vec![])));
    assert_eq!(world("gpt2").around(), (vec![0], vec![0]), "no post-processor: the tokens that are named for it");
    assert_eq!(world("llama").encode_prompt("a").expect("encodes")[0], 1);
    assert_eq!(world("gpt2").id("<|endoftext|>"), Some(0));
    assert_eq!(world("gpt2").id("<|stop|>"), None);
}

/// Begin and end, which also go around masked rows.
fn of(begin: u32, end: u32) -> TextSpecialIds {
    let (begin, end) = (Some(begin), Some(end));
    TextSpecialIds { bos: begin, eos: end, cls: begin, sep: end, ..TextSpecialIds::default() }
}

#[test]
fn names_come_from_the_user_then_from_the_folder() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::copy(path("llama3"), dir.path().join("tokenizer.json")).expect("a writable folder");
    let names = r#"{"bos_token": {"content": "<|reserved_special_token_0|>"}, "eos_token": "<|end_of_text|>", "pad_token": null}"#;
    std::fs::write(dir.path().join("tokenizer_config.json"), names).expect("a writable folder");
    let loaded = TextTokenizer::load_dir(dir.path()).expect("complete");
    assert_eq!((loaded.special().bos, loaded.special().eos, loaded.special().pad), (Some(2), Some(1), None));

    let map = r#"{"bos_token": "<|end_of_text|>", "unk_token": {"content": "<|reserved_special_token_0|>"}}"#;
    std::fs::write(dir.path().join("special_tokens_map.json"), map).expect("a writable folder");
    let loaded = TextTokenizer::load_dir(dir.path()).expect("complete");
    assert_eq!((loaded.special().bos, loaded.special().unk), (Some(2), Some(2)));

    let config = TokenizerConfig { path: Some(dir.path().join("tokenizer.json")), ..TokenizerConfig::default() };
    let chosen = TokenizerConfig { bos_token: "<|end_of_text|>".into(), ..config.clone() };
    let chosen = TokenizerConfig { pad_token: "<|reserved_special_token_0|>".into(), ..chosen };
    let loaded = TextTokenizer::load(&chosen).expect("complete");
    assert_eq!((loaded.special().bos, loaded.special().pad), (Some(1), Some(2)));
    // A padding token that also ends texts is not used as padding.
    let same = TokenizerConfig { pad_token: "<|end_of_text|>".into(), ..config.clone() };
    assert_eq!(TextTokenizer::load(&same).expect("complete").special().pad, None);

    let error = |config| TextTokenizer::load(&config).expect_err("refused").to_string();
    let text = error(TokenizerConfig { eos_token: "<stop>".into(), ..config.clone() });
    assert!(
        text.contains("has no \"<stop>\" for tokenizer.eos_token; its special tokens are \"<|begin_of_text|>\","),
        "{text}"
    );
    let text = error(TokenizerConfig { mask_token: Some("[M]".into()), ..config.clone() });
    assert!(text.contains("has no \"[M]\" for tokenizer.mask_token"), "{text}");
    std::fs::write(dir.path().join("tokenizer_config.json"), "{").expect("a writable folder");
    assert!(error(config).contains("tokenizer_config.json: has no valid special tokens"));
}

#[test]
fn a_task_without_its_tokens_is_refused() {
    let error = |name: &str, task| world(name).check(task).expect_err("refused").to_string();
    let text = error("gpt2", Task::Mlm);
    assert!(text.contains("has no mask token, and it hides what the model predicts"), "{text}");
    assert!(text.contains("its special tokens are \"<|endoftext|>\": set tokenizer.mask_token"), "{text}");
    assert!(error("bert", Task::Translation).contains("translation learns from pairs"));
    for (name, task) in [("gpt2", Task::Lm), ("llama", Task::Lm), ("bert", Task::Mlm), ("roberta", Task::Mlm)] {
        world(name).check(task).expect("complete");
    }
    // A vocabulary without any special token.
    let dir = tempfile::tempdir().expect("a folder");
    let json = std::fs::read_to_string(path("gpt2")).expect("committed").replace("<|endoftext|>", "<|nothing|>");
    let bare = dir.path().join("bare.json");
    std::fs::write(&bare, json).expect("a writable folder");
    let config = TokenizerConfig { path: Some(bare), ..TokenizerConfig::default() };
    let text = TextTokenizer::load(&config).expect("loads").check(Task::Lm).expect_err("refused").to_string();
    assert!(text.contains("has no end-of-text token, and every document must end with one"), "{text}");
    assert!(text.contains("append one with tokenizer.add_missing_tokens = true"), "{text}");

    let added = TextTokenizer::load(&TokenizerConfig { add_missing_tokens: true, ..config }).expect("loads");
    let ids = TextSpecialIds { pad: Some(700), mask: Some(702), ..of(701, 701) };
    assert_eq!(added.special(), ids);
    assert_eq!(added.vocab_size(), 703);
    added.save(dir.path()).expect("a writable folder");
    let loaded = TextTokenizer::load_dir(dir.path()).expect("complete");
    assert_eq!((loaded.special(), loaded.fingerprint()), (ids, added.fingerprint()));
    let chosen = TokenizerConfig {
        path: Some(path("gpt2")),
        mask_token: Some("<hide>".into()),
        add_missing_tokens: true,
        ..TokenizerConfig::default()
    };
    let added = TextTokenizer::load(&chosen).expect("loads");
    assert_eq!((added.id("<hide>"), added.special().mask, added.special().pad), (Some(700), Some(700), Some(701)));
}

#[test]
fn byte_level_and_word_piece_can_be_trained() {
    let documents: Vec<String> = multilingual().into_iter().map(|pair| pair.source).chain(stories(50, 20)).collect();
    for kind in [TokenizerKind::ByteLevelBpe, TokenizerKind::WordPiece] {
        for (split_digits, lowercase) in [(false, false), (true, true)] {
            let normalization = Normalization::None;
            let config = TokenizerConfig {
                kind,
                vocab_size: 700,
                split_digits,
                lowercase,
                normalization,
                ..TokenizerConfig::default()
            };

            let fixture = TextFixture::new(&documents, &config);
            let tokenizer = &fixture.tokenizer;
            let again = TextTokenizer::train(&config, &fixture.corpus, 1).expect("enough text");
            assert_eq!(tokenizer.fingerprint(), again.fingerprint(), "the same on any number of threads");
            assert!(tokenizer.vocab_size() <= 700);
            for task in [Task::Lm, Task::Mlm] {
                tokenizer.check(task).expect("complete");
            }

            tokenizer.save(fixture.dir.path()).expect("a writable folder");
            let loaded = TextTokenizer::load_dir(fixture.dir.path()).expect("complete");
            assert_eq!((loaded.fingerprint(), loaded.special()), (tokenizer.fingerprint(), tokenizer.special()));

            let digits = tokenizer.encode("1234").expect("encodes").len();
            assert!(!split_digits || digits == 4, "{digits}");
            if kind == TokenizerKind::ByteLevelBpe {
                for text in &documents {
                    let ids = tokenizer.encode(text).expect("encodes");
                    assert_eq!(tokenizer.decode(&ids).expect("decodes"), *text, "spells everything");
                }
                assert_eq!(
                    tokenizer.special(),
                    TextSpecialIds { pad: Some(0), unk: Some(3), mask: Some(4), ..of(1, 2) }
                );
            } else {
                let ids = tokenizer.encode("The quick fox").expect("encodes");
                let wanted = if lowercase { "the quick fox" } else { "The quick fox" };
                assert_eq!(tokenizer.decode(&ids).expect("decodes"), wanted);
                assert_eq!(
                    tokenizer.special(),
                    TextSpecialIds { pad: Some(0), unk: Some(1), mask: Some(4), ..of(2, 3) }
                );
                assert_eq!(tokenizer.around(), (vec![2], vec![3]));
            }
        }
    }
}

#[test]
fn settings_that_cannot_work_are_all_named() {
    assert!(TokenizerConfig::default().validate_for_text().is_empty());
    let config = TokenizerConfig {
        kind: TokenizerKind::ByteLevelBpe,
        target_path: Some("target.json".into()),
        vocab_size: 261,
        mask_token: Some(String::new()),
        extra_tokens: vec!["<s>".into()],
        ..TokenizerConfig::default()
    };
    let problems = config.validate_for_text();
    assert_eq!(problems.len(), 4, "{problems:#?}");
    assert!(problems[1].ends_with("cannot hold 262 special and byte tokens plus text: raise it"), "{}", problems[1]);
    let documents = stories(30, 10);
    let config = TokenizerConfig { kind: TokenizerKind::WordPiece, vocab_size: 20, ..TokenizerConfig::default() };
    let fixture = TextFixture::new(&documents, &TokenizerConfig::default());
    let text = TextTokenizer::train(&config, &fixture.corpus, 1).expect_err("too small").to_string();
    assert!(text.contains("vocab_size = 20 is too small") && !text.contains("byte_fallback"), "{text}");
}

#[test]
fn what_a_vocabulary_takes_from_a_text_is_said() {
    let folding = |tokenizer: TextTokenizer| tokenizer.folding().expect("a normalizer");
    let lower = TokenizerConfig { kind: TokenizerKind::WordPiece, vocab_size: 700, ..TokenizerConfig::default() };
    let documents = stories(50, 20);
    let train =
        |config: &TokenizerConfig| TextTokenizer::train_on_documents(config, &documents, 2).expect("a vocabulary");
    let both = Some("converts upper case to lower case and strips accents");
    assert_eq!(folding(train(&TokenizerConfig { lowercase: true, ..lower.clone() })), both);
    assert_eq!(folding(train(&lower)), None);
    assert_eq!(folding(world("gpt2")), None);
    assert_eq!(folding(world("llama")), None);
    let in_file = TextFixture::new(&documents, &lower).tokenizer;
    assert_eq!(train(&lower).fingerprint(), in_file.fingerprint(), "memory and files give the same vocabulary");
}
