//! Files that are not text, recognized by their first bytes.

use std::path::Path;

use super::ending;
use crate::error::{Error, Result};
use crate::terminal::shell_path;

/// Ends what is said of files that are not text.
pub(crate) const OUT_OF_FOLDER: &str = "move it out of the named folder";

/// The bytes at the start of a file that are looked at.
const LOOKED_AT: usize = 8 << 10;

/// Tables that are read if the name tells the format.
const TABLES: [&str; 2] = ["a Parquet table", "an Arrow table"];

/// First bytes of usual formats, and what they belong to.
const FORMATS: [(&[u8], &str); 21] = [
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"RIFF", "a sound or an image"),
    (b"II*\0", "a TIFF image"),
    (b"%PDF-", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive or an office document"),
    (b"\xd0\xcf\x11\xe0", "an old office document"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ", "an xz archive"),
    (b"7z\xbc\xaf", "a 7z archive"),
    (b"\x7fELF", "a program"),
    (b"MZ", "a program"),
    (b"SQLite format 3", "an SQLite database"),
    (b"PAR1", TABLES[0]),
    (b"ARROW1", TABLES[1]),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x80\x04", "a Python pickle"),
    (b"GGUF", "a GGUF model"),
    (b"ID3", "a sound"),
    (b"OggS", "a sound"),
];

/// Refuses the file at `path`, which begins with `start`, if it is not UTF-8 text.
///
/// # Errors
///
/// If the file begins like UTF-16 or like a binary file, which the error names.
pub(crate) fn check_is_text(path: &Path, start: &[u8]) -> Result<()> {
    not_text(path, start).map_or(Ok(()), |problem| Err(Error::corpus(path, problem)))
}

/// Returns what is wrong with the file at `path` that begins with `start`, and what to do; `None` if it may be text.
fn not_text(path: &Path, start: &[u8]) -> Option<String> {
    let start = &start[..start.len().min(LOOKED_AT)];
    if is_utf16(start) {
        let ending = Some(ending(path)).filter(|ending| !ending.is_empty());
        let made = format!("utf8.{}", ending.as_deref().unwrap_or("txt"));
        let command = format!("iconv -f utf-16 -t utf-8 {} > {made}", shell_path(path));
        return Some(format!("is UTF-16, wanted UTF-8: convert it with {command}, and read {made}"));
    }

    // Text may begin with these letters, too.
    let n_nul = start.iter().filter(|byte| **byte == 0).count();
    let is_text = n_nul == 0 && std::str::from_utf8(start).map_or_else(|e| e.error_len().is_none(), |_| true);
    let format = FORMATS.iter().find(|(magic, _)| !is_text && start.starts_with(magic)).map(|(_, format)| *format);
    let format = format.or_else(|| is_safetensors(start).then_some("a file of weights (safetensors)"));
    // A single NUL can be a slip of a text; binary files are full of them.
    let format = format.or_else(|| (100 * n_nul > start.len()).then_some("a binary file"))?;
    let ending = [(TABLES[0], ".parquet"), (TABLES[1], ".arrow")].into_iter().find(|(table, _)| *table == format);
    // Spreadsheets are such documents.
    let to_save = if format.ends_with("office document") { "save a spreadsheet as CSV in UTF-8, or " } else { "" };
    Some(match ending {
        Some((_, ending)) => format!("looks like {format}, not like text: end its name in {ending}, or leave it out"),
        None => {
            format!("looks like {format}, not like text: {to_save}leave it out of the named files, or {OUT_OF_FOLDER}")
        }
    })
}

/// Whether the file begins with the length of a header in JSON, in eight bytes, and its brace. The long header hides the NULs.
fn is_safetensors(start: &[u8]) -> bool {
    let Some((length, header)) = start.split_first_chunk::<8>() else { return false };
    length.ends_with(&[0; 4]) && header.starts_with(b"{\"")
}

/// Whether the text begins with a byte order mark of UTF-16, or has a NUL in nearly every second byte.
fn is_utf16(start: &[u8]) -> bool {
    let n_nul = |odd: usize| start.iter().skip(odd).step_by(2).filter(|byte| **byte == 0).count();
    let (even, odd) = (n_nul(0), n_nul(1));
    start.starts_with(&[0xff, 0xfe])
        || start.starts_with(&[0xfe, 0xff])
        || (start.len() >= 4 && even.min(odd) == 0 && even.max(odd) * 5 > start.len() * 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary_files_are_named_by_their_kind() {
        let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01".as_slice();
        let weights = [b"\x90\x20\0\0\0\0\0\0{\"a\":{}".as_slice(), &b"\"b\":{},".repeat(999)].concat();
        for (start, wanted) in [
            (png, "looks like a PNG image, not like text: leave it out"),
            (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "looks like a PDF document"),
            (
                b"PK\x03\x04\x14\0\x06\0",
                "looks like a ZIP archive or an office document, not like text: save a spreadsheet as CSV in UTF-8, or leave it out",
            ),
            (b"PAR1\x15\x04\x15\0", "looks like a Parquet table, not like text: end its name in .parquet"),
            (b"\x01\x02\0\0\0\x05\0\0\0", "looks like a binary file"),
            (weights.as_slice(), "looks like a file of weights (safetensors), not like text: leave it out"),
            (b"GGUF\x03\0\0\0\x22\x01", "looks like a GGUF model"),
            (b"\xff\xfea\0b\0", "is UTF-16"),
            (b"a\0b\0c\0\n\0", "is UTF-16"),
            (b"\0a\0b\0c\0\n", "is UTF-16"),
        ] {
            let found = not_text(Path::new("a.csv"), start).unwrap_or_else(|| panic!("{wanted}: not found"));
            assert!(found.starts_with(wanted), "{found}");
        }
    }

    #[test]
    fn texts_are_texts_whatever_their_letters() {
        let one_nul = format!("{}\0{}", "letters ".repeat(50), "and more ".repeat(50));
        let cut = &"caffè".as_bytes()[..5];
        for text in ["", "GIF89a is a format", "BZh", "MZ.", "%PDF- text", "ID3 tags", one_nul.as_str()] {
            assert_eq!(not_text(Path::new("a.csv"), text.as_bytes()), None, "{text}");
        }
        assert_eq!(not_text(Path::new("a.csv"), cut), None, "a character that continues");
        assert_eq!(not_text(Path::new("a.csv"), b"caf\xe9 au lait"), None, "another encoding is a matter of rows");
    }
}
