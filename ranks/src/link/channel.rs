//! The connection for signs of life between rank 0 and another rank.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::error::LinkError;
use super::message::{MAX_MESSAGE, encode, read_available, take, write_available};
use crate::limits::Phase;

/// Unsent bytes beyond which nothing more is queued: the other side does not read.
const MAX_UNSENT: usize = 4 * MAX_MESSAGE;

/// What travels on a watch connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Message {
    /// A sign of life.
    Beat(Beat),
    /// The run fails.
    Failed(LinkError),
    /// The run has ended in order.
    Bye,
}

/// A sign of life: where the training thread is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Beat {
    pub(super) phase: Phase,
    /// The training thread waits for other ranks.
    pub(super) is_waiting: bool,
    /// Changes when the training thread advances.
    pub(super) advanced: u64,
}

/// The connection to another rank.
pub(super) struct Channel {
    pub(super) rank: usize,
    /// When the other side last said anything.
    pub(super) heard_at: Instant,
    /// Its last sign of life.
    pub(super) beat: Option<Beat>,
    /// When its training thread last advanced.
    pub(super) advanced_at: Instant,
    /// It has ended in order.
    pub(super) has_left: bool,
    /// Non-blocking.
    stream: TcpStream,
    heard: Vec<u8>,
    unsent: Vec<u8>,
}

impl Channel {
    /// Takes a non-blocking connection.
    pub(super) fn new(rank: usize, stream: TcpStream, now: Instant) -> Self {
        let (heard, unsent) = (Vec::new(), Vec::new());
        Self { rank, heard_at: now, beat: None, advanced_at: now, has_left: false, stream, heard, unsent }
    }

    /// Queues a message and sends what the connection takes.
    pub(super) fn send(&mut self, message: &Message) {
        if self.unsent.len() < MAX_UNSENT {
            self.unsent.extend(encode(message));
        }
        // A broken connection is reported by the next `hear`.
        let _ = write_available(&self.stream, &mut self.unsent);
    }

    /// Reads what has come, and updates what is known about the other side. Returns the failure that it reports.
    ///
    /// # Errors
    /// How the connection ended, if it ended before its time.
    pub(super) fn hear(&mut self, now: Instant) -> Result<Option<LinkError>, String> {
        let before = self.heard.len();
        let open = read_available(&self.stream, &mut self.heard, 4 * MAX_MESSAGE);
        if self.heard.len() > before {
            self.heard_at = now;
        }

        loop {
            match take(&mut self.heard, MAX_MESSAGE) {
                Ok(None) => break,
                Ok(Some(Message::Failed(error))) => return Ok(Some(error)),
                Ok(Some(Message::Bye)) => self.has_left = true,
                Ok(Some(Message::Beat(beat))) => {
                    if self.beat.replace(beat) != Some(beat) {
                        self.advanced_at = now;
                    }
                }
                Err(error) => return Err(format!("it sent bytes that are not Kiln's ({error})")),
            }
        }

        match open {
            _ if self.has_left => Ok(None),
            Ok(true) => Ok(None),
            Ok(false) => Err("its connection was closed, so its process has ended".into()),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                Err("its connection was reset, so its process has ended".into())
            }
            Err(error) => Err(error.to_string()),
        }
    }
}
