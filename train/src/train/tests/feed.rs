//! The thread that uploads.

use std::sync::atomic::AtomicI64;
use std::time::{Duration, Instant};

use kiln_data::{Loader, Rank};

use super::worker::Fragile;
use super::*;
use crate::metrics::SpanClock;
use crate::train::feed::GroupFeed;

/// Makes a feed of `n` batches, after which its loader fails. The source counts the batches that are left.
fn feed_of(n: i64) -> (GroupFeed, Arc<Fragile>) {
    let corpora = Corpora::new(200);
    let mut config = corpora.config();
    (config.train.grad_accum_steps, config.loader.num_workers) = (2, 0);
    let source = Arc::new(Fragile { source: corpora.source("train", &config.loader), left: AtomicI64::new(n) });
    let loader = Loader::new(source.clone(), &config.loader, 1, Position::default()).expect("a loader");
    let feed = GroupFeed::new(loader, Position::default(), &config.train, Rank::default(), Device::flex());
    (feed.expect("a thread"), source)
}

#[test]
fn one_group_is_uploaded_ahead_and_no_more() {
    let (mut feed, source) = feed_of(100);
    let made = || 100 - source.left.load(Ordering::Relaxed);
    let mut clock = SpanClock::start();
    for n_groups in 1..=3 {
        let deadline = Instant::now() + Duration::from_secs(60);
        while made() < 2 * n_groups && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(made(), 2 * n_groups, "nobody has asked for group {n_groups}");
        let group = feed.next_group(&mut clock).expect("readable");
        assert_eq!((group.batches.len(), group.next.batch), (2, 2 * n_groups as u64));
    }

    drop(feed);
    assert_eq!(Arc::strong_count(&source), 1, "the thread has ended");
}

#[test]
fn an_error_comes_after_the_groups_before_it_and_stays() {
    let (mut feed, _source) = feed_of(5);
    let mut clock = SpanClock::start();
    for _ in 0..2 {
        feed.next_group(&mut clock).expect("readable");
    }
    let error = feed.next_group(&mut clock).expect_err("the sixth batch").to_string();
    assert!(error.contains("a bug in a worker"), "{error}");
    assert!(feed.next_group(&mut clock).is_err());
}
