//! Who may join, and what strangers and departures do.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use super::super::hello::Hello;
use super::*;

#[test]
fn strangers_neither_end_nor_stall_the_rendezvous() {
    let mut worlds = worlds(2);
    let port = worlds[0].master.1;
    let first = worlds.remove(0);
    let listening = thread::spawn(move || {
        let mut notes = Vec::new();
        let link = Link::connect(&first, &mut |note| notes.push(note.to_owned()));
        (link, notes)
    });
    let knock = || loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => return stream,
            Err(_) => sleep(Duration::from_millis(10)),
        }
    };

    // A silent one, a browser, one with garbage, one with an endless hello, and more silent ones than there are places.
    let silent = knock();
    let speak = |bytes: &[u8]| {
        let mut stream = knock();
        let _ = stream.write_all(bytes);
        stream
    };
    let browser = speak(b"GET / HTTP/1.1\r\nHost: kiln\r\n\r\n");
    let garbage = speak(&[0xff; 4096]);
    let endless = speak(&[&b"KILNLINK\xff\xff\xff\xff"[..], &[b'x'; 100_000]].concat());
    let crowd: Vec<_> = (0..100).map(|_| knock()).collect();
    for mut stream in [browser, garbage, endless] {
        stream.set_read_timeout(Some(Duration::from_secs(3))).expect("a socket");
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard);
        assert!(heard.len() <= hello::GREETING, "a stranger hears the greeting and no more");
    }

    let started = Instant::now();
    let second = thread::spawn(move || Link::connect(&worlds[0], &mut |_| ()));
    let (first, notes) = listening.join().expect("no panic");
    let second = second.join().expect("no panic").expect("accepted");
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    assert_eq!(notes, [""; 0], "strangers are not worth a word");
    let first = first.expect("both came");
    let other = thread::spawn(move || second.finish().map(|()| second));
    first.finish().expect("sound");
    other.join().expect("no panic").expect("sound");
    drop((silent, crowd));
}

/// Rank 0 of three meets a changed rank 1 and a good rank 2, which shows that rank 0 goes on waiting. Returns what rank 1
/// and rank 0 are told.
fn refusal(change: impl FnOnce(&mut World)) -> (String, String) {
    let mut worlds = worlds(3);
    for world in &mut worlds {
        world.limits.set(Phase::Start, Duration::from_secs(2));
    }
    let [mut changed, second, first] = [worlds.remove(1), worlds.remove(1), worlds.remove(0)];
    change(&mut changed);

    let listening = thread::spawn(move || {
        let mut notes = Vec::new();
        let error = Link::connect(&first, &mut |note| notes.push(note.to_owned())).expect_err("rank 1 is missing");
        (error, notes.join("\n"))
    });
    let waiting = thread::spawn(move || Link::connect(&second, &mut |_| ()).expect_err("rank 1 is missing"));
    // The refused rank comes last, so that a duplicate meets the rank that it doubles.
    sleep(Duration::from_millis(300));
    let refused = Link::connect(&changed, &mut |_| ()).expect_err("refused");
    assert!(matches!(refused, LinkError::Refused(_)), "{refused}");

    let (incomplete, notes) = listening.join().expect("no panic");
    assert_eq!(waiting.join().expect("no panic"), incomplete, "rank 2 is told why the wait is over");
    let LinkError::Incomplete { ref missing, ref refused, .. } = incomplete else { panic!("{incomplete}") };
    assert_eq!((missing.as_str(), refused.len()), ("rank 1", 1));
    (incomplete.to_string(), notes)
}

#[test]
fn a_rank_that_does_not_belong_is_refused_with_words_on_both_sides() {
    let told = |change: fn(&mut World), part: &str| {
        let (incomplete, notes) = refusal(change);
        assert!(incomplete.contains(part) && incomplete.contains("waited 2 s"), "{part:?}: {incomplete}");
        assert!(notes.contains("refused a connection from 127.0.0.1: ") && notes.contains(part), "{notes}");
    };
    type Change = fn(&mut World);
    let cases: [(Change, &str); 4] = [
        (|world| world.size = 4, "expects 4 ranks, rank 0 expects 3"),
        (|world| world.rank = 2, "has the same number"),
        (|world| world.rank = 3, "is not a rank that rank 0 waits for (1 to 2)"),
        (|world| *world = world.clone().with_secret("guessed"), "KILN_SECRET, or the launcher's run id, differs"),
    ];
    thread::scope(|scope| cases.map(|(change, part)| scope.spawn(move || told(change, part))).map(|case| case.join()))
        .into_iter()
        .for_each(|case| case.expect("told"));
}

#[test]
fn another_version_is_refused() {
    let world = worlds(2).remove(0);
    let greeting = random();
    let take = |hello: &Hello| Hello::take(&mut hello.encode(&world.secret, &greeting)).expect("whole").expect("whole");
    let good = Hello { rank: 1, ..Hello::new(&world, &this_process(), hello::Channel::Data) };
    assert_eq!(take(&good).refusal(&world, &greeting), None);
    assert!(take(&good).refusal(&world, &random()).is_some(), "a proof for another greeting");
    for other in [Hello { version: "0.0.9".into(), ..good.clone() }, Hello { protocol: 99, ..good.clone() }] {
        let refusal = take(&other).refusal(&world, &greeting).expect("refused");
        assert!(refusal.contains("runs Kiln") && refusal.contains("rank 0 runs Kiln"), "{refusal}");
    }
}

#[test]
fn the_secret_of_the_run_is_known_to_all_ranks_and_never_sent() {
    let worlds: Vec<World> = worlds(2).into_iter().map(|world| world.with_secret("open sesame")).collect();
    let hello = Hello::new(&worlds[1], &this_process(), hello::Channel::Watch).encode(&worlds[1].secret, &random());
    assert!(!hello.windows(11).any(|bytes| bytes == b"open sesame"));
    with_links(worlds, |link| link.finish().expect("both know it"));
}

#[test]
fn a_rank_that_leaves_the_rendezvous_ends_it() {
    let mut worlds = worlds(3);
    let third = worlds.remove(2);
    let met = |world: World| thread::spawn(move || Link::connect(&world, &mut |_| ()).expect_err("it cannot begin"));
    let (first, second) = (met(worlds.remove(0)), met(worlds.remove(0)));

    // It says hello on one connection, and dies.
    let mut stream = loop {
        match TcpStream::connect(("127.0.0.1", third.master.1)) {
            Ok(stream) => break stream,
            Err(_) => sleep(Duration::from_millis(10)),
        }
    };
    let mut greeting = [0; hello::GREETING];
    stream.read_exact(&mut greeting).expect("a greeting");
    let hello = Hello::new(&third, &this_process(), hello::Channel::Data);
    stream.write_all(&hello.encode(&third.secret, &hello::nonce_of(&greeting).expect("Kiln's"))).expect("heard");
    sleep(Duration::from_millis(300));
    stream.shutdown(Shutdown::Both).expect("open");

    for thread in [first, second] {
        let error = thread.join().expect("no panic");
        assert_eq!(error.rank(), Some(2), "{error}");
    }
}

#[test]
fn a_rank_without_a_first_rank_says_for_what_it_waits() {
    let mut world = worlds(2).remove(1);
    world.limits.set(Phase::Start, Duration::from_secs(5));
    let mut notes = Vec::new();
    let error = Link::connect(&world, &mut |note| notes.push(note.to_owned())).expect_err("nobody is there");
    assert!(error.to_string().contains("rank 1 did not reach rank 0 at 127.0.0.1:"), "{error}");
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].starts_with("rank 1 waits for rank 0 at 127.0.0.1:"), "{notes:?}");
}
