//! Calls on the thread of a GPU, which launches their kernels in the order in which they were enqueued.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use burn::tensor::Device;
use cubecl::device_handle::DeviceHandle;
use cubecl_environment::stream::StreamId;

use crate::device_queue::{Event, Server, compute_queue, is_recording, server_of};
use crate::ranges;

/// The thread of a device.
pub(super) struct Queue(DeviceHandle<Server>);

impl Queue {
    pub(super) fn of(device: &Device) -> Option<Self> {
        server_of(device).map(|(server, _)| Self(server))
    }

    /// Begins a range of the device's thread.
    pub(super) fn push_range(&self, name: &'static str) {
        self.0.submit(move |_| ranges::push(name));
    }

    pub(super) fn pop_range(&self) {
        self.0.submit(|_| ranges::pop());
    }
}

/// The events before and after the kernels of a call.
type Around = [Option<Event>; 2];

/// Times the kernels of calls.
pub(super) struct Timer {
    server: DeviceHandle<Server>,
    calls: Arc<Mutex<Vec<Around>>>,
}

impl Timer {
    pub(super) fn of(device: &Device) -> Option<Self> {
        let (server, _) = server_of(device)?;
        Some(Self { server, calls: Arc::default() })
    }

    /// Begins a call and returns its number.
    pub(super) fn begin(&self) -> usize {
        let number = {
            let mut calls = lock(&self.calls);
            calls.push([None, None]);
            calls.len() - 1
        };
        self.mark(number, 0);
        number
    }

    /// Ends the call `number`.
    pub(super) fn end(&self, number: usize) {
        self.mark(number, 1);
    }

    fn mark(&self, number: usize, side: usize) {
        // Launches take the stream of the calling thread, too.
        let (stream, calls) = (StreamId::current(), self.calls.clone());
        self.server.submit(move |server| {
            // An event in a recording has no time.
            if !is_recording(server, stream)
                && let Some(queue) = compute_queue(server, stream)
                && let Some(event) = Event::new()
                && event.record(queue)
            {
                lock(&calls)[number][side] = Some(event);
            }
        });
    }

    /// Returns the time of each call by its number. The device must have nothing left to do.
    pub(super) fn take(&self) -> Vec<Option<Duration>> {
        let calls = std::mem::take(&mut *lock(&self.calls));
        let n = calls.len();
        let times = self.server.submit_blocking(move |_| calls.into_iter().map(time).collect());
        times.unwrap_or_else(|_| vec![None; n])
    }
}

/// Returns the time between two events, and frees them.
fn time([before, after]: Around) -> Option<Duration> {
    let ms = before.as_ref().zip(after.as_ref()).and_then(|(before, after)| after.ms_since(before));
    [before, after].into_iter().flatten().for_each(Event::destroy);
    ms.map(|ms| Duration::from_secs_f64(f64::from(ms.max(0.0)) / 1e3))
}

fn lock(calls: &Mutex<Vec<Around>>) -> MutexGuard<'_, Vec<Around>> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}
