//! Bytes from elsewhere, read in every way that the link reads them.

use super::channel::{Beat, Message};
use super::error::{LinkError, Peer};
use super::facts;
use super::frame::{Header, Op};
use super::hello::{Channel, Hello, Nonce, Reply};
use super::message::{MAX_MESSAGE, encode, read, take};
use crate::limits::Phase;
use crate::world::World;

/// The number of rank 0's greeting.
const GREETING: Nonce = [7; 32];

/// Reads bytes as a hello, an answer, signs of life, frames and facts. Must not panic, whatever they are.
pub fn read_foreign(bytes: &[u8]) {
    const MAX_PARTS: usize = 64;
    let world = World::on_loopback(4, 1).remove(0);
    if let Ok(Some(signed)) = Hello::take(&mut bytes.to_vec()) {
        let _ = signed.refusal(&world, &GREETING);
    }
    let _ = read::<Reply>(&mut &*bytes, MAX_MESSAGE);

    let mut rest = bytes.to_vec();
    while let Ok(Some(message)) = take::<Message>(&mut rest, MAX_MESSAGE) {
        if let Message::Failed(error) = message {
            let _ = error.to_string();
        }
    }

    let mut reader = bytes;
    while let Ok(header) = Header::read(&mut reader, MAX_PARTS) {
        if header.read_parts(&mut reader).is_err() {
            break;
        }
    }
    let _ = facts::differences(&[bytes.to_vec(), bytes.to_vec()], |_| "host");
}

/// Returns good bytes of each kind, with a name, as seeds.
pub fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let world = World::on_loopback(4, 1).remove(1);
    let peer = Peer { host: "node1".into(), pid: 4711 };
    let hello = Hello { nonce: [1; 32], ..Hello::new(&world, &peer, Channel::Data) };
    let beat = Beat { phase: Phase::Step, is_waiting: true, advanced: 17 };
    let failed = LinkError::Stalled { rank: 1, host: "node1".into(), pid: 4711, phase: Phase::Save, limit_secs: 600 };

    let mut frame = Vec::new();
    let parts: [&[u8]; 3] = [b"labels", b"", &[0; 40]];
    Header::new(Op::Exchange, 3, "slices").write(&mut frame, &parts).expect("memory");
    vec![
        ("hello", hello.encode(&world.secret, &GREETING)),
        ("go", encode(&Reply::Go(vec![peer.clone(); 4]))),
        ("refused", encode(&Reply::Refused("another version".into()))),
        ("beats", [Message::Beat(beat), Message::Failed(failed), Message::Bye].iter().flat_map(encode).collect()),
        ("frame", frame),
        ("facts", facts::encode(&[("seed".into(), "1".into())])),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_is_read_as_what_it_is() {
        let samples = samples();
        let of = |name: &str| {
            let found = samples.iter().find(|(other, _)| *other == name);
            found.unwrap_or_else(|| panic!("{name} is missing")).1.clone()
        };
        let signed = Hello::take(&mut of("hello")).expect("Kiln's").expect("whole");
        assert_eq!(signed.refusal(&World::on_loopback(4, 1)[0], &GREETING), None);
        assert!(matches!(read(&mut of("go").as_slice(), MAX_MESSAGE), Ok(Reply::Go(peers)) if peers.len() == 4));
        let mut beats = of("beats");
        for _ in 0..3 {
            assert!(take::<Message>(&mut beats, MAX_MESSAGE).expect("Kiln's").is_some());
        }
        assert!(Header::read(&mut of("frame").as_slice(), 4).is_ok());
        samples.iter().for_each(|(_, bytes)| read_foreign(bytes));
    }
}
