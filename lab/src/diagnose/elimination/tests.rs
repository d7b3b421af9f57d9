//! Each cause provoked on purpose on the CPU, and found.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, sleep};
use std::time::Duration;

use burn::tensor::Device;
use kiln_data::{BatchSource, BatchWorker, EpochPlan, HostBatch, Order, Shape};
use kiln_model::{ActivationCheckpointing, Transformer};
use kiln_ranks::{Link, Ranks, World, free_port};
use kiln_train::config::{Config, presets};
use kiln_train::dataset::RunData;
use kiln_train::eval::Init;
use tempfile::TempDir;

use super::*;

/// A small model and its data.
struct Place {
    folder: TempDir,
    config: Config,
    data: RunData,
}

impl Place {
    /// Trains on `lines`, each a source and a target.
    fn new(lines: &[(String, String)], change: impl FnOnce(&mut Config)) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let text: String = lines.iter().map(|(source, target)| format!("{source}\t{target}\n")).collect();
        std::fs::write(folder.path().join("pairs.tsv"), text).expect("writable");

        let mut config = presets::numbers();
        config.data.train = vec![folder.path().join("pairs.tsv")];
        config.tokenizer.vocab_size = 300;
        config.loader.batch_tokens = 256;
        config.loader.num_workers = 1;
        let model = &mut config.model;
        (model.d_model, model.n_heads, model.d_ff, model.max_positions) = (32, 2, 64, 64);
        (model.n_encoder_layers, model.n_decoder_layers) = (1, 1);
        change(&mut config);
        let data = RunData::open(&config, folder.path(), None, &mut |_| {}).expect("data");
        data.vocabulary.complete(&mut config.model).expect("a vocabulary that fits");
        Self { folder, config, data }
    }

    fn numbers(change: impl FnOnce(&mut Config)) -> Self {
        let words = ["one", "two", "three", "four", "five"];
        let target = |n: usize| (0..1 + n % 4).map(|at| words[(n + at) % 5]).collect::<Vec<_>>().join(" ");
        Self::new(&(0..400).map(|n| (n.to_string(), target(n))).collect::<Vec<_>>(), change)
    }

    fn subject(&self, steps: usize, repeats: usize) -> Subject<'_, Transformer> {
        let shapes = self.data.train.shapes();
        let largest = shapes.and_then(|shapes| shapes.into_keys().max_by_key(|shape| shape.padded_tokens()));
        Subject {
            config: &self.config,
            data: &self.data,
            cache_dir: self.folder.path().join("cache"),
            device: Device::flex(),
            dtype: FloatDType::F32,
            checkpointing: ActivationCheckpointing::Off,
            largest: largest.unwrap_or(Shape { batch_size: 8, source_len: 8, target_len: 8 }),
            ranks: Ranks::alone(),
            effort: Effort { steps, repeats, warm_up: 1 },
            leak_steps: 60,
            init: Box::leak(Box::new(Init::transformer())),
        }
    }
}

fn found(subject: &Subject<'_, Transformer>, tests: &[Test]) -> Diagnosis {
    diagnose(subject, tests, |_| ()).expect("all tests run")
}

/// The words of all verdicts.
fn words(diagnosis: &Diagnosis) -> String {
    let verdicts = diagnosis.outcomes.iter().flat_map(|outcome| &outcome.verdicts);
    verdicts.map(|verdict| format!("{}: {}\n", verdict.what, verdict.words)).collect()
}

#[test]
fn every_test_runs_on_the_cpu_or_says_why_not() {
    let place = Place::numbers(|_| ());
    let diagnosis = found(&place.subject(2, 2), &Test::ALL);
    assert_eq!(diagnosis.outcomes.iter().map(|outcome| outcome.test).collect::<Vec<_>>(), Test::ALL);
    for Outcome { test, verdicts, not_run, .. } in &diagnosis.outcomes {
        let lacks_gpu = [Test::Precision, Test::Graphs].contains(test);
        match not_run {
            Some(why) if lacks_gpu => assert!(why.starts_with("not on this device"), "{test}: {why}"),
            Some(why) => assert!(test.needs_ranks() && why.contains("--devices"), "{test}: {why}"),
            None => assert!(!verdicts.is_empty() && !lacks_gpu && !test.needs_ranks(), "{test}"),
        }
        for verdict in verdicts {
            assert!(verdict.figure.is_finite(), "{test}: {verdict:?}");
            let [least, most] = verdict.spread.unwrap_or([verdict.figure; 2]);
            assert!(least <= verdict.figure && verdict.figure <= most, "{test}: {verdict:?}");
        }
    }

    let figures = &diagnosis.figures;
    assert!(figures.step_ms.is_some_and(|ms| ms > 0.0) && figures.upload_ms.is_some_and(|ms| ms > 0.0));
    assert!(figures.fused_differ.is_some_and(|differ| differ < figures.tolerance), "{figures:?}");
    assert!(figures.stages_ms.is_some_and(|[parse, tokenize, ..]| parse > 0.0 && tokenize > 0.0), "{figures:?}");
    assert_eq!(figures.workers.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [1, 2, 4, 8]);
}

/// A source that takes its time.
struct Slow(Arc<dyn BatchSource>);

struct SlowWorker(Box<dyn BatchWorker>);

impl BatchSource for Slow {
    fn plan(&self, order: Order) -> EpochPlan {
        self.0.plan(order)
    }

    fn batches_per_epoch(&self) -> u64 {
        self.0.batches_per_epoch()
    }

    fn shapes(&self) -> Option<BTreeMap<Shape, usize>> {
        self.0.shapes()
    }

    fn fingerprint(&self) -> String {
        self.0.fingerprint()
    }

    fn worker(self: Arc<Self>) -> Box<dyn BatchWorker> {
        Box::new(SlowWorker(self.0.clone().worker()))
    }
}

impl BatchWorker for SlowWorker {
    fn fill(&mut self, plan: &EpochPlan, index: usize, batch: &mut HostBatch) -> kiln_data::Result<()> {
        sleep(Duration::from_millis(50));
        self.0.fill(plan, index, batch)
    }
}

#[test]
fn a_slow_loader_is_provoked_and_found() {
    let mut place = Place::numbers(|_| ());
    place.data.train = Arc::new(Slow(place.data.train.clone()));
    let diagnosis = found(&place.subject(3, 2), &[Test::Step, Test::Loader, Test::Workers, Test::Real]);
    let sentence = bottleneck(&diagnosis.figures);
    assert!(sentence.starts_with("bottleneck: the loader: training waits for batches"), "{sentence}");
    assert!(sentence.contains("loader.num_workers = "), "{sentence}");
    assert!(diagnosis.figures.loader_ms.is_some_and(|ms| ms >= 50.0), "{:?}", diagnosis.figures);
    assert!(diagnosis.figures.data_wait_share.is_some_and(|share| share > 0.3), "{:?}", diagnosis.figures);
}

#[test]
fn a_fast_loader_is_not_blamed() {
    let place = Place::numbers(|config| config.loader.batch_tokens = 1024);
    let diagnosis = found(&place.subject(4, 3), &[Test::Step, Test::Loader, Test::Real]);
    let sentence = bottleneck(&diagnosis.figures);
    assert!(!sentence.contains("the loader"), "{sentence}");
}

#[test]
fn a_sync_in_every_step_is_provoked_and_found() {
    let place = Place::numbers(|config| config.train.log_every = 1);
    let diagnosis = found(&place.subject(10, 2), &[Test::Deferred]);
    let words = words(&diagnosis);
    for part in
        ["every step: 1.00 host syncs", "every 10 steps: 0.10 host syncs", "after each step: train.log_every = 10"]
    {
        assert!(words.contains(part), "{part:?} is missing in {words}");
    }
    assert_eq!(diagnosis.figures.log_every, 1);
}

#[test]
fn sixty_percent_of_padding_is_provoked_and_found() {
    let line = |n: usize| {
        if n.is_multiple_of(10) { "one two three four five six seven eight nine ".repeat(2) } else { "one".into() }
    };
    let lines: Vec<_> = (0..600).map(|n| (format!("{} {n}", line(n)), line(n))).collect();
    let place = Place::new(&lines, |config| {
        (config.loader.max_buckets, config.loader.batch_tokens) = (1, 1024);
        (config.data.corpus.max_source_len, config.data.corpus.max_target_len) = (0, 0);
    });
    let diagnosis = found(&place.subject(2, 1), &[Test::Padding]);
    let padding = diagnosis.figures.padding.as_ref().expect("counted");
    assert!(padding.now > 0.6 && padding.then < 0.5, "{padding:?}");
    let sentence = bottleneck(&diagnosis.figures);
    assert!(sentence.starts_with("bottleneck: padding: ") && sentence.contains("loader.max_buckets = "), "{sentence}");
}

#[test]
fn a_tiny_batch_is_provoked_and_found() {
    let place = Place::numbers(|config| config.loader.batch_tokens = 32);
    let diagnosis = found(&place.subject(8, 3), &[Test::Batch]);
    let sentence = bottleneck(&diagnosis.figures);
    assert!(sentence.starts_with("bottleneck: a small batch: "), "{sentence} {:?}", diagnosis.figures.batch_rates);
    assert!(sentence.contains("loader.batch_tokens = 128"), "{sentence}");
}

/// Passes on what comes, 16 KiB every 2 milliseconds.
fn slow_wire(from: &TcpStream, to: &TcpStream) {
    let (mut from, mut to) = (from.try_clone().expect("a handle"), to.try_clone().expect("a handle"));
    thread::spawn(move || {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            sleep(Duration::from_millis(2));
            if to.write_all(&buffer[..n]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Write);
    });
}

#[test]
fn a_slow_link_is_provoked_and_found() {
    let place = Place::numbers(|_| ());
    let mut worlds = World::on_loopback(2, free_port().expect("a port"));
    let real = worlds[1].master.clone();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    worlds[1].master.1 = listener.local_addr().expect("bound").port();
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            // Rank 0 may not listen yet; rank 1 tries again.
            let Ok(far) = TcpStream::connect((real.0.as_str(), real.1)) else { continue };
            slow_wire(&near, &far);
            slow_wire(&far, &near);
        }
    });

    let diagnose = |world: World| {
        let link = Link::connect(&world, &mut |_| ()).expect("all ranks come");
        let ranks = Ranks::over(link, &Device::flex()).expect("ranks on CPUs");
        let subject = Subject { ranks: ranks.clone(), ..place.subject(2, 2) };
        let diagnosis = found(&subject, &[Test::Together]);
        ranks.finish().expect("all are here");
        diagnosis
    };
    let all: Vec<Diagnosis> = thread::scope(|scope| {
        let threads: Vec<_> = worlds.into_iter().map(|world| scope.spawn(|| diagnose(world))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let sentence = bottleneck(&all[0].figures);
    assert!(sentence.starts_with("bottleneck: the link between the devices: 2 devices reach"), "{sentence}");
    assert!(sentence.contains("train.sync_every = 100"), "{sentence}");
    assert_eq!(all[0].figures.together, all[1].figures.together, "the slowest rank counts on both");
}

#[test]
fn steps_leave_nothing_behind() {
    let place = Place::numbers(|_| ());
    // Other tests of this process allocate meanwhile, and one look may see that; `kiln diagnose --assert` runs alone and is strict.
    let is_measured = (0..8).any(|_| {
        let Diagnosis { outcomes, figures } = found(&place.subject(2, 1), &[Test::Live]);
        outcomes[0].not_run.is_some() || figures.left_bytes.is_some() && figures.pending_bytes.is_some()
    });
    assert!(is_measured);
}
