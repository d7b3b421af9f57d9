//! Where everything that a command prints passes: without control characters, and with words when it cannot be written.

use std::fmt;
use std::io::{self, ErrorKind, IsTerminal, Stdout, Write};
use std::process;

use kiln_data::terminal::clean;

/// Prints a line of results. A reader that has closed stdout ends the process quietly; a full disk ends it in words.
#[macro_export]
#[doc(hidden)]
macro_rules! stdout_line {
    () => { $crate::logging::print::stdout(format_args!("\n")) };
    ($($part:tt)*) => { $crate::logging::print::stdout(format_args!("{}\n", format_args!($($part)*))) };
}

/// Prints results that have line ends of their own.
#[macro_export]
#[doc(hidden)]
macro_rules! stdout_text {
    ($($part:tt)*) => { $crate::logging::print::stdout(format_args!($($part)*)) };
}

/// Prints a line to stderr. A closed stderr ends nothing.
#[macro_export]
#[doc(hidden)]
macro_rules! stderr_line {
    ($($part:tt)*) => { $crate::logging::print::stderr(format_args!("{}\n", format_args!($($part)*))) };
}

pub use {stderr_line, stdout_line, stdout_text};

/// Starts a line of a terminal anew.
const ANEW: &str = "\r\x1b[2K";

/// Prints to stdout, or ends the process.
pub fn stdout(text: fmt::Arguments<'_>) {
    let mut stdout = io::stdout().lock();
    if let Err(error) = stdout.write_all(clean(&text.to_string()).as_bytes()).and_then(|()| stdout.flush()) {
        if error.kind() == ErrorKind::BrokenPipe {
            process::exit(0); // its reader, such as `head`, has seen enough
        }
        stderr(format_args!("error: {}\n", unwritable(&error)));
        process::exit(1);
    }
}

/// Prints to stderr.
pub fn stderr(text: fmt::Arguments<'_>) {
    let _ = io::stderr().write_all(clean(&text.to_string()).as_bytes());
}

/// Writes `text` over the line in which a terminal's cursor stands; without a terminal it writes the text alone.
pub fn over_line(text: &str) {
    let start = if io::stderr().is_terminal() { ANEW } else { "" };
    let _ = io::stderr().write_all(format!("{start}{}", clean(text)).as_bytes());
}

/// Says that stdout did not take what was printed.
fn unwritable(error: &io::Error) -> String {
    format!("stdout cannot be written: {error}; free space where it goes to, or send it to another file")
}

/// Stdout for the texts that models write. A file or a pipe gets them as they are, a terminal without control characters.
pub fn results() -> Results<Stdout> {
    Results { is_terminal: io::stdout().is_terminal(), to: io::stdout(), begun: Vec::new() }
}

/// See [`results`].
pub struct Results<W> {
    is_terminal: bool,
    to: W,
    /// The bytes of a character whose end has not come yet.
    begun: Vec<u8>,
}

impl<W: Write> Write for Results<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_terminal {
            return self.to.write(bytes).map_err(in_words);
        }
        self.begun.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&self.begun) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => self.begun.len(),
        };
        let text: Vec<u8> = self.begun.drain(..whole).collect();
        self.to.write_all(clean(&String::from_utf8_lossy(&text)).as_bytes()).map_err(in_words)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush().map_err(in_words)
    }
}

/// Gives an error of stdout its words, and keeps its kind.
fn in_words(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::Interrupted | ErrorKind::BrokenPipe => error,
        kind => io::Error::new(kind, unwritable(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_no_control_characters_and_a_file_gets_all() {
        let written = |is_terminal| {
            let mut results = Results { is_terminal, to: Vec::new(), begun: Vec::new() };
            // The pieces cut "é" in two.
            for piece in [b"a\x1b[2Jcaf\xc3".as_slice(), b"\xa9\tb\xff\n"] {
                results.write_all(piece).expect("memory");
            }
            results.to
        };
        assert_eq!(String::from_utf8(written(true)).expect("text"), "a\u{fffd}[2Jcafé\tb\u{fffd}\n");
        assert_eq!(written(false), b"a\x1b[2Jcaf\xc3\xa9\tb\xff\n");
    }

    #[test]
    fn a_full_disk_is_said_with_a_remedy() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        for is_terminal in [true, false] {
            let mut results = Results { is_terminal, to: Full, begun: Vec::new() };
            let error = results.write_all(b"text").expect_err("full");
            assert_eq!(error.kind(), ErrorKind::StorageFull);
            assert!(error.to_string().contains("free space"), "{error}");
        }
    }
}
