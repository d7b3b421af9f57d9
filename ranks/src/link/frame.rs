//! The frames of calls: a header that names the call, then the parts. Readers check every size before they allocate.

use std::io::{self, BufWriter, Read, Write};

use super::message::invalid;

/// Most bytes that a rank gives to a call.
pub(super) const MAX_CALL_BYTES: u64 = 1 << 36;

const MAGIC: [u8; 4] = *b"KLF1";
const FIXED: usize = 20;
const MAX_WHAT: usize = 200;

/// A part is read in pieces that at most double it, so that a false length allocates little.
const FIRST_PIECE: usize = 4 << 20;

/// The shape of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    /// One part for all ranks.
    Gather,
    /// One part for each rank.
    Exchange,
}

/// The header of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) op: Op,
    /// Number of the call on its rank, from 1.
    pub(super) call: u64,
    /// The caller's name of the call.
    pub(super) what: String,
    /// Bytes of each part.
    pub(super) lengths: Vec<u64>,
}

impl Header {
    pub(super) fn new(op: Op, call: u64, what: &str) -> Self {
        let what = what[..what.floor_char_boundary(MAX_WHAT)].to_owned();
        Self { op, call, what, lengths: Vec::new() }
    }

    /// Whether two ranks are in the same call.
    pub(super) fn is_same_call(&self, other: &Header) -> bool {
        (self.op, self.call, &self.what) == (other.op, other.call, &other.what)
    }

    /// Writes a frame.
    pub(super) fn write(&self, writer: impl Write, parts: &[&[u8]]) -> io::Result<()> {
        // Small parts travel in one packet, large ones are not copied.
        let mut writer = BufWriter::with_capacity(64 << 10, writer);
        let n_parts = u32::try_from(parts.len()).map_err(|_| invalid("too many parts"))?;
        writer.write_all(&MAGIC)?;
        writer.write_all(&[self.op as u8, self.what.len() as u8, 0, 0])?;
        writer.write_all(&n_parts.to_le_bytes())?;
        writer.write_all(&self.call.to_le_bytes())?;
        writer.write_all(self.what.as_bytes())?;
        for part in parts {
            writer.write_all(&(part.len() as u64).to_le_bytes())?;
        }

        for part in parts {
            writer.write_all(part)?;
        }
        writer.flush()
    }

    /// Reads the header of a frame of at most `max_parts` parts.
    ///
    /// # Errors
    /// If the bytes are not a frame, or name too many parts or bytes.
    pub(super) fn read(reader: &mut impl Read, max_parts: usize) -> io::Result<Self> {
        let mut fixed = [0; FIXED];
        reader.read_exact(&mut fixed)?;
        let (magic, rest) = fixed.split_at(MAGIC.len());
        let op = match rest[0] {
            _ if magic != MAGIC => return Err(invalid("bytes that are not a frame")),
            0 => Op::Gather,
            1 => Op::Exchange,
            other => return Err(invalid(format!("a frame of kind {other}"))),
        };
        let what_length = usize::from(rest[1]);
        let n_parts = u32::from_le_bytes(rest[4..8].try_into().expect("4 bytes")) as usize;
        let call = u64::from_le_bytes(rest[8..16].try_into().expect("8 bytes"));
        if what_length > MAX_WHAT || n_parts > max_parts {
            return Err(invalid(format!("a frame of {n_parts} parts")));
        }

        let mut names = vec![0; what_length + 8 * n_parts];
        reader.read_exact(&mut names)?;
        let (what, lengths) = names.split_at(what_length);
        let what = String::from_utf8(what.to_vec()).map_err(|_| invalid("a frame without a name"))?;
        let lengths: Vec<u64> =
            lengths.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes"))).collect();
        let total = lengths.iter().try_fold(0u64, |sum, length| sum.checked_add(*length));
        match total {
            Some(total) if total <= MAX_CALL_BYTES => Ok(Self { op, call, what, lengths }),
            _ => Err(invalid(format!("a frame of more than {MAX_CALL_BYTES} bytes"))),
        }
    }

    /// Reads the parts of the frame whose header this is.
    pub(super) fn read_parts(&self, reader: &mut impl Read) -> io::Result<Vec<Vec<u8>>> {
        self.lengths.iter().map(|length| read_part(reader, *length)).collect()
    }
}

fn read_part(reader: &mut impl Read, length: u64) -> io::Result<Vec<u8>> {
    let length = usize::try_from(length).map_err(|_| invalid("a part beyond the address space"))?;
    let mut part = Vec::new();
    while part.len() < length {
        let piece = (length - part.len()).min(part.len().max(FIRST_PIECE));
        part.try_reserve_exact(piece).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        if reader.by_ref().take(piece as u64).read_to_end(&mut part)? < piece {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame() -> Vec<u8> {
        let mut bytes = Vec::new();
        let parts: [&[u8]; 3] = [b"one", b"", b"three"];
        Header::new(Op::Exchange, 7, "slices").write(&mut bytes, &parts).expect("memory");
        bytes
    }

    #[test]
    fn a_frame_is_read_as_it_was_written() {
        let bytes = frame();
        let mut reader = bytes.as_slice();
        let header = Header::read(&mut reader, 3).expect("a frame");
        assert_eq!((header.op, header.call, header.what.as_str()), (Op::Exchange, 7, "slices"));
        assert_eq!(header.read_parts(&mut reader).expect("parts"), [b"one".to_vec(), Vec::new(), b"three".to_vec()]);
        assert!(reader.is_empty());
        assert!(Header::read(&mut bytes.as_slice(), 2).is_err(), "more parts than ranks");
    }

    #[test]
    fn a_false_size_is_refused_before_memory_is_taken() {
        let read = |bytes: &[u8]| {
            let mut reader = bytes;
            let header = Header::read(&mut reader, usize::MAX)?;
            header.read_parts(&mut reader)
        };
        for cut in 0..frame().len() {
            assert!(read(&frame()[..cut]).is_err(), "cut at {cut}");
        }

        // The length of the first part lies behind the fixed bytes and the name.
        let at = FIXED + "slices".len();
        for (length, kind) in [
            (u64::MAX, io::ErrorKind::InvalidData),
            (MAX_CALL_BYTES + 1, io::ErrorKind::InvalidData),
            (MAX_CALL_BYTES - 8, io::ErrorKind::UnexpectedEof),
        ] {
            let mut bytes = frame();
            bytes[at..at + 8].copy_from_slice(&length.to_le_bytes());
            assert_eq!(read(&bytes).expect_err("too long").kind(), kind, "{length}");
        }
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        let header = Header::new(Op::Gather, 1, &"ä".repeat(200));
        assert_eq!(header.what.len(), MAX_WHAT);
    }
}
