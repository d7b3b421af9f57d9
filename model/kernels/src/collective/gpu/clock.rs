//! The device's time of operations, from events that are read once the device has passed them.

#![expect(unsafe_code, reason = "events of the CUDA driver")]

use std::collections::VecDeque;

use cudarc::driver::result::event;
use cudarc::driver::sys::{CUevent, CUevent_flags, CUstream};

use crate::collective::CollectiveTime;

/// Times kept for a caller that does not take them.
const KEPT: usize = 4096;

/// An operation whose end the device has not passed yet.
struct Pending {
    what: &'static str,
    bytes: u64,
    start: CUevent,
    end: CUevent,
}

/// Times operations. All methods but [`Clock::take`] belong to the device's thread, where its context is current.
#[derive(Default)]
pub(super) struct Clock {
    pending: VecDeque<Pending>,
    spare: Vec<CUevent>,
    done: VecDeque<CollectiveTime>,
}

// SAFETY: events are used on the device's thread alone; the other threads only take numbers.
unsafe impl Send for Clock {}

impl Clock {
    /// Records an event. Without one the operation is not timed, which is not worth an error.
    pub(super) fn mark(&mut self, queue: CUstream) -> Option<CUevent> {
        let spare = self.spare.pop().map_or_else(|| event::create(CUevent_flags::CU_EVENT_DEFAULT), Ok).ok()?;
        // SAFETY: the event exists and the stream is the device's.
        unsafe { event::record(spare, queue) }.ok()?;
        Some(spare)
    }

    /// Ends the time that began with `start`.
    pub(super) fn stop(&mut self, start: Option<CUevent>, what: &'static str, bytes: u64, queue: CUstream) {
        if let Some(start) = start
            && let Some(end) = self.mark(queue)
        {
            self.pending.push_back(Pending { what, bytes, start, end });
        }
    }

    /// Reads the events that the device has passed.
    pub(super) fn collect(&mut self) {
        while let Some(&Pending { what, bytes, start, end }) = self.pending.front() {
            // SAFETY: both events exist and have been recorded, one after the other on one stream.
            let ms = unsafe {
                if event::query(end).is_err() {
                    return;
                }
                event::elapsed(start, end)
            };
            self.pending.pop_front();
            self.spare.extend([start, end]);

            if self.done.len() == KEPT {
                self.done.pop_front();
            }
            self.done.extend(ms.ok().map(|ms| CollectiveTime { what, bytes, ms }));
        }
    }

    pub(super) fn take(&mut self) -> Vec<CollectiveTime> {
        self.done.drain(..).collect()
    }
}
