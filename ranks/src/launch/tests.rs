use std::fs;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::thread::spawn;
use std::time::Instant;

use tempfile::TempDir;

use super::*;

/// Ranks that run a shell script in a folder of their own.
struct Fake {
    folder: TempDir,
    signals: Signals,
    shown: Arc<Mutex<Vec<(Stream, String)>>>,
}

impl Fake {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { folder, signals: Signals::default(), shown: Arc::default() }
    }

    fn run(&self, n_ranks: usize, script: &str) -> u8 {
        let script = format!("cd '{}'\n{script}", self.folder.path().display());
        let shown = self.shown.clone();
        let show: Show = Arc::new(move |stream, line| shown.lock().expect("whole").push((stream, line.to_owned())));
        let args = ["-c".into(), OsString::from(script)];
        let devices = vec![DeviceName::Cpu; n_ranks];
        launch(&devices, Path::new("/bin/sh"), &args, &self.signals, show).expect("the shell starts")
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn lines(&self) -> Vec<(Stream, String)> {
        let mut lines = self.shown.lock().expect("whole").clone();
        lines.sort_by(|a, b| a.1.cmp(&b.1));
        lines
    }

    /// Waits until `n` ranks have written a file that begins with `name`.
    fn wait_for(folder: &Path, name: &str, n: usize) {
        let started = Instant::now();
        let there = || {
            let names = fs::read_dir(folder).expect("there").map(|entry| entry.expect("readable").file_name());
            names.filter(|file| file.to_string_lossy().starts_with(name)).count()
        };
        while there() < n {
            assert!(started.elapsed() < Duration::from_secs(20), "{name} is missing");
            sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn each_rank_learns_its_place_and_its_device() {
    let fake = Fake::new();
    let code = fake.run(3, "env > env$KILN_RANK; if [ $KILN_RANK != 0 ]; then echo out; echo err >&2; fi");
    assert_eq!(code, 0);
    let read = |rank: usize, name: &str| {
        let text = fake.read(&format!("env{rank}"));
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}="))).map(str::to_owned);
        line.unwrap_or_else(|| panic!("{name} is missing in {text}"))
    };
    for rank in 0..3 {
        assert_eq!((read(rank, "KILN_RANK"), read(rank, "KILN_WORLD_SIZE")), (rank.to_string(), "3".into()));
        assert_eq!((read(rank, "KILN_DEVICE"), read(rank, "KILN_SECRET").len()), ("cpu".into(), 64));
        assert_eq!(read(rank, "KILN_MASTER_PORT"), read(0, "KILN_MASTER_PORT"));
        assert_eq!(read(rank, "KILN_LAUNCHER_PID"), std::process::id().to_string());
        assert!(read(rank, "RAYON_NUM_THREADS").parse::<usize>().expect("a number") >= 1);
    }

    // Rank 0 writes to the launcher's own streams.
    let lines = fake.lines();
    for (stream, line) in [(Stream::Out, "[1] out"), (Stream::Err, "[1] err"), (Stream::Out, "[2] out")] {
        assert!(lines.contains(&(stream, line.into())), "{line} is missing in {lines:?}");
    }
    assert_eq!(lines.len(), 4, "{lines:?}");
}

#[test]
fn a_rank_that_fails_ends_the_others_and_gives_its_code() {
    let fake = Fake::new();
    let started = Instant::now();
    let code = fake.run(3, "if [ $KILN_RANK = 2 ]; then exit 3; fi; sleep 60; touch survived$KILN_RANK");
    assert_eq!(code, 3);
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    let expected = "rank 2 (cpu) ended with exit code 3; ending the other ranks";
    assert_eq!(fake.lines(), [(Stream::Err, expected.into())]);
}

#[test]
fn a_killed_rank_is_named_with_its_signal() {
    let fake = Fake::new();
    let code = fake.run(2, "if [ $KILN_RANK = 1 ]; then kill -9 $$; fi; sleep 0.5; exit 1");
    assert_eq!(code, 128 + 9, "the first failure counts, not the one that follows from it");
    let expected = "rank 1 (cpu) ended with signal 9 (SIGKILL); ending the other ranks";
    assert_eq!(fake.lines(), [(Stream::Err, expected.into())]);
}

#[test]
fn a_rank_that_misses_a_killed_one_and_ends_first_is_not_named() {
    let fake = Fake::new();
    let code =
        fake.run(3, "if [ $KILN_RANK = 1 ]; then sleep 0.2; kill -9 $$; fi; [ $KILN_RANK = 0 ] || sleep 1; exit 1");
    assert_eq!(code, 128 + 9);
    let expected = "rank 1 (cpu) ended with signal 9 (SIGKILL); ending the other ranks";
    assert_eq!(fake.lines(), [(Stream::Err, expected.into())]);
}

#[test]
fn a_signal_is_passed_on_to_every_rank_once() {
    let fake = Fake::new();
    let (folder, signals) = (fake.folder.path().to_owned(), fake.signals.clone());
    let user = spawn(move || {
        Fake::wait_for(&folder, "ready", 2);
        signals.save_now.store(true, Ordering::Relaxed);
        Fake::wait_for(&folder, "saved", 2);
        signals.terminate.store(true, Ordering::Relaxed);
    });
    let script = "trap 'echo x >> saved$KILN_RANK' USR1; trap 'echo x >> ended$KILN_RANK; exit 0' TERM; \
                  touch ready$KILN_RANK; while true; do sleep 0.05; done";
    assert_eq!(fake.run(2, script), 0);
    user.join().expect("no panic");
    for file in ["saved0", "saved1", "ended0", "ended1"] {
        assert_eq!(fake.read(file), "x\n", "{file}");
    }
    assert!(fake.lines().is_empty(), "{:?}", fake.lines());
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let program = Path::new("/nowhere/kiln");
    let error = launch(&[DeviceName::Cpu], program, &[], &Signals::default(), Arc::new(|_, _| ()));
    let error = error.expect_err("not there").to_string();
    assert!(error.starts_with("cannot start rank 0 as /nowhere/kiln: "), "{error}");
}

#[test]
fn ranks_that_go_on_get_another_process_for_one_that_is_lost() {
    let fake = Fake::new();
    // Rank 1 is killed at first. The process in its place comes; when the group has it, all end.
    let script = "M=$KILN_MEMBERS; touch $M/go-on; \
                  if [ $KILN_RANK = 1 ] && [ -z \"$KILN_GROUP\" ]; then cat $M/group > first; kill -9 $$; fi; \
                  if [ $KILN_RANK = 1 ]; then cat $M/group > second; touch $M/here-1-$KILN_GROUP; fi; \
                  while ! grep -q '^2 .* 0 1 2$' $M/group; do sleep 0.02; done";
    assert_eq!(fake.run(3, script), 0, "{:?}", fake.lines());
    assert!(fake.read("first").starts_with("0 ") && fake.read("first").ends_with(" 0 1 2\n"), "{}", fake.read("first"));
    assert!(
        fake.read("second").starts_with("1 ") && fake.read("second").ends_with(" 0 2\n"),
        "{}",
        fake.read("second")
    );
    let lines: Vec<String> = fake.lines().into_iter().map(|(_, line)| line).collect();
    let lost =
        "rank 1 (cpu) ended with signal 9 (SIGKILL); it is started again, and the run continues with ranks 0 and 2";
    assert_eq!(lines, [lost, "rank 1 (cpu) is back, and takes part after the next exchange"]);
}

#[test]
fn a_rank_that_is_lost_again_and_again_is_not_started_for_ever() {
    let fake = Fake::new();
    let script = "touch $KILN_MEMBERS/go-on; \
                  if [ $KILN_RANK = 1 ]; then echo x >> starts; kill -9 $$; fi; \
                  while [ $(cat starts | wc -l) -lt 3 ]; do sleep 0.02; done; sleep 0.3";
    assert_eq!(fake.run(3, script), 0, "{:?}", fake.lines());
    assert_eq!(fake.read("starts"), "x\nx\nx\n");

    // A rank that says by its exit code that it has failed ends the run; so does the loss of all.
    let fake = Fake::new();
    assert_eq!(fake.run(2, "touch $KILN_MEMBERS/go-on; if [ $KILN_RANK = 1 ]; then exit 3; fi; sleep 60"), 3);
    let fake = Fake::new();
    assert_eq!(fake.run(2, "touch $KILN_MEMBERS/go-on; sleep 0.2; kill -9 $$"), 137);
}

#[test]
fn a_rank_that_the_others_do_not_hear_is_ended_and_replaced() {
    let fake = Fake::new();
    let script = "M=$KILN_MEMBERS; touch $M/go-on; \
                  if [ $KILN_RANK = 1 ] && [ -z \"$KILN_GROUP\" ]; then touch $M/lost-1-0; sleep 60; fi; \
                  if [ $KILN_RANK = 1 ]; then touch $M/here-1-$KILN_GROUP; fi; \
                  while ! grep -q '^2 .* 0 1$' $M/group; do sleep 0.02; done";
    assert_eq!(fake.run(2, script), 0, "{:?}", fake.lines());
}

#[test]
fn a_process_that_was_there_and_is_lost_for_good_is_in_no_group() {
    let fake = Fake::new();
    let script = "M=$KILN_MEMBERS; touch $M/go-on; \
                  if [ $KILN_RANK = 1 ]; then echo x >> starts; touch $M/here-1-${KILN_GROUP:-none}; kill -9 $$; fi; \
                  while [ $(cat starts | wc -l) -lt 3 ]; do sleep 0.02; done; sleep 0.3; cat $M/group > group$KILN_RANK";
    assert_eq!(fake.run(3, script), 0, "{:?}", fake.lines());
    for group in ["group0", "group2"] {
        assert!(fake.read(group).ends_with(" 0 2\n"), "{}", fake.read(group));
    }
}
