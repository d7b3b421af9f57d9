use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::*;
use crate::corpus::{Task, TextConfig};
use crate::fixtures::{PairFiles, TextFiles};
use crate::host_batch::Position;
use crate::loader::Rank;
use crate::source::mix::share::SharesFrom;
use crate::source::streamed::promises::Subject;

const LIMIT: u64 = 100 << 10;

fn config() -> LoaderConfig {
    LoaderConfig { num_workers: 0, batch_tokens: 1024, prefetch_factor: 2, ..LoaderConfig::default() }
}

fn mix_of_texts(files: &[TextFiles], shares: &MixShares, loader: &LoaderConfig) -> Arc<StreamedMix> {
    let rows = TextConfig { seq_len: 64, ..TextConfig::default() };
    let part = |(number, files): (usize, &TextFiles)| {
        let shards = files.shards(LIMIT).expect("an index");
        let source = StreamedSource::new(shards, &files.tokenizer, Task::Lm, &rows, loader).expect("a source");
        MixPart { name: format!("t{number}").into(), source: Arc::new(source) }
    };
    let parts = StreamedParts::Packed(files.iter().enumerate().map(part).collect());
    Arc::new(StreamedMix::new(parts, shares, loader).expect("valid shares"))
}

fn mix_of_pairs(files: &[PairFiles], shares: &MixShares, loader: &LoaderConfig) -> Arc<StreamedMix> {
    let part = |(number, files): (usize, &PairFiles)| {
        let shards = files.shards(LIMIT).expect("an index");
        let source = StreamedRows::of_pairs(shards, &files.tokenizers, loader).expect("a source");
        MixPart { name: format!("p{number}").into(), source: Arc::new(source) }
    };
    let parts = StreamedParts::Rows(files.iter().enumerate().map(part).collect());
    Arc::new(StreamedMix::new(parts, shares, loader).expect("valid shares"))
}

/// Calls `check` with a mixture of texts and with one of pairs, which `shares` of the numbers of sources divide.
fn for_both(shares: &dyn Fn(usize) -> MixShares, check: &dyn Fn(&Subject<'_>, &StreamedMix)) {
    let texts = [60, 20, 6].map(TextFiles::new);
    let folders: Vec<PathBuf> = texts.iter().map(TextFiles::folder).collect();
    let shares = shares(3);
    let open = |loader: &LoaderConfig| -> Arc<dyn BatchSource> { mix_of_texts(&texts, &shares, loader) };
    let folders = folders.iter().map(PathBuf::as_path).collect::<Vec<&Path>>();
    let subject = Subject { open: &open, folders, config: config(), limit: 3 * LIMIT };
    check(&subject, &mix_of_texts(&texts, &shares, &config()));

    let pairs = [60, 20, 12].map(PairFiles::new);
    let folders: Vec<PathBuf> = pairs.iter().map(PairFiles::folder).collect();
    let open = |loader: &LoaderConfig| -> Arc<dyn BatchSource> { mix_of_pairs(&pairs, &shares, loader) };
    let folders = folders.iter().map(PathBuf::as_path).collect::<Vec<&Path>>();
    let subject = Subject { open: &open, folders, config: config(), limit: 3 * LIMIT };
    check(&subject, &mix_of_pairs(&pairs, &shares, &config()));
}

#[test]
fn the_sizes_as_shares_see_every_row_once_an_epoch() {
    for_both(&|_| MixShares::Temperature(1.0), &|subject, mix| {
        let n_rows = mix.names().iter().map(|part| part.rows).sum::<u64>() as u32;
        assert!(mix.names().iter().all(|part| part.rows == part.rows_per_epoch), "{:?}", mix.names());
        for batch in subject.an_epoch_has_every_row(n_rows, 1) {
            let rows: u64 = batch.sources.iter().map(|count| count.rows).sum();
            let tokens: u64 = batch.sources.iter().map(|count| count.tokens).sum();
            assert_eq!((rows, tokens), (batch.batch_size as u64, batch.source_tokens + batch.target_tokens));
            assert_eq!((batch.row_sources.len(), batch.n_sources), (batch.batch_size, 3));
            let part_of = |row: &u32| mix.first_rows.partition_point(|first| first <= row) - 1;
            assert!(batch.rows.iter().zip(&batch.row_sources).all(|(row, part)| part_of(row) == usize::from(*part)));
        }
    });
}

#[test]
fn batches_depend_on_the_position_alone_whatever_the_shares() {
    let from = |step, weights: Vec<f64>| SharesFrom { step, weights };
    let changing = MixShares::Changing(vec![
        from(0, vec![1.0, 4.0, 0.0]),
        from(9, vec![0.0, 1.0, 1.0]),
        from(40, vec![2.0, 1.0, 1.0]),
    ]);
    for shares in [MixShares::Weights(vec![3.0, 1.0, 2.0]), changing] {
        for_both(&|_| shares.clone(), &|subject, _| subject.batches_depend_on_the_position_alone());
    }
}

#[test]
fn shares_hold_and_no_row_is_repeated_before_all_were_seen() {
    for_both(&|_| MixShares::Weights(vec![1.0, 2.0, 1.0]), &|subject, mix| {
        let (_, parts) = &mix.parts_by_step()[0];
        let n_epochs = 3;
        let n = n_epochs * mix.batches_per_epoch();
        let mut seen = HashMap::<u32, u64>::new();
        for batch in subject.batches(2, Position::default(), n, Rank::default()) {
            batch.rows.iter().for_each(|row| *seen.entry(*row).or_default() += 1);
        }
        let total: u64 = parts.iter().map(|part| part.rows).sum();
        for (number, part) in parts.iter().enumerate() {
            let first = mix.first_rows[number];
            let times: Vec<u64> =
                (first..first + part.rows as u32).map(|row| seen.get(&row).copied().unwrap_or(0)).collect();
            let (least, most) = (times.iter().min().expect("rows"), times.iter().max().expect("rows"));
            assert!(most - least <= 1, "{}: rows were seen {least} and {most} times", part.name);
            let share = times.iter().sum::<u64>() as f64 / (n_epochs * total) as f64;
            let wanted = [0.25, 0.5, 0.25][number];
            assert!((share - wanted).abs() < 0.03, "{}: {share}, wanted {wanted}", part.name);
        }
    });
}

#[test]
fn the_disk_stays_under_its_limit_and_another_mixture_has_another_fingerprint() {
    for_both(&|_| MixShares::Weights(vec![8.0, 1.0, 1.0]), &|subject, _| {
        let _ = subject.batches(2, Position::default(), 30, Rank::default());
        for folder in &subject.folders {
            let entries = std::fs::read_dir(folder).expect("a folder").flatten();
            let caches = entries.filter(|entry| entry.file_name().to_string_lossy().contains(".tokens"));
            let taken: u64 = caches.map(|entry| entry.metadata().map_or(0, |file| file.len())).sum();
            assert!(taken > 0 && taken <= LIMIT, "{taken} bytes");
        }
    });
    let texts = [20, 10].map(TextFiles::new);
    let fingerprint = |shares: &MixShares| mix_of_texts(&texts, shares, &config()).fingerprint();
    let even = MixShares::Weights(vec![1.0, 1.0]);
    assert_eq!(fingerprint(&even), fingerprint(&even));
    assert_ne!(fingerprint(&even), fingerprint(&MixShares::Temperature(1.0)));
    let ordered = LoaderConfig { shuffle: false, ..config() };
    let parts = StreamedParts::Packed(Vec::new());
    let error = StreamedMix::new(parts, &even, &ordered).expect_err("no order of files").to_string();
    assert!(error.contains("loader.shuffle = false"), "{error}");
}
