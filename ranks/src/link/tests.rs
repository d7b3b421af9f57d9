mod rendezvous;

use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle, sleep};

use anyhow::anyhow;

use super::*;
use crate::ports::free_port;

/// The worlds of `size` ranks on a port of their own.
fn worlds(size: usize) -> Vec<World> {
    World::on_loopback(size, free_port().expect("a port"))
}

/// Connects all ranks and runs `work` on each, in a thread of its own. Returns the results by rank.
fn with_links<T: Send + 'static>(worlds: Vec<World>, work: impl Fn(Link) -> T + Clone + Send + 'static) -> Vec<T> {
    let start = |world: World| -> JoinHandle<T> {
        let work = work.clone();
        thread::spawn(move || work(Link::connect(&world, &mut |_| ()).expect("all ranks come")))
    };
    let threads: Vec<_> = worlds.into_iter().map(start).collect();
    threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
}

#[test]
fn every_rank_gets_the_bytes_of_all_in_rank_order() {
    for size in 1..=4 {
        let all = with_links(worlds(size), |link| {
            let mine = vec![link.rank() as u8; link.rank() + 1];
            let gathered = link.all_gather("ranks", mine).expect("all are here");
            link.barrier("between").expect("all are here");
            let parts = (0..link.size()).map(|to| format!("{} to {to}", link.rank()).into_bytes()).collect();
            let exchanged = link.exchange("parts", parts).expect("all are here");
            link.finish().expect("all are here");
            (link.rank(), gathered, exchanged)
        });
        for (rank, gathered, exchanged) in all {
            let expected: Vec<Vec<u8>> = (0..size).map(|from| vec![from as u8; from + 1]).collect();
            assert_eq!(gathered, expected, "rank {rank} of {size}");
            let expected: Vec<Vec<u8>> = (0..size).map(|from| format!("{from} to {rank}").into_bytes()).collect();
            assert_eq!(exchanged, expected, "rank {rank} of {size}");
        }
    }
}

#[test]
fn large_parts_flow_between_all_ranks_at_once() {
    const BYTES: usize = 64 << 20;
    let sums = with_links(worlds(3), |link| {
        let part = |to: usize| vec![(10 * link.rank() + to) as u8; BYTES / 3 + to];
        let parts = (0..3).map(part).collect();
        let came = link.exchange("slices", parts).expect("all are here");
        link.finish().expect("all are here");
        let is_right = |(from, part): (usize, &Vec<u8>)| {
            part.len() == BYTES / 3 + link.rank() && part.iter().all(|byte| *byte == (10 * from + link.rank()) as u8)
        };
        came.iter().enumerate().all(is_right)
    });
    assert_eq!(sums, [true; 3]);
}

#[test]
fn one_process_needs_no_connection() {
    let link = Link::alone();
    assert_eq!((link.rank(), link.size(), link.is_first()), (0, 1, true));
    assert_eq!(link.all_gather("alone", vec![7]).expect("alone"), [vec![7]]);
    assert_eq!(link.exchange("alone", vec![vec![7]]).expect("alone"), [vec![7]]);
    link.compare(&[("seed".into(), "1".into())]).expect("equal to itself");
    assert_eq!(link.first_then_others("work", || Ok(3)).expect("done"), 3);
    link.finish().expect("alone");
    assert_eq!(link.barrier("late"), Err(LinkError::Finished("late".into())));
}

#[test]
fn ranks_in_different_calls_are_told_both_names() {
    let errors = with_links(worlds(3), |link| {
        let what = if link.rank() == 2 { "save" } else { "validation" };
        link.barrier(what).expect_err("different calls")
    });
    for error in &errors {
        assert_eq!(error, &errors[0], "all ranks report the same");
        let text = error.to_string();
        assert!(text.contains("rank 0 in `validation` (call 1), rank 2 in `save` (call 1)"), "{text}");
    }
}

#[test]
fn unequal_facts_are_listed_on_every_rank() {
    let errors = with_links(worlds(3), |link| {
        let seed = if link.rank() == 1 { "2" } else { "1" };
        let facts = [("seed".to_string(), seed.to_string()), ("data".into(), "same".into())];
        let error = link.compare(&facts).expect_err("unequal").to_string();
        link.finish().expect("the link is sound");
        error
    });
    for error in errors {
        assert!(error.contains("\n  seed: 1 on rank 0 (") && error.contains("), 2 on rank 1 ("), "{error}");
        assert!(!error.contains("data"), "{error}");
    }
}

#[test]
fn the_first_rank_works_before_the_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let made = folder.path().join("cache");
    let file = made.clone();
    let found = with_links(worlds(4), move |link| {
        let work = || {
            if link.is_first() {
                sleep(Duration::from_millis(100));
                std::fs::write(&file, "tokens")?;
            }
            Ok(std::fs::read_to_string(&file)?)
        };
        let found = link.first_then_others("token cache", work).expect("made");
        link.finish().expect("all are here");
        found
    });
    assert_eq!(found, ["tokens"; 4]);
}

#[test]
fn an_error_of_the_first_rank_ends_the_others_with_it() {
    let errors = with_links(worlds(3), |link| {
        let work = || if link.is_first() { Err(anyhow!("bad rows").context("data.train")) } else { Ok(()) };
        format!("{:#}", link.first_then_others("token cache", work).expect_err("it fails"))
    });
    assert_eq!(errors[0], "data.train: bad rows");
    for error in &errors[1..] {
        assert!(error.starts_with("rank 0 (") && error.ends_with(") failed: data.train: bad rows"), "{error}");
    }
}

#[test]
fn an_abort_reaches_pending_and_later_calls_of_all_ranks() {
    for failing in 0..3 {
        let started = Instant::now();
        let all = with_links(worlds(3), move |link| {
            let (sender, handled) = channel();
            link.on_failure(Box::new(move |error| sender.send(error.clone()).expect("listening")));
            if link.rank() == failing {
                sleep(Duration::from_millis(50));
                link.abort("the disk is full\u{1}");
            }
            let pending = link.all_gather("never", vec![0; 1 << 20]).expect_err("aborted");
            let later = link.barrier("later").expect_err("aborted");
            (pending, later, handled.recv_timeout(Duration::from_secs(5)).expect("the handler is called"))
        });
        for (pending, later, handled) in all {
            assert_eq!((&pending, &pending), (&later, &handled));
            let LinkError::Aborted { rank, reason, .. } = pending else { panic!("{pending}") };
            assert_eq!((rank, reason.as_str()), (failing, "the disk is full "));
        }
        assert!(started.elapsed() < Duration::from_secs(5), "rank {failing}: {:?}", started.elapsed());
    }
}

#[test]
fn a_link_that_is_dropped_too_early_ends_the_others() {
    let errors = with_links(worlds(2), |link| {
        if link.rank() == 1 {
            return None;
        }
        Some(link.barrier("end").expect_err("rank 1 is gone"))
    });
    let error = errors[0].as_ref().expect("an error").to_string();
    assert!(error.starts_with("rank 1 (") && error.contains("it ended before the run did"), "{error}");
}

/// A rank 1 with both connections, which does nothing by itself.
fn puppet(world: World) -> JoinHandle<Met> {
    thread::spawn(move || join::join(&world, &this_process(), &mut |_| ()).expect("accepted"))
}

#[test]
fn a_rank_whose_connection_closes_is_named_at_once() {
    let mut worlds = worlds(2);
    let puppet = puppet(worlds.remove(1));
    let link = Link::connect(&worlds[0], &mut |_| ()).expect("both come");
    link.enter(Phase::Step);
    let met = puppet.join().expect("no panic");

    let started = Instant::now();
    drop(met);
    let error = link.barrier("step").expect_err("rank 1 is gone");
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert_eq!(error.rank(), Some(1));
    assert!(error.to_string().contains("is gone: its connection was "), "{error}");
}

#[test]
fn a_silent_rank_ends_the_others_within_ten_seconds() {
    // Rank 1 is stopped: its connections stay open. Ranks 0 and 2 are in different parts of the program.
    let mut worlds = worlds(3);
    let puppet = puppet(worlds.remove(1));
    let threads: Vec<_> = worlds
        .into_iter()
        .map(|world| {
            thread::spawn(move || {
                let link = Link::connect(&world, &mut |_| ()).expect("all come");
                let (sender, handled) = channel();
                link.on_failure(Box::new(move |error| sender.send(error.clone()).expect("listening")));
                if link.is_first() {
                    return handled.recv_timeout(Duration::from_secs(20)).expect("the handler is called");
                }
                link.barrier("step").expect_err("rank 1 is silent")
            })
        })
        .collect();
    let met = puppet.join().expect("no panic");

    let started = Instant::now();
    for thread in threads {
        let error = thread.join().expect("no panic");
        assert_eq!(error.rank(), Some(1));
        assert!(error.to_string().contains("silent for 7 s"), "{error}");
    }
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    drop(met);
}

#[test]
fn a_silent_first_rank_ends_the_others() {
    let mut worlds = worlds(2);
    let first = worlds.remove(0);
    let puppet = thread::spawn(move || listen::listen(&first, &this_process(), &mut |_| ()).expect("both come"));
    let link = Link::connect(&worlds[0], &mut |_| ()).expect("both come");
    let met = puppet.join().expect("no panic");
    let error = link.barrier("step").expect_err("rank 0 is silent");
    assert_eq!(error.rank(), Some(0));
    assert!(error.to_string().contains("silent for 7 s"), "{error}");
    drop(met);
}

#[test]
fn a_rank_that_does_not_advance_is_named_and_those_that_wait_for_it_are_not() {
    let mut worlds = worlds(3);
    for world in &mut worlds {
        world.limits.set(Phase::Step, Duration::from_secs(2));
        world.limits.set(Phase::Save, Duration::from_secs(1));
    }
    let started = Instant::now();
    let errors = with_links(worlds, |link| {
        let (sender, handled) = channel();
        link.on_failure(Box::new(move |error| sender.send(error.clone()).expect("listening")));
        // Ranks 0 and 1 wait longer than their own limit allows.
        link.enter(if link.rank() == 2 { Phase::Step } else { Phase::Save });
        if link.rank() == 2 {
            return handled.recv_timeout(Duration::from_secs(10)).expect("the handler is called");
        }
        link.barrier("step").expect_err("rank 2 hangs")
    });
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
    for error in errors {
        assert_eq!(error.rank(), Some(2));
        let text = error.to_string();
        assert!(text.contains("has not advanced during a training step for 2 s"), "{text}");
        assert!(text.contains("raise KILN_STEP_TIMEOUT"), "{text}");
    }
}

#[test]
fn a_phase_that_is_entered_again_advances() {
    let mut worlds = worlds(2);
    for world in &mut worlds {
        world.limits.set(Phase::Validate, Duration::from_secs(1));
    }
    with_links(worlds, |link| {
        for _ in 0..25 {
            link.enter(Phase::Validate);
            sleep(Duration::from_millis(200));
        }
        link.finish().expect("nobody was blamed");
    });
}
