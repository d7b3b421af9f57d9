//! Mutated seeds through the fuzzer's entry points, on stable, for a bounded time: a second, or `KILN_FUZZ_SECONDS`, for each.

mod allocations;
#[path = "../../../fuzz/src/lib.rs"]
#[expect(unreachable_pub, reason = "it is a crate of its own for the fuzzer")]
mod entry_points;
mod mutate;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use self::entry_points::{ENTRY_POINTS, EntryPoint, good_cache, good_checkpoint};
use self::mutate::Mutator;

/// The largest single allocation for an input: buffers of fixed size, and a multiple of what was put in.
const FIXED_BYTES: usize = 8 << 20;
const BYTES_PER_BYTE: usize = 64;

/// No input of at most 64 KiB should take that long, on the slowest machine.
const LONGEST: Duration = Duration::from_secs(20);
/// Of a chat template, whose limit of 4 s is one of a processor that it shares with the other readers. Its process is forked from one
/// whose threads print, and then waits up to 50 s for their lock.
const LONGEST_OF_CHAT: Duration = Duration::from_secs(200);

fn seeds_of(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(name);
    let mut paths: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("readable").path())
        .collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("a seed")).collect()
}

/// An input in the works: one that takes too long ends the process, since nothing else stops it.
struct Watched {
    done: Sender<()>,
}

impl Watched {
    fn new(name: &'static str, input: Vec<u8>) -> Self {
        let (done, ended) = channel();
        let longest = if name == "chat" { LONGEST_OF_CHAT } else { LONGEST };
        std::thread::spawn(move || {
            if ended.recv_timeout(longest) == Err(RecvTimeoutError::Timeout) {
                let path = std::env::temp_dir().join(format!("kiln-fuzz-{name}-slow"));
                fs::write(&path, &input).expect("writable");
                eprintln!("{name}: an input takes longer than {longest:?}; it is in {}", path.display());
                std::process::exit(1);
            }
        });
        Self { done }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.done.send(());
    }
}

fn fuzz(&(name, entry): &EntryPoint, time: Duration) {
    let seeds = seeds_of(name);
    assert!(!seeds.is_empty(), "{name} has no seeds");
    let seed = std::env::var("KILN_FUZZ_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    let mut mutator = Mutator::new(seed);
    // What is made once must not count as an allocation of the first input.
    entry(&seeds[0]);
    let (started, mut n) = (Instant::now(), 0u64);
    while started.elapsed() < time || (n as usize) < seeds.len() {
        // Every seed as it is, then mutations of them.
        let input = match seeds.get(n as usize) {
            Some(seed) => seed.clone(),
            None => mutator.mutate(&seeds),
        };
        allocations::restart();
        let watched = Watched::new(name, input.clone());
        let result = catch_unwind(AssertUnwindSafe(|| entry(&input)));
        drop(watched);
        let largest = allocations::largest();
        let limit = FIXED_BYTES + BYTES_PER_BYTE * input.len();
        if result.is_err() || largest > limit {
            let path = std::env::temp_dir().join(format!("kiln-fuzz-{name}-{n}"));
            fs::write(&path, &input).expect("writable");
            let what =
                if result.is_err() { "it panicked".into() } else { format!("{largest} bytes were allocated at once") };
            panic!("{name}, input {n} of KILN_FUZZ_SEED={seed}: {what}; the input is in {}", path.display());
        }
        n += 1;
    }
    println!("{name}: {n} inputs in {:.1?}", started.elapsed());
}

#[test]
fn readers_of_files_from_elsewhere_neither_panic_nor_allocate_without_measure() {
    let secs = std::env::var("KILN_FUZZ_SECONDS").map_or(1.0, |secs| secs.parse().expect("seconds"));
    // Side by side; what is counted and written belongs to each thread.
    std::thread::scope(|scope| {
        for entry_point in &ENTRY_POINTS {
            scope.spawn(move || fuzz(entry_point, Duration::from_secs_f64(secs)));
        }
    });
}

/// Writes the seeds that programs make; the others are written by hand.
#[test]
#[ignore = "writes into the source tree: run it when a format changes"]
fn write_seeds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    fs::write(folder.join("cache/numbers"), good_cache()).expect("writable");
    let checkpoint = good_checkpoint();
    let mut names: Vec<_> =
        fs::read_dir(&checkpoint).expect("there").map(|entry| entry.expect("readable").path()).collect();
    names.sort();
    for (which, path) in (0u8..).zip(&names) {
        let content = [&[which], fs::read(path).expect("there").as_slice()].concat();
        let name = path.file_name().expect("a name").to_string_lossy().replace('.', "-");
        fs::write(folder.join("checkpoint").join(name), content).expect("writable");
    }
    fs::copy(checkpoint.join("model.safetensors"), folder.join("safetensors/two-tensors")).expect("writable");
    for (name, bytes) in kiln::distributed::link::foreign::samples() {
        fs::write(folder.join("link").join(name), bytes).expect("writable");
    }
    let config = kiln::config::presets::numbers().to_toml();
    fs::write(folder.join("config/numbers.toml"), config).expect("writable");
}
