//! The files in a ZIP archive without compression, as `torch.save` writes it (APPNOTE.TXT of PKWARE, version 6.3).

use std::collections::BTreeMap;

/// The end of the central directory.
const END: &[u8] = b"PK\x05\x06";
/// Its 64-bit form.
const END_64: &[u8] = b"PK\x06\x06";
/// Where the 64-bit form is.
const POINTER_64: &[u8] = b"PK\x06\x07";
/// An entry of the central directory.
const ENTRY: &[u8] = b"PK\x01\x02";
/// A file.
const FILE: &[u8] = b"PK\x03\x04";
/// Files that an archive may hold: far more than any model has tensors.
const MAX_FILES: u64 = 1 << 20;

/// The places of the files.
#[derive(Debug)]
pub(super) struct Archive {
    /// Start and length of each file.
    files: BTreeMap<String, (usize, usize)>,
}

impl Archive {
    pub(super) fn open(bytes: &[u8]) -> Result<Self, String> {
        if !bytes.starts_with(FILE) {
            return Err("is not a file of torch.save; load it in PyTorch and save it again".to_owned());
        }
        let cut_short = || "is cut short: its directory is not where it should be; download it again".to_owned();
        let (mut at, n) = directory(bytes).ok_or_else(cut_short)?;
        if n > MAX_FILES {
            return Err(format!("says that it holds {n} files, more than {MAX_FILES}; it is damaged"));
        }

        let mut files = BTreeMap::new();
        for _ in 0..n {
            let entry = Entry::read(bytes, at).ok_or_else(cut_short)?;
            at = entry.next;
            if entry.method != 0 || entry.stored != entry.len {
                return Err(format!("holds {:?} compressed, which torch.save never does; save it again", entry.name));
            }
            let start = contents(bytes, entry.header).ok_or_else(cut_short)?;
            let end = start.checked_add(entry.len).filter(|end| *end <= bytes.len()).ok_or_else(cut_short)?;
            files.insert(entry.name, (start, end - start));
        }
        Ok(Self { files })
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// Start and length of a file.
    pub(super) fn file(&self, name: &str) -> Option<(usize, usize)> {
        self.files.get(name).copied()
    }
}

/// An entry of the central directory.
struct Entry {
    name: String,
    method: u64,
    stored: usize,
    len: usize,
    /// Where the file's own header is.
    header: usize,
    /// Where the next entry is.
    next: usize,
}

impl Entry {
    fn read(bytes: &[u8], at: usize) -> Option<Self> {
        let fixed = bytes.get(at..at.checked_add(46)?)?;
        if !fixed.starts_with(ENTRY) {
            return None;
        }
        let [name_len, extra_len, comment_len] = [28, 30, 32].map(|at| number(fixed, at, 2).map(|n| n as usize));
        let (name_end, extra_len) = (at + 46 + name_len?, extra_len?);
        let name = std::str::from_utf8(bytes.get(at + 46..name_end)?).ok()?.to_owned();
        let mut extra = bytes.get(name_end..name_end + extra_len)?;

        // The length, the stored length and the place of the header; each may stand in the 64-bit extra field instead.
        let mut sizes = [number(fixed, 24, 4)?, number(fixed, 20, 4)?, number(fixed, 42, 4)?];
        while extra.len() >= 4 {
            let (id, len) = (number(extra, 0, 2)?, number(extra, 2, 2)? as usize);
            let mut field = extra.get(4..4 + len)?;
            if id == 1 {
                for size in sizes.iter_mut().filter(|size| **size == u64::from(u32::MAX)) {
                    *size = number(field, 0, 8)?;
                    field = field.get(8..)?;
                }
            }
            extra = &extra[4 + len..];
        }

        let [len, stored, header] = sizes.map(|size| usize::try_from(size).ok());
        let (len, stored, header) = (len?, stored?, header?);
        Some(Self {
            name,
            method: number(fixed, 10, 2)?,
            stored,
            len,
            header,
            next: name_end + extra_len + comment_len?,
        })
    }
}

/// The start of the central directory, and its number of entries.
fn directory(bytes: &[u8]) -> Option<(usize, u64)> {
    // A comment of at most 65,535 bytes may follow the 22 bytes of the end.
    let search = bytes.len().saturating_sub(22 + 65_535);
    let end = search + bytes[search..].windows(4).rposition(|window| window == END)?;
    let fixed = bytes.get(end..end.checked_add(22)?)?;
    let (mut start, mut n) = (number(fixed, 16, 4)?, number(fixed, 10, 2)?);
    if let Some(pointer) = end.checked_sub(20).filter(|at| bytes[*at..].starts_with(POINTER_64)) {
        let end = usize::try_from(number(bytes, pointer + 8, 8)?).ok()?;
        if !bytes.get(end..)?.starts_with(END_64) {
            return None;
        }
        (start, n) = (number(bytes, end.checked_add(48)?, 8)?, number(bytes, end.checked_add(32)?, 8)?);
    }
    Some((usize::try_from(start).ok()?, n))
}

/// Where the contents of the file begin whose header is at `at`.
fn contents(bytes: &[u8], at: usize) -> Option<usize> {
    if !bytes.get(at..)?.starts_with(FILE) {
        return None;
    }
    let lengths = number(bytes, at + 26, 2)? + number(bytes, at + 28, 2)?;
    Some(at + 30 + lengths as usize)
}

/// The little-endian number of `len` bytes at `at`.
fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let digits = bytes.get(at..at.checked_add(len)?)?;
    Some(digits.iter().rev().fold(0, |n, digit| n << 8 | u64::from(*digit)))
}
