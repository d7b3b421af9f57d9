//! The lines of a rank's stdout and stderr, with its number in front.

use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::spawn;
use std::time::Duration;

/// A line that is longer is cut into several.
const MAX_LINE: u64 = 64 << 10;
/// A process that a rank has left behind may hold its pipe for ever.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where a rank wrote a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Results.
    Out,
    /// Everything else.
    Err,
}

/// Shows a line, without its end.
pub type Show = Arc<dyn Fn(Stream, &str) + Send + Sync>;

/// The thread that reads a pipe.
pub(super) struct Forwarder {
    done: Receiver<()>,
}

impl Forwarder {
    /// Waits until the last line has been shown.
    pub(super) fn finish(self) {
        let _ = self.done.recv_timeout(PATIENCE);
    }
}

/// Shows each line of `pipe` with the rank in front.
pub(super) fn forward(rank: usize, stream: Stream, pipe: impl Read + Send + 'static, show: Show) -> Forwarder {
    let (sender, done) = channel();
    spawn(move || {
        let mut reader = BufReader::new(pipe);
        let mut line = Vec::new();
        while let Ok(1..) = reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
            let text = String::from_utf8_lossy(&line);
            show(stream, &format!("[{rank}] {}", text.trim_end_matches(['\n', '\r'])));
            line.clear();
        }
        let _ = sender.send(());
    });
    Forwarder { done }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn each_line_begins_with_its_rank() {
        let shown = Arc::new(Mutex::new(Vec::new()));
        let all = shown.clone();
        let show: Show = Arc::new(move |stream, line| all.lock().expect("whole").push((stream, line.to_owned())));
        forward(3, Stream::Err, &b"one\r\n\n\xff no end"[..], show.clone()).finish();
        let expected = ["[3] one", "[3] ", "[3] \u{fffd} no end"].map(|line| (Stream::Err, line.to_owned()));
        assert_eq!(shown.lock().expect("whole").as_slice(), expected);

        let endless = vec![b'x'; 3 * MAX_LINE as usize];
        forward(0, Stream::Out, std::io::Cursor::new(endless), show).finish();
        assert_eq!(shown.lock().expect("whole").len(), 6, "a line without an end is cut");
    }
}
