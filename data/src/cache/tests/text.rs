//! Caches of plain text.

use std::fs;
use std::path::{Path, PathBuf};

use super::super::*;
use super::ids;
use crate::corpus::{TextConfig, TextCorpus, TextFormat};
use crate::fixtures::{Fixture, TextFixture, stories};
use crate::tokenizer::{TextTokenizer, TokenizerConfig, TokenizerKind};

fn config(kind: TokenizerKind) -> TokenizerConfig {
    TokenizerConfig { kind, vocab_size: 500, ..TokenizerConfig::default() }
}

fn prepared(path: &Path, corpus: &TextCorpus, tokenizer: &TextTokenizer, num_threads: usize) -> Prepared {
    prepare_text(path, corpus, tokenizer, num_threads, &mut |_| ()).expect("a good text")
}

fn corpus(path: &Path, format: TextFormat) -> TextCorpus {
    let config = TextConfig { format, max_bad_rows: 0.5, ..TextConfig::default() };
    TextCorpus::open(&[PathBuf::from(path)], &config).expect("a text")
}

#[test]
fn a_cache_holds_what_the_tokenizer_says() {
    let documents = stories(20_000, 12);
    for kind in [TokenizerKind::ByteLevelBpe, TokenizerKind::WordPiece, TokenizerKind::Bpe] {
        let fixture = TextFixture::new(&documents, &config(kind));
        let path = fixture.dir.path().join("text.tokens");
        let mut seen = Vec::new();
        let built = prepare_text(&path, &fixture.corpus, &fixture.tokenizer, 4, &mut |rows| seen.push(rows))
            .expect("a good text");
        assert_eq!(built.built_because.as_deref(), Some("there was none"));
        let cache = built.cache;
        assert_eq!((cache.kind(), cache.n_rows(), cache.report().kept), (CacheKind::Text, 20_000, 20_000));
        cache.verify().expect("undamaged");
        assert!(seen.is_sorted() && seen.len() > 1 && seen.last() == Some(&20_000));

        let mut tokens = 0;
        for (i, document) in documents.iter().enumerate() {
            let wanted = fixture.tokenizer.encode(document).expect("encodes");
            assert_eq!((ids(cache.document(i)), cache.document_len(i)), (wanted.clone(), wanted.len() as u64));
            tokens += wanted.len() as u64;
        }
        assert_eq!((cache.n_tokens(), cache.n_source_tokens(), cache.n_target_tokens()), (tokens, 0, 0));

        // Bytes do not depend on threads.
        let bytes = fs::read(&path).expect("there");
        fs::remove_file(&path).expect("there");
        prepared(&path, &fixture.corpus, &fixture.tokenizer, 1);
        assert_eq!(fs::read(&path).expect("there"), bytes);
    }
}

/// What a document spells stays text, or is read as in a prompt.
#[test]
fn special_tokens_that_documents_spell_follow_the_configuration() {
    let fixture = TextFixture::new(&stories(200, 12), &config(TokenizerKind::ByteLevelBpe));
    let path = fixture.dir.path().join("spelling.txt");
    fs::write(&path, "One more day</s> came.\n").expect("writable");
    let cache = |splits: bool| {
        let config = TextConfig { format: TextFormat::Lines, split_special_tokens: splits, ..TextConfig::default() };
        let corpus = TextCorpus::open(std::slice::from_ref(&path), &config).expect("a text");
        prepared(&fixture.dir.path().join("text.tokens"), &corpus, &fixture.tokenizer, 1).cache
    };
    let end = fixture.tokenizer.id("</s>").expect("an end token");
    let (split, read) = (cache(true), cache(false));
    assert_eq!((split.report().spelled, split.report().read_special), (1, 0));
    assert_eq!((read.report().spelled, read.report().read_special), (0, 1));
    assert!(split.report().to_string().contains("unless data.text.split_special_tokens = false"));
    let prompt = fixture.tokenizer.encode_prompt("One more day</s> came.").expect("encodes");
    let read = ids(read.document(0));
    assert!(prompt.ends_with(&read) && read.contains(&end), "{read:?} {prompt:?}");
    assert!(!ids(split.document(0)).contains(&end));
}

#[test]
fn a_long_document_has_the_tokens_that_it_would_have_in_one_piece() {
    let line = |i: usize| format!("Line {i} says{}", " that it is one of many".repeat(i % 5));
    let book = (0..45_000).map(line).collect::<Vec<_>>().join("\n");
    assert!(book.len() > 2 << 20);
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("book.txt");
    fs::write(&path, format!("{book}\n\nshort\n\n{book}\n")).expect("a writable folder");
    for kind in [TokenizerKind::ByteLevelBpe, TokenizerKind::WordPiece] {
        let tokenizer = TextFixture::new(&stories(200, 30), &config(kind)).tokenizer;
        let cache = dir.path().join("book.tokens");
        let cache = prepared(&cache, &corpus(&path, TextFormat::BlankLines), &tokenizer, 3).cache;
        assert_eq!((cache.n_rows(), cache.report().kept), (3, 3));
        let whole = tokenizer.encode(&book).expect("encodes");
        assert!(ids(cache.document(0)) == whole && ids(cache.document(2)) == whole, "{kind:?}: other tokens");
        assert_eq!(ids(cache.document(1)), tokenizer.encode("short").expect("encodes"));
    }
}

#[test]
fn documents_without_tokens_are_counted_and_left_out() {
    let fixture = TextFixture::new(&stories(50, 10), &config(TokenizerKind::WordPiece));
    let path = fixture.dir.path().join("some.txt");
    // BERT removes control characters.
    fs::write(&path, "one\n\n\u{7}\u{8}\n\ntwo\n").expect("a writable folder");
    let cache = fixture.dir.path().join("some.tokens");
    let cache = prepared(&cache, &corpus(&path, TextFormat::Auto), &fixture.tokenizer, 2).cache;
    let report = cache.report();
    assert_eq!((cache.n_rows(), report.kept, report.malformed), (2, 2, 1));
    assert!(report.to_string().contains("some.txt:3: the document has no tokens after normalization"), "{report}");

    fs::write(&path, "\u{7}\n\n\u{8}\n").expect("a writable folder");
    let new = fixture.dir.path().join("none.tokens");
    let text = prepare_text(&new, &corpus(&path, TextFormat::Auto), &fixture.tokenizer, 2, &mut |_| ());
    let text = text.expect_err("nothing is left").to_string();
    assert!(text.contains("100.00 % of the rows cannot be used") && text.contains("0 of 2 rows kept"), "{text}");
    assert!(!new.exists());
    fs::write(&path, "").expect("a writable folder");
    let text = prepare_text(&new, &corpus(&path, TextFormat::Auto), &fixture.tokenizer, 2, &mut |_| ());
    let text = text.expect_err("nothing there").to_string();
    assert!(text.contains("the text is empty") && text.contains("some.txt has no documents"), "{text}");
}

#[test]
fn a_fitting_cache_is_used_again_and_changes_are_noticed() {
    let fixture = TextFixture::new(&stories(100, 10), &config(TokenizerKind::ByteLevelBpe));
    let path = fixture.dir.path().join("text.tokens");
    let text = fixture.dir.path().join("documents.jsonl");
    let reason = |corpus: &TextCorpus, tokenizer: &TextTokenizer| prepared(&path, corpus, tokenizer, 2).built_because;
    assert!(reason(&fixture.corpus, &fixture.tokenizer).is_some());
    assert_eq!(reason(&fixture.corpus, &fixture.tokenizer), None);
    // Packing is not part of the cache.
    let packed = TextConfig { seq_len: 64, packing: crate::corpus::Packing::Stream, ..TextConfig::default() };
    let same = TextCorpus::open(std::slice::from_ref(&text), &packed).expect("a text");
    assert_eq!(reason(&same, &fixture.tokenizer), None);
    let changed = Some("the text, its fields, filters or length limits changed");
    assert_eq!(reason(&corpus(&text, TextFormat::Lines), &fixture.tokenizer).as_deref(), changed);
    assert_eq!(reason(&fixture.corpus, &fixture.tokenizer).as_deref(), changed);
    let other = TextFixture::new(&stories(90, 10), &config(TokenizerKind::ByteLevelBpe)).tokenizer;
    assert_eq!(reason(&fixture.corpus, &other).as_deref(), Some("the tokenizer changed"));

    // A cache of another task in the same place is replaced, either way.
    let pairs = Fixture::numbers(50);
    let built = prepare_pairs(&path, &pairs.corpus, &pairs.tokenizers, 1, &mut |_| ()).expect("good pairs");
    assert_eq!(built.built_because.as_deref(), Some("it holds rows of another task"));
    drop(built);
    assert_eq!(reason(&fixture.corpus, &fixture.tokenizer).as_deref(), Some("it holds rows of another task"));
}

#[test]
fn a_damaged_index_is_refused() {
    let fixture = TextFixture::new(&stories(100, 10), &config(TokenizerKind::ByteLevelBpe));
    let cache = fixture.cache();
    let bytes = fs::read(cache.path()).expect("there");
    let damaged = fixture.dir.path().join("damaged.tokens");
    for at in [cache.sections.offsets.start + 9, cache.sections.report.start + 3, 184] {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        fs::write(&damaged, &bytes).expect("a writable folder");
        let error = TokenCache::open(&damaged).map(|_| ()).expect_err("a damaged cache").to_string();
        assert!(error.contains("is damaged"), "byte {at}: {error}");
    }
    assert!(cache.sections.source_lens.is_empty());
}
