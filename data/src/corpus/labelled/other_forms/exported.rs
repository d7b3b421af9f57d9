//! Files that other programs export: tables of Markdown and of Weka (ARFF), and lines with the words of a sentence and their tags, as ATIS has
//! them. How they become files that Kiln reads.

use std::path::Path;

use crate::corpus::jq::{fed, piped};
use crate::corpus::text::Task;

/// Lines from which it is not chance.
const ENOUGH_LINES: usize = 4;

/// Says how the lines of a file become a table or a CoNLL file; `None` for other lines.
pub(super) fn advice(path: &Path, lines: &[String], task: Task) -> Option<String> {
    let filled: Vec<&str> = lines.iter().map(|line| line.trim()).filter(|line| !line.is_empty()).collect();
    if filled.len() < ENOUGH_LINES {
        return None;
    }
    match task {
        Task::Tagging => tagged_lines(path, &filled),
        _ => markdown(path, &filled).or_else(|| arff(path, &filled)),
    }
}

fn markdown(path: &Path, lines: &[&str]) -> Option<String> {
    let is_row = |line: &&str| line.len() > 1 && line.starts_with('|') && line.ends_with('|');
    let is_rule = |line: &str| line.contains("--") && line.chars().all(|c| "|-: ".contains(c));
    if !lines.iter().all(is_row) || !is_rule(lines[1]) {
        return None;
    }
    let rows = piped(path, "grep -v '^|[-: |]*$'");
    let cells = "sed -E 's/\\r$//; s/\\t/ /g; s/^\\| *//; s/ *\\| *$//; s/ *\\| */\\t/g'";
    Some(format!("its lines are a table of Markdown: make columns of it, with {rows} | {cells} > rows.tsv"))
}

fn arff(path: &Path, lines: &[&str]) -> Option<String> {
    let begins = |start: &str| lines.iter().any(|line| line.to_lowercase().starts_with(start));
    if !begins("@attribute ") || !begins("@data") {
        return None;
    }
    let script = "python3 -c 'import csv, sys\nout, names, on = csv.writer(sys.stdout), [], False\nfor line in open(0, encoding=\"utf-8-sig\"):\n  \
                  if on and line.strip() and line[0] != \"%\": out.writerow(next(csv.reader([line.strip()], quotechar=chr(39), escapechar=\"\\\\\", \
                  skipinitialspace=True)))\n  elif line.lower().startswith(\"@attribute\"): names.append(line.split()[1].strip(chr(39) + \
                  chr(34)))\n  elif line.lower().startswith(\"@data\"): on = True; out.writerow(names)'";
    Some(format!("it is a table of Weka (ARFF): make a CSV of it, with {} > rows.csv", fed(path, script)))
}

/// Words of a sentence and as many tags in each line, with a tab between them.
fn tagged_lines(path: &Path, lines: &[&str]) -> Option<String> {
    let is_one = |line: &&&str| {
        let Some((words, tags)) = line.split_once('\t') else { return false };
        let n = words.split_whitespace().count();
        n > 1 && !tags.contains('\t') && n == tags.split_whitespace().count()
    };
    let n = lines.iter().filter(is_one).count();
    let has_tags = |line: &&str| line.split_once('\t').is_some_and(|(_, tags)| tags.split(' ').any(|tag| tag == "O"));
    if 10 * n < 9 * lines.len() || !lines.iter().any(has_tags) {
        return None;
    }
    let program = "awk -F'\\t' '{sub(/\\r$/, \"\"); n = split($1, word, \" \"); if (n == 0) next; if (n != split($2, tag, \" \")) {left++; next} for (i = \
                   1; i <= n; i++) if (word[i] != \"BOS\" && word[i] != \"EOS\") print word[i] \"\\t\" tag[i]; print \"\"} END {if (left) print left \
                   \" lines with other numbers of words and tags are left out\" > \"/dev/stderr\"}'";
    Some(format!(
        "its lines have the words of a sentence and their tags: make a line of each word, with {} > rows.conll",
        piped(path, program)
    ))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Returns what the printed command makes of a file; an empty text without its program, and `None` if nothing is said.
    fn made(text: &str, task: Task) -> Option<String> {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("it's.txt");
        std::fs::write(&file, text).expect("writable");
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let said = advice(&file, &lines, task)?;
        let (_, command) = said.split_once(", with ").expect("a command");
        let (command, _) = command.rsplit_once(" > rows.").expect("a command");
        let ran = Command::new("sh").args(["-c", command]).output().expect("a shell");
        assert!(ran.status.success() || ran.status.code() == Some(127), "{ran:?}");
        Some(String::from_utf8_lossy(&ran.stdout).into_owned())
    }

    #[test]
    fn exported_files_become_files_that_are_read() {
        let markdown = "| text | label |\n|:---|---:|\n| it's a|x |\n| so -- it is | y |\n".replace("a|x", "a | x");
        let arff =
            "@RELATION a\n@attribute 'text' string\n@ATTRIBUTE class {a,b}\n@DATA\n% a remark\n'it\\'s, so',a\nno, b\n";
        let atis = "BOS to Rome EOS\tO O B-city flight\n".repeat(12) + "BOS to\tO\n";
        for (text, task, wanted) in [
            (markdown.as_str(), Task::Classification, "text\tlabel\nit's a\tx\nso -- it is\ty\n"),
            (arff, Task::Classification, "text,class\r\n\"it's, so\",a\r\nno,b\r\n"),
            (atis.as_str(), Task::Tagging, "to\tO\nRome\tB-city\n\nto\tO\n"),
        ] {
            let Some(made) = made(text, task) else { panic!("nothing is said: {text}") };
            assert!(made.is_empty() || made.starts_with(wanted), "{made}");
        }
        for text in ["| a |\n| b |\n| c |\n| d |\n", "a b\tc d\n", "a b\tc d\nd\te\nf\tO\nx\ty\n"] {
            assert_eq!((made(text, Task::Classification), made(text, Task::Tagging)), (None, None), "{text}");
        }
    }
}
