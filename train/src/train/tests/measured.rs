//! What a line of metrics says about the run's own time.

use super::*;
use crate::metrics::{RunMetrics, WindowMetrics, host_sync};

/// Keeps the lines of metrics and the totals.
#[derive(Default)]
struct Kept {
    windows: Vec<WindowMetrics>,
    end: Option<RunMetrics>,
    validations: usize,
}

struct Keeper(Rc<RefCell<Kept>>);

impl Sink for Keeper {
    fn write(&mut self, record: &Record<'_>) -> Result<()> {
        let mut kept = self.0.borrow_mut();
        match record {
            Record::Window(window) => kept.windows.push((*window).clone()),
            Record::Validation(_) => kept.validations += 1,
            Record::End(run) => kept.end = Some((*run).clone()),
            _ => {}
        }
        Ok(())
    }
}

fn kept(corpora: &Corpora, config: &Config) -> Kept {
    let kept = Rc::new(RefCell::new(Kept::default()));
    let mut logging = Logging::silent();
    logging.add(Keeper(kept.clone()));
    let dir = tempfile::tempdir().expect("a folder");
    let mut trainer =
        Trainer::new(corpora.setup(config, dir.path(), logging, Arc::default()), None).expect("a trainer");
    trainer.run().expect("a run");
    drop(trainer);
    Rc::try_unwrap(kept).ok().expect("the trainer is gone").into_inner()
}

#[test]
fn a_step_never_waits_for_the_device_and_a_line_waits_once() {
    let corpora = Corpora::new(60);
    let mut config = corpora.config();
    (config.train.validate_every, config.train.save_every) = (0, 0);
    let found = kept(&corpora, &config);
    let syncs: Vec<_> = found.windows.iter().map(|window| (window.step, window.host_syncs)).collect();
    assert_eq!(syncs, [(3, 1), (6, 1), (9, 1), (12, 1), (15, 1), (16, 1)], "one per line, none per step");

    let batch = [upload(&host_batch(&toy_rows(4)), &Device::flex())];
    let mut state = TrainState::new(&toy_config(0.1), &toy_config(0.1).model, FloatDType::F32, &Device::flex())
        .expect("nothing is frozen");
    let before = host_sync::count();
    let measures = (0..4).map(|_| train_step(&mut state, &batch)).last().expect("steps");
    assert_eq!(host_sync::count(), before);
    drop(measures);
}

#[test]
fn validations_and_checkpoints_show_what_they_cost() {
    let corpora = Corpora::new(60);
    let mut config = corpora.config();
    // Lines after steps 6, 8, 12 and 16; a validation after step 8 without text, and one at the end with text.
    (config.train.log_every, config.train.validate_every, config.train.save_every) = (6, 8, 0);
    let found = kept(&corpora, &config);
    let [first, second, third, last] = found.windows.as_slice() else { panic!("{:?}", found.windows) };
    assert_eq!([first, second, last].map(|window| window.host_syncs), [1; 3]);
    assert_eq!((first.host.validate_ms, first.host.save_ms), (0.0, 0.0));
    assert!(third.host_syncs > 2, "the line, the validation's loss, its text and the best checkpoint: {third:?}");
    assert!(third.host.validate_ms > 0.0 && third.host.save_ms > 0.0, "{:?}", third.host);

    for window in &found.windows {
        let host = &window.host;
        let parts = [host.data_wait_ms, host.upload_ms, host.enqueue_ms, host.drain_ms, host.log_ms];
        let sum: f64 = parts.iter().sum::<f64>() + host.validate_ms + host.save_ms + host.other_ms;
        assert!((sum - host.elapsed_ms).abs() < 0.02, "{host:?}");
        assert!(host.enqueue_ms > 0.0 && host.enqueue_ms < host.elapsed_ms, "the CPU computes here: {host:?}");
        assert!(window.throughput.samples_per_sec > window.throughput.steps_per_sec);
        assert_eq!((window.replayed_share, window.recorded_graphs), (None, None), "this is the CPU");
        assert_eq!((window.device_memory, window.gpu), (None, None), "this is the CPU");
    }

    // The totals of the process have what follows the last line, too.
    let end = found.end.expect("the end");
    let lines: f64 = found.windows.iter().map(|window| window.host.validate_ms).sum();
    assert_eq!(found.validations, 2);
    assert!(end.host.validate_ms > lines && end.host_syncs > found.windows.iter().map(|w| w.host_syncs).sum());
}

/// Runs with lines that are read `behind` steps late, and returns the steps and the validations, exactly.
fn read_behind(corpora: &Corpora, config: &Config, behind: u64) -> Vec<String> {
    let (stop, records) = (Arc::new(AtomicBool::new(false)), Rc::new(RefCell::new(Vec::new())));
    let mut logging = Logging::silent();
    logging.add(Recorder { records: records.clone(), stop: stop.clone(), stop_at: u64::MAX });
    let dir = tempfile::tempdir().expect("a folder");
    let mut trainer = Trainer::new(corpora.setup(config, dir.path(), logging, stop), None).expect("a trainer");
    trainer.reporting.steps_behind = behind;
    trainer.run().expect("a run");
    drop(trainer);
    Rc::try_unwrap(records).expect("the trainer is gone").into_inner()
}

#[test]
fn lines_that_are_read_while_later_steps_run_have_the_same_numbers_in_the_same_order() {
    let corpora = Corpora::new(60);
    let mut config = corpora.config();
    for log_every in [1, 3] {
        config.train.log_every = log_every;
        let wanted = read_behind(&corpora, &config, 0);
        for behind in [1, 2, 7] {
            assert_eq!(read_behind(&corpora, &config, behind), wanted, "{behind} steps behind, a line per {log_every}");
        }
    }
}

/// A source whose batch number `fails_at` cannot be read.
struct Failing {
    inner: Arc<dyn BatchSource>,
    fails_at: usize,
}

impl BatchSource for Failing {
    fn plan(&self, order: kiln_data::Order) -> kiln_data::EpochPlan {
        self.inner.plan(order)
    }

    fn batches_per_epoch(&self) -> u64 {
        self.inner.batches_per_epoch()
    }

    fn shapes(&self) -> Option<std::collections::BTreeMap<Shape, usize>> {
        self.inner.shapes()
    }

    fn fingerprint(&self) -> String {
        self.inner.fingerprint()
    }

    fn worker(self: Arc<Self>) -> Box<dyn kiln_data::BatchWorker> {
        let fails_at = self.fails_at;
        Box::new(FailingWorker { inner: self.inner.clone().worker(), fails_at })
    }
}

struct FailingWorker {
    inner: Box<dyn kiln_data::BatchWorker>,
    fails_at: usize,
}

impl kiln_data::BatchWorker for FailingWorker {
    fn fill(&mut self, plan: &kiln_data::EpochPlan, index: usize, batch: &mut HostBatch) -> kiln_data::Result<()> {
        if index == self.fails_at {
            return Err(kiln_data::Error::WorkerPanicked("the disk is gone".into()));
        }
        self.inner.fill(plan, index, batch)
    }
}

#[test]
fn a_loader_that_fails_loses_no_metrics_of_finished_steps() {
    let corpora = Corpora::new(200);
    let mut config = corpora.config();
    (config.train.grad_accum_steps, config.train.log_every, config.train.validate_every) = (1, 4, 0);
    assert!(corpora.source("train", &config.loader).batches_per_epoch() > 6);
    for behind in [0, 2] {
        let folder = tempfile::tempdir().expect("a folder");
        let extent = kiln_metrics::logging::Extent { start_step: 0, total_steps: 16, max_time: None };
        let logging = Logging::for_run(folder.path(), extent).expect("writable");
        let mut setup = corpora.setup(&config, folder.path(), logging, Arc::default());
        setup.train = Arc::new(Failing { inner: setup.train, fails_at: 6 });
        let mut trainer = Trainer::new(setup, None).expect("a trainer");
        trainer.reporting.steps_behind = behind;
        let error = format!("{:#}", trainer.run().expect_err("the loader fails"));
        assert!(error.contains("the disk is gone"), "{error}");

        // Before the trainer is gone: a process that is killed now has lost nothing.
        let text = fs::read_to_string(folder.path().join(kiln_metrics::logging::METRICS_FILE)).expect("written");
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
        let steps: Vec<_> = lines.filter(|line| line["kind"] == "step").map(|line| line["step"].as_u64()).collect();
        assert_eq!(steps, (1..=6).map(Some).collect::<Vec<_>>(), "{behind} steps behind");
    }
}

/// Prints what the training thread spends on measuring, per step, without the steps: `benches/results` has a figure.
#[test]
#[ignore = "a measurement"]
fn the_time_that_measuring_takes_per_step() {
    use std::time::{Duration, Instant};

    use kiln_metrics::logging::Extent;

    use crate::device::Telemetry;
    use crate::metrics::{Outliers, Span, SpanClock, StepMetrics, Throughput};

    const STEPS: u64 = 10_000;
    let folder = tempfile::tempdir().expect("a folder");
    let extent = Extent { start_step: 0, total_steps: STEPS, max_time: None };
    let mut logging = Logging::for_run(folder.path(), extent).expect("writable");
    let (mut clock, mut outliers, mut telemetry) =
        (SpanClock::start(), Outliers::default(), Telemetry::start(&Device::flex()));
    let mut line: Vec<StepMetrics> = Vec::new();
    let [mut of_steps, mut of_lines] = [Vec::new(), Vec::new()];
    for step in 1..=STEPS {
        std::thread::sleep(Duration::from_micros(200)); // the step
        let start = Instant::now();
        for span in [Span::DataWait, Span::Upload, Span::Enqueue] {
            clock.time(span, || std::hint::black_box(step));
        }
        of_steps.push(start.elapsed());

        line.push(StepMetrics { step, loss: 2.5, nll: 1.5, grad_norm: 0.7, tokens: 2000, ..StepMetrics::default() });
        if step % 10 == 0 {
            let start = Instant::now();
            let totals = clock.take();
            line.iter_mut().for_each(|step| outliers.mark(step));
            line.iter().for_each(|step| logging.step(step).expect("sent"));
            let mut window = WindowMetrics::new(&line, Throughput::default(), 0.0).expect("ten steps");
            window.host = (&totals).into();
            (window.host_memory, window.host_use, window.gpu) = telemetry.take();
            logging.window(&window).expect("sent");
            of_lines.push(start.elapsed());
            line.clear();
        }
    }
    let figures = |mut times: Vec<Duration>, steps: f64| {
        times.sort();
        let micros = |time: Duration| time.as_secs_f64() * 1e6 / steps;
        let sum: Duration = times.iter().sum();
        (micros(times[times.len() / 2]), micros(sum) / times.len() as f64)
    };
    println!(
        "per step, us (median, mean): clocks {:.2?}, lines {:.2?}",
        figures(of_steps, 1.0),
        figures(of_lines, 10.0)
    );

    logging.finish().expect("written");
}
