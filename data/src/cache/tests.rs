mod filtered;
mod text;

use std::fs;
use std::time::{Duration, SystemTime};

use super::*;
use crate::corpus::{CorpusConfig, Example, PairCorpus, Unknown};
use crate::fixtures::{Fixture, multilingual};
use crate::tokenizer::{PairTokenizers, SpecialIds, TokenizerConfig};

fn build(fixture: &Fixture) -> Prepared {
    prepare_pairs(&fixture.cache_path(), &fixture.corpus, &fixture.tokenizers, 2, &mut |_| ()).expect("a good corpus")
}

fn ids(tokens: Tokens<'_>) -> Vec<u32> {
    match tokens {
        Tokens::Narrow(ids) => ids.iter().map(|id| u32::from(*id)).collect(),
        Tokens::Wide(ids) => ids.to_vec(),
    }
}

fn assert_rows(cache: &TokenCache, rows: &[Example], tokenizers: &PairTokenizers) {
    assert_eq!(cache.n_rows(), rows.len());
    let sources: Vec<_> = rows.iter().map(|row| &row.source).collect();
    let targets: Vec<_> = rows.iter().map(|row| &row.target).collect();
    let (sources, targets) =
        (tokenizers.encode_sources(&sources).expect("encodes"), tokenizers.encode_targets(&targets).expect("encodes"));
    for i in 0..rows.len() {
        let (source, target) = cache.row(i);
        assert_eq!(ids(source), sources[i][..sources[i].len() - 1]);
        assert_eq!(ids(target), targets[i][..targets[i].len() - 1]);
        let row = CachedRow::Pair { source: ids(source), target: ids(target) };
        assert_eq!(cache.read_row(i).expect("undamaged"), row);
        assert_eq!(cache.lengths(i), (sources[i].len(), targets[i].len()));
    }
    assert_eq!(cache.n_source_tokens(), sources.iter().map(|ids| ids.len() as u64).sum::<u64>());
    assert_eq!(cache.n_target_tokens(), targets.iter().map(|ids| ids.len() as u64).sum::<u64>());
}

#[test]
fn a_cache_holds_what_the_tokenizer_says() {
    let rows = crate::built_in::numbers::examples(20_000, 0, 9, 1).expect("valid settings").train;
    let fixture = Fixture::new(&rows, &crate::built_in::numbers::tokenizer_config(), &CorpusConfig::default());
    let mut seen = Vec::new();
    let prepared =
        prepare_pairs(&fixture.cache_path(), &fixture.corpus, &fixture.tokenizers, 4, &mut |rows| seen.push(rows))
            .expect("a good corpus");
    assert_eq!(prepared.built_because.as_deref(), Some("there was none"));
    assert_rows(&prepared.cache, &rows, &fixture.tokenizers);
    prepared.cache.verify().expect("undamaged");
    assert_eq!(seen.last(), Some(&20_000));
    assert!(seen.is_sorted() && seen.len() > 1);
    // Bytes do not depend on threads.
    let bytes = fs::read(fixture.cache_path()).expect("there");
    fs::remove_file(fixture.cache_path()).expect("there");
    prepare_pairs(&fixture.cache_path(), &fixture.corpus, &fixture.tokenizers, 1, &mut |_| ()).expect("a good corpus");
    assert_eq!(fs::read(fixture.cache_path()).expect("there"), bytes);
}

#[test]
fn large_vocabularies_take_wide_tokens() {
    let fixture = Fixture::new(
        &multilingual(),
        &TokenizerConfig { vocab_size: 500, ..TokenizerConfig::default() },
        &CorpusConfig::default(),
    );
    // An id beyond 16 bits makes every id wide.
    let path = fixture.dir.path().join("wide.json");
    fixture.tokenizers.save(fixture.dir.path()).expect("a writable folder");
    let json = fs::read_to_string(fixture.dir.path().join("tokenizer.json")).expect("there");
    let mut json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let vocab = json["model"]["vocab"].as_object_mut().expect("a vocabulary");
    let last = vocab.iter().max_by_key(|(_, id)| id.as_u64()).expect("not empty").0.clone();
    vocab[&last] = 70_000.into();
    fs::write(&path, json.to_string()).expect("a writable folder");
    let tokenizers =
        PairTokenizers::load(&TokenizerConfig { path: Some(path), ..TokenizerConfig::default() }).expect("complete");
    assert_eq!(tokenizers.source_vocab_size(), 70_001);
    let cache = fixture.dir.path().join("wide.tokens");
    let prepared = prepare_pairs(&cache, &fixture.corpus, &tokenizers, 2, &mut |_| ()).expect("a good corpus");
    assert!(matches!(prepared.cache.row(0).0, Tokens::Wide(_)));
    assert_rows(&prepared.cache, &multilingual(), &tokenizers);
}

#[test]
fn a_fitting_cache_is_used_again() {
    let fixture = Fixture::numbers(500);
    assert!(build(&fixture).built_because.is_some());
    let written = |path: &Path| fs::metadata(path).and_then(|m| m.modified()).expect("there");
    let before = written(&fixture.cache_path());
    assert_eq!(build(&fixture).built_because, None);
    // The same text with another time stamp, and under another name, is the same text.
    let path = fixture.dir.path().join("rows.jsonl");
    fs::File::options().append(true).open(&path).expect("there").set_modified(SystemTime::UNIX_EPOCH).expect("ours");
    assert_eq!(build(&fixture).built_because, None);
    let copy = fixture.dir.path().join("copy.jsonl");
    fs::copy(&path, &copy).expect("a writable folder");
    let corpus = PairCorpus::open(&[copy], &CorpusConfig::default()).expect("a corpus");
    let prepared = prepare_pairs(&fixture.cache_path(), &corpus, &fixture.tokenizers, 2, &mut |_| ());
    assert_eq!(prepared.expect("a good corpus").built_because, None);
    assert_eq!(written(&fixture.cache_path()), before, "never rewritten");
}

#[test]
fn changes_are_noticed() {
    let fixture = Fixture::numbers(500);
    build(&fixture);
    let path = fixture.dir.path().join("rows.jsonl");
    let text = fs::read_to_string(&path).expect("there");
    let reason = |corpus: &PairCorpus, tokenizers: &PairTokenizers| {
        let prepared = prepare_pairs(&fixture.cache_path(), corpus, tokenizers, 2, &mut |_| ()).expect("a good corpus");
        prepared.built_because
    };
    // One letter, the same size.
    fs::write(&path, text.replacen("one", "onx", 1)).expect("a writable folder");
    assert_eq!(
        reason(&fixture.corpus, &fixture.tokenizers).as_deref(),
        Some("the text, its fields, filters or length limits changed")
    );
    let limited = CorpusConfig { max_target_len: 60, ..CorpusConfig::default() };
    let corpus = PairCorpus::open(std::slice::from_ref(&path), &limited).expect("a corpus");
    assert!(reason(&corpus, &fixture.tokenizers).is_some());
    assert!(reason(&corpus, &fixture.tokenizers).is_none());
    let other = Fixture::numbers(600).tokenizers;
    assert_eq!(reason(&corpus, &other).as_deref(), Some("the tokenizer changed"));
    assert!(reason(&corpus, &other).is_none());
}

#[test]
fn time_stamps_that_are_too_fresh_are_not_trusted() {
    let fixture = Fixture::numbers(500);
    let path = fixture.dir.path().join("rows.jsonl");
    let stamp = |age: u64| {
        let time = SystemTime::now() - Duration::from_secs(age);
        fs::File::options().append(true).open(&path).expect("there").set_modified(time).expect("ours");
        time
    };
    let ledger = || fs::read_to_string(fingerprint::Ledger::path(&fixture.cache_path())).expect("there");
    build(&fixture);
    assert!(!ledger().contains("rows.jsonl"), "written a moment ago");
    let time = stamp(60);
    build(&fixture);
    assert!(ledger().contains("rows.jsonl"));
    // Size and settled time stamp are believed: this is what makes the second run instant.
    let text = fs::read_to_string(&path).expect("there");
    fs::write(&path, text.replacen("one", "onx", 1)).expect("a writable folder");
    fs::File::options().append(true).open(&path).expect("there").set_modified(time).expect("ours");
    assert_eq!(build(&fixture).built_because, None);
}

#[test]
fn bad_rows_are_reported_and_refused() {
    let mut rows = crate::built_in::numbers::examples(400, 0, 9, 1).expect("valid settings").train;
    rows[7].target = "one ".repeat(40);
    rows.push(Example { source: "\u{301}".into(), target: "x".into() });
    let config = CorpusConfig { max_target_len: 30, ..CorpusConfig::default() };
    let fixture = Fixture::new(&rows, &crate::built_in::numbers::tokenizer_config(), &config);
    let prepared = build(&fixture);
    let report = prepared.cache.report().clone();
    assert_eq!((report.kept, report.over_long, report.bad()), (400, 1, 1));
    assert_eq!(report.shown[0].line, 8);
    assert!(report.shown[0].problem.starts_with("the target has 4"), "{}", report.shown[0].problem);
    assert!(report.to_string().contains("400 of 401 rows kept, 1 over-long"), "{report}");

    // A stricter limit refuses the cache that is already there, and a new one leaves nothing behind.
    let strict = CorpusConfig { max_bad_rows: 0.0, ..config };
    let corpus = PairCorpus::open(&[fixture.dir.path().join("rows.jsonl")], &strict).expect("a corpus");
    for path in [fixture.cache_path(), fixture.dir.path().join("new.tokens")] {
        let error =
            prepare_pairs(&path, &corpus, &fixture.tokenizers, 2, &mut |_| ()).expect_err("refused").to_string();
        assert!(error.contains("0.25 % of the rows cannot be used, 0.00 % are tolerated"), "{error}");
        assert!(error.contains("raise data.corpus.max_source_len"), "{error}");
    }
    let left: Vec<_> = fs::read_dir(fixture.dir.path())
        .expect("there")
        .map(|entry| entry.expect("there").file_name().into_string().expect("UTF-8"))
        .filter(|name| name.starts_with("new"))
        .collect();
    assert_eq!(left, ["new.tokens.lock"]);
}

#[test]
fn truncated_damaged_and_foreign_files_are_refused() {
    let fixture = Fixture::numbers(300);
    build(&fixture);
    let path = fixture.cache_path();
    let bytes = fs::read(&path).expect("there");
    let error_of = |bytes: &[u8]| {
        // Never in place: the file may be mapped.
        let path = fixture.dir.path().join("damaged.tokens");
        let _ = fs::remove_file(&path);
        fs::write(&path, bytes).expect("a writable folder");
        TokenCache::open(&path).map(|_| ()).expect_err("a damaged cache").to_string()
    };
    for len in [1, 8, 11, 100, 511, 512, 513, bytes.len() / 2, bytes.len() - 1] {
        let error = error_of(&bytes[..len]);
        assert!(error.contains("truncated") || len == 1 && error.contains("is not a token cache"), "{len}: {error}");
    }
    assert!(error_of(b"").contains("is not a token cache: it starts with \"\""));
    assert!(error_of(&[&bytes[..], b"x"].concat()).contains("was appended to"));
    assert!(error_of(b"{\"src\": \"a\"}").contains("is not a token cache: it starts with \"{\\\"src\\\": \""));
    for at in [12, 16, 24, 40, 48, 56, 80, 200, 480, 511] {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        assert!(error_of(&bytes).contains("its header is damaged"), "byte {at}");
    }
    let mut version = bytes.clone();
    version[8] = 9;
    assert!(error_of(&version).contains("has format version 9, this program reads version 1"));
    let cache = TokenCache::open(&path).expect("undamaged");
    for section in [&cache.sections.offsets, &cache.sections.source_lens, &cache.sections.report] {
        let mut bytes = bytes.clone();
        bytes[section.start + 5] ^= 64;
        assert!(error_of(&bytes).contains("its index is damaged"), "{section:?}");
    }

    // Tokens are checked on demand.
    let mut tokens = bytes.clone();
    tokens[cache.sections.tokens.start] ^= 1;
    let other = fixture.dir.path().join("tokens.tokens");
    fs::write(&other, &tokens).expect("a writable folder");
    let error = TokenCache::open(&other).expect("its index is whole").verify().expect_err("damaged").to_string();
    assert!(error.contains("its tokens differ from the ones that were written"), "{error}");

    // An id of two bytes that no vocabulary of these rows has.
    tokens[cache.sections.tokens.start..][..2].copy_from_slice(&[0xff; 2]);
    fs::write(&other, &tokens).expect("a writable folder");
    let error = TokenCache::open(&other).expect("its index is whole").read_row(0).expect_err("damaged").to_string();
    assert!(error.contains("row 0 is damaged: it has id 65535, the vocabulary holds"), "{error}");
}

#[test]
fn damaged_caches_are_built_again_and_foreign_files_are_left_alone() {
    let fixture = Fixture::numbers(300);
    build(&fixture);
    let bytes = fs::read(fixture.cache_path()).expect("there");
    fs::write(fixture.cache_path(), &bytes[..700]).expect("a writable folder");
    assert!(build(&fixture).built_because.is_some_and(|reason| reason.contains("truncated")));
    assert_eq!(fs::read(fixture.cache_path()).expect("there"), bytes);
    fs::write(fixture.cache_path(), "my thesis").expect("a writable folder");
    let error = prepare_pairs(&fixture.cache_path(), &fixture.corpus, &fixture.tokenizers, 2, &mut |_| ())
        .expect_err("not ours")
        .to_string();
    assert!(error.contains("is not a token cache: it starts with \"my thesi\""), "{error}");
    assert_eq!(fs::read_to_string(fixture.cache_path()).expect("there"), "my thesis");
}

#[test]
fn an_interrupted_build_is_invisible() {
    let fixture = Fixture::numbers(300);
    // What a killed process leaves: a partial file without a header.
    let partial = fixture.dir.path().join("rows.tokens.partial");
    fs::write(&partial, vec![0; 5000]).expect("a writable folder");
    assert!(TokenCache::open(&partial).is_err());
    assert_eq!(build(&fixture).built_because.as_deref(), Some("there was none"));
    assert!(!partial.exists());
}

#[test]
fn two_builders_at_once_agree() {
    let fixture = Fixture::numbers(5000);
    let reasons: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| build(&fixture).built_because)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert_eq!(reasons.iter().filter(|reason| reason.is_some()).count(), 1, "{reasons:?}");
}

#[test]
fn folders_that_cannot_be_written_are_named() {
    let fixture = Fixture::numbers(50);
    let file = fixture.dir.path().join("rows.jsonl");
    let error = prepare_pairs(&file.join("x.tokens"), &fixture.corpus, &fixture.tokenizers, 2, &mut |_| ())
        .expect_err("a file is not a folder")
        .to_string();
    assert!(error.contains("rows.jsonl: creating the cache folder failed"), "{error}");
}

#[test]
fn a_flipped_bit_among_the_tokens_is_found_before_they_are_used() {
    let rows = crate::built_in::numbers::examples(500, 0, 9, 1).expect("valid settings").train;
    let fixture = Fixture::new(&rows, &crate::built_in::numbers::tokenizer_config(), &CorpusConfig::default());
    build(&fixture);
    let good = fs::read(fixture.cache_path()).expect("there");
    let mut bad = good.clone();
    bad[super::format::HEADER_BYTES + 40] ^= 4;
    fs::write(fixture.cache_path(), bad).expect("writable");
    let again = build(&fixture);
    assert_eq!(again.built_because.as_deref(), Some("its tokens differ from the ones that were written"));
    drop(again);
    assert_eq!(fs::read(fixture.cache_path()).expect("there"), good);
}

#[test]
fn a_text_that_changes_while_it_is_read_gives_no_cache() {
    let rows = crate::built_in::numbers::examples(20_000, 0, 9, 1).expect("valid settings").train;
    let fixture = Fixture::new(&rows, &crate::built_in::numbers::tokenizer_config(), &CorpusConfig::default());
    let path = fixture.corpus.inputs()[0].files()[0].to_path_buf();
    let mut text = fs::read(&path).expect("there");
    text.extend_from_slice(b"{\"src\": \"1\", \"trg\": \"one\"}\n");
    let mut changed = false;
    let result = prepare_pairs(&fixture.cache_path(), &fixture.corpus, &fixture.tokenizers, 2, &mut |_| {
        if !std::mem::replace(&mut changed, true) {
            // Another file under the name: the map that is being read stays what it was.
            let new = path.with_extension("new");
            fs::write(&new, &text).and_then(|()| fs::rename(&new, &path)).expect("writable");
        }
    });
    let error = result.map(|_| ()).expect_err("neither the old text nor the new one").to_string();
    assert!(error.contains("the text changed while it was read"), "{error}");
    assert!(!fixture.cache_path().exists());
    build(&fixture);
}

#[test]
fn a_damaged_record_of_files_is_found_and_not_used() {
    let fixture = Fixture::numbers(200);
    let corpus = fixture.dir.path().join("rows.jsonl");
    // Old enough that the next build need not read it again.
    let old = SystemTime::now() - Duration::from_secs(60);
    fs::File::options().append(true).open(&corpus).and_then(|file| file.set_modified(old)).expect("writable");
    build(&fixture);
    let record = fixture.dir.path().join("rows.tokens.files.json");
    assert!(verify_file_record(&record).expect("as it was written"));

    let text = fs::read_to_string(&record).expect("there");
    let hash = blake3::hash(&fs::read(&corpus).expect("there")).to_hex().to_string();
    assert!(text.contains(&hash), "{text}");
    let flipped = if hash.starts_with('0') { "1" } else { "0" };
    fs::write(&record, text.replace(&hash, &format!("{flipped}{}", &hash[1..]))).expect("writable");
    assert!(verify_file_record(&record).expect_err("another hash").to_string().contains("differs from the one"));
    assert_eq!(build(&fixture).built_because, None, "the text was read instead");
    assert!(verify_file_record(&record).expect("written anew"));

    fs::write(&record, text.replace("\"digest\"", "\"of_old\"")).expect("writable");
    assert!(!verify_file_record(&record).expect("an earlier version's"));
    assert_eq!(build(&fixture).built_because, None);
}

#[test]
fn special_tokens_that_rows_spell_are_counted() {
    let rows: Vec<_> = (0..50).map(|n| Example { source: format!("row {n}"), target: format!("riga {n}") }).collect();
    let config = TokenizerConfig { vocab_size: 400, ..TokenizerConfig::default() };
    let mut fixture = Fixture::new(&rows, &config, &CorpusConfig::default());
    assert!(!build(&fixture).cache.report().to_string().contains("spelled"));

    let spelling = fixture.dir.path().join("spelling.jsonl");
    std::fs::write(&spelling, "{\"src\":\"row</s></s>\",\"trg\":\"<pad> riga\"}\n").expect("writable");
    fixture.corpus = PairCorpus::open(&[spelling], &CorpusConfig::default()).expect("a corpus");
    let report = build(&fixture).cache.report().clone();
    assert_eq!(report.spelled, 3);
    let said = report.to_string();
    assert!(said.contains("3 special tokens spelled in the text: they stay text, unless data.corpus.split_"), "{said}");

    // A key changes it, and the cache with it.
    let reading = CorpusConfig { split_special_tokens: false, ..CorpusConfig::default() };
    let spelling = fixture.corpus.inputs()[0].main_file().to_path_buf();
    fixture.corpus = PairCorpus::open(&[spelling], &reading).expect("a corpus");
    let built = build(&fixture);
    let report = built.cache.report();
    assert_eq!((report.spelled, report.read_special), (0, 3));
    assert!(report.to_string().contains("3 special tokens spelled in the text and read as such"), "{report}");
    let SpecialIds { pad, eos, .. } = fixture.tokenizers.special();
    let (source, target) = built.cache.row(0);
    let (source, target) = (ids(source), ids(target));
    assert!(source.ends_with(&[eos, eos]) && target.starts_with(&[pad]), "{source:?} {target:?}");
}

#[test]
fn characters_that_the_vocabulary_lacks_are_counted_and_named() {
    let rows: Vec<_> = (0..200).map(|n| Example { source: format!("row {n}"), target: format!("riga {n}") }).collect();
    let config = TokenizerConfig { vocab_size: 60, byte_fallback: false, ..TokenizerConfig::default() };
    let mut fixture = Fixture::new(&rows, &config, &CorpusConfig::default());
    assert!(build(&fixture).cache.report().unknown == Unknown::default());

    let foreign = fixture.dir.path().join("foreign.jsonl");
    std::fs::write(&foreign, "{\"src\":\"row é\",\"trg\":\"riga éß\"}\n{\"src\":\"row\",\"trg\":\"riga\"}\n")
        .expect("writable");
    fixture.corpus = PairCorpus::open(&[foreign], &CorpusConfig::default()).expect("a corpus");
    let cache = build(&fixture).cache;
    let text = cache.report().to_string();
    assert!(text.contains("2 of 2 rows kept") && text.contains("the vocabulary lacks é (2 times), ß (once)"), "{text}");
    assert_eq!(TokenCache::open(&fixture.cache_path()).expect("built").report(), cache.report());
    assert_eq!(
        fixture.tokenizers.lacking_in_sources(&["row é", "e\u{301} ✓"]).expect("counts").to_string(),
        "é (2 times), ✓ (once)"
    );
    assert!(!fixture.tokenizers.spells_bytes());
}

#[test]
fn characters_that_become_bytes_are_lacking_in_an_input_but_not_unknown() {
    let rows: Vec<_> = (0..200).map(|n| Example { source: format!("row {n}"), target: format!("riga {n}") }).collect();
    let config = TokenizerConfig { vocab_size: 320, ..TokenizerConfig::default() };
    let fixture = Fixture::new(&rows, &config, &CorpusConfig::default());
    assert!(fixture.tokenizers.spells_bytes());
    assert_eq!(fixture.tokenizers.lacking_in_sources(&["row é"]).expect("counts").to_string(), "é (once)");
    assert!(fixture.tokenizers.lacking_in_sources(&["row 7", "\t"]).expect("counts").is_empty());
}
