//! The compact protocol of Thrift, as far as it takes to check the claims of a Parquet file before memory is taken for them.
//!
//! See <https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md>.

/// The deepest nesting of structures.
const DEEPEST: usize = 32;

/// Reads values and compares each claim of a length with the bytes that are left.
pub(super) struct Thrift<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// What a field of a structure holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Field {
    /// Its number in the structure.
    pub(super) id: i16,
    /// Its value, if that is a whole number.
    pub(super) number: Option<i64>,
}

impl<'a> Thrift<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Returns the number of bytes read.
    pub(super) fn n_read(&self) -> usize {
        self.at
    }

    /// Reads a structure and passes each of its own fields to `each`. Returns `None` if it is damaged or longer than the bytes.
    pub(super) fn structure(&mut self, each: &mut dyn FnMut(Field)) -> Option<()> {
        self.structure_at(0, each)
    }

    fn structure_at(&mut self, depth: usize, each: &mut dyn FnMut(Field)) -> Option<()> {
        if depth > DEEPEST {
            return None;
        }

        let mut id: i16 = 0;
        loop {
            let header = self.byte()?;
            if header == 0 {
                return Some(());
            }
            let kind = header & 0x0f;
            id = match header >> 4 {
                0 => i16::try_from(self.zigzag()?).ok()?,
                step => id.checked_add(step.into())?,
            };

            let number = match kind {
                1 | 2 => None,
                3 => Some(i64::from(self.byte()? as i8)),
                4..=6 => Some(self.zigzag()?),
                kind => {
                    self.skip(kind, depth)?;
                    None
                }
            };
            each(Field { id, number });
        }
    }

    /// Skips a value. A Boolean in a list has a byte; a field that is a Boolean has none and is not skipped here.
    fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        match kind {
            1..=3 => drop(self.byte()?),
            4..=6 => drop(self.zigzag()?),
            7 => self.take(8)?,
            8 => {
                let len = self.varint()?;
                self.take(usize::try_from(len).ok()?)?;
            }
            9 | 10 => {
                let header = self.byte()?;
                let n = if header >> 4 == 15 { self.varint()? } else { u64::from(header >> 4) };
                self.skip_many(n, &[header & 0x0f], depth)?;
            }
            11 => {
                let n = self.varint()?;
                let kinds = if n == 0 { 0 } else { self.byte()? };
                self.skip_many(n, &[kinds >> 4, kinds & 0x0f], depth)?;
            }
            12 => self.structure_at(depth + 1, &mut |_| ())?,
            13 => self.take(16)?,
            _ => return None,
        }
        Some(())
    }

    /// Skips `n` times values of `kinds`. Each has a byte or more, which bounds the number by the bytes that are left.
    fn skip_many(&mut self, n: u64, kinds: &[u8], depth: usize) -> Option<()> {
        if n > (self.bytes.len() - self.at) as u64 || depth > DEEPEST {
            return None;
        }
        for _ in 0..n {
            kinds.iter().try_for_each(|kind| self.skip(*kind, depth + 1))?;
        }
        Some(())
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn take(&mut self, n: usize) -> Option<()> {
        let end = self.at.checked_add(n).filter(|end| *end <= self.bytes.len())?;
        self.at = end;
        Some(())
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn zigzag(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(bytes: &[u8]) -> Option<Vec<(i16, Option<i64>)>> {
        let mut found = Vec::new();
        let mut thrift = Thrift::new(bytes);
        thrift.structure(&mut |field| found.push((field.id, field.number)))?;
        assert_eq!(thrift.n_read(), bytes.len());
        Some(found)
    }

    #[test]
    fn fields_of_a_structure_are_found() {
        // 1: i32 = 0, 2: i32 = 300, 3: i32 = -1, 5: structure { 1: true }, 6: text, 7: list of two i32.
        let bytes = [0x15, 0, 0x15, 0xd8, 4, 0x15, 1, 0x2c, 0x11, 0, 0x18, 2, b'a', b'b', 0x19, 0x25, 2, 4, 0];
        let wanted = [(1, Some(0)), (2, Some(300)), (3, Some(-1)), (5, None), (6, None), (7, None)];
        assert_eq!(fields(&bytes).expect("a structure"), wanted);
        assert!((0..bytes.len()).all(|len| fields(&bytes[..len]).is_none()), "a part of it");
    }

    #[test]
    fn claims_are_compared_with_the_bytes() {
        for bytes in [
            &[0x18, 0xff, 0xff, 0xff, 0x7f, b'a', 0][..],
            &[0x19, 0xf5, 0xff, 0xff, 0x7f, 0, 0],
            &[0x1b, 0xff, 0x7f, 0x55, 0],
            &[0x1c; 100],
            &[0x19; 100],
            &[0x1e, 0],
        ] {
            assert_eq!(fields(bytes), None, "{bytes:?}");
        }
    }
}
