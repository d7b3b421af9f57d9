use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::*;
use crate::cache::{prepare_pairs, prepare_text};
use crate::corpus::{CorpusConfig, PairCorpus, Task, TextConfig, TextCorpus};
use crate::fixtures::{Fixture, TextFixture};
use crate::host_batch::Position;
use crate::loader::{Loader, Rank};
use crate::source::{PairSource, TextSource};
use crate::tokenizer::TokenizerConfig;

const N_ROWS: [usize; 5] = [300, 40, 7, 120, 60];

fn loader_config(num_workers: usize) -> LoaderConfig {
    LoaderConfig { num_workers, batch_tokens: 512, bucket_multiple: 4, max_buckets: 4, ..LoaderConfig::default() }
}

/// Five sources of pairs. The vocabulary is trained on the first.
fn pairs(shares: &MixShares, config: &LoaderConfig) -> Result<MixSource> {
    let fixture = Fixture::numbers(N_ROWS[0]);
    let all = fixture.corpus.read_all().expect("readable").0;
    let parts = N_ROWS.iter().enumerate().map(|(i, n)| {
        let path = fixture.dir.path().join(format!("s{i}.jsonl"));
        crate::built_in::numbers::write_jsonl(&path, &all[..*n]).expect("a writable folder");
        let tag = (i == 1).then(|| "<7>".to_owned());
        let corpus = PairCorpus::open(std::slice::from_ref(&path), &CorpusConfig { tag, ..CorpusConfig::default() })
            .expect("rows");
        let cache = prepare_pairs(&path.with_extension("tokens"), &corpus, &fixture.tokenizers, 1, &mut |_| ())
            .expect("a good corpus")
            .cache;
        let source = PairSource::new(cache, &fixture.tokenizers, config).expect("a matching cache");
        MixPart { name: format!("s{i}").into(), source }
    });
    MixSource::new(MixParts::Pairs(parts.collect()), shares, config)
}

/// Three texts whose documents name their text.
fn texts(shares: &MixShares, config: &LoaderConfig) -> MixSource {
    let document = |text: usize, i: usize| format!("text {text} document {i} {}", "and more ".repeat(i % 5));
    let of_text = |text: usize, n: usize| (0..n).map(|i| document(text, i)).collect::<Vec<_>>();
    let texts = [of_text(0, 90), of_text(1, 30), of_text(2, 6)];
    let fixture = TextFixture::new(&texts.concat(), &TokenizerConfig { vocab_size: 400, ..TokenizerConfig::default() });
    let text_config = TextConfig { seq_len: 16, ..TextConfig::default() };
    let parts = texts.iter().enumerate().map(|(i, documents)| {
        let path = fixture.dir.path().join(format!("t{i}.jsonl"));
        let lines: Vec<_> = documents.iter().map(|text| serde_json::json!({ "text": text }).to_string()).collect();
        std::fs::write(&path, lines.join("\n")).expect("a writable folder");
        let corpus = TextCorpus::open(std::slice::from_ref(&path), &text_config).expect("a corpus");
        let cache = prepare_text(&path.with_extension("tokens"), &corpus, &fixture.tokenizer, 1, &mut |_| ())
            .expect("a good text")
            .cache;
        let source = TextSource::new(cache, &fixture.tokenizer, Task::Lm, &text_config, config).expect("rows");
        MixPart { name: format!("t{i}").into(), source }
    });
    MixSource::new(MixParts::Text(parts.collect()), shares, config).expect("valid shares")
}

/// Takes `n` batches of each rank from `start` on, in the order of one rank.
fn batches(source: &Arc<MixSource>, workers: usize, world_size: usize, start: Position, n: usize) -> Vec<HostBatch> {
    let config = loader_config(workers);
    let mut ranks: Vec<Loader> = (0..world_size)
        .map(|rank| {
            let rank = Rank { rank, world_size, group_size: 2 };
            Loader::for_rank(source.clone() as Arc<dyn BatchSource>, &config, 5, start, rank).expect("valid settings")
        })
        .collect();
    (0..n).flat_map(|_| ranks.iter_mut().map(|rank| rank.next_batch().expect("a batch")).collect::<Vec<_>>()).collect()
}

fn contents(batches: &[HostBatch]) -> Vec<(&[i32], &[u32], &[SourceCount])> {
    batches.iter().map(|batch| (&batch.ids[..], &batch.rows[..], &batch.sources[..])).collect()
}

#[test]
fn batches_are_the_same_for_any_number_of_workers_and_ranks_and_from_any_position() {
    let weights = MixShares::Weights(vec![4.0, 2.0, 1.0, 2.0, 1.0]);
    let of_pairs = pairs(&weights, &loader_config(0)).expect("valid shares");
    let of_text = texts(&MixShares::Temperature(3.0), &loader_config(0));
    for source in [Arc::new(of_pairs), Arc::new(of_text)] {
        let n = 3 * source.batches_per_epoch() as usize / 2 * 2;
        let whole = batches(&source, 0, 1, Position::default(), n);
        for workers in [1, 2, 4] {
            assert_eq!(contents(&batches(&source, workers, 1, Position::default(), n)), contents(&whole));
        }
        assert_eq!(contents(&batches(&source, 2, 2, Position::default(), n / 2)), contents(&whole), "two ranks");

        for done in [2, n / 4 * 2, n - 4] {
            let start = whole[done - 1].next;
            let rest = batches(&source, 2, 1, start, n - done);
            assert_eq!(contents(&rest), contents(&whole[done..]), "after {done} batches");
            let of_two = batches(&source, 1, 2, start, (n - done) / 2);
            assert_eq!(contents(&of_two), contents(&whole[done..]), "after {done} batches, two ranks");
        }
    }
}

#[test]
fn shares_hold_and_no_row_is_repeated_before_all_were_seen() {
    let weights = vec![4.0, 2.0, 1.0, 2.0, 1.0];
    let source = Arc::new(pairs(&MixShares::Weights(weights.clone()), &loader_config(0)).expect("valid shares"));
    let n_epochs = 5;
    let all = batches(&source, 0, 1, Position::default(), n_epochs * source.batches_per_epoch() as usize);

    let total: usize = N_ROWS.iter().sum();
    let mut seen: HashMap<u32, u64> = HashMap::new();
    let mut counted: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for batch in &all {
        batch.rows.iter().for_each(|row| *seen.entry(*row).or_default() += 1);
        for SourceCount { name, rows, tokens } in &batch.sources {
            let sum = counted.entry(name.to_string()).or_default();
            *sum = (sum.0 + rows, sum.1 + tokens);
        }
        let tokens: u64 = batch.sources.iter().map(|count| count.tokens).sum();
        assert_eq!(tokens, batch.source_tokens + batch.target_tokens);
    }

    let mut first = 0;
    for (i, n) in N_ROWS.into_iter().enumerate() {
        let times: Vec<u64> = (first..first + n as u32).map(|row| seen.get(&row).copied().unwrap_or(0)).collect();
        first += n as u32;
        let found = times.iter().sum::<u64>() as f64 / n_epochs as f64;
        let wanted = total as f64 * weights[i] / 10.0;
        // Each of the four length buckets rounds.
        assert!((found - wanted).abs() <= 4.0, "source {i}: {found} rows per epoch, wanted {wanted}");
        assert_eq!(counted[&format!("s{i}")].0, times.iter().sum::<u64>());
        assert_eq!(source.parts()[i].rows_per_epoch * n_epochs as u64, times.iter().sum::<u64>());
        for cell in source.cells.iter().filter(|cell| cell.part == i) {
            let of_cell = || cell.rows.iter().map(|row| times[*row as usize]);
            let (least, most) = (of_cell().min().expect("rows"), of_cell().max().expect("rows"));
            assert!(most - least <= 1, "source {i}: rows of one length were seen {least} and {most} times");
        }
    }
    assert_eq!(source.plan(Order::Shuffled { seed: 1, epoch: 3 }).len() as u64, source.batches_per_epoch());
}

#[test]
fn the_sizes_as_shares_see_every_row_once_an_epoch() {
    let source = Arc::new(pairs(&MixShares::Temperature(1.0), &loader_config(0)).expect("valid shares"));
    let all = batches(&source, 0, 1, Position::default(), source.batches_per_epoch() as usize);
    let mut rows: Vec<u32> = all.iter().flat_map(|batch| batch.rows.iter().copied()).collect();
    rows.sort_unstable();
    assert_eq!(rows, (0..N_ROWS.iter().sum::<usize>() as u32).collect::<Vec<_>>());
}

#[test]
fn every_token_of_a_text_is_in_each_pass_once() {
    // The second of three texts is read three times an epoch, with its documents packed anew in each pass.
    let source = Arc::new(texts(&MixShares::Temperature(1.0), &loader_config(0)));
    let sizes: Vec<u64> = source.parts().iter().map(|part| part.rows).collect();
    let total: u64 = sizes.iter().sum();
    let weights = vec![(total - 3 * sizes[1] - sizes[2]) as f64, (3 * sizes[1]) as f64, sizes[2] as f64];
    let source = Arc::new(texts(&MixShares::Weights(weights), &loader_config(0)));
    assert_eq!(source.parts()[1].rows_per_epoch, 3 * sizes[1]);

    let all = batches(&source, 0, 1, Position::default(), source.batches_per_epoch() as usize);
    let mut passes: HashMap<u32, Vec<Vec<i32>>> = HashMap::new();
    for batch in &all {
        for (at, number) in batch.rows.iter().enumerate() {
            let labels = batch.labels()[at * batch.target_len..(at + 1) * batch.target_len].to_vec();
            passes.entry(*number).or_default().push(labels);
        }
    }
    let of_text = |text: usize| {
        let first = sizes[..text].iter().sum::<u64>() as u32;
        (first..first + sizes[text] as u32).map(|row| passes[&row].clone()).collect::<Vec<_>>()
    };
    let sorted = |rows: &[Vec<Vec<i32>>]| {
        let mut labels: Vec<i32> = rows.iter().flatten().flatten().copied().filter(|label| *label >= 0).collect();
        labels.sort_unstable();
        labels
    };
    let MixParts::Text(parts) = &source.parts else { panic!("texts") };
    for (text, times) in [(1, 3), (2, 1)] {
        let rows = of_text(text);
        assert!(rows.iter().all(|row| row.len() == times), "{times} passes");
        let found = sorted(&rows);
        assert_eq!(found.len() as u64, times as u64 * parts[text].source.n_tokens());
        let counts = found.chunk_by(|a, b| a == b).map(<[i32]>::len);
        assert!(counts.into_iter().all(|n| n % times == 0), "each pass has all tokens");
    }
    assert!(of_text(1).iter().any(|row| row[0] != row[1]), "documents are packed anew");
}

#[test]
fn a_tag_is_in_front_of_every_source_and_of_the_fingerprint() {
    let source = pairs(&MixShares::Temperature(1.0), &loader_config(0)).expect("valid shares");
    let MixParts::Pairs(parts) = &source.parts else { panic!("pairs") };
    // The first forty rows are the same, the second source has a tag.
    let lengths = |part: usize| (0..40).map(|row| parts[part].source.cache().lengths(row)).collect::<Vec<_>>();
    assert!(lengths(0).iter().zip(lengths(1)).all(|(plain, tagged)| tagged.0 > plain.0 && tagged.1 == plain.1));
}

#[test]
fn a_mixture_that_changed_has_another_fingerprint() {
    let of = |shares: &MixShares| pairs(shares, &loader_config(0)).expect("valid shares").fingerprint();
    let before = of(&MixShares::Temperature(1.0));
    assert_eq!(before, of(&MixShares::Temperature(1.0)));
    assert_ne!(before, of(&MixShares::Temperature(2.0)));
    let ordered = LoaderConfig { shuffle: false, ..loader_config(0) };
    let error = pairs(&MixShares::Temperature(1.0), &ordered).expect_err("no order of files").to_string();
    assert!(error.contains("loader.shuffle = false"), "{error}");
}

#[test]
fn the_order_never_changes_between_versions() {
    // A resumed run must see the same rows: these numbers may only change with a new checkpoint format.
    let source = pairs(&MixShares::Weights(vec![4.0, 2.0, 1.0, 2.0, 1.0]), &loader_config(0)).expect("valid shares");
    let plan = source.plan(Order::Shuffled { seed: 42, epoch: 7 });
    assert_eq!(plan.batch(0).0[..8], [7u32, 127, 298, 326, 237, 218, 277, 513]);
}

/// Shares of the sources from some steps on.
fn changing(changes: &[(u64, Vec<f64>)]) -> MixShares {
    MixShares::Changing(
        changes.iter().map(|(step, weights)| SharesFrom { step: *step, weights: weights.clone() }).collect(),
    )
}

#[test]
fn shares_follow_the_steps_whatever_reads_them_from_wherever() {
    const CHANGES: [u64; 3] = [0, 9, 60];
    let of_pairs = [[4.0, 1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 4.0, 2.0], [0.0, 0.0, 1.0, 1.0, 1.0]];
    let of_texts = [[1.0, 3.0, 0.0], [0.0, 1.0, 1.0], [4.0, 1.0, 1.0]];
    let weights: [Vec<Vec<f64>>; 2] = [of_pairs.map(Vec::from).into(), of_texts.map(Vec::from).into()];
    let shares = weights.clone().map(|weights| changing(&CHANGES.into_iter().zip(weights).collect::<Vec<_>>()));
    let of_pairs = Arc::new(pairs(&shares[0], &loader_config(0)).expect("valid shares"));
    let of_texts = Arc::new(texts(&shares[1], &loader_config(0)));

    for (source, weights) in [of_pairs, of_texts].into_iter().zip(&weights) {
        let longest = source.phases.iter().map(|phase| phase.batches_per_epoch).max().expect("phases");
        let n = (120 + 3 * longest as usize).next_multiple_of(4);
        let whole = batches(&source, 0, 1, Position::default(), n);

        // Step by step: a step takes two batches.
        let phase_of = |batch: usize| CHANGES.iter().rposition(|step| step * 2 <= batch as u64).expect("a phase");
        for (at, batch) in whole.iter().enumerate() {
            let weights = &weights[phase_of(at)];
            assert!(batch.row_sources.iter().all(|part| weights[usize::from(*part)] > 0.0), "batch {at}");
            assert_eq!((batch.row_sources.len(), batch.n_sources), (batch.batch_size, weights.len()));
        }
        // Whole epochs of each phase have exactly their rows.
        for (number, (_, parts)) in source.parts_by_step().iter().enumerate() {
            let of_phase: Vec<&HostBatch> =
                whole.iter().enumerate().filter(|(at, _)| phase_of(*at) == number).map(|(_, batch)| batch).collect();
            let size = source.phases[number].batches_per_epoch as usize;
            let n_epochs = of_phase.len() / size;
            assert!(n_epochs > 0 || number < 2, "the last phase is long");
            let mut rows = vec![0; parts.len()];
            of_phase[..n_epochs * size]
                .iter()
                .flat_map(|batch| &batch.row_sources)
                .for_each(|of| rows[usize::from(*of)] += 1);
            let wanted: Vec<u64> = parts.iter().map(|part| part.rows_per_epoch * n_epochs as u64).collect();
            assert_eq!(rows, wanted, "phase {number}");
        }

        for (workers, world_size) in [(3, 1), (0, 2), (2, 2)] {
            let found = batches(&source, workers, world_size, Position::default(), n / world_size);
            assert_eq!(contents(&found), contents(&whole), "{workers} workers, {world_size} ranks");
        }
        for done in [2, 16, 18, 20, 118, 120, 122, n - 4] {
            let start = whole[done - 1].next;
            assert_eq!(contents(&batches(&source, 2, 1, start, n - done)), contents(&whole[done..]), "after {done}");
            let of_two = batches(&source, 1, 2, start, (n - done) / 2);
            assert_eq!(contents(&of_two), contents(&whole[done..]), "after {done}, two ranks");
        }
    }
}

#[test]
fn shares_that_do_not_change_are_those_of_one_weight_and_others_are_told_by_the_fingerprint() {
    let weights = vec![4.0, 2.0, 1.0, 2.0, 1.0];
    let source = |shares: &MixShares| Arc::new(pairs(shares, &loader_config(0)).expect("valid shares"));
    let (one, same) = (source(&MixShares::Weights(weights.clone())), source(&changing(&[(0, weights.clone())])));
    assert_eq!(one.fingerprint(), same.fingerprint());
    let take = |source: &Arc<MixSource>| batches(source, 0, 1, Position::default(), 40);
    assert_eq!(contents(&take(&one)), contents(&take(&same)));
    let later = source(&changing(&[(0, weights.clone()), (7, vec![1.0; 5])]));
    let even_later = source(&changing(&[(0, weights), (8, vec![1.0; 5])]));
    assert_ne!(later.fingerprint(), one.fingerprint());
    assert_ne!(later.fingerprint(), even_later.fingerprint());
}

/// Files of `testdata/` are written by `pyarrow` and `datasets`; all hold the same six pairs.
#[test]
fn files_of_every_format_are_sources_of_one_mixture() {
    let fixture = Fixture::numbers(N_ROWS[0]);
    let jsonl = crate::formats::records_of(std::path::Path::new("testdata/rows.jsonl.xz")).expect("records");
    let pairs: Vec<serde_json::Value> = jsonl.iter().map(|(_, row)| serde_json::from_str(row).expect("JSON")).collect();
    let table: String = pairs
        .iter()
        .map(|row| format!("{},{}\n", row["src"].as_str().expect("a text"), row["trg"].as_str().expect("a text")))
        .collect();
    let csv = fixture.dir.path().join("rows.csv");
    std::fs::write(&csv, format!("src,trg\n{table}")).expect("writable");
    let json = csv.with_extension("json");
    std::fs::write(&json, serde_json::to_string(&pairs).expect("memory")).expect("writable");

    let mut files: Vec<std::path::PathBuf> = vec!["testdata/rows.jsonl.xz".into(), csv, json];
    if cfg!(feature = "arrow") {
        let names =
            ["rows.parquet", "zstd.parquet", "rows.arrow", "rows.feather", "saved/train/data-00000-of-00001.arrow"];
        files.extend(names.map(|name| std::path::Path::new("testdata").join(name)));
    }
    let config = loader_config(0);
    let parts: Vec<_> = (files.iter().enumerate())
        .map(|(i, file)| {
            let corpus = PairCorpus::open(std::slice::from_ref(file), &CorpusConfig::default()).expect("rows");
            let to = fixture.dir.path().join(format!("{i}.tokens"));
            let cache = prepare_pairs(&to, &corpus, &fixture.tokenizers, 2, &mut |_| ()).expect("a good corpus").cache;
            let source = PairSource::new(cache, &fixture.tokenizers, &config).expect("a matching cache");
            MixPart { name: format!("s{i}").into(), source }
        })
        .collect();
    let n = pairs.len();
    for part in &parts {
        let cache = part.source.cache();
        assert_eq!(cache.n_rows(), n);
        (0..n).for_each(|row| assert_eq!(cache.row(row), parts[0].source.cache().row(row), "{}", part.name));
    }
    let source =
        Arc::new(MixSource::new(MixParts::Pairs(parts), &MixShares::Temperature(1.0), &config).expect("a mixture"));
    let epoch = batches(&source, 2, 1, Position::default(), source.batches_per_epoch() as usize);
    let mut rows = vec![0; files.len()];
    epoch.iter().flat_map(|batch| &batch.row_sources).for_each(|of| rows[usize::from(*of)] += 1);
    assert_eq!(rows, vec![n; files.len()]);
}

#[test]
fn the_lengths_of_each_source_are_known_by_its_name() {
    let of_pairs = pairs(&MixShares::Weights(vec![1.0; 5]), &loader_config(0)).expect("valid shares").lengths();
    let found: Vec<_> = of_pairs.iter().map(|side| (side.side.as_str(), side.rows)).collect();
    assert_eq!(found[..3], [("s0: source", 300), ("s0: target", 300), ("s1: source", 40)]);
    assert_eq!(found.len(), 10);
    let of_text = texts(&MixShares::Temperature(3.0), &loader_config(0)).lengths();
    assert_eq!((of_text.len(), of_text[2].side.as_str(), of_text[2].rows), (3, "t2: document", 6));
    assert!(of_pairs.iter().chain(&of_text).all(|side| side.quantiles[0] > 0 && side.mean > 1.0), "{of_pairs:?}");
}
