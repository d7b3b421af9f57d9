//! Text in another encoding than UTF-8: which command converts it, as far as its bytes tell.

use std::path::Path;

use super::line_reader::LineReader;

/// Lines that are searched for letters beyond ASCII, and lines with such letters that show the encoding.
const MOST_LINES: usize = 100_000;
const ENOUGH_LINES: usize = 50;
/// Letters in succession from which text is not in a Western European language, where most letters are ASCII.
const LONG_RUN: usize = 3;

/// Returns how a file with a line of these `bytes` becomes UTF-8.
pub fn way_to_utf8(bytes: &[u8]) -> String {
    way_of_lossy(&String::from_utf8_lossy(bytes))
}

/// Does the same as [`way_to_utf8`] for a text whose wrong bytes were replaced.
pub(crate) fn way_of_lossy(text: &str) -> String {
    if is_western(text) {
        return "convert the file, for example with `iconv -f cp1252 -t utf-8`".to_owned();
    }
    "convert the file from its own encoding, with `iconv -f ENCODING -t utf-8`; ENCODING is cp1251 or koi8-r for Cyrillic, gb18030 for \
     Chinese, shift_jis for Japanese, euc-kr for Korean or cp1253 for Greek; look at the result, because a wrong one makes other letters"
        .to_owned()
}

/// Whether a file is in a Western European encoding: none of its first letters beyond ASCII is UTF-8.
pub(crate) fn is_western_file(path: &Path) -> bool {
    let Ok(lines) = LineReader::texts(path) else { return false };
    let lines = lines.take(MOST_LINES).map_while(Result::ok).filter(|line| !line.is_ascii());
    let text = lines.take(ENOUGH_LINES).collect::<Vec<_>>().join("\n");
    let others = text.chars().filter(|c| !c.is_ascii());
    !text.is_empty() && others.clone().all(|c| c == char::REPLACEMENT_CHARACTER) && is_western(&text)
}

/// Whether wrong bytes stand one by one between ASCII letters.
fn is_western(text: &str) -> bool {
    let (mut n_long, mut n_short) = (0, 0);
    for word in text.split(|c: char| c.is_ascii() && !c.is_ascii_alphanumeric()) {
        let is_whole = word.chars().all(|c| !c.is_ascii());
        for run in word.split(|c: char| c.is_ascii()).filter(|run| !run.is_empty()) {
            let n = run.chars().count();
            let n_wrong = run.chars().filter(|c| *c == char::REPLACEMENT_CHARACTER).count();
            // Text in UTF-8 may have a single wrong byte.
            if 3 * n_wrong < n {
                continue;
            }
            let is_long = n >= LONG_RUN || n > 1 && is_whole;
            *(if is_long { &mut n_long } else { &mut n_short }) += n;
        }
    }
    let n_letters = text.chars().filter(char::is_ascii_alphabetic).count();
    n_long <= n_short && n_long + n_short <= n_letters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_fits_the_bytes() {
        let western: [&[u8]; 4] = [
            b"Citt\xe0 d'Italia",
            b"\xc9l\xe8ve \xe0 l'\xe9cole",
            b"M\xfcnchen \x84so\x85\x93 gut",
            "das \u{201e}Wort\u{201c} Wasser".as_bytes(),
        ];
        for bytes in western {
            assert!(way_to_utf8(bytes).contains("iconv -f cp1252 -t utf-8"), "{bytes:?}");
        }
        let mixed = ["\u{41f}\u{440}\u{438}\u{432}\u{435}\u{442}, caf".as_bytes(), b"\xe9"].concat();
        assert!(way_to_utf8(&mixed).contains("cp1252"), "one wrong byte in UTF-8");

        let others: [&[u8]; 6] = [
            // Cyrillic in cp1251 and koi8-r, next to English and alone
            b"Updates were rejected\t\xce\xe1\xed\xee\xe2\xeb\xe5\xed\xe8\xff \xe1\xfb\xeb\xe8",
            b"yes\t\xe4\xe0",
            b"\xf0\xd2\xc9\xd7\xc5\xd4, \xcd\xc9\xd2",
            // Chinese, Japanese and Greek
            b"file\t\xce\xc4\xbc\xfe\xc3\xfb\xb3\xc6",
            b"\x83t\x83@\x83C\x83\x8b\x82\xf0\x8aJ\x82\xad",
            b"\xea\xe1\xeb\xe7\xec\xdd\xf1\xe1",
        ];
        for bytes in others {
            let way = way_to_utf8(bytes);
            assert!(!way.contains("cp1252") && way.contains("ENCODING"), "{bytes:?}: {way}");
        }
    }
}
