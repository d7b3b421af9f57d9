use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::*;
use crate::fixtures::Fixture;
use crate::source::{BatchWorker, PairSource};

fn config(num_workers: usize) -> LoaderConfig {
    LoaderConfig { batch_tokens: 1024, num_workers, prefetch_factor: 3, ..LoaderConfig::default() }
}

fn at(epoch: u64, batch: u64) -> Position {
    Position { epoch, batch }
}

fn batches(source: &Arc<dyn BatchSource>, num_workers: usize, start: Position, n: usize) -> Vec<HostBatch> {
    let mut loader = Loader::new(source.clone(), &config(num_workers), 7, start).expect("starts");
    (0..n).map(|_| loader.next_batch().expect("a batch")).collect()
}

fn cached() -> (Fixture, Arc<dyn BatchSource>) {
    let fixture = Fixture::numbers(3000);
    let cached = Arc::new(fixture.cached(&config(0)));
    (fixture, cached)
}

#[test]
fn any_number_of_workers_gives_the_same_batches() {
    let (_fixture, source) = cached();
    let per_epoch = source.batches_per_epoch();
    assert!(per_epoch > 30, "{per_epoch}");
    let n = 2 * per_epoch as usize + 5;
    let inline = batches(&source, 0, at(0, 0), n);
    assert_eq!(inline[n - 1].next, at(2, 5));
    for num_workers in [1, 2, 8] {
        assert_eq!(batches(&source, num_workers, at(0, 0), n), inline, "{num_workers} workers");
    }
    // From the middle of an epoch, over its end.
    for num_workers in [0, 1, 2, 8] {
        let start = at(1, per_epoch - 4);
        assert_eq!(inline[2 * per_epoch as usize - 5].next, start);
        assert_eq!(batches(&source, num_workers, start, 9), inline[2 * per_epoch as usize - 4..]);
    }
}

#[test]
fn a_loader_can_move_to_another_thread() {
    fn is_send<T: Send>() {}
    is_send::<Loader>();
    is_send::<OnePass>();
}

#[test]
fn every_row_comes_once_an_epoch_in_another_order() {
    let (_fixture, source) = cached();
    let n = source.batches_per_epoch() as usize;
    let both = batches(&source, 2, at(0, 0), 2 * n);
    let orders: Vec<Vec<u32>> =
        both.chunks(n).map(|epoch| epoch.iter().flat_map(|batch| batch.rows.clone()).collect()).collect();
    for order in &orders {
        let rows: BTreeSet<_> = order.iter().collect();
        assert_eq!((order.len(), rows.len()), (3000, 3000));
    }
    assert_ne!(orders[0], orders[1]);
    assert_eq!(both[n - 1].next, at(1, 0));
}

#[test]
fn a_pass_over_an_epoch_has_the_batches_of_the_loader() {
    let (_fixture, source) = cached();
    let per_epoch = source.batches_per_epoch();
    let wanted = batches(&source, 0, at(2, 3), 10);
    let pass = |range| OnePass::of_epoch(source.clone(), &config(2), 7, 2, range).expect("starts");
    assert_eq!(pass(3..13).collect::<Result<Vec<_>>>().expect("batches"), wanted);
    assert_eq!(pass(0..per_epoch).count() as u64, per_epoch);
    assert_eq!(pass(5..5).count(), 0);
}

#[test]
fn batches_hold_the_rows_they_name() {
    let (fixture, source) = cached();
    let (rows, _) = fixture.corpus.read_all().expect("good rows");
    let special = fixture.tokenizers.special();
    for batch in batches(&source, 2, at(0, 0), source.batches_per_epoch() as usize) {
        let shape = batch.shape();
        assert!(shape.source_len % 8 == 0 && shape.target_len % 8 == 0);
        let mut tokens = (0, 0);
        for (i, row) in batch.rows.iter().enumerate() {
            let example = &rows[*row as usize];
            let padded = |mut ids: Vec<u32>, len: usize| -> Vec<i32> {
                ids.resize(len, special.pad);
                ids.into_iter().map(|id| id as i32).collect()
            };

            let source_ids = fixture.tokenizers.encode_sources(&[&example.source]).expect("encodes").remove(0);
            let labels = fixture.tokenizers.encode_targets(&[&example.target]).expect("encodes").remove(0);
            let mut input = vec![special.bos];
            input.extend(&labels[..labels.len() - 1]);

            assert_eq!(batch.source_lengths()[i] as usize, source_ids.len());
            assert_eq!(batch.target_lengths()[i] as usize, labels.len());
            tokens = (tokens.0 + source_ids.len() as u64, tokens.1 + labels.len() as u64);
            let (s, t) = (i * shape.source_len, i * shape.target_len);
            assert_eq!(batch.source()[s..s + shape.source_len], padded(source_ids, shape.source_len));
            assert_eq!(batch.labels()[t..t + shape.target_len], padded(labels, shape.target_len));
            assert_eq!(batch.target_input()[t..t + shape.target_len], padded(input, shape.target_len));
        }
        assert_eq!((batch.source_tokens, batch.target_tokens), tokens);
    }
}

#[test]
fn shapes_are_those_announced() {
    let (_fixture, cached) = cached();
    let mut seen = BTreeMap::<Shape, usize>::new();
    for batch in batches(&cached, 2, at(3, 0), cached.batches_per_epoch() as usize) {
        *seen.entry(batch.shape()).or_default() += 1;
    }
    assert_eq!(Some(seen), cached.shapes());
}

#[test]
fn ranks_share_the_stream_and_their_positions_agree() {
    let (_fixture, cached) = cached();
    let n = 3 * cached.batches_per_epoch() as usize / 2;
    let alone = batches(&cached, 0, at(0, 2), n);
    for world_size in [2, 3, 4] {
        let mut ranks: Vec<_> = (0..world_size)
            .map(|rank| {
                let rank = Rank { rank, world_size, ..Rank::default() };
                Loader::for_rank(cached.clone(), &config(2), 7, at(0, 2), rank).expect("starts")
            })
            .collect();
        for group in alone.chunks_exact(world_size) {
            for (loader, wanted) in ranks.iter_mut().zip(group) {
                let batch = loader.next_batch().expect("a batch");
                assert_eq!((&batch.rows, &batch.ids), (&wanted.rows, &wanted.ids));
                assert_eq!(batch.next, group[world_size - 1].next, "where one rank would be after the group");
            }
        }
    }
    assert!(
        Loader::for_rank(cached, &config(0), 7, at(0, 0), Rank { rank: 2, world_size: 2, ..Rank::default() }).is_err()
    );
}

#[test]
fn steps_of_several_batches_have_one_shape_whatever_the_ranks() {
    let (_fixture, cached) = cached();
    let per_epoch = cached.batches_per_epoch() as usize;
    let n = 3 * per_epoch - 3 * per_epoch % 4;
    let read = |rank, world_size, start, n: usize| -> Vec<HostBatch> {
        let rank = Rank { rank, world_size, group_size: 4 };
        let mut loader = Loader::for_rank(cached.clone(), &config(2), 7, start, rank).expect("starts");
        (0..n).map(|_| loader.next_batch().expect("a batch")).collect()
    };

    let alone = read(0, 1, at(0, 0), n);
    let is_one_shape = |step: &&[HostBatch]| step.iter().all(|batch| batch.shape() == step[0].shape());
    let steps = alone.chunks_exact(4);
    let (of_one_shape, n_steps) = (steps.clone().filter(is_one_shape).count(), steps.len());
    assert!(10 * of_one_shape > 7 * n_steps, "{of_one_shape} of {n_steps} steps");
    for epoch in alone.chunks_exact(per_epoch) {
        let rows: BTreeSet<_> = epoch.iter().flat_map(|batch| &batch.rows).collect();
        assert_eq!(rows.len(), 3000, "every row once an epoch");
    }

    // The split does not matter, nor does a restart after any step.
    for world_size in [2, 4] {
        for rank in 0..world_size {
            let mine = read(rank, world_size, at(0, 0), n / world_size);
            assert!(mine.iter().zip(alone[rank..].iter().step_by(world_size)).all(|(a, b)| a.ids == b.ids));
        }
    }
    let step = per_epoch / 4 + 2;
    assert_eq!(read(0, 1, alone[4 * step - 1].next, n - 4 * step), alone[4 * step..]);
}

#[test]
fn one_pass_sees_every_row_in_order_and_ends() {
    let (_fixture, source) = cached();
    let read = |num_workers| {
        let pass = OnePass::new(source.clone(), &config(num_workers)).expect("starts");
        pass.map(|batch| batch.expect("a batch").rows).collect::<Vec<_>>()
    };
    let batches = read(0);
    assert_eq!(batches.iter().flatten().collect::<BTreeSet<_>>().len(), 3000);
    assert_eq!(batches.iter().map(Vec::len).sum::<usize>(), 3000);
    assert!(batches[0].is_sorted(), "in the order of the file");
    assert_eq!(read(4), batches);
    let two_ranks = |rank| {
        let pass = OnePass::for_rank(source.clone(), &config(1), Rank { rank, world_size: 2, ..Rank::default() })
            .expect("starts");
        pass.map(|batch| batch.expect("a batch").rows).collect::<Vec<_>>()
    };
    let (even, odd) = (two_ranks(0), two_ranks(1));
    assert_eq!(even.len() + odd.len(), batches.len());
    assert_eq!((&even[0], &odd[0]), (&batches[0], &batches[1]));
}

#[test]
fn recycled_buffers_bound_memory() {
    let (_fixture, cached) = cached();
    for num_workers in [0, 1, 4] {
        let mut loader = Loader::new(cached.clone(), &config(num_workers), 7, at(0, 0)).expect("starts");
        for _ in 0..5 * cached.batches_per_epoch() {
            let batch = loader.next_batch().expect("a batch");
            loader.recycle(batch);
        }
        assert!(loader.n_buffers() <= (num_workers * 3).max(1) + 1, "{}", loader.n_buffers());
        assert!(loader.plans.len() <= 2);
    }
}

type Script = dyn Fn(u32, &mut HostBatch) -> Result<()> + Send + Sync;

/// A source whose batches do what a test needs.
struct Scripted {
    plan: crate::batch::Buckets,
    made: AtomicUsize,
    script: Box<Script>,
}

impl Scripted {
    /// Batches of one row each.
    fn new(n: usize, script: impl Fn(u32, &mut HostBatch) -> Result<()> + Send + Sync + 'static) -> Arc<Self> {
        let config = LoaderConfig { batch_tokens: 8, ..LoaderConfig::default() };
        let plan =
            crate::batch::Buckets::new(std::iter::repeat_n((8, 8), n), (0, 0), &config).expect("within the budget");
        Arc::new(Self { plan, made: AtomicUsize::new(0), script: Box::new(script) })
    }
}

impl BatchSource for Scripted {
    fn plan(&self, order: Order) -> EpochPlan {
        self.plan.plan(order)
    }

    fn batches_per_epoch(&self) -> u64 {
        self.plan.batches_per_epoch()
    }

    fn shapes(&self) -> Option<BTreeMap<Shape, usize>> {
        Some(self.plan.shapes())
    }

    fn fingerprint(&self) -> String {
        "scripted".into()
    }

    fn worker(self: Arc<Self>) -> Box<dyn BatchWorker> {
        Box::new(self)
    }
}

impl BatchWorker for Arc<Scripted> {
    fn fill(&mut self, plan: &EpochPlan, index: usize, batch: &mut HostBatch) -> Result<()> {
        let (rows, _) = plan.batch(index);
        self.made.fetch_add(1, Ordering::Relaxed);
        batch.batch_size = rows.len();
        batch.rows = rows.to_vec();
        (self.script)(rows[0], batch)
    }
}

fn sequential(num_workers: usize) -> LoaderConfig {
    LoaderConfig { shuffle: false, ..config(num_workers) }
}

#[test]
fn a_panic_comes_back_as_an_error_in_its_place() {
    for num_workers in [0, 1, 8] {
        let source = Scripted::new(100, |row, _| {
            assert!(row != 20, "row {row} is cursed");
            Ok(())
        });
        let mut loader = Loader::new(source, &sequential(num_workers), 0, at(0, 0)).expect("starts");
        for row in 0..20 {
            assert_eq!(loader.next_batch().expect("a batch").rows, [row]);
        }
        let error = loader.next_batch().expect_err("a panic").to_string();
        assert_eq!(error, "a data worker panicked: row 20 is cursed");
        let again = loader.next_batch().expect_err("stopped").to_string();
        assert_eq!(again, "the loader stopped after an earlier error: a data worker panicked: row 20 is cursed");
    }
}

#[test]
fn an_error_ends_a_pass() {
    let source = Scripted::new(50, |row, _| if row == 7 { Err(Error::Invalid("no".into())) } else { Ok(()) });
    let mut pass = OnePass::new(source, &config(3)).expect("starts");
    assert_eq!(pass.by_ref().take_while(Result::is_ok).count(), 7);
    assert!(pass.next().is_none());
}

#[test]
fn slow_workers_do_not_change_the_order_and_prefetch_is_bounded() {
    let source = Scripted::new(60, |row, _| {
        std::thread::sleep(Duration::from_micros(u64::from(row * 7919 % 11) * 300));
        Ok(())
    });
    let mut loader = Loader::new(source.clone(), &sequential(4), 0, at(0, 0)).expect("starts");
    for row in 0..60 {
        assert_eq!(loader.next_batch().expect("a batch").rows, [row]);
        let ahead = source.made.load(Ordering::Relaxed) - row as usize - 1;
        assert!(ahead <= 4 * 3, "{ahead} batches ahead");
    }
}

#[test]
fn dropping_a_loader_ends_its_threads_at_once() {
    for taken in [0, 1, 5] {
        let source = Scripted::new(1000, |_, _| {
            std::thread::sleep(Duration::from_millis(5));
            Ok(())
        });
        let start = std::time::Instant::now();
        let mut loader = Loader::new(source.clone(), &config(8), 0, at(0, 0)).expect("starts");
        for _ in 0..taken {
            loader.next_batch().expect("a batch");
        }
        drop(loader);
        assert!(start.elapsed() < Duration::from_secs(2));
        // Joined: nobody holds the source any more.
        assert_eq!(Arc::strong_count(&source), 1);
    }
}

#[test]
fn starting_late_produces_nothing_that_comes_before() {
    let source = Scripted::new(1000, |_, _| Ok(()));
    let mut loader = Loader::new(source.clone(), &sequential(0), 0, at(5, 990)).expect("starts");
    assert_eq!(loader.next_batch().expect("a batch").rows, [990]);
    assert_eq!(source.made.load(Ordering::Relaxed), 1);
}

#[test]
fn batches_without_rows_are_skipped() {
    for num_workers in [0, 2] {
        let source = Scripted::new(10, |row, batch| {
            batch.batch_size = usize::from(row % 2 == 0);
            Ok(())
        });
        let pass = OnePass::new(source, &config(num_workers)).expect("starts");
        let rows: Vec<_> = pass.map(|batch| batch.expect("a batch").rows[0]).collect();
        assert_eq!(rows, [0, 2, 4, 6, 8]);
    }
}

#[test]
fn positions_and_data_that_do_not_fit_are_refused() {
    let source = Scripted::new(10, |_, _| Ok(()));
    let start = |source: Arc<Scripted>, position| Loader::new(source, &config(0), 0, position).map(|_| ());
    let error = start(source, at(2, 10)).expect_err("beyond the epoch").to_string();
    assert!(error.contains("batch 10 of epoch 2: an epoch has 10 batches"), "{error}");
    let error = start(Scripted::new(0, |_, _| Ok(())), at(0, 0)).expect_err("empty").to_string();
    assert!(error.contains("no rows"), "{error}");

    let fixture = Fixture::numbers(200);
    let other = Fixture::numbers(300).tokenizers;
    let cache =
        crate::cache::prepare_pairs(&fixture.cache_path(), &fixture.corpus, &fixture.tokenizers, 1, &mut |_| ())
            .expect("a good corpus")
            .cache;
    let error = PairSource::new(cache, &other, &config(0)).expect_err("another tokenizer").to_string();
    assert!(error.contains("was made with another tokenizer"), "{error}");
}

#[test]
fn ids_out_of_range_are_found_before_they_reach_a_device() {
    let fixture = Fixture::numbers(200);
    drop(fixture.cached(&config(0)));
    let mut bytes = std::fs::read(fixture.cache_path()).expect("there");
    bytes[512..514].copy_from_slice(&[0xff, 0xff]);
    std::fs::remove_file(fixture.cache_path()).expect("there");
    std::fs::write(fixture.cache_path(), bytes).expect("a writable folder");
    let cache = crate::cache::TokenCache::open(&fixture.cache_path()).expect("its index is whole");
    let source = PairSource::new(cache, &fixture.tokenizers, &config(0)).expect("the same tokenizer");
    let error = OnePass::new(Arc::new(source), &config(2))
        .expect("starts")
        .find_map(Result::err)
        .expect("a damaged row")
        .to_string();
    assert!(error.contains("row 0 is damaged: it has id 65535"), "{error}");
}
