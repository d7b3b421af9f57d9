use super::*;
use crate::fixtures::PairFiles;
use crate::host_batch::Position;
use crate::loader::{Loader, OnePass, Rank};

const LIMIT: u64 = 110 << 10;

fn config(num_workers: usize) -> LoaderConfig {
    LoaderConfig { num_workers, batch_tokens: 512, prefetch_factor: 2, ..LoaderConfig::default() }
}

fn source(pairs: &PairFiles, config: &LoaderConfig) -> Arc<StreamedRows> {
    let shards = pairs.shards(LIMIT).expect("an index");
    Arc::new(StreamedRows::of_pairs(shards, &pairs.tokenizers, config).expect("a source"))
}

fn batches(pairs: &PairFiles, num_workers: usize, start: Position, n: u64, rank: Rank) -> Vec<HostBatch> {
    let config = config(num_workers);
    let mut loader = Loader::for_rank(source(pairs, &config), &config, 5, start, rank).expect("a loader");
    (0..n).map(|_| loader.next_batch().expect("a batch")).collect()
}

/// Number, source and target of the rows of batches, sorted by number.
fn rows<'a>(batches: impl IntoIterator<Item = &'a HostBatch>) -> Vec<(u32, Vec<i32>, Vec<i32>)> {
    let of_batch = |batch: &'a HostBatch| {
        (0..batch.batch_size).map(|i| {
            let side =
                |ids: &[i32], lengths: &[i32]| ids[i * ids.len() / batch.batch_size..][..lengths[i] as usize].to_vec();
            let source = side(batch.source(), batch.source_lengths());
            (batch.rows[i], source, side(batch.labels(), batch.target_lengths()))
        })
    };
    let mut rows: Vec<_> = batches.into_iter().flat_map(of_batch).collect();
    rows.sort_unstable();
    rows
}

/// Bytes of all caches of shards.
fn taken(pairs: &PairFiles) -> u64 {
    let entries = std::fs::read_dir(pairs.folder()).expect("a folder").flatten();
    let caches = entries.filter(|entry| entry.file_name().to_string_lossy().contains(".tokens"));
    caches.map(|entry| entry.metadata().map_or(0, |file| file.len())).sum()
}

#[test]
fn every_pair_of_the_whole_cache_comes_once_in_each_epoch_and_epochs_differ() {
    let pairs = PairFiles::new(120);
    let whole = crate::source::PairSource::new(pairs.whole(), &pairs.tokenizers, &config(0)).expect("a source");
    let pass = OnePass::new(Arc::new(whole), &config(0)).expect("starts").map(|batch| batch.expect("a batch"));
    let wanted = rows(&pass.collect::<Vec<_>>());

    let source = source(&pairs, &config(2));
    assert!(source.rows.windows.len() > 3, "{}", source.rows.windows.len());
    let per_epoch = source.batches_per_epoch();
    let all = batches(&pairs, 2, Position::default(), 2 * per_epoch, Rank::default());
    let (first, second) = all.split_at(per_epoch as usize);
    assert!(rows(first) == wanted && rows(second) == wanted);
    let numbers = |batches: &[HostBatch]| batches.iter().flat_map(|batch| batch.rows.clone()).collect::<Vec<_>>();
    assert!(numbers(first) != numbers(second));
    for epoch in [first, second] {
        let mut shapes = BTreeMap::new();
        epoch.iter().for_each(|batch| *shapes.entry(batch.shape()).or_default() += 1);
        assert_eq!(Some(shapes), source.shapes());
    }

    // A single pass, too.
    let pass = OnePass::new(source, &config(2)).expect("starts").map(|batch| batch.expect("a batch"));
    assert!(rows(&pass.collect::<Vec<_>>()) == wanted);
}

#[test]
fn batches_depend_neither_on_workers_nor_ranks_nor_on_the_start() {
    let pairs = PairFiles::new(120);
    let per_epoch = source(&pairs, &config(0)).batches_per_epoch();
    let n = per_epoch + per_epoch / 2;
    let all = batches(&pairs, 0, Position::default(), n, Rank::default());
    assert!(batches(&pairs, 3, Position::default(), n, Rank::default()) == all);
    // Steps of four batches over two ranks, and over one.
    let of_steps = |rank, world_size| Rank { rank, world_size, group_size: 4 };
    let ids = |batches: &[HostBatch]| batches.iter().map(|batch| batch.ids.clone()).collect::<Vec<_>>();
    let steps = batches(&pairs, 0, Position::default(), n, of_steps(0, 1));
    for rank in 0..2 {
        let of_rank = batches(&pairs, 2, Position::default(), n / 2, of_steps(rank, 2));
        let wanted: Vec<_> = ids(&steps).into_iter().skip(rank).step_by(2).take(of_rank.len()).collect();
        assert!(ids(&of_rank) == wanted, "rank {rank}");
    }

    // Without the caches, too. Among all starts are the first batches of windows, which begin with rows of the window before.
    for start in (0..per_epoch).step_by(5).chain([per_epoch - 1, per_epoch, per_epoch + 2]) {
        if start % 3 == 0 {
            std::fs::remove_dir_all(pairs.folder()).expect("there");
        }
        let position = Position { epoch: start / per_epoch, batch: start % per_epoch };
        let again = batches(&pairs, 1, position, 6, Rank::default());
        assert!(again == all[start as usize..start as usize + 6], "{start} of {per_epoch}");
    }
}

#[test]
fn a_start_needs_the_caches_of_one_window_or_two() {
    let pairs = PairFiles::new(120);
    let source = source(&pairs, &config(0));
    let order = Order::Shuffled { seed: 5, epoch: 0 };
    let plan = source.plan(order);
    let mut n_continued = 0;
    for index in 0..plan.len() {
        let ((_, window, places), n_rows) = (plan.places(index), plan.batch(index).1.batch_size);
        let is_continued = places.len() < n_rows;
        let pieces = source.rows.pieces(order, (window, places), n_rows);
        let of: Vec<usize> = pieces.iter().map(|(window, _)| *window).collect();
        assert_eq!(of, if is_continued { vec![window - 1, window] } else { vec![window] });
        n_continued += usize::from(is_continued);
    }
    assert!(n_continued > 1, "{n_continued}");
}

#[test]
fn rows_stay_near_their_window_and_the_disk_under_its_limit() {
    let pairs = PairFiles::new(160);
    let source = source(&pairs, &config(2));
    assert!(source.shards().n_bytes() > 3 * LIMIT, "{}", source.shards().n_bytes());
    let order = Order::Shuffled { seed: 5, epoch: 0 };
    let (plan, in_order) = (source.plan(order), source.rows.in_order(order));
    let mut loader = Loader::new(source.clone(), &config(2), 5, Position::default()).expect("a loader");
    let mut most = 0;
    for index in 0..source.batches_per_epoch() as usize {
        let batch = loader.next_batch().expect("a batch");
        let (_, window, _) = plan.places(index);
        let near = in_order[window.saturating_sub(1)..=window].iter();
        let near: Vec<u32> = near.flat_map(|window| source.rows.windows[*window as usize].clone()).collect();
        for row in &batch.rows {
            let shard = source.rows.first_rows.partition_point(|first| first <= row) as u32 - 1;
            assert!(near.contains(&shard), "row {row} of shard {shard} in batch {index}");
        }
        most = most.max(taken(&pairs));
    }
    assert!(most <= LIMIT && most > LIMIT / 2, "{most} of {LIMIT} bytes");
}

#[test]
fn another_multiple_or_another_division_of_the_text_is_refused() {
    let pairs = PairFiles::new(60);
    let other = LoaderConfig { bucket_multiple: 4, ..config(0) };
    let error = StreamedRows::of_pairs(pairs.shards(LIMIT).expect("an index"), &pairs.tokenizers, &other);
    let error = error.expect_err("refused").to_string();
    assert!(error.contains("multiples of 8") && error.contains("loader.bucket_multiple is 4"), "{error}");

    // The first word of each target moves to its source. The ids of a row stay what they were.
    let source = source(&pairs, &config(0));
    for file in pairs.files() {
        let text = std::fs::read_to_string(&file).expect("there");
        let moved = text.lines().map(|line| {
            let row: serde_json::Value = serde_json::from_str(line).expect("a row");
            let [source, target] = ["src", "trg"].map(|name| row[name].as_str().expect("text").to_owned());
            let moved = target.split_once(' ').map(|(first, rest)| (format!("{source} {first}"), rest.to_owned()));
            let (source, target) = moved.unwrap_or((source, target));
            serde_json::json!({ "src": source, "trg": target }).to_string() + "\n"
        });
        std::fs::write(&file, moved.collect::<String>()).expect("writable");
    }
    let mut loader = Loader::new(source, &config(0), 5, Position::default()).expect("a loader");
    let error = loader.next_batch().expect_err("changed").to_string();
    assert!(error.contains("changed during the run") && error.contains("data.cache_limit"), "{error}");
}

#[test]
fn the_order_never_changes_between_versions() {
    // A resumed run must see the same rows: these numbers may only change with a new checkpoint format.
    let pairs = PairFiles::new(40);
    let position = Position { epoch: 7, batch: 1 };
    assert_eq!(batches(&pairs, 0, position, 1, Rank::default())[0].rows, [691, 595, 370, 376]);
}
