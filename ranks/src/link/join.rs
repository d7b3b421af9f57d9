//! The rendezvous of every rank but the first: it tries until rank 0 answers.

use std::io::{self, ErrorKind, Read, Write};
use std::iter::{once, repeat_with};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::error::{LinkError, Peer};
use super::hello::{Channel, GREETING, Hello, Reply, answer, nonce_of};
use super::message::{MAX_MESSAGE, invalid, read};
use super::met::Met;
use crate::limits::Phase;
use crate::world::World;

/// To connect, and for each answer: rank 0 gives signs every two seconds.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);
const ANSWER_PATIENCE: Duration = Duration::from_secs(9);
const FIRST_NOTE: Duration = Duration::from_secs(4);
const BETWEEN_NOTES: Duration = Duration::from_secs(60);
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(1000)];
/// Bytes per rank in the message that all are there.
const PEER_BYTES: usize = 512;

/// Connects to rank 0 and waits until all ranks are there.
///
/// # Errors
/// If rank 0 does not answer in time, refuses this rank, or ends the rendezvous.
pub(super) fn join(world: &World, me: &Peer, note: &mut dyn FnMut(&str)) -> Result<Met, LinkError> {
    let (started, limit) = (Instant::now(), world.limits.of(Phase::Start));
    let (mut pause, mut last_note) = (PAUSES[0], None);

    let connections = loop {
        let problem = match connect(world, me) {
            Ok(connections) => break connections,
            Err(Trouble::Final(error)) => return Err(error),
            Err(Trouble::Passing(problem)) => problem,
        };
        if world.launcher_is_gone() {
            return Err(LinkError::aborted(world.rank, me, "the launcher has ended"));
        }
        if world.is_superseded() {
            return Err(LinkError::Superseded);
        }
        let (waited, address) = (started.elapsed(), address(world));
        if waited >= limit {
            let waited_secs = waited.as_secs();
            return Err(LinkError::NotReached { rank: world.rank, address, waited_secs, reason: problem });
        }

        let is_due = last_note.map_or(waited >= FIRST_NOTE, |last: Instant| last.elapsed() >= BETWEEN_NOTES);
        if is_due {
            last_note = Some(Instant::now());
            note(&format!("rank {} waits for rank 0 at {address}: {problem}", world.rank));
        }
        sleep(pause);
        pause = (2 * pause).min(PAUSES[1]);
    };
    wait(world, me, connections, note)
}

/// The two connections, and rank 0's process.
struct Connections {
    data: TcpStream,
    watch: TcpStream,
    rank_0: Peer,
}

/// Why an attempt failed.
enum Trouble {
    /// Rank 0 may not be there yet.
    Passing(String),
    Final(LinkError),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        let is_silence = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        Self::Passing(if is_silence { "no answer".into() } else { error.to_string() })
    }
}

fn address(world: &World) -> String {
    let host = if world.is_one_machine() { "127.0.0.1" } else { &world.master.0 };
    format!("{host}:{}", world.master.1)
}

fn connect(world: &World, me: &Peer) -> Result<Connections, Trouble> {
    let (data, rank_0) = introduce(world, me, Channel::Data)?;
    let (watch, _) = introduce(world, me, Channel::Watch)?;
    Ok(Connections { data, watch, rank_0 })
}

/// Makes one connection, and checks that both sides know the secret.
fn introduce(world: &World, me: &Peer, channel: Channel) -> Result<(TcpStream, Peer), Trouble> {
    let mut stream = reach(world)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_PATIENCE))?;
    stream.set_write_timeout(Some(ANSWER_PATIENCE))?;

    let mut greeting = [0; GREETING];
    stream.read_exact(&mut greeting)?;
    let Some(number) = nonce_of(&greeting) else {
        return Err(Trouble::Passing("the program that answers there is not Kiln; set KILN_MASTER_PORT".into()));
    };
    let hello = Hello::new(world, me, channel);
    stream.write_all(&hello.encode(&world.secret, &number))?;

    match read(&mut stream, MAX_MESSAGE)? {
        Reply::Accepted(proof, rank_0) if proof == answer(&world.secret, &hello) => Ok((stream, rank_0)),
        Reply::Accepted(..) => Err(Trouble::Passing("the process that answers there does not know the secret".into())),
        Reply::Refused(reason) => Err(Trouble::Final(LinkError::Refused(reason))),
        Reply::Ended(error) => Err(Trouble::Final(error)),
        Reply::Waiting(_) | Reply::Go(_) => Err(invalid("an answer out of order").into()),
    }
}

/// Opens a connection to rank 0's host.
fn reach(world: &World) -> io::Result<TcpStream> {
    let (host, port) = (world.master.0.as_str(), world.master.1);
    let addresses: Vec<SocketAddr> = if world.is_one_machine() {
        vec![(Ipv4Addr::LOCALHOST, port).into()]
    } else {
        (host, port).to_socket_addrs()?.collect()
    };

    let mut last = io::Error::new(ErrorKind::NotFound, format!("{host} has no address"));
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT_PATIENCE) {
            // On loopback, a port that nobody listens at can be connected to itself.
            Ok(stream) if stream.local_addr().ok() == stream.peer_addr().ok() => {
                last = ErrorKind::ConnectionRefused.into();
            }
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Waits for the other ranks.
fn wait(world: &World, me: &Peer, connections: Connections, note: &mut dyn FnMut(&str)) -> Result<Met, LinkError> {
    let Connections { mut data, watch, rank_0 } = connections;
    let started = Instant::now();
    let mut noted = false;

    let lost = |error: io::Error| {
        let how = match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => "it is silent".into(),
            ErrorKind::UnexpectedEof => "it closed the connection before all ranks were there".into(),
            _ => error.to_string(),
        };
        LinkError::gone(0, &rank_0, None, how)
    };
    let peers = loop {
        match read(&mut data, MAX_MESSAGE + PEER_BYTES * world.size).map_err(lost)? {
            Reply::Go(peers) if peers.len() == world.size => break peers,
            Reply::Ended(error) => return Err(error),
            Reply::Refused(reason) => return Err(LinkError::Refused(reason)),
            Reply::Waiting(missing) if !noted && started.elapsed() >= FIRST_NOTE => {
                noted = true;
                note(&format!("rank {} waits for {missing}", world.rank));
            }
            Reply::Waiting(_) => {}
            Reply::Go(_) | Reply::Accepted(..) => return Err(lost(invalid("an answer out of order"))),
        }
        if world.launcher_is_gone() {
            return Err(LinkError::aborted(world.rank, me, "the launcher has ended"));
        }
    };

    let ready = (|| {
        data.set_read_timeout(None)?;
        data.set_write_timeout(None)?;
        watch.set_nonblocking(true)
    })();
    ready.map_err(lost)?;
    let only = |stream| once(Some(stream)).chain(repeat_with(|| None)).take(world.size).collect();
    Ok(Met { peers, data: only(data), watch: only(watch) })
}
