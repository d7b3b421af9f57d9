//! Signs of life between two lines of metrics: what is being computed and for how long, and that Ctrl-C has arrived.
//!
//! A thread looks four times per second. The training loop only stores numbers for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, park_timeout, spawn};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use super::Activity;
use crate::units::duration;

const INTERVAL: Duration = Duration::from_millis(250);
/// A shorter step needs no clock of its own.
const LONG: Duration = Duration::from_secs(2);
/// Silence without a terminal, after which a line says what is going on.
const SILENCE: Duration = Duration::from_secs(30);

/// The thread, which ends when this is dropped.
pub(super) struct Pulse {
    state: Arc<Mutex<State>>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread shows.
struct State {
    activity: Option<Activity>,
    since: Instant,
    /// Result of the last line of metrics, shown by the bar.
    message: String,
    /// When something was last shown without a terminal.
    shown: Instant,
}

impl Pulse {
    /// Starts the thread, which shows lines with `print` if it gets no bar. `stop` is set when the run has been asked to
    /// end.
    pub(super) fn start(bar: Option<ProgressBar>, stop: Arc<AtomicBool>, print: fn(&str)) -> Self {
        let now = Instant::now();
        let state = State { activity: None, since: now, message: String::new(), shown: now };
        let (state, ended) = (Arc::new(Mutex::new(state)), Arc::new(AtomicBool::new(false)));
        let (shared, is_over) = (state.clone(), ended.clone());

        let thread = spawn(move || {
            let mut acknowledged = false;
            while !is_over.load(Ordering::Relaxed) {
                park_timeout(INTERVAL);
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let mut state = locked(&shared);
                if stop.load(Ordering::Relaxed) && !acknowledged {
                    acknowledged = true;
                    let line = acknowledgement(state.activity);
                    bar.as_ref().map_or_else(|| print(line), |bar| bar.println(line));
                }
                match &bar {
                    Some(bar) => {
                        bar.set_message(state.line());
                        bar.tick();
                    }
                    None => state.after_silence().into_iter().for_each(|line| print(&line)),
                }
            }
        });
        Self { state, ended, thread: Some(thread) }
    }

    /// Notes what begins now.
    pub(super) fn begin(&self, activity: Activity) {
        let mut state = locked(&self.state);
        if !state.activity.is_some_and(|before| before.is_part_of(activity)) {
            state.since = Instant::now();
        }
        state.activity = Some(activity);
    }

    /// Notes that a line of metrics was shown, and the text of the bar from now on.
    pub(super) fn shown(&self, message: Option<String>) {
        let mut state = locked(&self.state);
        state.shown = Instant::now();
        if let Some(message) = message {
            state.message = message;
        }
    }

    /// Ends the thread.
    pub(super) fn end(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It neither panics nor waits.
            let _ = thread.join();
        }
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.end();
    }
}

impl State {
    /// Returns the text of the bar: the last metrics, or what is being computed if there are none yet or if it takes long.
    fn line(&self) -> String {
        let elapsed = self.since.elapsed();
        let Some(activity) = self.activity else { return self.message.clone() };
        let busy = || format!("{activity}: {} so far", duration(elapsed));
        match (self.message.is_empty(), elapsed >= LONG) {
            (true, true) => busy(),
            (true, false) => activity.to_string(),
            (false, true) => format!("{} | {}", self.message, busy()),
            (false, false) => self.message.clone(),
        }
    }

    /// Returns a line to show if nothing was shown for long.
    fn after_silence(&mut self) -> Option<String> {
        let activity = self.activity.filter(|_| self.shown.elapsed() >= SILENCE)?;
        self.shown = Instant::now();
        Some(format!("{activity}: {} so far", duration(self.since.elapsed())))
    }
}

fn acknowledgement(activity: Option<Activity>) -> &'static str {
    match activity {
        Some(Activity::Step { .. }) => "stopping after this step; again: now, without saving",
        _ => "stopping before the next step; again: now, without saving",
    }
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // The state is plain numbers and text, which a panic elsewhere leaves whole.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: u64, micro_batch: usize) -> Activity {
        Activity::Step { step, micro_batch, of: 8 }
    }

    #[test]
    fn a_long_step_shows_its_micro_batch_and_a_clock() {
        let minute_ago = Instant::now().checked_sub(Duration::from_secs(61)).expect("the machine is older");
        let mut state =
            State { activity: Some(step(1, 3)), since: minute_ago, message: String::new(), shown: minute_ago };
        assert_eq!(state.line(), "step 1, micro-batch 3 of 8: 1m01s so far");
        state.message = "loss 2.5".into();
        assert_eq!(state.line(), "loss 2.5 | step 1, micro-batch 3 of 8: 1m01s so far");
        state.since = Instant::now();
        assert_eq!(state.line(), "loss 2.5", "a short step does not flicker");
        state.message.clear();
        assert_eq!(state.line(), "step 1, micro-batch 3 of 8", "a first step that took no time has no clock");
        assert_eq!(state.after_silence().as_deref(), Some("step 1, micro-batch 3 of 8: 0s so far"));
        assert_eq!(state.after_silence(), None, "only after another silence");
    }

    #[test]
    fn the_clock_runs_from_the_first_micro_batch_of_a_step() {
        let pulse = Pulse::start(None, Arc::default(), |_| ());
        let since = |activity| {
            pulse.begin(activity);
            locked(&pulse.state).since
        };
        let first = since(step(1, 1));
        assert_eq!(since(step(1, 2)), first);
        assert!(since(step(2, 1)) > first);
    }

    #[test]
    fn a_request_to_stop_is_acknowledged_by_what_it_waits_for() {
        assert!(acknowledgement(Some(step(1, 1))).contains("after this step"));
        assert!(acknowledgement(Some(Activity::Work("validating"))).contains("before the next step"));
    }
}
