use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::sleep;
use std::time::Duration;

use super::*;
use crate::fixtures::TextFiles;
use crate::host_batch::Position;
use crate::loader::{Loader, OnePass, Rank};

const LIMIT: u64 = 100 << 10;

fn config(num_workers: usize) -> LoaderConfig {
    LoaderConfig { num_workers, batch_tokens: 256, prefetch_factor: 2, ..LoaderConfig::default() }
}

fn rows() -> TextConfig {
    TextConfig { seq_len: 32, ..TextConfig::default() }
}

fn source(text: &TextFiles, num_workers: usize) -> Arc<StreamedSource> {
    let shards = text.shards(LIMIT).expect("an index");
    Arc::new(StreamedSource::new(shards, &text.tokenizer, Task::Lm, &rows(), &config(num_workers)).expect("a source"))
}

fn batches(text: &TextFiles, num_workers: usize, start: Position, n: u64, rank: Rank) -> Vec<HostBatch> {
    let source = source(text, num_workers);
    let mut loader = Loader::for_rank(source, &config(num_workers), 5, start, rank).expect("a loader");
    (0..n).map(|_| loader.next_batch().expect("a batch")).collect()
}

/// Labels of batches, sorted.
fn labels<'a>(batches: impl IntoIterator<Item = &'a HostBatch>) -> Vec<i32> {
    let labels = batches.into_iter().flat_map(|batch| batch.labels());
    let mut labels: Vec<i32> = labels.copied().filter(|label| *label != HostBatch::NOT_COUNTED).collect();
    labels.sort_unstable();
    labels
}

#[test]
fn every_token_is_a_label_once_in_each_epoch_and_epochs_differ() {
    let text = TextFiles::new(120);
    let whole = crate::cache::prepare_text(
        &text.dir.path().join("whole.tokens"),
        &text.corpus(),
        &text.tokenizer,
        2,
        &mut |_| (),
    );
    let whole = TextSource::new(whole.expect("a cache").cache, &text.tokenizer, Task::Lm, &rows(), &config(0));
    let pass = OnePass::new(Arc::new(whole.expect("a source")), &config(0)).expect("starts");
    let wanted = labels(&pass.map(|batch| batch.expect("a batch")).collect::<Vec<_>>());

    let source = source(&text, 2);
    let per_epoch = source.batches_per_epoch();
    let all = batches(&text, 2, Position::default(), 2 * per_epoch, Rank::default());
    let (first, second) = all.split_at(per_epoch as usize);
    assert_eq!((labels(first), labels(second)), (wanted.clone(), wanted.clone()));
    let numbers = |batches: &[HostBatch]| batches.iter().flat_map(|batch| batch.rows.clone()).collect::<Vec<_>>();
    let sorted = |batches| {
        let mut numbers = numbers(batches);
        numbers.sort_unstable();
        numbers
    };
    assert_eq!(sorted(first), (0..source.n_rows).collect::<Vec<_>>());
    assert!(numbers(first) != numbers(second) && sorted(first) == sorted(second));
    let mut shapes = BTreeMap::new();
    first.iter().for_each(|batch| *shapes.entry(batch.shape()).or_default() += 1);
    assert_eq!(Some(shapes), source.shapes());

    // In the order of the files, too.
    let pass = OnePass::new(source, &config(2)).expect("starts").map(|batch| batch.expect("a batch"));
    let pass: Vec<HostBatch> = pass.collect();
    assert_eq!((labels(&pass), numbers(&pass).is_sorted()), (wanted, true));
}

#[test]
fn batches_depend_neither_on_workers_nor_ranks_nor_on_the_start() {
    let text = TextFiles::new(120);
    let per_epoch = source(&text, 0).batches_per_epoch();
    let n = per_epoch + per_epoch / 2;
    let all = batches(&text, 0, Position::default(), n, Rank::default());
    assert!(batches(&text, 3, Position::default(), n, Rank::default()) == all);
    let ids = |batches: &[HostBatch]| batches.iter().map(|batch| batch.ids.clone()).collect::<Vec<_>>();
    for rank in 0..2 {
        let of_rank = batches(&text, 2, Position::default(), n / 2, Rank { rank, world_size: 2, group_size: 2 });
        let wanted: Vec<_> = ids(&all).into_iter().skip(rank).step_by(2).take(of_rank.len()).collect();
        assert!(ids(&of_rank) == wanted, "rank {rank}");
    }
    // Without the caches, too.
    for start in [1, per_epoch / 3, per_epoch - 1, per_epoch, per_epoch + 2] {
        std::fs::remove_dir_all(text.folder()).expect("there");
        let position = Position { epoch: start / per_epoch, batch: start % per_epoch };
        assert!(batches(&text, 1, position, 9, Rank::default()) == all[start as usize..start as usize + 9], "{start}");
    }
}

#[test]
fn rows_stay_in_their_window_and_the_disk_under_its_limit() {
    let text = TextFiles::new(160);
    let source = source(&text, 2);
    assert!(source.shards().n_bytes() > 3 * LIMIT);
    let order = Order::Shuffled { seed: 5, epoch: 0 };
    let windows = source.text.windows(order);
    let mut loader = Loader::new(source.clone(), &config(2), 5, Position::default()).expect("a loader");
    let (mut at, mut most) = (0, 0);
    for _ in 0..source.batches_per_epoch() {
        let batch = loader.next_batch().expect("a batch");
        for row in &batch.rows {
            let shard = source.text.first_rows.partition_point(|first| first <= row) - 1;
            assert!(windows.shards(windows.find(at).0).contains(&(shard as u32)), "row {row} at {at}");
            at += 1;
        }
        let entries = std::fs::read_dir(text.folder()).expect("a folder").flatten();
        let caches = entries.filter(|entry| entry.file_name().to_string_lossy().contains(".tokens"));
        most = most.max(caches.map(|entry| entry.metadata().map_or(0, |file| file.len())).sum::<u64>());
    }
    assert!(most <= LIMIT && most > LIMIT / 2, "{most} of {LIMIT} bytes");
}

#[test]
fn settings_are_part_of_the_fingerprint_and_impossible_ones_are_refused() {
    let text = TextFiles::new(30);
    let of = |rows: &TextConfig| {
        let shards = text.shards(LIMIT).expect("an index");
        StreamedSource::new(shards, &text.tokenizer, Task::Lm, rows, &config(0))
    };
    let fingerprint = |rows: &TextConfig| of(rows).expect("a source").fingerprint();
    let stream = TextConfig { packing: Packing::Stream, ..rows() };
    assert_eq!(fingerprint(&rows()), fingerprint(&rows()));
    assert_ne!(fingerprint(&rows()), fingerprint(&stream));
    assert_ne!(fingerprint(&rows()), fingerprint(&TextConfig { seq_len: 33, ..rows() }));
    let sentences = TextConfig { packing: Packing::Sentences, ..rows() };
    let refused = of(&sentences).expect_err("refused").to_string();
    assert!(refused.contains("data.text.packing") && refused.contains("StreamedRows"), "{refused}");
    let counted = text.shards(LIMIT).expect("an index");
    let refused = StreamedRows::of_documents(counted, &text.tokenizer, Task::Lm, &sentences, &config(0));
    let refused = refused.expect_err("counted to be packed").to_string();
    assert!(refused.contains("must be counted"), "{refused}");
}

/// Windows that record what is opened, and fail or wait where they are told to.
struct Recorded {
    opened: mpsc::Sender<(usize, usize)>,
    fails_at: usize,
    waits_at: usize,
    is_stopped: AtomicBool,
    n_open: Arc<AtomicUsize>,
}

struct Open(usize, Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

fn key(window: usize) -> Key {
    Key { order: Order::Shuffled { seed: 1, epoch: 0 }, window }
}

impl Windows for Recorded {
    type Open = Open;

    fn next(&self, at: Key) -> Option<Key> {
        Some(key(at.window + 1))
    }

    fn open(&self, key: Key, kept: &[Key], stops: &(dyn Fn() -> bool + Sync)) -> Result<Open> {
        self.opened.send((key.window, kept.len())).expect("received");
        if key.window == self.waits_at {
            while !stops() {
                sleep(Duration::from_millis(1));
            }
            self.is_stopped.store(true, Ordering::Relaxed);
            return Err(Error::Stopped("the run ends".into()));
        }
        if key.window == self.fails_at {
            return Err(Error::Invalid("no room".into()));
        }
        self.n_open.fetch_add(1, Ordering::Relaxed);
        Ok(Open(key.window, self.n_open.clone()))
    }
}

fn recorded(fails_at: usize, waits_at: usize) -> (Arc<Recorded>, mpsc::Receiver<(usize, usize)>) {
    let (opened, received) = mpsc::channel();
    let n_open = Arc::new(AtomicUsize::new(0));
    let windows = Recorded { opened, fails_at, waits_at, is_stopped: AtomicBool::new(false), n_open };
    (Arc::new(windows), received)
}

#[test]
fn one_window_is_opened_ahead_when_the_one_before_is_done() {
    let (windows, opened) = recorded(99, 99);
    let ahead = Ahead::new(windows.clone(), 3);
    let next = || opened.recv_timeout(Duration::from_secs(20)).expect("opened");
    assert_eq!(ahead.get(key(4)).expect("open").0, 4);
    assert_eq!((next(), next()), ((4, 0), (5, 1)));
    for _ in 0..2 {
        // Reads of both windows are in flight.
        assert_eq!((ahead.get(key(5)).expect("open").0, ahead.get(key(4)).expect("open").0), (5, 4));
    }
    sleep(Duration::from_millis(20));
    assert!(opened.try_recv().is_err(), "window 4 is still read");
    ahead.get(key(5)).expect("open");
    assert_eq!(next(), (6, 1), "window 4 was closed");

    // Somebody starts elsewhere.
    assert_eq!(ahead.get(key(40)).expect("open").0, 40);
    assert_eq!((next(), next()), ((40, 0), (41, 1)));
    assert_eq!(ahead.get(key(41)).expect("open").0, 41);
    drop(ahead);
    assert_eq!(windows.n_open.load(Ordering::Relaxed), 0);
}

#[test]
fn a_window_that_nobody_needs_is_given_up_and_so_is_one_at_the_end() {
    let (windows, _opened) = recorded(99, 5);
    let ahead = Ahead::new(windows.clone(), 3);
    ahead.get(key(4)).expect("open");
    assert_eq!(ahead.get(key(20)).expect("open").0, 20);
    assert!(windows.is_stopped.swap(false, Ordering::Relaxed), "window 5 was given up");
    ahead.get(key(4)).expect("open");
    drop(ahead);
}

#[test]
fn a_window_that_cannot_be_opened_ends_the_run() {
    let (windows, _opened) = recorded(5, 99);
    let ahead = Ahead::new(windows, 3);
    let mut at = 4;
    let error = loop {
        match ahead.get(key(at)) {
            Ok(_) => at = 5,
            Err(error) => break error.to_string(),
        }
    };
    assert_eq!(error, "no room");
    assert!(ahead.get(key(4)).map(|_| ()).expect_err("stopped").to_string().contains("no room"));
}

#[test]
fn the_order_never_changes_between_versions() {
    // A resumed run must see the same rows: these numbers may only change with a new checkpoint format.
    let text = TextFiles::new(40);
    let position = Position { epoch: 7, batch: 1 };
    assert_eq!(batches(&text, 0, position, 1, Rank::default())[0].rows, [1331, 816, 1319, 444, 839, 826, 1533, 687]);
}
