//! Marks in the queue of a CUDA device.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::tensor::Device;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::device_handle::DeviceHandle;
use cubecl_environment::stream::StreamId;

use super::ops::LapOps;
use super::{Lap, Mark};
use crate::device_queue::{Event, Server, compute_queue, is_recording, server_of};

/// Laps kept for a caller that does not take them.
const KEPT: usize = 4096;

/// The marks of a device.
pub(crate) struct Marks {
    server: DeviceHandle<Server>,
    events: Mutex<Events>,
}

#[derive(Default)]
struct Events {
    /// The last mark that the device has passed, and the ones that it has not.
    pending: VecDeque<(&'static str, Event)>,
    spare: Vec<Event>,
    done: VecDeque<Lap>,
}

impl fmt::Debug for Marks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Marks")
    }
}

impl LapOps for CubeBackend {
    fn lap_mark(token: CubeTensor, Mark { marks, what }: Mark) -> CubeTensor {
        // Launches take the stream of the calling thread, too.
        let stream = StreamId::current();
        let own = marks.clone();
        marks.server.submit(move |server| {
            // An event in a recording has no time.
            if !is_recording(server, stream)
                && let Some(queue) = compute_queue(server, stream)
            {
                let mut events = own.events();
                if let Some(event) = events.spare.pop().or_else(Event::new)
                    && event.record(queue)
                {
                    events.pending.push_back((what, event));
                }
            }
        });
        token
    }
}

impl Marks {
    pub(super) fn of(device: &Device) -> Option<Self> {
        let (server, _) = server_of(device)?;
        Some(Self { server, events: Mutex::default() })
    }

    pub(super) fn take(marks: &Arc<Self>) -> Vec<Lap> {
        let done = marks.events().done.drain(..).collect();
        // Events belong to the device's thread.
        let own = marks.clone();
        marks.server.submit(move |_| own.events().collect());
        marks.server.flush_queue();
        done
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Events {
    /// Reads the events that the device has passed.
    fn collect(&mut self) {
        while let Some([(_, earlier), (what, event)]) = self.pending.make_contiguous().first_chunk()
            && event.is_passed()
        {
            let (what, ms) = (*what, event.ms_since(earlier));
            let passed = self.pending.pop_front();
            self.spare.extend(passed.map(|(_, event)| event));
            if self.done.len() == KEPT {
                self.done.pop_front();
            }
            self.done.extend(ms.map(|ms| Lap { what, ms }));
        }
    }
}
