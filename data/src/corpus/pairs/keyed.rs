//! Parallel files whose lines begin with the same key, such as a verse (`GEN 1:1`): the command that joins the texts by it.

use std::collections::HashSet;
use std::path::Path;

use crate::corpus::jq::kept_apart;
use crate::formats::{LineReader, ending};
use crate::terminal::shell_path;

/// Lines that are looked at.
const LINES: usize = 200;
/// Lines of files of different lengths: one of them may lack many.
const MOST_LINES: usize = 100_000;
/// Lines from which it is not chance.
const ENOUGH_LINES: usize = 8;
/// The share of lines with such a key, in percent.
const KEYED: usize = 90;
/// The same of the shorter one of two files of different lengths.
const KEYED_OF_SHORTER: usize = 60;
/// Characters of a key, at most.
const LONGEST: usize = 40;
/// Words of a key in front of a space, at most.
const MOST_WORDS: usize = 3;

/// Where a key ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Tab,
    /// Behind so many words, of which the last one has a digit.
    Words(usize),
}

impl End {
    /// Returns the key that the line begins with.
    fn key(self, line: &str) -> Option<&str> {
        let end = match self {
            Self::Tab => line.find('\t')?,
            Self::Words(n) => {
                let at = line.match_indices(' ').nth(n - 1)?.0;
                let last = line[..at].rsplit(' ').next()?;
                last.contains(|c: char| c.is_ascii_digit()).then_some(at)?
            }
        };
        let is_key = end > 0 && line[..end].chars().count() <= LONGEST && !line[end..].trim().is_empty();
        is_key.then(|| &line[..end])
    }

    /// Returns what `awk` finds it with, together with the white space behind it.
    fn pattern(self) -> String {
        match self {
            Self::Tab => "^[^\\t]*\\t".to_owned(),
            Self::Words(n) => format!("^{}", "[^ ]* ".repeat(n)),
        }
    }
}

fn first_lines(path: &Path, most: usize) -> Option<Vec<String>> {
    let texts = LineReader::texts(path).ok()?.take(most);
    let trimmed = |line: String| line.trim_start_matches('\u{feff}').trim_end().to_owned();
    let texts = texts.map(|line| line.map(trimmed));
    let lines: Vec<String> = texts.collect::<Result<_, _>>().ok()?;
    Some(lines.into_iter().filter(|line| !line.is_empty()).collect())
}

/// Returns where the keys of two files end, with the first one; `None` if less than `share` percent of the lines have one of their own.
fn keys(source: &[String], target: &[String], share: usize) -> Option<(End, String)> {
    let n = source.len().min(target.len());
    let ends = std::iter::once(End::Tab).chain((1..=MOST_WORDS).map(End::Words));
    ends.filter(|_| n >= ENOUGH_LINES).find_map(|end| {
        let of = |lines: &[String]| -> HashSet<String> {
            lines.iter().filter_map(|line| end.key(line).map(str::to_owned)).collect()
        };
        let (ours, theirs) = (of(source), of(target));
        let n_shared = ours.intersection(&theirs).count();
        let first = source.iter().filter_map(|line| end.key(line)).find(|key| theirs.contains(*key))?;
        (100 * n_shared >= share * n && are_keys(source, end)).then(|| (end, first.to_owned()))
    })
}

/// Whether bare numbers count the lines: others are words of the text, such as an amount.
fn are_keys(lines: &[String], end: End) -> bool {
    let numbers: Option<Vec<u64>> = lines.iter().filter_map(|line| end.key(line)).map(|key| key.parse().ok()).collect();
    end == End::Tab || numbers.is_none_or(|numbers| numbers.is_sorted())
}

/// Says that the lines of two files begin with keys, and how texts without them are joined. `None` for other files.
pub(super) fn note(files: [&Path; 2]) -> Option<String> {
    let (end, key) = keys(&first_lines(files[0], LINES)?, &first_lines(files[1], LINES)?, KEYED)?;
    let what = format!(
        "warning: the lines of {} and {} begin with the same keys, such as {key:?}, and the model learns to copy them",
        files[0].display(),
        files[1].display()
    );
    Some(joined(&what, end, files))
}

/// Says the same of two files of different lengths.
pub(super) fn of_different_lengths(files: [&Path; 2]) -> Option<String> {
    let [source, target] = files.map(|file| first_lines(file, MOST_LINES));
    let (end, key) = keys(&source?, &target?, KEYED_OF_SHORTER)?;
    let what = format!("lines of both begin with the same keys, such as {key:?}, and some have no partner");
    Some(joined(&what, end, files))
}

/// Adds to what is said of two files the command that joins their texts by keys.
fn joined(what: &str, end: End, [source, target]: [&Path; 2]) -> String {
    if [source, target].iter().any(|path| ["gz", "zst", "xz"].contains(&ending(path).as_str())) {
        return format!(
            "{what}: unpack the files, and name the unpacked ones to get the command that leaves the keys out"
        );
    }
    let files = [source, target].map(shell_path).join(" ");
    let said = format!(
        "{what}; to join the texts by their keys, without lines that have no partner: awk '{{sub(/\\r$/, \"\")}} !match($0, /{}/) {{left++; \
         next}} {{key = substr($0, 1, RLENGTH); text = substr($0, RLENGTH + 1); gsub(/\\t/, \" \", text)}} NR == FNR {{if (key in of) left++; \
         of[key] = text; next}} key in of {{print of[key] \"\\t\" text; delete of[key]; next}} {{left++}} END {{for (key in of) left++; if (left) \
         print \"lines left out: \" left > \"/dev/stderr\"}}' {files} > rows.tsv\nand train on rows.tsv",
        end.pattern()
    );
    kept_apart(source, &kept_apart(target, &said))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::corpus::pairs::{CorpusConfig, PairCorpus};

    /// Makes a line of its number and a text.
    type Row = fn(usize, &str) -> String;

    fn lines(row: impl Fn(usize) -> String) -> String {
        (1..=20).map(|n| row(n) + "\n").collect()
    }

    #[test]
    fn texts_are_joined_by_the_keys_in_front_of_them() {
        let cases: [(Row, &str); 4] = [
            (|n, text| format!("GEN 1:{n}\t{text}\tand more"), "GEN 1:1"),
            (|n, text| format!("GEN 1:{n} {text} and more"), "GEN 1:1"),
            (|n, text| format!("[{n}] {text} and more"), "[1]"),
            (|n, text| format!("b.GEN.1.{n}\t{text} and more\r"), "b.GEN.1.1"),
        ];
        for (row, key) in cases {
            let folder = tempfile::tempdir().expect("a folder");
            let [one, other] = ["it's.txt", "rows.tsv"].map(|name| folder.path().join(name));
            std::fs::write(&one, lines(|n| row(n, &format!("light {n}")))).expect("writable");
            // A verse is missing, so that the lines below it stand next to others.
            let target = lines(|n| if n == 19 { String::new() } else { row(n, &format!("Licht {n}")) });
            std::fs::write(&other, target.replace("\n\n", "\n")).expect("writable");
            let said = note([&one, &other]).expect(key);
            assert!(said.contains(&format!("such as {key:?}")), "{said}");

            let (_, command) = said.split_once("that have no partner: ").expect("a command");
            let (command, _) = command.split_once("\nand train on new-rows.tsv").expect("another name than its input");
            let Ok(ran) = Command::new("sh").args(["-c", command]).current_dir(folder.path()).output() else { return };
            assert!(ran.status.success(), "{ran:?}");
            let rows = std::fs::read_to_string(folder.path().join("new-rows.tsv")).expect("written");
            assert_eq!(rows.lines().count(), 19, "{rows}");
            assert_eq!(rows.lines().next(), Some("light 1 and more\tLicht 1 and more"), "{command}");
            assert_eq!(rows.lines().last(), Some("light 20 and more\tLicht 20 and more"), "{rows}");
        }
    }

    #[test]
    fn files_of_different_lengths_are_joined_by_their_keys() {
        let verse = |text: &'static str| move |n: usize| format!("Gen {}:{} {text} {n}", 1 + n / 9, 1 + n % 9);
        let number = |text: &'static str| move |n: usize| format!("{n}\t{text} {n}");
        let some = |row: &dyn Fn(usize) -> String, which: &dyn Fn(usize) -> bool| -> String {
            (0..400).filter(|n| which(*n)).map(|n| row(n) + "\n").collect()
        };
        // Some lines are missing here and there, a part in front, or a part at the end and others in between.
        let parts: [(&dyn Fn(usize) -> bool, usize); 3] =
            [(&|n| n % 50 != 7, 392), (&|n| n >= 260, 140), (&|n| n < 300 && !n.is_multiple_of(3), 200)];
        for (which, n_rows) in parts {
            for [source, target] in [
                [some(&verse("light"), &|_| true), some(&verse("lux"), which)],
                [some(&number("light"), which), some(&number("lux"), &|_| true)],
            ] {
                let folder = tempfile::tempdir().expect("a folder");
                let [one, other] = ["a.txt", "b.txt"].map(|name| folder.path().join(name));
                std::fs::write(&one, &source).expect("writable");
                std::fs::write(&other, &target).expect("writable");
                let entry = format!("{},{}", one.display(), other.display()).into();
                let corpus = PairCorpus::open(&[entry], &CorpusConfig::default()).expect("two files");
                let said = corpus.read_all().expect_err("different lengths").to_string();
                assert!(said.contains("differ in length") && said.contains("some have no partner"), "{said}");

                let (_, command) = said.split_once("that have no partner: ").expect("a command");
                let (command, _) = command.split_once("\nand train on rows.tsv").expect("a command");
                let Ok(ran) = Command::new("sh").args(["-c", command]).current_dir(folder.path()).output() else {
                    return;
                };
                assert!(
                    String::from_utf8_lossy(&ran.stderr).contains(&format!("left out: {}", 400 - n_rows)),
                    "{ran:?}"
                );
                let rows = std::fs::read_to_string(folder.path().join("rows.tsv")).expect("written");
                assert_eq!(rows.lines().count(), n_rows, "{command}");
                let fits = |row: &str| {
                    row.strip_prefix("light ").and_then(|row| row.split_once("\tlux ")).is_some_and(|(a, b)| a == b)
                };
                assert!(rows.lines().all(fits), "{rows}");
            }
        }
    }

    #[test]
    fn files_of_different_lengths_without_keys_get_no_command() {
        let folder = tempfile::tempdir().expect("a folder");
        let [one, other] = ["a.txt", "b.txt"].map(|name| folder.path().join(name));
        for [source, target] in [["light", "lux"], ["", ""], ["the 7 lights", "the 7 luces"]] {
            std::fs::write(&one, format!("{source} x\n").repeat(40)).expect("writable");
            std::fs::write(&other, format!("{target} y\n").repeat(30)).expect("writable");
            assert_eq!(of_different_lengths([&one, &other]), None, "{source}");
        }
    }

    #[test]
    fn lines_without_keys_of_their_own_are_left_alone() {
        for [source, target] in [
            [lines(|n| format!("light {n}")), lines(|n| format!("Licht {n}"))],
            [lines(|n| format!("{n} apples")), lines(|n| format!("mele: {n}"))],
            [lines(|n| format!("{} apples", n * 7 % 23)), lines(|n| format!("{} mele", n * 7 % 23))],
            [lines(|n| format!("the 7 lights {n}")), lines(|n| format!("the 7 Lichter {n}"))],
            [lines(|n| format!("chapter\ta {n}")), lines(|n| format!("chapter\tb {n}"))],
            [lines(|n| n.to_string()), lines(|n| n.to_string())],
            [String::new(), String::new()],
        ] {
            let folder = tempfile::tempdir().expect("a folder");
            let [one, other] = ["a", "b"].map(|name| folder.path().join(name));
            std::fs::write(&one, &source).expect("writable");
            std::fs::write(&other, &target).expect("writable");
            assert_eq!(note([&one, &other]), None, "{source} {target}");
        }
    }
}
