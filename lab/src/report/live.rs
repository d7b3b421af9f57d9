//! Serves a page to browsers of this machine, while runs go on.
//!
//! The server listens on the loopback address only. It answers two addresses, reads at most `LONGEST_REQUEST` bytes of a
//! request, and refuses requests that were made for another host: a page from elsewhere, whose name was made to point here,
//! must not read a run.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::page::Refresh;

/// A browser's request has a few hundred bytes.
const LONGEST_REQUEST: usize = 16 << 10;
/// Connections that are answered at the same time. Browsers open some that they never use.
const CONNECTIONS: usize = 16;
/// A request must arrive, and its answer be read, in this time.
const PATIENCE: Duration = Duration::from_secs(10);
/// A page loads itself again after this time, seconds.
pub const REFRESH_SECS: u32 = 5;

/// A server that listens and has not answered yet.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Listens on a port of the loopback address; 0 takes a free one.
    ///
    /// # Errors
    /// If the port is taken.
    pub fn bind(port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        Ok(Self { address: listener.local_addr()?, listener })
    }

    /// Returns the address for a browser.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Answers requests with `page` until the process ends.
    ///
    /// # Errors
    /// If no more connections can be accepted.
    pub fn serve(self, page: impl Fn(Refresh) -> String + Send + Sync + 'static) -> io::Result<()> {
        let (page, busy) = (Arc::new(page), Arc::new(AtomicUsize::new(0)));
        loop {
            let (stream, _) = self.listener.accept()?;
            if busy.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS {
                busy.fetch_sub(1, Ordering::Relaxed);
                continue; // closes it
            }
            let (page, busy, port) = (page.clone(), busy.clone(), self.address.port());
            std::thread::spawn(move || {
                // A browser that has gone needs no answer.
                let _ = answer(stream, port, &*page);
                busy.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }
}

fn answer(mut stream: TcpStream, port: u16, page: &dyn Fn(Refresh) -> String) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let (status, body) = match read_head(&mut stream)? {
        Some(head) => respond(&head, port, page),
        None => ("431 Request Header Fields Too Large", "the request is too long".to_owned()),
    };
    let kind = if status.starts_with("200") { "text/html" } else { "text/plain" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nX-Frame-Options: DENY\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    stream.flush()
}

/// Reads up to the empty line after the headers; `None` if it does not come in `LONGEST_REQUEST` bytes.
fn read_head(stream: &mut TcpStream) -> io::Result<Option<String>> {
    let (started, mut head) = (Instant::now(), Vec::new());
    let mut buffer = [0; 2048];
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        if head.len() >= LONGEST_REQUEST {
            return Ok(None);
        }
        let left = PATIENCE.saturating_sub(started.elapsed());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => head.extend_from_slice(&buffer[..n]),
        }
    }
    Ok(Some(String::from_utf8_lossy(&head).into_owned()))
}

/// Returns status and body.
fn respond(head: &str, port: u16, page: &dyn Fn(Refresh) -> String) -> (&'static str, String) {
    let mut lines = head.split("\r\n");
    let mut request = lines.next().unwrap_or_default().split(' ');
    let (method, path) = (request.next().unwrap_or_default(), request.next().unwrap_or_default());
    let host = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("host").then(|| value.trim())
    });

    let own = [format!("127.0.0.1:{port}"), format!("localhost:{port}")];
    if !host.is_some_and(|host| own.iter().any(|own| own == host)) {
        return ("403 Forbidden", format!("ask for http://{}/", own[0]));
    }
    match (method, path) {
        ("GET", "/") => ("200 OK", page(Refresh::Every(REFRESH_SECS))),
        ("GET", "/paused") => ("200 OK", page(Refresh::Paused)),
        ("GET", _) => ("404 Not Found", "there are / and /paused".to_owned()),
        _ => ("405 Method Not Allowed", "only GET is answered".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts a server and returns its port.
    fn serve() -> u16 {
        let server = Server::bind(0).expect("a free port");
        assert!(server.address.ip().is_loopback());
        let port = server.address.port();
        std::thread::spawn(|| server.serve(|refresh| format!("{refresh:?}")));
        port
    }

    fn ask(port: u16, request: &[u8]) -> String {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("it listens");
        let _ = stream.write_all(request); // it may have answered already
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).expect("UTF-8")
    }

    #[test]
    fn pages_are_served_to_this_machine_by_its_own_names() {
        let port = serve();
        let get = |path: &str, host: &str| ask(port, format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n").as_bytes());
        let page = get("/", &format!("127.0.0.1:{port}"));
        assert!(page.starts_with("HTTP/1.1 200 OK") && page.ends_with("\r\n\r\nEvery(5)"), "{page}");
        assert!(get("/paused", &format!("localhost:{port}")).ends_with("Paused"));
        assert!(get("/other", &format!("localhost:{port}")).starts_with("HTTP/1.1 404"));
        for host in ["evil.example", "localhost", &format!("127.0.0.1:{}", port.wrapping_add(1))] {
            assert!(get("/", host).starts_with("HTTP/1.1 403"), "{host}");
        }
        assert!(ask(port, b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 403"), "without a host");
        let post = format!("POST / HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n");
        assert!(ask(port, post.as_bytes()).starts_with("HTTP/1.1 405"));
    }

    #[test]
    fn long_and_idle_requests_do_not_keep_others_waiting() {
        let port = serve();
        let idle: Vec<_> = (0..CONNECTIONS / 2)
            .map(|_| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("it listens"))
            .collect();
        // Exactly as much as is read, so that nothing unread resets the connection before its answer.
        assert!(ask(port, &[b'x'; LONGEST_REQUEST]).starts_with("HTTP/1.1 431"));
        let get = format!("GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
        assert!(ask(port, get.as_bytes()).starts_with("HTTP/1.1 200"));
        drop(idle);
    }
}
