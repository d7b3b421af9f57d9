use super::*;
use crate::loader_config::round_up;
use crate::sampler::below;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

const MAX_LENS: (usize, usize) = (100, 120);

/// Windows of rows with random lengths, eos included: `n` each on average, in some windows none or short rows alone.
fn windows(seed: u64, n_windows: usize, n: u32) -> Vec<Vec<(usize, usize)>> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut below = |bound| below(&mut random, bound) as usize;
    (0..n_windows)
        .map(|_| {
            let (n_rows, longest) = (below(2 * n), [8, 40, 100][below(3)]);
            (0..n_rows).map(|_| (2 + below(longest - 1), 2 + below(longest + longest / 5 - 1))).collect()
        })
        .collect()
}

/// Counts rows by their rounded lengths, as the index does.
fn counts(rows: &[(usize, usize)], multiple: usize) -> Vec<(u32, u32, u64)> {
    let mut cells = BTreeMap::new();
    for (source, target) in rows {
        *cells.entry((round_up(*source, multiple) as u32, round_up(*target, multiple) as u32)).or_default() += 1;
    }
    cells.into_iter().map(|((source, target), n)| (source, target, n)).collect()
}

struct Windows {
    rows: Vec<Vec<(usize, usize)>>,
    buckets: WindowBuckets,
    layouts: Vec<Layout>,
}

impl Windows {
    fn new(rows: Vec<Vec<(usize, usize)>>, loader: &LoaderConfig) -> Self {
        let counts: Vec<_> = rows.iter().map(|rows| counts(rows, loader.bucket_multiple)).collect();
        let mut all = BTreeMap::new();
        for (source, target, n) in counts.iter().flatten() {
            *all.entry((*source as usize, *target as usize)).or_default() += *n as usize;
        }
        let buckets = WindowBuckets::new(&all, MAX_LENS, loader).expect("rows that fit");
        let layouts = counts.iter().map(|counts| buckets.layout(counts.iter())).collect();
        Self { rows, buckets, layouts }
    }

    /// Plans the windows in this sequence.
    fn plan(&self, sequence: &[usize], order: Order) -> EpochPlan {
        self.buckets.plan(sequence.iter().map(|window| (&self.layouts[*window], order)), order)
    }

    /// Returns the rows of each batch, as windows of the sequence and rows there.
    fn batches(&self, plan: &EpochPlan, sequence: &[usize]) -> Vec<(Vec<(usize, u32)>, Shape)> {
        let sorted = |window: &usize| {
            let rows: Vec<u32> = (0..self.rows[*window].len() as u32).rev().collect();
            let lengths = |row: u32| self.rows[*window][row as usize];
            self.buckets.sort(&self.layouts[*window], &rows, lengths).expect("the counted rows")
        };
        let sorted: Vec<Vec<u32>> = sequence.iter().map(sorted).collect();
        let widest: Vec<(usize, u32)> = (0..)
            .zip(&sorted)
            .flat_map(|(at, rows)| {
                rows[rows.len() - self.layouts[sequence[at]].n_widest()..].iter().map(move |row| (at, *row))
            })
            .collect();
        let before = |window: usize| sequence[..window].iter().map(|at| self.layouts[*at].n_widest()).sum::<usize>();

        let batch = |index: usize| {
            let (_, shape) = plan.batch(index);
            let (_, window, places) = plan.places(index);
            let n_missing = shape.batch_size - places.len();
            let waiting = &widest[before(window) - n_missing..before(window)];
            let own = sorted[window][places].iter().map(|row| (window, *row));
            (waiting.iter().copied().chain(own).collect(), shape)
        };
        (0..plan.len()).map(batch).collect()
    }
}

fn loaders() -> impl Iterator<Item = LoaderConfig> {
    let of = |batch_tokens, bucket_multiple, max_buckets, batch_rows| LoaderConfig {
        batch_tokens,
        bucket_multiple,
        max_buckets,
        batch_rows,
        ..LoaderConfig::default()
    };
    [of(1024, 8, 16, 0), of(4096, 4, 5, 0), of(512, 8, 1, 0), of(2048, 1, 64, 0), of(1024, 8, 16, 7)].into_iter()
}

#[test]
fn every_row_is_in_one_batch_whatever_the_sequence_of_the_windows() {
    for (seed, (n_windows, n)) in (0..).zip([(1, 300), (2, 40), (6, 500), (9, 12), (12, 2000)]) {
        for loader in loaders() {
            let windows = Windows::new(windows(seed, n_windows, n), &loader);
            let shapes = windows.buckets.shapes(&windows.layouts);
            assert!(shapes.len() <= loader.max_buckets + 1, "{shapes:?}");
            for epoch in 0..3 {
                let order = Order::Shuffled { seed, epoch };
                let sequence: Vec<usize> =
                    order.indices(n_windows as u32, ShuffleOf::Shards).into_iter().map(|at| at as usize).collect();
                let mut plan = windows.plan(&sequence, order);
                plan.group_shapes(1 + epoch as usize, 1, order);

                let (mut seen, mut of_shape) = (Vec::new(), BTreeMap::<Shape, usize>::new());
                for (rows, shape) in windows.batches(&plan, &sequence) {
                    assert_eq!(rows.len(), shape.batch_size);
                    assert!(shape.source_len <= MAX_LENS.0 && shape.target_len <= MAX_LENS.1, "{shape}");
                    for (window, row) in &rows {
                        let (source, target) = windows.rows[sequence[*window]][*row as usize];
                        assert!(
                            source <= shape.source_len && target <= shape.target_len,
                            "{source} {target} in {shape}"
                        );
                    }
                    seen.extend(rows);
                    *of_shape.entry(shape).or_default() += 1;
                }
                seen.sort_unstable();
                let all = sequence
                    .iter()
                    .enumerate()
                    .flat_map(|(at, window)| (0..windows.rows[*window].len() as u32).map(move |row| (at, row)));
                assert_eq!(seen, all.collect::<Vec<_>>());
                assert_eq!(of_shape, shapes, "the same shapes in every epoch");
            }
        }
    }
}

#[test]
fn a_batch_has_rows_of_neighbours_alone_and_those_of_two_come_first() {
    let loader = LoaderConfig { batch_tokens: 1024, ..LoaderConfig::default() };
    let mut n_continued = 0;
    for seed in 0..20 {
        // Windows with at least a batch of short rows, whatever their long ones.
        let mut rows = windows(seed, 7, 400);
        rows.iter_mut().for_each(|rows| rows.extend([(7, 5); 200]));
        let windows = Windows::new(rows, &loader);
        let sequence: Vec<usize> = (0..7).collect();
        let mut plan = windows.plan(&sequence, Order::Shuffled { seed, epoch: 0 });
        plan.group_shapes(4, 3, Order::Shuffled { seed, epoch: 0 });

        let mut newest = 0;
        for (rows, shape) in windows.batches(&plan, &sequence) {
            let [first, last] = [rows[0].0, rows[rows.len() - 1].0];
            assert!(last >= newest, "no batch goes back");
            assert!(first + 1 >= last, "{first} to {last} in {shape}");
            assert!(first == last || last > newest, "the first batch of its window: {first} to {last}");
            n_continued += usize::from(first < last);
            newest = last;
        }
    }
    assert!(n_continued > 20, "{n_continued}");
}

#[test]
fn windows_pad_little_more_than_one_data_set() {
    let loader = LoaderConfig { batch_tokens: 2048, ..LoaderConfig::default() };
    let rows: Vec<Vec<_>> = (0..5).map(|seed| windows(seed, 40, 400).concat()).collect();
    let padded =
        |shapes: &BTreeMap<Shape, usize>| shapes.iter().map(|(shape, n)| shape.padded_tokens() * n).sum::<usize>();
    let all = rows.concat();
    let whole = crate::batch::Buckets::new(all.iter().copied(), MAX_LENS, &loader).expect("rows that fit");
    let windows = Windows::new(rows, &loader);
    let ratio = padded(&windows.buckets.shapes(&windows.layouts)) as f64 / padded(&whole.shapes()) as f64;
    assert!((0.98..1.05).contains(&ratio), "{ratio}");
}

#[test]
fn rows_that_were_not_counted_are_refused() {
    let loader = LoaderConfig::default();
    let windows = Windows::new(vec![vec![(5, 5), (20, 9), (5, 6)]], &loader);
    let sort = |lengths: [(usize, usize); 3]| {
        windows.buckets.sort(&windows.layouts[0], &[0, 1, 2], |row| lengths[row as usize])
    };
    assert!(sort([(20, 9), (5, 5), (5, 6)]).is_some(), "another sequence");
    assert!(sort([(5, 5), (5, 9), (5, 6)]).is_none());
    assert!(sort([(5, 5), (20, 900), (5, 6)]).is_none());
    let long = BTreeMap::from([((96, 9000), 1)]);
    let error = WindowBuckets::new(&long, (0, 0), &loader).expect_err("too long").to_string();
    assert!(error.contains("loader.batch_tokens = 8192"), "{error}");
}

#[test]
fn without_rows_there_are_no_batches() {
    let buckets = WindowBuckets::new(&BTreeMap::new(), MAX_LENS, &LoaderConfig::default()).expect("nothing to do");
    assert_eq!(buckets.shapes(&[]), BTreeMap::new());
    assert!(buckets.plan([].into_iter(), Order::Sequential).is_empty());
}
