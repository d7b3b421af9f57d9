use super::*;
use crate::corpus::Example;
use crate::fixtures::{Fixture, multilingual};
use crate::loader::{Loader, OnePass};
use crate::tokenizer::TokenizerConfig;

fn config() -> LoaderConfig {
    LoaderConfig { batch_tokens: 512, num_workers: 2, ..LoaderConfig::default() }
}

fn text_config() -> TokenizerConfig {
    TokenizerConfig { vocab_size: 460, ..TokenizerConfig::default() }
}

fn rewritten(fixture: &Fixture, name: &str, contents: impl AsRef<[u8]>, config: &CorpusConfig) -> PairCorpus {
    let path = fixture.dir.path().join(name);
    std::fs::write(&path, contents).expect("a writable folder");
    PairCorpus::open(&[path], config).expect("a corpus")
}

fn error(corpus: &PairCorpus, fixture: &Fixture) -> String {
    DirectSource::open(corpus, &fixture.tokenizers, &config()).map(|_| ()).expect_err("refused").to_string()
}

#[test]
fn jsonl_and_tsv_give_the_same_batches() {
    let rows: Vec<_> = std::iter::repeat_n(multilingual(), 20)
        .flatten()
        .filter(|e| !e.source.contains('\t') && !e.target.contains('\t'))
        .collect();
    let fixture = Fixture::new(&rows, &text_config(), &CorpusConfig::default());
    let tsv: String = rows.iter().map(|e| format!("{}\t{}\r\n", e.source, e.target)).collect();
    let tsv = rewritten(&fixture, "rows.tsv", format!("\u{feff}{tsv}"), &CorpusConfig::default());
    let read = |corpus: &PairCorpus| {
        let source = DirectSource::open(corpus, &fixture.tokenizers, &config()).expect("a good corpus");
        let pass = OnePass::new(Arc::new(source), &config()).expect("starts");
        pass.map(|batch| batch.expect("a batch")).collect::<Vec<_>>()
    };
    let batches = read(&fixture.corpus);
    assert_eq!(batches.iter().map(|batch| batch.rows.len()).sum::<usize>(), rows.len());
    assert_eq!(read(&tsv), batches);
}

#[test]
fn rows_with_too_many_tokens_are_left_out_and_counted() {
    let mut rows = crate::built_in::numbers::examples(300, 0, 9, 1).expect("valid settings").train;
    rows[5].target = "one ".repeat(40);
    let config = CorpusConfig { max_target_len: 39, max_bad_rows: 0.01, ..CorpusConfig::default() };
    let fixture = Fixture::new(&rows, &crate::built_in::numbers::tokenizer_config(), &config);
    let source =
        Arc::new(DirectSource::open(&fixture.corpus, &fixture.tokenizers, &self::config()).expect("a good corpus"));
    let pass = OnePass::new(source.clone(), &self::config()).expect("starts");
    let mut seen: Vec<u32> = pass.flat_map(|batch| batch.expect("a batch").rows).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..300).filter(|row| *row != 5).collect::<Vec<_>>());
    assert_eq!((source.over_long_rows(), source.report().kept), (1, 300));
}

#[test]
fn bad_rows_are_found_when_the_file_is_opened() {
    let fixture = Fixture::numbers(300);
    let good = std::fs::read_to_string(fixture.dir.path().join("rows.jsonl")).expect("there");
    let bad = rewritten(&fixture, "bad.jsonl", format!("{good}{{}}\n\n"), &CorpusConfig::default());
    let source = DirectSource::open(&bad, &fixture.tokenizers, &config()).expect("tolerated");
    assert_eq!((source.report().malformed, source.report().empty), (1, 1));
    assert_eq!(source.report().shown[0].line, 301);
    let strict = CorpusConfig { max_bad_rows: 0.0, ..CorpusConfig::default() };
    let bad = rewritten(&fixture, "bad.jsonl", format!("{good}{{}}\n"), &strict);
    assert!(error(&bad, &fixture).contains("bad.jsonl:301: no field \"src\""));
    let empty = rewritten(&fixture, "empty.jsonl", "", &strict);
    assert!(error(&empty, &fixture).contains("the corpus is empty"));
}

#[test]
fn files_that_cannot_be_read_in_any_order_are_refused() {
    let fixture = Fixture::numbers(100);
    let packed = zstd::encode_all(&b"{}"[..], 1).expect("memory");
    let packed = rewritten(&fixture, "rows.jsonl.zst", packed, &CorpusConfig::default());
    assert!(error(&packed, &fixture).contains("is compressed, and direct mode reads rows in any order"));
    let path = fixture.dir.path().join("rows.jsonl");
    let both = PathBuf::from(format!("{0},{0}", path.display()));
    let parallel = PairCorpus::open(&[both], &CorpusConfig::default()).expect("two files");
    assert!(error(&parallel, &fixture).contains("direct mode reads JSONL and TSV"));
    let utf16 = rewritten(&fixture, "utf16.jsonl", [0xff, 0xfe, b'{', 0], &CorpusConfig::default());
    assert!(error(&utf16, &fixture).contains("UTF-16"), "{}", error(&utf16, &fixture));
}

#[test]
fn estimates_keep_batches_near_their_budget() {
    let rows: Vec<_> = std::iter::repeat_n(multilingual(), 200).flatten().collect();
    let fixture = Fixture::new(&rows, &text_config(), &CorpusConfig::default());
    let source = Arc::new(DirectSource::open(&fixture.corpus, &fixture.tokenizers, &config()).expect("good rows"));
    let mut loader = Loader::new(source.clone(), &config(), 1, crate::Position::default()).expect("starts");
    for _ in 0..source.batches_per_epoch() {
        let shape = loader.next_batch().expect("a batch").shape();
        let tokens = shape.batch_size * shape.source_len.max(shape.target_len);
        assert!(tokens <= 4 * config().batch_tokens, "{shape}");
    }
}

#[test]
fn one_row_is_enough() {
    let rows = [Example { source: "a b".into(), target: "c".into() }];
    let fixture = Fixture::new(&rows, &text_config(), &CorpusConfig::default());
    let source = DirectSource::open(&fixture.corpus, &fixture.tokenizers, &config()).expect("a good corpus");
    assert_eq!(OnePass::new(Arc::new(source), &config()).expect("starts").count(), 1);
}

#[test]
fn a_text_that_changes_during_the_run_ends_it() {
    let rows = crate::built_in::numbers::examples(300, 0, 9, 1).expect("valid settings").train;
    let fixture = Fixture::new(&rows, &crate::built_in::numbers::tokenizer_config(), &CorpusConfig::default());
    let path = fixture.corpus.inputs()[0].files()[0].to_path_buf();
    let whole = std::fs::read(&path).expect("there");
    for workers in [0, 2] {
        let config = LoaderConfig { num_workers: workers, ..config() };
        let source = DirectSource::open(&fixture.corpus, &fixture.tokenizers, &config).expect("a good corpus");
        let mut loader = Loader::new(Arc::new(source), &config, 1, Default::default()).expect("starts");
        loader.next_batch().expect("unchanged");

        // As long as before, with the same rows in another order: only the time stamp shows the change.
        let reversed: Vec<u8> = whole.split_inclusive(|b| *b == b'\n').rev().flatten().copied().collect();
        let later = SystemTime::now() + std::time::Duration::from_secs(3600);
        // In place and never shorter: reading a mapped file behind its end kills the process.
        let overwrite = |bytes: &[u8], modified: SystemTime| {
            let mut file = std::fs::File::options().write(true).open(&path)?;
            std::io::Write::write_all(&mut file, bytes)?;
            file.set_modified(modified)
        };
        overwrite(&reversed, later).expect("writable");

        let error = (0..100).find_map(|_| loader.next_batch().err()).expect("noticed").to_string();
        assert!(error.contains("changed during the run"), "{error}");
        drop(loader);
        overwrite(&whole, SystemTime::now()).expect("writable");
    }
}
