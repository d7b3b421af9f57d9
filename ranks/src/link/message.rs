//! Small messages: a length and JSON. Readers check the length before they allocate.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest message of the handshake and of the watch, in bytes.
pub(super) const MAX_MESSAGE: usize = 16 << 10;

/// Returns a message as bytes.
pub(super) fn encode(message: &impl Serialize) -> Vec<u8> {
    let json = serde_json::to_vec(message).expect("plain data");
    let length = u32::try_from(json.len()).expect("a small message");
    [&length.to_le_bytes()[..], &json].concat()
}

/// Takes the first message out of a buffer, or returns `None` if it is not complete.
///
/// # Errors
/// If the length exceeds `limit`, or the bytes are not a message.
pub(super) fn take<T: DeserializeOwned>(buffer: &mut Vec<u8>, limit: usize) -> io::Result<Option<T>> {
    let Some((length, rest)) = buffer.split_first_chunk() else { return Ok(None) };
    let length = checked(u32::from_le_bytes(*length), limit)?;
    let Some(json) = rest.get(..length) else { return Ok(None) };
    let message = serde_json::from_slice(json)?;
    buffer.drain(..4 + length);
    Ok(Some(message))
}

/// Reads a message.
pub(super) fn read<T: DeserializeOwned>(reader: &mut impl Read, limit: usize) -> io::Result<T> {
    let mut length = [0; 4];
    reader.read_exact(&mut length)?;
    let mut json = vec![0; checked(u32::from_le_bytes(length), limit)?];
    reader.read_exact(&mut json)?;
    Ok(serde_json::from_slice(&json)?)
}

fn checked(length: u32, limit: usize) -> io::Result<usize> {
    let length = length as usize;
    if length <= limit { Ok(length) } else { Err(invalid(format!("a message of {length} bytes"))) }
}

/// The error of bytes that are not what they should be.
pub(super) fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

/// Appends what a non-blocking stream has, up to `limit` bytes in the buffer. Returns whether the stream is still open.
pub(super) fn read_available(stream: &TcpStream, buffer: &mut Vec<u8>, limit: usize) -> io::Result<bool> {
    let mut chunk = [0; 4096];
    while buffer.len() < limit {
        match (&mut &*stream).read(&mut chunk) {
            Ok(0) => return Ok(false),
            Ok(n) => buffer.extend_from_slice(&chunk[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Writes what a non-blocking stream takes, and removes it from the buffer.
pub(super) fn write_available(stream: &TcpStream, buffer: &mut Vec<u8>) -> io::Result<()> {
    while !buffer.is_empty() {
        match (&mut &*stream).write(buffer) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => drop(buffer.drain(..n)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
