//! Text files whose lines have two texts with a sign between them, such as a glossary (`AF = atrial fibrillation`). The command that makes a
//! table of them.

use std::path::Path;

use crate::corpus::jq::piped;
use crate::formats::LineReader;

/// Signs between two texts, the longest first.
const SIGNS: [&str; 9] = [" ||| ", " :: ", " => ", " -> ", " := ", " = ", " | ", "||", " : "];
/// Lines that are looked at.
const LINES: usize = 200;
/// Lines from which it is not chance.
const ENOUGH_LINES: usize = 5;
/// The share of lines with the sign, in percent.
const DIVIDED: usize = 95;

/// Returns the command that makes rows of the lines of a file, and the sign between their texts; `None` for other files.
pub(super) fn advice(path: &Path) -> Option<String> {
    let texts = LineReader::texts(path).ok()?.take(LINES);
    let mut lines = texts.map(|line| line.map(|line| line.trim().to_owned())).collect::<Result<Vec<_>, _>>().ok()?;
    lines.retain(|line| !line.is_empty());
    let n_of = |n: &dyn Fn(&str) -> bool| lines.iter().filter(|line| n(line) && !line.contains('\t')).count();
    let is_most = |n: usize| n >= ENOUGH_LINES && 100 * n >= DIVIDED * lines.len();
    let divides = |sign: &&str| is_most(n_of(&|line| line.contains(*sign)));

    // Two texts have one sign between them; as many others in each line divide a table.
    let divides_once = |sign: &&str| is_most(n_of(&|line| line.matches(*sign).count() == 1));
    let sign = SIGNS.into_iter().find(divides_once).or_else(|| SIGNS.into_iter().find(divides))?;
    let n_signs = lines.first()?.matches(sign).count();
    if n_signs > 1 && is_most(n_of(&|line| line.matches(sign).count() == n_signs)) {
        let program =
            format!("awk -v OFS='\\t' -F '{}' '{{sub(/\\r$/, \"\"); $1 = $1; print}}'", sign.replace('|', "[|]"));
        return Some(format!(
            "its lines have {} cells with {sign:?} between them, and a table is wanted\nto make one: {} > rows.tsv\nand train on rows.tsv",
            n_signs + 1,
            piped(path, &program)
        ));
    }
    let program = format!(
        "awk '{{sub(/\\r$/, \"\"); n = index($0, \"{sign}\")}} n {{print substr($0, 1, n - 1) \"\\t\" substr($0, n + {}); next}} NF {{left++}} \
         END {{if (left) print \"lines left out: \" left > \"/dev/stderr\"}}'",
        sign.len()
    );
    Some(format!(
        "its lines have two texts with {sign:?} between them, and a table is wanted\nto make one: {} > rows.tsv\nand train on rows.tsv",
        piped(path, &program)
    ))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn lines_with_a_sign_between_two_texts_become_rows() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("it's.txt");
        for sign in SIGNS {
            let text: String = (0..30).map(|n| format!("AF{n}{sign}flutter: or {n}\r\n")).collect();
            std::fs::write(&file, text).expect("writable");
            let said = advice(&file).expect(sign);
            let (_, command) = said.split_once("to make one: ").expect("a command");
            let (command, _) = command.split_once(" > rows.tsv").expect("a command");
            let Ok(ran) = Command::new("sh").args(["-c", command]).output() else { return };
            let rows = String::from_utf8_lossy(&ran.stdout).into_owned();
            assert!(
                rows.lines().next() == Some("AF0\tflutter: or 0") && rows.lines().count() == 30,
                "{command}: {rows}"
            );
        }
        for text in ["a text\nanother = one\n", "", "a = b\tc\n"] {
            std::fs::write(&file, text.repeat(9)).expect("writable");
            assert_eq!(advice(&file), None, "{text}");
        }
    }
}
