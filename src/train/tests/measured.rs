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
        assert_eq!((window.replayed_share, window.device_memory, window.gpu), (None, None, None), "this is the CPU");
    }

    // The totals of the process have what follows the last line, too.
    let end = found.end.expect("the end");
    let lines: f64 = found.windows.iter().map(|window| window.host.validate_ms).sum();
    assert_eq!(found.validations, 2);
    assert!(end.host.validate_ms > lines && end.host_syncs > found.windows.iter().map(|w| w.host_syncs).sum());
}
