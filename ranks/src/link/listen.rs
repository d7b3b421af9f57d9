//! Rank 0's side of the rendezvous: it listens until every rank is there. Bytes from strangers cost a place in a bounded
//! queue for some seconds, never the rendezvous.

use std::io::{self, ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::error::{LinkError, Peer};
use super::hello::{Channel, Hello, MAX_HELLO, Nonce, Reply, Signed, answer, greeting, random};
use super::message::{encode, read_available};
use super::met::{Met, ranks_in_words};
use crate::limits::Phase;
use crate::world::World;

const PAUSE: Duration = Duration::from_millis(5);
/// A connection that has not said hello by then is closed.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections without a hello, beyond two for each rank.
const MAX_STRANGERS: usize = 64;
/// A port that another process is about to give back.
const PORT_PATIENCE: Duration = Duration::from_secs(5);
/// Between two messages that the ranks here wait for others.
const BETWEEN_SIGNS: Duration = Duration::from_secs(2);
const FIRST_NOTE: Duration = Duration::from_secs(4);
const BETWEEN_NOTES: Duration = Duration::from_secs(60);
/// Refusals beyond these are neither noted nor kept.
const MAX_REFUSALS: usize = 20;

/// Waits for all other ranks.
///
/// # Errors
/// If the port cannot be had, a rank that was here is gone, or not all ranks come in time.
pub(super) fn listen(world: &World, me: &Peer, note: &mut dyn FnMut(&str)) -> Result<Met, LinkError> {
    let listener = bind(world, note)?;
    if let Some(warning) = reachable_without_secret(world, &listener) {
        note(&warning);
    }
    let mut hall = Hall::new(world, me, listener);

    loop {
        hall.admit();
        hall.hear(note);
        if hall.seats.iter().skip(1).all(Seat::is_taken) {
            return hall.begin();
        }
        if let Some(error) = hall.failure() {
            hall.tell(&Reply::Ended(error.clone()));
            return Err(error);
        }
        hall.give_signs(note);
        sleep(PAUSE);
    }
}

/// Everyone who has come.
struct Hall<'a> {
    world: &'a World,
    me: &'a Peer,
    listener: TcpListener,
    started: Instant,
    guests: Vec<Guest>,
    /// By rank; the first stays empty.
    seats: Vec<Seat>,
    refused: Vec<String>,
    last_sign: Instant,
    last_note: Option<Instant>,
}

/// A connection that has not said hello.
struct Guest {
    stream: TcpStream,
    from: SocketAddr,
    greeting: Nonce,
    heard: Vec<u8>,
    since: Instant,
}

/// The connections of a rank.
#[derive(Default)]
struct Seat {
    peer: Option<Peer>,
    data: Option<TcpStream>,
    watch: Option<TcpStream>,
}

impl Seat {
    fn is_taken(&self) -> bool {
        self.data.is_some() && self.watch.is_some()
    }

    fn connection(&mut self, channel: Channel) -> &mut Option<TcpStream> {
        match channel {
            Channel::Data => &mut self.data,
            Channel::Watch => &mut self.watch,
        }
    }

    /// How a process that was here has left, if it has.
    fn departure(&self) -> Option<String> {
        let left = |stream: &TcpStream| match stream.peek(&mut [0]) {
            Ok(0) => Some("its connection was closed before all ranks were there".to_owned()),
            Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                Some(error.to_string())
            }
            _ => None,
        };
        self.data.iter().chain(&self.watch).find_map(left)
    }
}

impl<'a> Hall<'a> {
    fn new(world: &'a World, me: &'a Peer, listener: TcpListener) -> Self {
        let now = Instant::now();
        let seats = (0..world.size).map(|_| Seat::default()).collect();
        let (guests, refused) = (Vec::new(), Vec::new());
        Self { world, me, listener, started: now, guests, seats, refused, last_sign: now, last_note: None }
    }

    /// Greets new connections. The oldest guest makes room for one too many.
    fn admit(&mut self) {
        while let Ok((stream, from)) = self.listener.accept() {
            let number = random();
            let greeted = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
            if greeted.and_then(|()| (&stream).write_all(&greeting(&number))).is_err() {
                continue;
            }
            if self.guests.len() >= MAX_STRANGERS + 2 * self.world.size {
                self.guests.remove(0);
            }
            self.guests.push(Guest { stream, from, greeting: number, heard: Vec::new(), since: Instant::now() });
        }
    }

    /// Reads what the guests say, and seats or dismisses those who have said it.
    fn hear(&mut self, note: &mut dyn FnMut(&str)) {
        for mut guest in std::mem::take(&mut self.guests) {
            let open = read_available(&guest.stream, &mut guest.heard, MAX_HELLO);
            let signed = open.and_then(|open| Ok((open, Hello::take(&mut guest.heard)?)));
            match signed {
                Ok((true, None)) if guest.since.elapsed() < PATIENCE && guest.heard.len() < MAX_HELLO => {
                    self.guests.push(guest);
                }
                Ok((_, Some(signed))) => self.seat(guest, &signed, note),
                Ok(_) | Err(_) => {} // a stranger, whose connection closes here
            }
        }
    }

    fn seat(&mut self, guest: Guest, signed: &Signed, note: &mut dyn FnMut(&str)) {
        let hello = &signed.hello;
        let refusal = signed.refusal(self.world, &guest.greeting).or_else(|| self.taken(hello));
        if let Some(reason) = refusal {
            let _ = (&guest.stream).write_all(&encode(&Reply::Refused(reason.clone())));
            if self.refused.len() < MAX_REFUSALS {
                note(&format!("refused a connection from {}: {reason}", guest.from.ip()));
                self.refused.push(reason);
            }
            return;
        }

        let accepted = Reply::Accepted(answer(&self.world.secret, hello), self.me.clone());
        if (&guest.stream).write_all(&encode(&accepted)).is_err() {
            return;
        }
        let seat = &mut self.seats[hello.rank];
        seat.peer = Some(hello.peer.clone());
        *seat.connection(hello.channel) = Some(guest.stream);
    }

    /// Why a rank's connection has no free place.
    fn taken(&mut self, hello: &Hello) -> Option<String> {
        let seat = &mut self.seats[hello.rank];
        let is_free = seat.connection(hello.channel).is_none();
        let other = seat.peer.as_ref().filter(|peer| !is_free || **peer != hello.peer)?;
        Some(format!(
            "rank {} is here already ({}, process {}); {}, process {} has the same number",
            hello.rank, other.host, other.pid, hello.peer.host, hello.peer.pid
        ))
    }

    /// Why the ranks cannot begin, if so.
    fn failure(&self) -> Option<LinkError> {
        for (rank, seat) in self.seats.iter().enumerate() {
            if let (Some(peer), Some(how)) = (&seat.peer, seat.departure()) {
                return Some(LinkError::gone(rank, peer, None, how));
            }
        }
        if self.world.launcher_is_gone() {
            return Some(LinkError::aborted(0, self.me, "the launcher has ended"));
        }
        if self.world.is_superseded() {
            return Some(LinkError::Superseded);
        }

        let (waited, limit) = (self.started.elapsed(), self.world.limits.of(Phase::Start));
        (waited >= limit).then(|| LinkError::Incomplete {
            address: self.address(),
            waited_secs: waited.as_secs(),
            missing: self.missing(),
            refused: self.refused.clone(),
        })
    }

    /// Tells the ranks here and the user for whom they wait.
    fn give_signs(&mut self, note: &mut dyn FnMut(&str)) {
        let now = Instant::now();
        if now - self.last_sign >= BETWEEN_SIGNS {
            self.last_sign = now;
            self.tell(&Reply::Waiting(self.missing()));
        }
        let is_due = self.last_note.map_or(now - self.started >= FIRST_NOTE, |last| now - last >= BETWEEN_NOTES);
        if is_due {
            self.last_note = Some(now);
            note(&format!("waiting for {} of {} at {}", self.missing(), self.world.size, self.address()));
        }
    }

    fn tell(&self, reply: &Reply) {
        let bytes = encode(reply);
        for stream in self.seats.iter().filter_map(|seat| seat.data.as_ref()) {
            // A rank that does not read is found later, by its silence.
            let _ = (&mut &*stream).write_all(&bytes);
        }
    }

    fn missing(&self) -> String {
        let empty = |(rank, seat): (usize, &Seat)| (!seat.is_taken()).then_some(rank);
        ranks_in_words(&self.seats.iter().enumerate().skip(1).filter_map(empty).collect::<Vec<_>>())
    }

    fn address(&self) -> String {
        self.listener.local_addr().map_or_else(|_| "its port".into(), |address| address.to_string())
    }

    /// Sends all ranks on their way.
    fn begin(self) -> Result<Met, LinkError> {
        let peers: Vec<Peer> =
            self.seats.iter().map(|seat| seat.peer.clone().unwrap_or_else(|| self.me.clone())).collect();
        let go = encode(&Reply::Go(peers.clone()));
        let begin = |stream: &TcpStream| -> io::Result<()> {
            stream.set_nonblocking(false)?;
            stream.set_write_timeout(Some(PATIENCE))?;
            (&mut &*stream).write_all(&go)?;
            stream.set_write_timeout(None)
        };
        for (rank, seat) in self.seats.iter().enumerate() {
            if let Some(Err(error)) = seat.data.as_ref().map(begin) {
                let gone = LinkError::gone(rank, &peers[rank], None, error.to_string());
                self.tell(&Reply::Ended(gone.clone()));
                return Err(gone);
            }
        }

        let (data, watch) = self.seats.into_iter().map(|seat| (seat.data, seat.watch)).unzip();
        Ok(Met { peers, data, watch })
    }
}

/// Listens on loopback if all ranks are on this machine, else at the master's address.
fn bind(world: &World, note: &mut dyn FnMut(&str)) -> Result<TcpListener, LinkError> {
    let (host, port) = (&world.master.0, world.master.1);
    let everywhere = || [SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), (Ipv4Addr::UNSPECIFIED, port).into()];
    let mut addresses = if world.is_one_machine() {
        vec![SocketAddr::from((Ipv4Addr::LOCALHOST, port))]
    } else {
        addresses_of(host, port)
    };
    if addresses.is_empty() {
        note(&format!("{host} does not lead to this machine from outside; rank 0 listens at all its addresses"));
        addresses.extend(everywhere());
    }

    let started = Instant::now();
    loop {
        let error = match TcpListener::bind(addresses.as_slice()) {
            Ok(listener) => match listener.set_nonblocking(true) {
                Ok(()) => return Ok(listener),
                Err(error) => error,
            },
            // The name of a service leads to an address in front of this machine.
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable && !addresses[0].ip().is_unspecified() => {
                note(&format!("{host} is not an address of this machine; rank 0 listens at all its addresses"));
                addresses = everywhere().into();
                continue;
            }
            Err(error) => error,
        };
        if error.kind() != ErrorKind::AddrInUse || started.elapsed() >= PORT_PATIENCE {
            let address = addresses[0].to_string();
            return Err(LinkError::Listen { address, reason: error.to_string() });
        }
        sleep(Duration::from_millis(100));
    }
}

/// Warns of a port that other machines can reach while no secret keeps them out.
fn reachable_without_secret(world: &World, listener: &TcpListener) -> Option<String> {
    let address = listener.local_addr().ok().filter(|address| !world.is_secret && !address.ip().is_loopback())?;
    Some(format!(
        "warning: other machines can reach rank 0 at {address}, and KILN_SECRET is not set: a process there could join this \
         run; set KILN_SECRET to the same random text on every rank"
    ))
}

/// The addresses of a host that other machines can reach. A number is taken as it is; a name that leads to loopback says
/// nothing about the address that the other machines see.
fn addresses_of(host: &str, port: u16) -> Vec<SocketAddr> {
    if let Ok(number) = host.parse::<IpAddr>() {
        return vec![SocketAddr::from((number, port))];
    }
    let found = (host, port).to_socket_addrs().map(Iterator::collect).unwrap_or_else(|_| Vec::new());
    found.into_iter().filter(|address: &SocketAddr| !address.ip().is_loopback()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::free_port;

    /// Where rank 0 of a world listens, and its notes.
    fn listens(world: &World) -> (SocketAddr, Vec<String>) {
        let mut notes = Vec::new();
        let listener = bind(world, &mut |note| notes.push(note.to_owned())).expect("a free port");
        notes.extend(reachable_without_secret(world, &listener));
        (listener.local_addr().expect("an address"), notes)
    }

    #[test]
    fn a_port_that_strangers_can_reach_without_a_secret_is_warned_of_in_one_line() {
        let port = free_port().expect("a port");
        let variables = |local: usize, secret: &str| {
            let text = format!(
                "WORLD_SIZE=2 RANK=0 MASTER_ADDR=0.0.0.0 MASTER_PORT={port} LOCAL_RANK=0 LOCAL_WORLD_SIZE={local} {secret}"
            );
            let var = |name: &str| {
                let found = text.split_whitespace().find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
                found.map(str::to_owned)
            };
            World::from_env(var).expect("a world").expect("two ranks")
        };

        let (address, notes) = listens(&variables(1, ""));
        assert!(!address.ip().is_loopback() && notes.len() == 1 && !notes[0].contains('\n'), "{address}: {notes:?}");
        assert!(notes[0].starts_with("warning: ") && notes[0].contains("set KILN_SECRET"), "{notes:?}");
        let (address, notes) = listens(&variables(1, "KILN_SECRET=s"));
        assert!(!address.ip().is_loopback() && notes.is_empty(), "{address}: {notes:?}");
        // All ranks are here, whatever MASTER_ADDR says.
        let (address, notes) = listens(&variables(2, ""));
        assert!(address.ip().is_loopback() && notes.is_empty(), "{address}: {notes:?}");
        // The id that torchrun gives to a run can be guessed.
        let (_, notes) = listens(&variables(1, "TORCHELASTIC_RUN_ID=none"));
        assert_eq!(notes.len(), 1, "{notes:?}");
    }
}
