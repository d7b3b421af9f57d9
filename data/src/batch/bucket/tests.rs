use super::*;

/// Lengths as in real text: mostly short, a long tail, both sides similar but not equal.
fn lengths(n: usize) -> Vec<(usize, usize)> {
    let one = |i: usize| {
        let x = (i as f64 * 0.618_034).fract();
        let source = 2.0 + 120.0 * x.powi(3);
        let target = source * (0.8 + 0.5 * (i as f64 * 0.324_7).fract());
        (source as usize, (target as usize).clamp(2, 128))
    };
    (0..n).map(one).collect()
}

fn config() -> LoaderConfig {
    LoaderConfig { batch_tokens: 4096, ..LoaderConfig::default() }
}

fn buckets(lengths: &[(usize, usize)], config: &LoaderConfig) -> Buckets {
    Buckets::new(lengths.iter().copied(), (0, 0), config).expect("lengths within the budget")
}

fn shuffled(epoch: u64) -> Order {
    Order::Shuffled { seed: 1, epoch }
}

#[test]
fn batches_may_be_counted_in_rows() {
    let config = LoaderConfig { batch_rows: 5, batch_tokens: 64, ..LoaderConfig::default() };
    let buckets = Buckets::new((0..20).map(|i| (3 + i % 2 * 20, 3)), (64, 64), &config).expect("rows that fit");
    let plan = buckets.plan(Order::Sequential);
    let rows: Vec<usize> = (0..plan.len()).map(|batch| plan.batch(batch).0.len()).collect();
    assert_eq!(rows, [5, 5, 5, 5]);
}

#[test]
fn every_row_is_in_one_batch_of_an_epoch_and_fits_it() {
    for n in [1, 7, 100, 20_000] {
        for bucket_multiple in [1, 4, 8] {
            let lengths = lengths(n);
            let config = LoaderConfig { bucket_multiple, ..config() };
            let buckets = buckets(&lengths, &config);
            for order in [Order::Sequential, shuffled(0), shuffled(1)] {
                let plan = buckets.plan(order);
                assert_eq!(plan.len() as u64, buckets.batches_per_epoch());

                let mut seen = vec![0; n];
                let mut shapes = BTreeMap::<Shape, usize>::new();
                for i in 0..plan.len() {
                    let (rows, shape) = plan.batch(i);
                    assert_eq!(rows.len(), shape.batch_size);
                    assert!(shape.batch_size * shape.source_len.max(shape.target_len) <= config.batch_tokens);
                    assert_eq!((shape.source_len % bucket_multiple, shape.target_len % bucket_multiple), (0, 0));
                    for row in rows {
                        seen[*row as usize] += 1;
                        let (source, target) = lengths[*row as usize];
                        assert!(source <= shape.source_len && target <= shape.target_len);
                    }
                    *shapes.entry(shape).or_default() += 1;
                }

                assert!(seen.iter().all(|times| *times == 1));
                assert_eq!(shapes, buckets.shapes(), "the same shapes in every epoch");
            }
        }
    }
}

#[test]
fn shapes_are_few_and_padding_is_small() {
    let lengths = lengths(50_000);
    let narrow = buckets(&lengths, &config());
    assert!(narrow.shapes().len() <= config().max_buckets + 2, "{:?}", narrow.shapes());
    assert!(narrow.padding_ratio() < 0.2, "{}", narrow.padding_ratio());
    let partial = narrow.shapes().keys().filter(|shape| shape.batch_size % 8 != 0).count();
    assert!(partial <= 2, "{:?}", narrow.shapes());
    // The ratio is what the batches say.
    let plan = narrow.plan(shuffled(3));
    let padded: usize = (0..plan.len()).map(|i| plan.batch(i).1.padded_tokens()).sum();
    let tokens: usize = lengths.iter().map(|(source, target)| source + target).sum();
    assert!((narrow.padding_ratio() - (1.0 - tokens as f64 / padded as f64)).abs() < 1e-12);
    // More buckets pad less, one pads most.
    let ratio = |max_buckets| buckets(&lengths, &LoaderConfig { max_buckets, ..config() }).padding_ratio();
    assert!(ratio(1) > ratio(4) && ratio(4) > ratio(16) && ratio(16) >= ratio(64));
    assert_eq!(buckets(&lengths, &LoaderConfig { max_buckets: 1, ..config() }).shapes().len(), 2);
}

#[test]
fn epochs_differ_and_repeat() {
    let buckets = buckets(&lengths(5000), &config());
    let first = buckets.plan(shuffled(0));
    assert_eq!(first, buckets.plan(shuffled(0)));
    let second = buckets.plan(shuffled(1));
    assert_ne!(first.batch(0), second.batch(0));
    // Rows meet other rows, not just in another order of the same batches.
    let sets = |plan: &EpochPlan| -> std::collections::BTreeSet<Vec<u32>> {
        let sorted = |i| {
            let mut rows = plan.batch(i).0.to_vec();
            rows.sort_unstable();
            rows
        };
        (0..plan.len()).map(sorted).collect()
    };
    assert_eq!(sets(&first).intersection(&sets(&second)).count(), 0);
}

#[test]
fn lengths_never_exceed_the_limits_by_rounding() {
    let buckets = Buckets::new([(100, 99), (10, 12)].into_iter(), (100, 100), &config()).expect("fits");
    assert!(buckets.shapes().keys().all(|shape| shape.source_len <= 100 && shape.target_len <= 100));
}

#[test]
fn rows_beyond_the_budget_are_refused() {
    let text = Buckets::new([(10, 5000)].into_iter(), (0, 0), &config()).expect_err("too long").to_string();
    assert!(text.contains("loader.batch_tokens = 4096 cannot hold the longest row"), "{text}");
    assert!(text.contains("at least 5120"), "{text}");
    assert!(Buckets::new([].into_iter(), (0, 0), &config()).expect("nothing to do").plan(shuffled(0)).is_empty());
}

#[test]
fn rounding_grows_with_the_length() {
    let cases = [(1, 8), (8, 8), (9, 16), (128, 128), (129, 144), (256, 256), (257, 288), (1000, 1024), (1025, 1152)];
    for (len, padded) in cases {
        assert_eq!(round_up(len, 8), padded, "{len}");
    }
    assert_eq!(round_up(5, 1), 5);
}

#[test]
fn planning_a_large_epoch_takes_milliseconds() {
    let lengths = lengths(186_646);
    let start = std::time::Instant::now();
    let buckets = buckets(&lengths, &config());
    let plan = buckets.plan(shuffled(0));
    assert!(start.elapsed().as_secs_f64() < 1.0, "{:?}", start.elapsed());
    assert!(plan.len() > 1000);
}

#[test]
fn settings_that_cannot_work_are_all_named() {
    assert!(LoaderConfig::default().validate().is_empty());
    let config = LoaderConfig {
        batch_rows: 0,
        batch_tokens: 0,
        bucket_multiple: 0,
        max_buckets: 0,
        num_workers: 2000,
        prefetch_factor: 0,
        shuffle: true,
    };
    assert_eq!(config.validate().len(), 5);
    assert!(Buckets::new([(1, 1)].into_iter(), (0, 0), &config).is_err());
}
