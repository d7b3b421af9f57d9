//! Compressed files: gzip, zstd and xz, recognized by their first bytes.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::Path;

use crate::error::{Error, Result};
use crate::files::open_file;

pub(super) const BUFFER_BYTES: usize = 1 << 18;
/// Memory that a decoder of xz may take. The largest preset of `xz`, -9, needs 65 MiB.
const XZ_MEMORY_KIB: u32 = 192 << 10;

/// Endings of names of compressed files.
const ENDINGS: [&str; 3] = [".gz", ".zst", ".xz"];

/// How a file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compression {
    Gzip,
    Zstd,
    Xz,
}

/// Returns how a file that begins with `start` is compressed.
fn compression(start: &[u8]) -> Option<Compression> {
    match start {
        [0x1f, 0x8b, ..] => Some(Compression::Gzip),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Compression::Zstd),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(Compression::Xz),
        _ => None,
    }
}

/// Whether a file is uncompressed.
///
/// # Errors
///
/// If it cannot be opened or read.
pub(crate) fn is_plain(path: &Path) -> Result<bool> {
    let file = open_file(path).map_err(Error::io(path, "opening the corpus"))?;
    let mut file = BufReader::with_capacity(64, file);
    Ok(compression(file.fill_buf().map_err(Error::io(path, "reading"))?).is_none())
}

/// Returns a name in lower case without the endings of compressed files.
pub(crate) fn without_endings(name: &str) -> &str {
    let mut stem = name;
    while let Some(shorter) = ENDINGS.iter().find_map(|ending| stem.strip_suffix(ending)) {
        stem = shorter;
    }
    stem
}

/// Opens a file, and decompresses it while it is read.
///
/// # Errors
///
/// If it cannot be opened or read.
pub(super) fn open(path: &Path) -> Result<Box<dyn BufRead + Send>> {
    let file: File = open_file(path).map_err(Error::io(path, "opening the corpus"))?;
    let mut file = BufReader::with_capacity(BUFFER_BYTES, file);
    let start = file.fill_buf().map_err(Error::io(path, "reading"))?;
    let decoder: Box<dyn Read + Send> = match compression(start) {
        None => return Ok(Box::new(file)),
        Some(Compression::Gzip) => Box::new(flate2::bufread::MultiGzDecoder::new(file)),
        Some(Compression::Zstd) => {
            Box::new(zstd::Decoder::with_buffer(file).map_err(Error::io(path, "starting to decompress"))?)
        }
        Some(Compression::Xz) => Box::new(lzma_rust2::XzReader::new_mem_limit(file, true, XZ_MEMORY_KIB)),
    };
    Ok(Box::new(BufReader::with_capacity(BUFFER_BYTES, Decompressed(decoder))))
}

/// Says of damage that it is damage.
struct Decompressed<R>(R);

impl<R: Read> Read for Decompressed<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read(bytes).map_err(|error| match error.kind() {
            // Of the machine, not of the file.
            _ if error.raw_os_error().is_some() => error,
            ErrorKind::OutOfMemory | ErrorKind::Interrupted => error,
            _ => {
                let found = format!("the compressed file is cut short or damaged ({error}): make or copy it again");
                io::Error::new(ErrorKind::InvalidData, found)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn read(path: &Path) -> Result<String> {
        let mut text = String::new();
        open(path)?.read_to_string(&mut text).map_err(Error::io(path, "reading"))?;
        Ok(text)
    }

    #[test]
    fn xz_is_read_and_damage_is_an_error() {
        let whole = fs::read("testdata/rows.jsonl.xz").expect("written by make.py");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rows");
        let of = |bytes: &[u8]| {
            fs::write(&path, bytes).expect("writable");
            read(&path)
        };
        let text = of(&whole).expect("whole");
        assert_eq!(text.lines().count(), 6);
        assert_eq!(of(&[&whole[..], &whole[..]].concat()).expect("two streams"), text.repeat(2));

        for len in 6..whole.len() {
            let error = of(&whole[..len]).expect_err("cut").to_string();
            assert!(error.contains("is cut short or damaged"), "{len} bytes: {error}");
        }
        // The check of a block finds what its decoder does not.
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            assert!(of(&bytes).is_err() || at < 6, "byte {at}");
        }
    }

    #[test]
    fn endings_of_compressed_files_are_left_out() {
        for name in ["a.tsv", "a.tsv.gz", "a.tsv.zst", "a.tsv.xz", "a.tsv.xz.gz"] {
            assert_eq!(without_endings(name), "a.tsv");
        }
    }
}
