use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::*;
use crate::built_in::numbers;
use crate::cache::{Tokens, prepare_pairs, prepare_text};
use crate::corpus::{CorpusConfig, Example, FilterConfig, FilteredRows, HeldOut, RowFilter, TextConfig, TextFormat};
use crate::fixtures::{Fixture, TextFiles, TextFixture, stories};
use crate::loader_config::round_up;
use crate::tokenizer::{TokenizerConfig, TokenizerKind};

fn documents(cache: &TokenCache) -> Vec<Vec<u32>> {
    let ids = |row| match cache.document(row) {
        Tokens::Narrow(ids) => ids.iter().map(|id| u32::from(*id)).collect(),
        Tokens::Wide(ids) => ids.to_vec(),
    };
    (0..cache.n_rows()).map(ids).collect()
}

/// Opens shards one after the other and returns their documents.
fn documents_of(shards: &Shards) -> Vec<Vec<u32>> {
    let open = |shard: u32| shards.open(&[shard], &|kept| kept == shard, 2, &|| false).expect("a shard").remove(0);
    (0..shards.n_shards() as u32).flat_map(|shard| documents(&open(shard))).collect()
}

/// Bytes of all caches in a folder.
fn taken(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let is_cache = |path: &PathBuf| path.to_string_lossy().contains(".tokens");
    entries.filter(is_cache).map(|path| fs::metadata(path).map_or(0, |file| file.len())).sum()
}

fn error(shards: Result<Shards>) -> String {
    shards.expect_err("refused").to_string()
}

#[test]
fn shards_hold_the_documents_of_the_whole_cache_whatever_the_format() {
    let of_lines = |ending: &str, text: String| {
        let fixture = TextFixture::new(
            &stories(300, 30),
            &TokenizerConfig { kind: TokenizerKind::ByteLevelBpe, vocab_size: 400, ..TokenizerConfig::default() },
        );
        // More than one block, with a byte order mark, blank lines and both line ends.
        let path = fixture.dir.path().join(format!("long.{ending}"));
        fs::write(&path, format!("\u{feff}{text}")).expect("written");
        (fixture, path)
    };
    let long = stories(5000, 60);
    let json = |text: &String| serde_json::json!({ "text": text }).to_string();
    let cases = [
        ("txt", TextFormat::Auto, long.join("\n\n\n"), true),
        ("txt", TextFormat::Lines, long.join("\r\n"), true),
        ("jsonl", TextFormat::Auto, long.iter().map(json).collect::<Vec<_>>().join("\n"), true),
        ("json", TextFormat::Auto, format!("[{}]", long.iter().map(json).collect::<Vec<_>>().join(",\n")), false),
    ];

    for (ending, format, text, can_start_within) in cases {
        let (fixture, path) = of_lines(ending, text);
        let config = TextConfig { format, ..TextConfig::default() };
        let corpus = TextCorpus::open(&[path], &config).expect("a corpus");
        let whole = fixture.dir.path().join("whole.tokens");
        let whole = prepare_text(&whole, &corpus, &fixture.tokenizer, 2, &mut |_| ()).expect("a cache").cache;
        let folder = fixture.dir.path().join("shards");
        let shards = Shards::of_text(&folder, corpus, &fixture.tokenizer, 8 << 20, 2).expect("an index");
        assert_eq!((shards.report(), shards.n_tokens()), (whole.report(), whole.n_tokens()), "{ending} {format:?}");
        assert!(documents_of(&shards) == documents(&whole), "{ending} {format:?}");
        assert_eq!(shards.n_shards() > 2, can_start_within, "{ending} {format:?}: {}", shards.n_shards());
        assert_eq!(taken(&folder), shards.n_bytes(), "the index knows the sizes");
    }
}

#[test]
fn shards_hold_the_pairs_of_the_whole_cache_whatever_the_format() {
    let fixture = Fixture::numbers(500);
    let examples = numbers::examples(24_000, 0, 12, 3).expect("valid settings").train;
    let folder = fixture.dir.path();
    let write = |name: &str, line: &dyn Fn(&Example) -> String, around: [&str; 2], between: &str| {
        let mut lines: Vec<String> = examples.iter().map(line).collect();
        // Rows that cannot be used, in several blocks.
        (1000..lines.len()).step_by(3000).for_each(|at| lines[at] = String::new());
        let [before, behind] = around;
        std::fs::write(folder.join(name), [before, &lines.join(between), behind].concat()).expect("written");
    };
    let json = |pair: &Example| serde_json::json!({ "src": pair.source, "trg": pair.target }).to_string();
    let columns = |pair: &Example| format!("{}\t{}", pair.source, pair.target);
    write("a.jsonl", &json, ["\u{feff}", "\n"], "\n");
    write("a.tsv", &columns, ["src\ttrg\n", ""], "\r\n");
    write("b.tsv", &columns, ["", "\n"], "\n");
    write("a.csv", &|pair| format!("\"{}\",\"{}\"", pair.source, pair.target), ["src,trg\n", "\n"], "\n");
    write("a.en", &|pair| pair.source.clone(), ["", "\n"], "\n");
    write("a.it", &|pair| pair.target.clone(), ["\u{feff}", "\n"], "\n");

    for (name, can_start_within) in
        [("a.jsonl", true), ("a.tsv", true), ("b.tsv", true), ("a.en,a.it", true), ("a.csv", false), ("a.json", false)]
    {
        if name == "a.json" {
            // An array has no blank rows.
            let rows: Vec<String> = examples.iter().map(json).collect();
            std::fs::write(folder.join(name), format!("[{}]", rows.join(",\n"))).expect("written");
        }
        let entry = name.split(',').map(|name| folder.join(name).display().to_string()).collect::<Vec<_>>().join(",");
        let corpus = PairCorpus::open(&[entry.into()], &CorpusConfig::default()).expect("a corpus");
        let whole = prepare_pairs(&folder.join("whole"), &corpus, &fixture.tokenizers, 2, &mut |_| ());
        let whole = whole.expect("a cache").cache;
        let shards = folder.join(format!("shards-{name}"));
        let shards = Shards::of_pairs(&shards, corpus, &fixture.tokenizers, 8, 8 << 20, 2).expect("an index");
        assert_eq!((shards.report(), shards.n_tokens()), (whole.report(), whole.n_tokens()), "{name}");
        assert_eq!(shards.n_shards() > 2, can_start_within, "{name}: {}", shards.n_shards());

        let mut row = 0;
        for (shard, cells) in (0..).zip(shards.cells()) {
            let cache = shards.open(&[shard], &|kept| kept == shard, 2, &|| false).expect("a shard").remove(0);
            let mut counted = std::collections::BTreeMap::new();
            for own in 0..cache.n_rows() {
                assert_eq!(cache.row(own), whole.row(row), "{name}: row {row}");
                let (source, target) = cache.lengths(own);
                *counted.entry((round_up(source, 8) as u32, round_up(target, 8) as u32)).or_insert(0) += 1;
                row += 1;
            }
            assert!(cells.iter().copied().eq(counted.into_iter().map(|((s, t), n)| (s, t, n))), "{name}: {cells:?}");
        }
        assert_eq!(row, whole.n_rows(), "{name}");
        assert_eq!(taken(&shards.room.folder), shards.n_bytes(), "the index knows the sizes");
    }
}

#[test]
fn caches_stay_under_the_limit_and_kept_ones_stay() {
    let text = TextFiles::new(120);
    let limit = 100 << 10;
    let shards = text.shards(limit).expect("an index");
    assert!(shards.n_bytes() > 2 * limit && shards.n_shards() > 40, "{} in {}", shards.n_bytes(), shards.n_shards());
    let open = |wanted: &[u32], kept: &[u32]| {
        let kept = |shard: u32| wanted.contains(&shard) || kept.contains(&shard);
        shards.open(wanted, &kept, 2, &|| false).expect("shards")
    };
    for first in (0..shards.n_shards() as u32 - 16).step_by(8) {
        let (now, next): (Vec<u32>, Vec<u32>) = ((first..first + 8).collect(), (first + 8..first + 16).collect());
        open(&now, &[]);
        open(&next, &now);
        assert!(taken(&text.folder()) <= limit, "{} of {limit} bytes", taken(&text.folder()));
        assert!(now.iter().all(|shard| shards.room.path(*shard).exists()), "{now:?}");
    }
}

#[test]
fn an_interrupted_count_goes_on_behind_its_last_shard() {
    let text = TextFiles::new(60);
    let index = text.folder().join("index.jsonl");
    let whole = text.shards(100 << 10).expect("an index");
    assert_eq!(whole.n_counted(), whole.n_shards());
    assert_eq!(text.shards(100 << 10).expect("the same").n_counted(), 0);
    let (fingerprint, written) = (whole.fingerprint_with(""), fs::read(&index).expect("there"));

    let lines: Vec<&[u8]> = written.split_inclusive(|byte| *byte == b'\n').collect();
    for n_lines in [0, 1, 2, 7, whole.n_shards(), whole.n_shards() + 1] {
        // The line after the last whole one was cut.
        let torn = [&lines[..n_lines].concat(), &lines[n_lines][..lines[n_lines].len() / 2]].concat();
        fs::remove_file(&index).expect("there");
        fs::write(text.folder().join("index.jsonl.partial"), torn).expect("written");
        let again = text.shards(100 << 10).expect("an index");
        assert_eq!(again.n_counted(), whole.n_shards() - n_lines.saturating_sub(1), "{n_lines} lines");
        assert_eq!(again.fingerprint_with(""), fingerprint);
        assert!(fs::read(&index).expect("there") == written, "{n_lines} lines");
    }

    // A damaged index is made again.
    let mut damaged = written.clone();
    let at = damaged.len() / 2;
    damaged[at] = if damaged[at] == b'1' { b'2' } else { b'1' };
    fs::write(&index, damaged).expect("written");
    assert_eq!(text.shards(100 << 10).expect("an index").n_counted(), whole.n_shards());
}

#[test]
fn damaged_caches_are_made_again_and_changed_text_is_refused() {
    let text = TextFiles::new(60);
    let shards = text.shards(100 << 10).expect("an index");
    let open = || shards.open(&[3], &|_| true, 2, &|| false).map(|mut caches| caches.remove(0));
    let before = documents(&open().expect("a shard"));
    let path = shards.room.path(3);
    let whole = fs::read(&path).expect("there");
    let flipped = [&whole[..600], &[whole[600] ^ 1], &whole[601..]].concat();
    // What a power cut may leave: nothing, zeros, the first pages alone, or all but the first page.
    let left = [vec![], vec![0; whole.len()], whole[..4096].to_vec(), [&[0; 512], &whole[512..]].concat()];
    for damaged in left.into_iter().chain([flipped]) {
        fs::write(&path, damaged).expect("written");
        assert!(documents(&open().expect("a shard")) == before);
    }

    fs::remove_file(&path).expect("there");
    for file in text.files() {
        fs::write(file, "zero one two").expect("written");
    }
    let error = open().expect_err("changed").to_string();
    assert!(error.contains("changed during the run") && error.contains("data.cache_limit"), "{error}");
    assert!(!path.exists(), "wrong tokens do not stay");
}

#[test]
fn a_limit_below_two_windows_is_refused_with_the_file() {
    let text = TextFiles::new(60);
    assert!(error(text.shards(1000)).contains("set at least 81920"));
    // One file that cannot be cut is more than a window has room for.
    let long = text.dir.path().join("text/long.json");
    fs::write(&long, serde_json::json!([{ "text": stories(4000, 60).join(" ") }]).to_string()).expect("written");
    let error = error(text.shards(100 << 10));
    assert!(error.contains("long.json") && error.contains("raise it"), "{error}");
}

#[test]
fn a_stopped_call_ends() {
    let text = TextFiles::new(30);
    let shards = text.shards(100 << 10).expect("an index");
    let stopped = shards.open(&[0, 1], &|_| true, 2, &|| true).expect_err("stopped");
    assert!(matches!(stopped, Error::Stopped(_)), "{stopped}");
}

#[test]
fn two_processes_share_the_shards() {
    let text = TextFiles::new(60);
    let shards = [(); 2].map(|()| text.shards(200 << 10).expect("an index"));
    let wanted: Vec<u32> = (0..16).collect();
    let of = |shards: &Shards| {
        let caches = shards.open(&wanted, &|shard| wanted.contains(&shard), 1, &|| false).expect("shards");
        caches.iter().map(TokenCache::n_tokens).collect::<Vec<_>>()
    };
    let [first, second] = std::thread::scope(|scope| {
        let both = shards.each_ref().map(|shards| scope.spawn(move || of(shards)));
        both.map(|thread| thread.join().expect("no panic"))
    });
    assert_eq!(first, second);
    assert!(taken(&text.folder()) <= 200 << 10);
}

/// Texts of which many repeat an earlier one, in the same file or in another, and in another block.
fn with_copies() -> Vec<String> {
    let all = stories(2400, 60);
    (0..all.len()).map(|i| if i % 3 == 0 { all[i / 7].clone() } else { format!("{i} {}", all[i]) }).collect()
}

#[test]
fn rows_that_repeat_are_dropped_as_in_the_whole_cache_and_whatever_was_interrupted() {
    let fixture = TextFixture::new(
        &stories(300, 30),
        &TokenizerConfig { kind: TokenizerKind::ByteLevelBpe, vocab_size: 400, ..TokenizerConfig::default() },
    );
    let files: Vec<PathBuf> = with_copies()
        .chunks(12)
        .enumerate()
        .map(|(number, texts)| {
            let path = fixture.dir.path().join(format!("{number:03}.txt"));
            fs::write(&path, texts.join("\n\n")).expect("written");
            path
        })
        .collect();
    let filter = FilterConfig { drop_duplicates: true, ..FilterConfig::default() };
    let filter = RowFilter::new(&filter, None, FilteredRows::Texts).expect("valid");
    let corpus = TextCorpus::open(&files, &TextConfig { filter, ..TextConfig::default() }).expect("a corpus");
    let whole = fixture.dir.path().join("whole.tokens");
    let whole = prepare_text(&whole, &corpus, &fixture.tokenizer, 2, &mut |_| ()).expect("a cache").cache;
    assert!(whole.report().n_dropped() > 400, "{}", whole.report());

    let folder = fixture.dir.path().join("shards");
    let open = || Shards::of_text(&folder, corpus.clone(), &fixture.tokenizer, 100 << 10, 2).expect("an index");
    let shards = open();
    assert_eq!((shards.report(), shards.n_tokens()), (whole.report(), whole.n_tokens()));
    assert!(shards.n_shards() > 20 && documents_of(&shards) == documents(&whole), "{}", shards.n_shards());
    assert_eq!(open().n_counted(), 0, "the index is used again");

    // A count that was interrupted knows no row before, and begins anew.
    let index = folder.join("index.jsonl");
    let written = fs::read(&index).expect("there");
    let half = written.split_inclusive(|byte| *byte == b'\n').take(9).collect::<Vec<_>>().concat();
    fs::remove_file(&index).expect("there");
    fs::write(folder.join("index.jsonl.partial"), half).expect("written");
    assert_eq!(open().n_counted(), shards.n_shards());
    assert!(fs::read(&index).expect("there") == written);
}

#[test]
fn rows_for_validation_are_left_out_and_counted() {
    let text = TextFiles::new(40);
    let all = text.corpus().read_all().expect("documents").0;
    let hashes: Vec<u64> = all.iter().map(|text| HeldOut::hash(&HeldOut::record_of_text(text))).collect();
    let held_out = HeldOut { below: u64::MAX / 5, kept: hashes.iter().copied().filter(|hash| hash % 7 == 0).collect() };
    let n_held_out = hashes.iter().filter(|hash| held_out.has(**hash)).count();
    let filter = RowFilter::new(&FilterConfig::default(), Some(&Arc::new(held_out)), FilteredRows::Texts);
    let config = TextConfig { filter: filter.expect("valid"), ..TextConfig::default() };
    let corpus = TextCorpus::open(&text.files(), &config).expect("a corpus");
    let shards = Shards::of_text(&text.folder(), corpus, &text.tokenizer, 100 << 10, 2).expect("an index");
    assert!(n_held_out > 30, "{n_held_out}");
    assert_eq!((shards.report().held_out, shards.report().kept), (n_held_out as u64, (all.len() - n_held_out) as u64));
    assert_eq!(shards.report().rows(), shards.report().kept, "they are neither bad nor dropped");
    assert_eq!(documents_of(&shards).len(), all.len() - n_held_out);
}
