//! Free ports on loopback.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

use super::link::random;

/// Ports below those that Linux gives to outgoing connections, so that nobody takes one between finding and using it.
const PORTS: Range<u16> = 12_000..32_000;
const ATTEMPTS: usize = 200;

/// Returns a port of loopback at which nobody listens.
///
/// # Errors
/// If many ports are taken.
pub fn free_port() -> io::Result<u16> {
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..ATTEMPTS {
        let [low, high, ..] = random();
        let port = PORTS.start + u16::from_le_bytes([low, high]) % (PORTS.end - PORTS.start);
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(_) => return Ok(port),
            Err(error) => last = error,
        }
    }
    Err(last)
}
