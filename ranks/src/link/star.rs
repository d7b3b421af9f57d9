//! The calls: every rank sends to rank 0, which checks that all are in the same call and passes the parts on.

use std::io;
use std::net::TcpStream;

use super::frame::{Header, Op};
use super::message::invalid;

/// The data connections of a rank.
pub(super) struct Star {
    rank: usize,
    /// By rank. Rank 0 has all but its own, the others have the first.
    streams: Vec<Option<TcpStream>>,
    calls: u64,
}

/// Why a call failed.
pub(super) enum Trouble {
    /// The connection to this rank.
    Connection(usize, io::Error),
    /// The ranks are in different calls.
    Different(String),
}

impl Star {
    pub(super) fn new(rank: usize, streams: Vec<Option<TcpStream>>) -> Self {
        Self { rank, streams, calls: 0 }
    }

    /// Runs a call and returns the part of each rank. `parts` has one part, or one for each rank. Rank 0 runs `complete` when
    /// all ranks have come.
    pub(super) fn call(
        &mut self,
        op: Op,
        what: &str,
        parts: Vec<Vec<u8>>,
        complete: impl FnOnce(),
    ) -> Result<Vec<Vec<u8>>, Trouble> {
        self.calls += 1;
        let header = Header::new(op, self.calls, what);
        if self.rank == 0 { self.relay(&header, parts, complete) } else { self.ask(&header, parts) }
    }

    /// Rank 0: gathers the parts of all ranks, and sends each rank its own.
    fn relay(
        &mut self,
        header: &Header,
        parts: Vec<Vec<u8>>,
        complete: impl FnOnce(),
    ) -> Result<Vec<Vec<u8>>, Trouble> {
        let n_parts = parts.len();
        let mut given = vec![parts];
        for (rank, mut stream) in self.others() {
            let connection = |error| Trouble::Connection(rank, error);
            let theirs = Header::read(&mut stream, self.streams.len()).map_err(connection)?;
            if !theirs.is_same_call(header) {
                return Err(Trouble::Different(difference(header, rank, &theirs)));
            }
            if theirs.lengths.len() != n_parts {
                return Err(connection(invalid("a call with a wrong number of parts")));
            }
            given.push(theirs.read_parts(&mut stream).map_err(connection)?);
        }
        complete();

        // A part for all stands first, parts for each stand by rank. Nobody gets its own part back.
        let at = |rank: usize| if header.op == Op::Gather { 0 } else { rank };
        for (rank, stream) in self.others() {
            let parts = given.iter().enumerate();
            let parts: Vec<&[u8]> =
                parts.map(|(from, parts)| if from == rank { &[] } else { parts[at(rank)].as_slice() }).collect();
            header.write(stream, &parts).map_err(|error| Trouble::Connection(rank, error))?;
        }
        Ok(given.into_iter().map(|mut parts| std::mem::take(&mut parts[at(0)])).collect())
    }

    /// The other ranks: send their parts to rank 0 and read what comes back.
    fn ask(&mut self, header: &Header, mut parts: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, Trouble> {
        let connection = |error| Trouble::Connection(0, error);
        let size = self.streams.len();
        let Some(stream) = &self.streams[0] else { return Err(connection(invalid("no connection"))) };

        let own = match header.op {
            Op::Gather => None,
            Op::Exchange => Some(std::mem::take(&mut parts[self.rank])),
        };
        let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        header.write(stream, &slices).map_err(connection)?;
        // The parts that are sent make room for those that come.
        let own = own.unwrap_or_else(|| std::mem::take(&mut parts[0]));
        drop(parts);

        let mut reader = stream;
        let theirs = Header::read(&mut reader, size).map_err(connection)?;
        if !theirs.is_same_call(header) || theirs.lengths.len() != size {
            return Err(connection(invalid("an answer to another call")));
        }
        let mut all = theirs.read_parts(&mut reader).map_err(connection)?;
        all[self.rank] = own;
        Ok(all)
    }

    fn others(&self) -> impl Iterator<Item = (usize, &TcpStream)> {
        self.streams.iter().enumerate().filter_map(|(rank, stream)| Some((rank, stream.as_ref()?)))
    }
}

fn difference(mine: &Header, rank: usize, theirs: &Header) -> String {
    let of = |rank: usize, header: &Header| format!("rank {rank} in `{}` (call {})", header.what, header.call);
    format!("{}, {}", of(0, mine), of(rank, theirs))
}
