//! Damaged Parquet and Arrow files: named, without a panic, and without taking memory for what they claim.

use std::fs;
use std::path::Path;

use super::{FileFormat, Wanted};
use crate::error::Result;

const FILES: [&str; 6] = ["rows.parquet", "zstd.parquet", "plain.parquet", "rows.arrow", "zstd.arrow", "rows.feather"];

fn testdata(name: &str) -> Vec<u8> {
    fs::read(Path::new("testdata").join(name)).expect("written by make.py")
}

/// Reads a file to its end. Returns the number of its records and of their bytes.
fn read(path: &Path, wanted: &Wanted) -> Result<(u64, usize)> {
    let mut records = FileFormat::by_name(path).expect("a known ending").open(path, wanted)?;
    let (mut n_rows, mut n_bytes, mut json) = (0, 0, Vec::new());
    while records.next(&mut json)?.is_some() {
        serde_json::from_slice::<serde_json::Map<_, _>>(&json).expect("an object");
        (n_rows, n_bytes) = (n_rows + 1, n_bytes + json.len());
        json.clear();
    }
    Ok((n_rows, n_bytes))
}

/// Numbers from a seed (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }

    /// Changes some bytes of a file, or cuts it.
    fn damage(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(3) {
            let at = self.below(bytes.len());
            match self.below(5) {
                0 => bytes[at] ^= 1 << self.below(8),
                1 => bytes[at] = [0, 0x7f, 0x80, 0xff][self.below(4)],
                2 => bytes[at..].iter_mut().take(4).for_each(|byte| *byte = 0xff),
                3 => bytes[at..]
                    .iter_mut()
                    .take(8)
                    .zip([0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0])
                    .for_each(|(to, from)| *to = from),
                _ if self.below(8) == 0 => bytes.truncate(at.max(1)),
                _ => bytes[at] = self.below(256) as u8,
            }
        }
    }
}

#[test]
fn damaged_tables_are_named_and_nothing_panics() {
    let n_changes = 150;
    let folder = tempfile::tempdir().expect("a folder");
    let wanted = [Wanted::all(), Wanted::only(["translation.en".to_owned(), "tokens".into()])];
    for (seed, name) in (1..).zip(FILES) {
        let (whole, path) = (testdata(name), folder.path().join(name));
        let (mut numbers, mut n_refused) = (Numbers(0x9e37_79b9 * seed), 0);
        for number in 0..n_changes {
            let mut bytes = whole.clone();
            numbers.damage(&mut bytes);
            fs::write(&path, &bytes).expect("writable");
            if let Err(error) = read(&path, &wanted[number % 2]) {
                assert!(error.to_string().contains(name), "{error}");
                n_refused += 1;
            }
        }
        assert!(n_refused > n_changes / 4, "{name}: {n_refused} of {n_changes} are refused");
    }
}

#[test]
fn every_part_of_a_table_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in FILES {
        let (whole, path) = (testdata(name), folder.path().join(name));
        assert_eq!(read(Path::new("testdata").join(name).as_path(), &Wanted::all()).expect(name).0, 6);
        for len in (0..whole.len()).step_by(97) {
            fs::write(&path, &whole[..len]).expect("writable");
            // A stream that ends between two messages has lost rows without a trace. A footer is not read.
            if let Ok((n_rows, _)) = read(&path, &Wanted::all()) {
                assert!(n_rows == 6 || name == "rows.arrow", "{name} of {len} bytes");
            }
        }
    }
}

#[test]
fn what_cannot_be_read_is_named_with_a_remedy() {
    let folder = tempfile::tempdir().expect("a folder");
    let error = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).expect("writable");
        read(&path, &Wanted::all()).expect_err(name).to_string()
    };
    let text = error("b.parquet", &testdata("brotli.parquet"));
    assert!(text.contains("is compressed with BROTLI") && text.contains("write it with snappy"), "{text}");
    assert!(error("a.parquet", b"{}\n{}\n").contains("is not a Parquet file: it does not begin with PAR1"));
    assert!(error("a.arrow", b"{}\n{}\n").contains("is not an Arrow file"));
    let mut claim = testdata("rows.parquet");
    let len = claim.len();
    claim[len - 8..len - 4].copy_from_slice(&0x7fff_ffffu32.to_le_bytes());
    assert!(error("c.parquet", &claim).contains("it claims 2147483647 bytes of metadata"));
    let mut claim = testdata("rows.arrow");
    claim[4..8].copy_from_slice(&0x7fff_ffffu32.to_le_bytes());
    assert!(error("c.arrow", &claim).contains("message 1: it claims 2147483647 bytes of metadata"));
}
