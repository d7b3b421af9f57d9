//! The handshake: rank 0 greets with a number used once, the other rank says who it is and proves that it knows the secret,
//! and rank 0 proves the same. The secret itself never travels.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::error::{LinkError, Peer};
use super::message::{MAX_MESSAGE, encode, invalid, take};
use crate::world::{Secret, World};

/// Changes when the bytes on the wire change their meaning.
pub(super) const PROTOCOL: u32 = 1;

/// The first bytes in both directions. They stay the same in every version.
const MAGIC: [u8; 8] = *b"KILNLINK";

/// Bytes of a number used once, and of a proof.
const HASH: usize = 32;

/// Bytes of rank 0's greeting.
pub(super) const GREETING: usize = MAGIC.len() + HASH;

/// Longest hello, in bytes.
pub(super) const MAX_HELLO: usize = MAGIC.len() + 4 + MAX_MESSAGE + HASH;

/// A number used once.
pub(super) type Nonce = [u8; HASH];

/// The two connections of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Channel {
    /// Calls of the training thread.
    Data,
    /// Signs of life, and failures.
    Watch,
}

/// Says who connects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) protocol: u32,
    /// Kiln's version.
    pub(super) version: String,
    pub(super) channel: Channel,
    pub(super) size: usize,
    pub(super) rank: usize,
    pub(super) peer: Peer,
    pub(super) nonce: Nonce,
}

/// What rank 0 answers, until all ranks are there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Reply {
    /// The rank may stay. Holds rank 0's proof and its process.
    Accepted(Nonce, Peer),
    /// The rank may not stay.
    Refused(String),
    /// Other ranks are not there yet.
    Waiting(String),
    /// All ranks are there; the processes by rank.
    Go(Vec<Peer>),
    /// The run ends before it begins.
    Ended(LinkError),
}

impl Hello {
    pub(super) fn new(world: &World, peer: &Peer, channel: Channel) -> Self {
        Self {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").into(),
            channel,
            size: world.size,
            rank: world.rank,
            peer: peer.clone(),
            nonce: random(),
        }
    }

    /// Returns the bytes of this hello as the answer to a greeting.
    pub(super) fn encode(&self, secret: &Secret, greeting: &Nonce) -> Vec<u8> {
        let message = encode(self);
        let proof = proof(secret, &[greeting, &message]);
        [&MAGIC[..], &message, &proof].concat()
    }

    /// Takes a hello and its proof out of a buffer, or returns `None` if it is not complete.
    ///
    /// # Errors
    /// If the bytes do not come from Kiln.
    pub(super) fn take(buffer: &mut Vec<u8>) -> io::Result<Option<Signed>> {
        let known = buffer.len().min(MAGIC.len());
        if buffer[..known] != MAGIC[..known] {
            return Err(invalid("bytes that are not Kiln's"));
        }

        let mut rest = buffer[known..].to_vec();
        let Some(hello) = take::<Hello>(&mut rest, MAX_MESSAGE)? else { return Ok(None) };
        let Some(&proof) = rest.first_chunk() else { return Ok(None) };
        let message = buffer[known..buffer.len() - rest.len()].to_vec();
        buffer.drain(..known + message.len() + HASH);
        Ok(Some(Signed { hello, message, proof }))
    }
}

/// A hello with its proof, not yet checked.
#[derive(Debug)]
pub(super) struct Signed {
    pub(super) hello: Hello,
    message: Vec<u8>,
    proof: Nonce,
}

impl Signed {
    /// Why rank 0 does not accept this rank, if so. `greeting` is the number that rank 0 sent on this connection.
    pub(super) fn refusal(&self, world: &World, greeting: &Nonce) -> Option<String> {
        let hello = &self.hello;
        let who = format!("rank {} ({}, process {})", hello.rank, hello.peer.host, hello.peer.pid);
        let version = env!("CARGO_PKG_VERSION");
        if hello.protocol != PROTOCOL || hello.version != version {
            let (theirs, mine) = ((&hello.version, hello.protocol), (version, PROTOCOL));
            return Some(format!(
                "{who} runs Kiln {} (protocol {}), rank 0 runs Kiln {} (protocol {})",
                theirs.0, theirs.1, mine.0, mine.1
            ));
        }

        // Comparing hashes takes the same time whatever they hold.
        let expected = proof(&world.secret, &[greeting, &self.message]);
        if blake3::Hash::from(expected) != blake3::Hash::from(self.proof) {
            return Some(format!("{who} belongs to another run: KILN_SECRET, or the launcher's run id, differs"));
        }
        if hello.size != world.size {
            return Some(format!("{who} expects {} ranks, rank 0 expects {}", hello.size, world.size));
        }
        if hello.rank == 0 || hello.rank >= world.size {
            return Some(format!("{who} is not a rank that rank 0 waits for (1 to {})", world.size - 1));
        }
        None
    }
}

/// Returns rank 0's greeting.
pub(super) fn greeting(nonce: &Nonce) -> Vec<u8> {
    [&MAGIC[..], nonce].concat()
}

/// Reads rank 0's greeting. `None`: the bytes are not Kiln's.
pub(super) fn nonce_of(greeting: &[u8; GREETING]) -> Option<Nonce> {
    greeting.strip_prefix(&MAGIC)?.try_into().ok()
}

/// Returns the proof by which rank 0 answers a hello.
pub(super) fn answer(secret: &Secret, hello: &Hello) -> Nonce {
    proof(secret, &[b"rank 0", &hello.nonce])
}

fn proof(secret: &Secret, parts: &[&[u8]]) -> Nonce {
    let key = blake3::derive_key("kiln 2026 link between ranks", &secret.0);
    let mut hasher = blake3::Hasher::new_keyed(&key);
    for part in parts {
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

/// Returns bytes that nobody can guess: the standard library seeds its hash maps from the system's random numbers.
pub(crate) fn random() -> Nonce {
    let mut hasher = blake3::Hasher::new();
    for i in 0..4u8 {
        hasher.update(&RandomState::new().hash_one(i).to_le_bytes());
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
    hasher.update(&now.to_le_bytes()).update(&std::process::id().to_le_bytes());
    *hasher.finalize().as_bytes()
}

/// This process, for messages.
pub(super) fn this_process() -> Peer {
    let file = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let host = file.or_else(|| std::env::var("HOSTNAME").ok()).or_else(|| std::env::var("COMPUTERNAME").ok());
    let host = host.map(|host| host.trim().chars().take(255).collect()).filter(|host: &String| !host.is_empty());
    Peer { host: host.unwrap_or_else(|| "unknown host".into()), pid: std::process::id() }
}
