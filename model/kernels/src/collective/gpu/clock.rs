//! The device's time of operations, from events that are read once the device has passed them.

use std::collections::VecDeque;

use cudarc::driver::sys::CUstream;

use crate::collective::CollectiveTime;
use crate::device_queue::Event;

/// Times kept for a caller that does not take them.
const KEPT: usize = 4096;

/// An operation whose end the device has not passed yet.
struct Pending {
    what: &'static str,
    bytes: u64,
    start: Event,
    end: Event,
}

/// Times operations. All methods but [`Clock::take`] belong to the device's thread, where its context is current.
#[derive(Default)]
pub(super) struct Clock {
    pending: VecDeque<Pending>,
    spare: Vec<Event>,
    done: VecDeque<CollectiveTime>,
}

impl Clock {
    /// Records an event. Without one the operation is not timed, which is not worth an error.
    pub(super) fn mark(&mut self, queue: CUstream) -> Option<Event> {
        let spare = self.spare.pop().or_else(Event::new)?;
        spare.record(queue).then_some(spare)
    }

    /// Ends the time that began with `start`.
    pub(super) fn stop(&mut self, start: Option<Event>, what: &'static str, bytes: u64, queue: CUstream) {
        if let Some(start) = start
            && let Some(end) = self.mark(queue)
        {
            self.pending.push_back(Pending { what, bytes, start, end });
        }
    }

    /// Reads the events that the device has passed.
    pub(super) fn collect(&mut self) {
        while let Some(Pending { what, bytes, start, end }) = self.pending.pop_front_if(|first| first.end.is_passed()) {
            let ms = end.ms_since(&start);
            self.spare.extend([start, end]);

            if self.done.len() == KEPT {
                self.done.pop_front();
            }
            self.done.extend(ms.map(|ms| CollectiveTime { what, bytes, ms }));
        }
    }

    pub(super) fn take(&mut self) -> Vec<CollectiveTime> {
        self.done.drain(..).collect()
    }
}
