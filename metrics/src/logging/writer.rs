//! Sinks on a thread of their own, so that a slow disk or server delays no step.
//!
//! Records travel through a bounded channel. A crash loses what is still in it: at most the last line and its steps, because
//! the trainer waits for the files at every checkpoint and at the end.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow};

use super::{Record, Sink};
use crate::{RunMetrics, SampleMetrics, StartMetrics, StepMetrics, ValidationMetrics, WindowMetrics};

/// Records that may wait for the thread.
const CAPACITY: usize = 4096;

/// What happens when the thread does not keep up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivery {
    /// Training waits: every record arrives.
    Complete,
    /// Training goes on and records are dropped. The end of the run waits so long at most.
    WithinTime(Duration),
}

/// A record that owns its contents.
#[derive(Debug)]
enum Owned {
    Start(StartMetrics),
    Step(StepMetrics),
    Window(Box<WindowMetrics>),
    Validation(Box<ValidationMetrics>),
    Sample(SampleMetrics),
    Note(String),
    End(Box<RunMetrics>),
    Finished,
}

impl Owned {
    /// Returns a copy; `None` for what only a console shows.
    fn of(record: &Record<'_>) -> Option<Self> {
        Some(match *record {
            Record::Start(start) => Self::Start(start.clone()),
            Record::Step(step) => Self::Step(step.clone()),
            Record::Window(window) => Self::Window(Box::new(window.clone())),
            Record::Validation(validation) => Self::Validation(Box::new(validation.clone())),
            Record::Sample(sample) => Self::Sample(sample.clone()),
            Record::Note(note) => Self::Note(note.into()),
            Record::End(run) => Self::End(Box::new(run.clone())),
            Record::Finished => Self::Finished,
            Record::Preparing(..) | Record::Begin(_) => return None,
        })
    }

    fn as_record(&self) -> Record<'_> {
        match self {
            Self::Start(start) => Record::Start(start),
            Self::Step(step) => Record::Step(step),
            Self::Window(window) => Record::Window(window),
            Self::Validation(validation) => Record::Validation(validation),
            Self::Sample(sample) => Record::Sample(sample),
            Self::Note(note) => Record::Note(note),
            Self::End(run) => Record::End(run),
            Self::Finished => Record::Finished,
        }
    }
}

enum Message {
    Record(Owned),
    /// Answered when all records before it are written.
    Flush(Sender<()>),
}

/// What the thread has to say.
#[derive(Default)]
struct Shared {
    error: Option<Error>,
    trouble: Option<String>,
}

/// The thread with its sinks.
pub(super) struct Writer {
    delivery: Delivery,
    /// `None` once the run is over.
    sender: Option<SyncSender<Message>>,
    shared: Arc<Mutex<Shared>>,
    thread: Option<JoinHandle<()>>,
    n_dropped: u64,
}

impl Writer {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system has no thread to spare.
    pub(super) fn start(sinks: Vec<Box<dyn Sink + Send>>, delivery: Delivery) -> Result<Self> {
        let (sender, receiver) = sync_channel(CAPACITY);
        let shared = Arc::new(Mutex::new(Shared::default()));
        let theirs = shared.clone();
        let thread = Builder::new().name("writer".into()).spawn(move || write_all(sinks, &receiver, &theirs));
        let thread = Some(thread.context("starting the thread that writes metrics")?);
        Ok(Self { delivery, sender: Some(sender), shared, thread, n_dropped: 0 })
    }

    /// Returns the first failure of a sink, once.
    fn failure(&self) -> Result<()> {
        locked(&self.shared).error.take().map_or(Ok(()), Err)
    }

    /// Waits until the records so far are written.
    fn wait(&self) -> Result<()> {
        let Some(sender) = &self.sender else { return Ok(()) };
        let (done, is_done) = channel();
        match self.delivery {
            Delivery::Complete => {
                let arrived = sender.send(Message::Flush(done)).is_ok() && is_done.recv().is_ok();
                self.failure()?;
                arrived.then_some(()).ok_or_else(|| anyhow!("the thread that writes metrics has ended"))
            }
            Delivery::WithinTime(limit) => {
                let sent = sender.try_send(Message::Flush(done)).is_ok();
                let in_time = sent && is_done.recv_timeout(limit) != Err(RecvTimeoutError::Timeout);
                if !in_time {
                    let text = "the tracking server did not take all metrics in time; metrics.jsonl has them";
                    locked(&self.shared).trouble.get_or_insert_with(|| text.into());
                }
                Ok(())
            }
        }
    }
}

impl Sink for Writer {
    fn write(&mut self, record: &Record<'_>) -> Result<()> {
        let (Some(sender), Some(owned)) = (&self.sender, Owned::of(record)) else { return Ok(()) };

        match self.delivery {
            Delivery::Complete => {
                self.failure()?;
                // A thread that has ended has left its error, or panicked; `wait` reports it.
                let _ = sender.send(Message::Record(owned));
            }
            Delivery::WithinTime(_) => {
                if let Err(TrySendError::Full(_)) = sender.try_send(Message::Record(owned)) {
                    self.n_dropped += 1;
                    if self.n_dropped == 1 {
                        let text = "the tracking server is too slow; some metrics are in metrics.jsonl alone";
                        locked(&self.shared).trouble.get_or_insert_with(|| text.into());
                    }
                }
            }
        }
        if matches!(record, Record::Finished) { self.wait() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        if self.delivery == Delivery::Complete { self.wait() } else { Ok(()) }
    }

    fn trouble(&mut self) -> Option<String> {
        locked(&self.shared).trouble.take()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // A failing run leaves without `Finished`: what it has sent is written.
        let is_over = self.wait();
        self.sender = None;
        if let Some(thread) = self.thread.take()
            && (self.delivery == Delivery::Complete || thread.is_finished())
        {
            // Its failures have been reported, or the run has failed for another reason.
            let _ = (is_over, thread.join());
        }
    }
}

/// Writes until the channel is closed. After a failure it only empties the channel.
fn write_all(mut sinks: Vec<Box<dyn Sink + Send>>, receiver: &Receiver<Message>, shared: &Mutex<Shared>) {
    let mut has_failed = false;
    for message in receiver {
        match message {
            Message::Record(_) if has_failed => {}
            Message::Record(owned) => {
                let record = owned.as_record();
                let written = sinks.iter_mut().try_for_each(|sink| sink.write(&record));
                let trouble = sinks.iter_mut().find_map(|sink| sink.trouble());
                let mut shared = locked(shared);
                if let Err(error) = written {
                    has_failed = true;
                    shared.error = Some(error);
                }
                shared.trouble = trouble.or(shared.trouble.take());
            }
            // The asking thread may have gone on without the answer.
            Message::Flush(done) => drop(done.send(())),
        }
    }
}

fn locked(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    // Each holder leaves whole values.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::samples;
    use super::*;

    /// Writes the steps to a channel, each after `pause`, and fails at `fails_at`.
    struct Slow {
        pause: Duration,
        fails_at: u64,
        written: Sender<u64>,
    }

    impl Sink for Slow {
        fn write(&mut self, record: &Record<'_>) -> Result<()> {
            let Record::Step(step) = record else { return Ok(()) };
            std::thread::sleep(self.pause);
            anyhow::ensure!(step.step != self.fails_at, "no space left for step {}", step.step);
            Ok(self.written.send(step.step)?)
        }
    }

    fn slow(pause_ms: u64, fails_at: u64, delivery: Delivery) -> (Writer, Receiver<u64>) {
        let (written, found) = channel();
        let sink = Slow { pause: Duration::from_millis(pause_ms), fails_at, written };
        (Writer::start(vec![Box::new(sink)], delivery).expect("a thread"), found)
    }

    #[test]
    fn a_slow_sink_delays_nobody_and_misses_nothing() {
        let (mut writer, found) = slow(5, 0, Delivery::Complete);
        let started = Instant::now();
        for step in 1..=20 {
            writer.write(&Record::Step(&samples::step(step))).expect("sent");
        }
        assert!(started.elapsed() < Duration::from_millis(50), "written by another thread");
        writer.flush().expect("written");
        assert_eq!(found.try_iter().collect::<Vec<_>>(), (1..=20).collect::<Vec<_>>(), "in order, before a checkpoint");

        writer.write(&Record::Step(&samples::step(21))).expect("sent");
        drop(writer);
        assert_eq!(found.try_iter().collect::<Vec<_>>(), [21], "a run that ends early loses nothing");
    }

    #[test]
    fn a_sink_that_fails_is_reported_once_and_nothing_is_written_after_it() {
        let (mut writer, found) = slow(0, 2, Delivery::Complete);
        let sent = (1..=4).try_for_each(|step| writer.write(&Record::Step(&samples::step(step))));
        let error = sent.and_then(|()| writer.flush()).expect_err("step 2 fails");
        assert_eq!(error.to_string(), "no space left for step 2");
        assert_eq!(found.try_iter().collect::<Vec<_>>(), [1]);
        writer.flush().expect("reported already");
    }

    #[test]
    fn a_tracker_that_hangs_ends_with_the_run_and_is_named() {
        let (mut writer, _found) = slow(60_000, 0, Delivery::WithinTime(Duration::from_millis(20)));
        let started = Instant::now();
        for step in 0..CAPACITY as u64 + 10 {
            writer.write(&Record::Step(&samples::step(step))).expect("never an error");
        }
        writer.flush().expect("never waits");
        assert!(writer.trouble().is_some_and(|text| text.contains("too slow")));
        writer.write(&Record::Finished).expect("waits a little");
        assert!(writer.trouble().is_some_and(|text| text.contains("in time")));
        drop(writer);
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    }
}
