//! Text files in which lines or blank lines do not divide documents: subtitles, sequences, games and mails. What they are, and the commands
//! that make plain text of them.

use std::path::Path;

use super::jq::{fed, kept_apart, piped};
use crate::formats::{LineReader, ending};

/// Lines that show what a file is.
const LINES: usize = 60;
/// A script that joins the subtitles of two files that are shown at the same time.
const JOIN: &str = concat!(
    r#"import json, re, sys"#,
    "\n",
    r#"secs = lambda time: sum(float(part) * 60 ** n for n, part in enumerate(reversed(time.replace(",", ".").split(":"))))"#,
    "\n",
    r#"def cues(name):"#,
    "\n",
    r#"  for block in re.split(r"\n\s*\n", open(name, encoding="utf-8-sig").read().replace("\r", "")):"#,
    "\n",
    r#"    found = re.search(r"([\d:.,]+) *--> *([\d:.,]+)[^\n]*\n(.+)", block, re.S)"#,
    "\n",
    r#"    if found: yield secs(found[1]), secs(found[2]), " ".join(re.sub(r"<[^>]*>|\{[^}]*\}", "", found[3]).split())"#,
    "\n",
    r#"one, other = (list(cues(name)) for name in sys.argv[1:])"#,
    "\n",
    r#"for start, end, text in one:"#,
    "\n",
    r#"  together = lambda cue: min(end, cue[1]) - max(start, cue[0])"#,
    "\n",
    r#"  best = max(other, key=together, default=None)"#,
    "\n",
    r#"  if best and 2 * together(best) > end - start: print(json.dumps({"src": text, "trg": best[2]}))"#,
);

/// The first line of a game and of a mail begin so.
const GAME: &str = "[Event ";
const MAIL: &str = "From ";

/// Lines between documents, each with the pattern that `awk` finds it with.
const DIVIDERS: [(&str, &str); 6] = [
    ("%", "^%$"),
    ("%%", "^%%$"),
    ("$$$$", "^[$][$][$][$]$"),
    ("</s>", "^<[/]s>$"),
    ("<|endoftext|>", "^<[|]endoftext[|]>$"),
    ("<|end_of_text|>", "^<[|]end_of_text[|]>$"),
];
/// Lines between documents from which they are not chance.
const ENOUGH_DIVIDERS: usize = 3;

/// What a text file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PlainForm {
    /// SubRip or WebVTT: numbers and times above each subtitle.
    Subtitles,
    /// SubViewer: a line with two times above each subtitle.
    TwoTimes,
    /// Lyrics with the time in front of each line.
    Lyrics,
    /// Advanced SubStation Alpha.
    Ass,
    /// Sequences over several lines below a line that begins with `>`.
    Fasta,
    /// Sequences with a quality, four lines each.
    Fastq,
    /// Games of chess: tags, a blank line and moves.
    Pgn,
    /// Mails, one after another.
    Mbox,
    /// Documents with a line between them, such as `%`.
    Divided(&'static str),
    /// Sentences with corrections: lines with `S` and `A` in front.
    M2,
}

/// Tells what a text file is by its first lines. `None` for other text, and for files that cannot be read.
pub(super) fn form_of(path: &Path) -> Option<PlainForm> {
    let texts = LineReader::texts(path).ok()?.take(LINES);
    let trimmed = |line: String| line.trim_start_matches('\u{feff}').trim_end().to_owned();
    let texts = texts.map(|line| line.map(trimmed));
    let lines = texts.collect::<Result<Vec<_>, _>>().ok()?;
    let filled: Vec<&str> = lines.iter().map(String::as_str).filter(|line| !line.trim().is_empty()).collect();
    let count = |is_one: &dyn Fn(&str) -> bool| filled.iter().filter(|line| is_one(line)).count();
    let first = *filled.first()?;
    let n = filled.len();

    let is_time = |text: &str| {
        let text = text.trim().split(' ').next().unwrap_or_default();
        text.contains(':')
            && text.len() >= 5
            && text.bytes().all(|byte| byte.is_ascii_digit() || b":.,".contains(&byte))
    };
    let arrow = |line: &str| line.split_once("-->").is_some_and(|(one, other)| is_time(one) && is_time(other));
    let two_times = |line: &str| {
        !line.contains(' ') && line.split_once(',').is_some_and(|(one, other)| is_time(one) && is_time(other))
    };
    let sung = |line: &str| {
        line.strip_prefix('[')
            .and_then(|line| line.split_once(']'))
            .is_some_and(|(time, _)| is_time(time) && time.contains('.'))
    };
    let edit = |line: &str| line.starts_with("A ") && line.matches("|||").count() > 3;
    let tag = |line: &str| line.starts_with('[') && line.ends_with("\"]") && line.contains(" \"");
    let residues =
        |line: &str| line.len() > 9 && line.bytes().all(|byte| byte.is_ascii_alphabetic() || b"*-".contains(&byte));
    // What the command of a form writes has it no more.
    let breaks = |start: &str| {
        let mut pairs = lines.iter().zip(&lines[1..]);
        pairs.any(|(line, next)| line.trim().is_empty() && !next.trim().is_empty() && !next.starts_with(start))
    };
    Some(match () {
        () if first == "[Script Info]" => PlainForm::Ass,
        () if count(&arrow) * 6 > n => PlainForm::Subtitles,
        () if count(&two_times) * 4 > n => PlainForm::TwoTimes,
        () if count(&sung) * 2 > n => PlainForm::Lyrics,
        () if first.starts_with(['>', ';']) && count(&residues) * 3 > n => PlainForm::Fasta,
        () if first.starts_with('@') && filled.get(2).is_some_and(|line| line.starts_with('+')) => PlainForm::Fastq,
        () if tag(first) && count(&tag) > 2 && breaks(GAME) => PlainForm::Pgn,
        () if first.starts_with("S ") && count(&edit) > 0 => PlainForm::M2,
        () if first.starts_with(MAIL) && count(&|line| line.starts_with("Subject: ")) > 0 && breaks(MAIL) => {
            PlainForm::Mbox
        }
        () => {
            let divides = |(divider, _): &(&str, &str)| count(&|line| line == *divider) >= ENOUGH_DIVIDERS;
            PlainForm::Divided(DIVIDERS.into_iter().find(divides)?.0)
        }
    })
}

impl PlainForm {
    /// Says what plain text takes from the file, and how its text alone is read.
    pub(super) fn note(self, path: &Path) -> String {
        if let Self::Divided(divider) = self {
            return divided(path, divider);
        }
        let is_in_files = "and read it with --set data.text.format=files";
        let by_blank_lines = "whose documents blank lines separate";
        let (what, program, then) = match self {
            Self::Subtitles => (
                "subtitles, numbers and times included",
                "sed -E '/-->/d; /^[0-9]+\\r?$/d; /^(WEBVTT|NOTE|STYLE|Kind:|Language:)/d; /^[[:space:]]*$/d; s/<[^>]*>//g'",
                is_in_files,
            ),
            Self::TwoTimes => {
                ("subtitles, times included", "sed -E '/^[0-9:.]+,[0-9:.]+\\r?$/d; /^[[:space:]]*$/d'", is_in_files)
            }
            Self::Lyrics => ("lyrics, times included", "sed -E 's/^(\\[[0-9:.]+\\])+ *//'", is_in_files),
            Self::Ass => (
                "subtitles, styles and times included",
                "sed -nE 's/^Dialogue:([^,]*,){9}//; T; s/\\{[^}]*\\}//g; s/\\\\N/ /g; p'",
                is_in_files,
            ),

            Self::Fasta => (
                "FASTA, whose sequences stand in several lines each, headers included",
                "awk '/^[>;]/ {if (s) print s; s = \"\"; next} {s = s $1} END {if (s) print s}'",
                "and read it with --set data.text.format=lines, a sequence per line",
            ),
            Self::Fastq => (
                "FASTQ, headers and qualities included",
                "awk 'NR % 4 == 2'",
                "and read it with --set data.text.format=lines, a sequence per line",
            ),
            Self::Pgn => (
                "games (PGN), whose tags and moves become documents of their own, since a blank line separates them",
                "awk '/^\\[Event / && n++ {print \"\"} NF'",
                by_blank_lines,
            ),
            Self::M2 => (
                "uncorrected sentences and their corrections (M2), which become documents together; as .m2, it is pairs without --task lm",
                "sed -n 's/^S //p'",
                "and read it with --set data.text.format=lines, a sentence per line",
            ),
            Self::Mbox => (
                "mails, whose paragraphs become documents of their own, headers included",
                "awk '/^From / && n++ {print \"\"} NF'",
                by_blank_lines,
            ),
            Self::Divided(_) => return String::new(),
        };
        let text = match self {
            Self::M2 => "the sentences before their correction",
            _ if then == is_in_files => "its text",
            _ => "whole ones",
        };
        let said = format!("{}: {what}; to learn {text}: {} > plain.txt, {then}", path.display(), piped(path, program));
        kept_apart(path, &said)
    }

    /// Whether only the division at blank lines breaks what belongs together.
    pub(super) fn is_of_blank_lines(self) -> bool {
        matches!(self, Self::Pgn | Self::Mbox | Self::Divided(_))
    }

    /// Says what two files of subtitles are, with the command that makes pairs of them; `None` for other text.
    pub(super) fn pairs([source, target]: [&Path; 2]) -> Option<String> {
        let are_subtitles = [source, target].iter().all(|path| form_of(path) == Some(Self::Subtitles));
        let is_packed = [source, target].iter().any(|path| ["gz", "zst", "xz"].contains(&ending(path).as_str()));
        let words = [source, target].map(crate::terminal::shell_path).join(" ");
        let said = format!(
            "to join subtitles that are shown at the same time: python3 -c '{JOIN}' {words} > rows.jsonl\nand train on rows.jsonl"
        );
        let command = match is_packed {
            true => "unpack them, and name the unpacked files to get the command that joins them".to_owned(),
            false => kept_apart(source, &kept_apart(target, &said)),
        };
        let found =
            "they are subtitles, whose lines are numbers and times, too, and whose breaks differ between languages";
        are_subtitles.then(|| format!("{found}\n{command}"))
    }
}

/// Says how documents with a line between them are read.
fn divided(path: &Path, divider: &str) -> String {
    let pattern = DIVIDERS.iter().find(|(line, _)| *line == divider).map_or("", |(_, pattern)| pattern);
    let program = format!("awk '{{sub(/\\r$/, \"\")}} /{pattern}/ {{print \"\"; next}} NF'");
    let said = format!(
        "{}: lines {divider:?} seem to divide its documents, and blank lines do so in their place; to learn whole ones: {} > plain.txt, whose \
         documents blank lines separate",
        path.display(),
        piped(path, &program)
    );
    kept_apart(path, &said)
}

/// Says how the text of a page with tags is taken out. Its paragraphs are divided by blank lines.
pub(super) fn text_of_page(page: &Path) -> String {
    let script = concat!(
        r#"import html, re; text = open(0, encoding="utf-8").read(); "#,
        r#"text = re.sub(r"(?is)<(script|style)\b.*?</\1>|<!--.*?-->", " ", text); "#,
        r#"text = re.sub(r"(?i)</(p|div|h[1-6]|li|tr|text|title|page|doc)>|<br */?>", "\n\n", text); "#,
        r#"lines = html.unescape(re.sub(r"<[^>]*>", " ", text)).splitlines(); "#,
        r#"print(re.sub(r"\n{3,}", "\n\n", "\n".join(" ".join(line.split()) for line in lines)).strip())"#,
    );
    let said = format!(
        "tags included; to learn from their text: {} > plain.txt, and read plain.txt in the place of the page",
        fed(page, &format!("python3 -c '{script}'"))
    );
    kept_apart(page, &said)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const SRT: &str =
        "1\n00:00:02,000 --> 00:00:03,500\nShe went <i>home</i>.\n\n2\n00:01:02,000 --> 00:01:03,000\nTwo\nlines\n\n";

    /// Each file with its form and the plain text that the command of its note makes.
    const FILES: [(&str, &str, PlainForm, &str); 12] = [
        (
            "a.txt",
            "A day.\n\nOr is it?\n%\nBuy.\n  - Sell\n%\nGo.\r\n%\r\nAt last 5 %.\n",
            PlainForm::Divided("%"),
            "A day.\nOr is it?\n\nBuy.\n  - Sell\n\nGo.\n\nAt last 5 %.\n",
        ),
        (
            "a.txt",
            "One.\n<|endoftext|>\nTwo.\n\nlines\n<|endoftext|>\nThree.\n<|endoftext|>\n",
            PlainForm::Divided("<|endoftext|>"),
            "One.\n\nTwo.\nlines\n\nThree.\n\n",
        ),
        (
            "a.m2",
            "S He go .\nA 1 2|||R:VERB|||goes|||REQUIRED|||-NONE-|||0\n\nS It is .\nA -1 -1|||noop|||-NONE-|||REQUIRED|||-NONE-|||0\n",
            PlainForm::M2,
            "He go .\nIt is .\n",
        ),
        ("a.fastq", "@r1\nACGT\n+\nIIII\n@r2\nTTGA\n+\nIIII\n", PlainForm::Fastq, "ACGT\nTTGA\n"),
        ("a.srt", SRT, PlainForm::Subtitles, "She went home.\nTwo\nlines\n"),
        ("a.txt", SRT, PlainForm::Subtitles, "She went home.\nTwo\nlines\n"),
        (
            "a.vtt",
            "WEBVTT\n\n00:01.000 --> 00:02.000\n<v Ann>She went.\n\n00:03.000 --> 00:04.000 align:start\nHome.\n",
            PlainForm::Subtitles,
            "She went.\nHome.\n",
        ),
        (
            "a.sbv",
            "0:00:01.000,0:00:02.000\nShe went.\n\n0:00:03.000,0:00:04.000\nHome.\n",
            PlainForm::TwoTimes,
            "She went.\nHome.\n",
        ),
        ("a.lrc", "[00:12.00]She went\n[00:15.30]home\n", PlainForm::Lyrics, "She went\nhome\n"),
        (
            "a.fasta",
            ">sp|P1|X a protein\nMKTAYIAKQR\nQISFVKSHFS\n>sp|P2\nMKVLAAGGQQ\n",
            PlainForm::Fasta,
            "MKTAYIAKQRQISFVKSHFS\nMKVLAAGGQQ\n",
        ),
        (
            "a.pgn",
            "[Event \"A\"]\n[White \"x\"]\n[Result \"1-0\"]\n\n1. e4 e5\n2. d4 1-0\n\n[Event \"B\"]\n[White \"y\"]\n[Result \"1-0\"]\n\n1. c4 1-0\n",
            PlainForm::Pgn,
            "[Event \"A\"]\n[White \"x\"]\n[Result \"1-0\"]\n1. e4 e5\n2. d4 1-0\n\n[Event \"B\"]\n[White \"y\"]\n[Result \"1-0\"]\n1. c4 1-0\n",
        ),
        (
            "a.mbox",
            "From x@a Mon Jan 1\nSubject: hello\n\nDear y,\n\nbye\n\nFrom y@a Tue Jan 2\nSubject: re\n\nno\n",
            PlainForm::Mbox,
            "From x@a Mon Jan 1\nSubject: hello\nDear y,\nbye\n\nFrom y@a Tue Jan 2\nSubject: re\nno\n",
        ),
    ];

    #[test]
    fn the_command_of_each_form_makes_plain_text_of_it() {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text, form, plain) in FILES {
            let file = folder.path().join(name);
            std::fs::write(&file, text).expect("writable");
            assert_eq!(form_of(&file), Some(form), "{name}");
            let note = form.note(&file);
            let (_, command) = note.split_once(": ").and_then(|(_, rest)| rest.split_once(": ")).expect("a command");
            let (command, _) = command.split_once(" > plain.txt").expect("a command");
            let Ok(ran) = Command::new("sh").args(["-c", command]).output() else { return };
            assert_eq!(String::from_utf8_lossy(&ran.stdout), plain, "{name}: {command}");

            let own = folder.path().join("plain.txt");
            std::fs::write(&own, text).expect("writable");
            let note = form.note(&own);
            assert!(note.contains("> new-plain.txt") && !note.contains("> plain.txt"), "its own input: {note}");
            std::fs::write(&own, plain).expect("writable");
            assert_eq!(form_of(&own), None, "{name}: what the command writes needs no command");
        }
        for (name, text) in [
            ("b.txt", "A text.\n\nAnother --> one.\n12:30 is a time, 13:00 too.\n"),
            ("b.txt", "> a quotation\n> of a mail\n\nand an answer\n"),
            ("b.txt", "[Verse]\nAm  F  C\nShe went home\n"),
            ("b.txt", "From here on, all is text.\n"),
            ("b.txt", "It is 5 %\n5\n%\nof all\n"),
            ("b.txt", ""),
        ] {
            let file = folder.path().join(name);
            std::fs::write(&file, text).expect("writable");
            assert_eq!(form_of(&file), None, "{text}");
        }
    }

    #[test]
    fn the_text_of_a_page_has_no_tags() {
        let folder = tempfile::tempdir().expect("a folder");
        let page = folder.path().join("it's.xml");
        let text = "<page><title>Rome</title><style>p {}</style><text>A &amp; b\n<b>c</b>.</text></page><!-- x -->\n<p>Last</p>\n";
        std::fs::write(&page, text).expect("writable");
        let said = text_of_page(&page);
        let (_, command) = said.split_once("their text: ").expect("a command");
        let (command, _) = command.split_once(" > plain.txt").expect("a command");
        let Ok(ran) = Command::new("sh").args(["-c", command]).output() else { return };
        if ran.status.code() == Some(127) {
            return;
        }
        assert_eq!(String::from_utf8_lossy(&ran.stdout), "Rome\n\nA & b\nc .\n\nLast\n", "{ran:?}");
    }

    #[test]
    fn subtitles_of_two_languages_are_joined_by_their_times() {
        let folder = tempfile::tempdir().expect("a folder");
        let [one, other] = ["it's.en.srt", "b.it.srt"].map(|name| folder.path().join(name));
        std::fs::write(&one, SRT).expect("writable");
        let italian = "1\n00:00:00,500 --> 00:00:01,000\nprima\n\n2\n00:00:02,100 --> 00:00:03,600\nÈ andata a casa.\n\n3\n00:01:02,100 --> 00:01:03,100\nDue righe\n";
        std::fs::write(&other, italian).expect("writable");
        let found = PlainForm::pairs([&one, &other]).expect("subtitles");
        let (_, command) = found.split_once("same time: ").expect("a command");
        let (command, _) = command.split_once(" > rows.jsonl").expect("a command");
        let Ok(ran) = Command::new("sh").args(["-c", command]).output() else { return };
        // Without Python there is nothing to run.
        if ran.status.code() == Some(127) {
            return;
        }
        let text = String::from_utf8_lossy(&ran.stdout).into_owned();
        let rows: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
        let pairs: Vec<[&str; 2]> =
            rows.iter().map(|row| ["src", "trg"].map(|side| row[side].as_str().expect("a text"))).collect();
        assert_eq!(pairs, [["She went home.", "È andata a casa."], ["Two lines", "Due righe"]], "{ran:?}");
        std::fs::write(&other, "una riga\n").expect("writable");
        assert_eq!(PlainForm::pairs([&one, &other]), None);
    }
}
