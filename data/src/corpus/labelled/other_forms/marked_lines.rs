//! Lines with a class in front of the text, such as `HUM:ind Who was he?`, and examples of intents as Rasa has them: how they become a table.

use std::collections::HashSet;
use std::path::Path;

use super::LabelConfig;
use crate::corpus::jq::piped;

/// Lines from which it is not chance.
const ENOUGH_LINES: usize = 8;
/// The share of lines with a class in front, in percent.
const MARKED: usize = 95;

/// Says how lines become a table; `None` for other lines.
pub(super) fn advice(path: &Path, lines: &[String], config: &LabelConfig) -> Option<String> {
    let (what, program, more) = of_rasa(lines).or_else(|| in_front(lines))?;
    let LabelConfig { label_field, text_field, .. } = config;
    let command =
        piped(path, &format!("awk 'BEGIN {{print \"{label_field}\\t{text_field}\"}} {{sub(/\\r$/, \"\")}} {program}'"));
    Some(format!("{what}: make a table of them, with {command} > rows.tsv{more}"))
}

/// A description, the program of `awk`, and what else to say.
type Found = (&'static str, String, String);

/// Examples of intents as Rasa has them, in YAML or Markdown. Entities in them stay as plain words.
fn of_rasa(lines: &[String]) -> Option<Found> {
    let has = |is_one: &dyn Fn(&str) -> bool| lines.iter().any(|line| is_one(line.trim_end()));
    let of_intent = |line: &str| line.trim_start().trim_start_matches("- ").starts_with("intent:");
    let is_yaml = has(&|line| line == "nlu:") && has(&of_intent);
    let is_markdown = has(&|line| line.starts_with("## intent:")) && has(&|line| line.starts_with("- "));
    if !is_yaml && !is_markdown {
        return None;
    }
    let unmarked = "while (match($0, /\\[[^]]*\\](\\([^)]*\\)|\\{[^}]*\\})/)) {word = substr($0, RSTART + 1); sub(/\\].*/, \"\", word); $0 = \
                    substr($0, 1, RSTART - 1) word substr($0, RSTART + RLENGTH)}";
    let print = format!("{{sub(/^[ \\t]*[-*] */, \"\"); gsub(/\\t/, \" \"); {unmarked}; print name \"\\t\" $0}}");
    let program = match is_yaml {
        true => format!(
            "/^[a-z_]+:/ {{on = /^nlu:/; name = \"\"; next}} /^ *- *(intent|synonym|regex|lookup):/ {{name = /^ *- *intent:/ ? $NF : \"\"; gsub(/\"/, \"\", name); \
             next}} on && name != \"\" && /^ *- / {print}"
        ),
        false => {
            format!(
                "/^##/ {{name = $2; if (sub(/^intent:/, \"\", name) == 0) name = \"\"; next}} name != \"\" && /^ *[-*] / {print}"
            )
        }
    };
    Some(("its lines are examples of intents, as Rasa has them", program, String::new()))
}

/// A class in front of each line: a number, or a word with a colon in it or behind it.
fn in_front(lines: &[String]) -> Option<Found> {
    let filled: Vec<&str> = lines.iter().map(|line| line.trim()).filter(|line| !line.is_empty()).collect();
    let is_part = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || "_-".contains(c));
    let is_class = |word: &str| match word.split_once(':') {
        Some((class, part)) => {
            is_part(class) && (part.is_empty() || is_part(part)) && word.contains(char::is_alphabetic)
        }
        None => word.trim_start_matches(['+', '-']).bytes().all(|byte| byte.is_ascii_digit()) && word.len() < 3,
    };

    let class = |line: &&str| {
        let (word, text) = line.split_once(' ')?;
        (is_class(word) && text.contains(' ') && !line.contains('\t')).then(|| word.to_owned())
    };
    let classes: Vec<String> = filled.iter().filter_map(class).collect();
    let distinct: HashSet<&String> = classes.iter().collect();
    let recur = distinct.len() > 1 && 4 * distinct.len() <= classes.len();
    if filled.len() < ENOUGH_LINES || 100 * classes.len() < MARKED * filled.len() || !recur {
        return None;
    }
    let program =
        "NF {name = $1; sub(/^ *[^ ]+ +/, \"\"); sub(/:$/, \"\", name); gsub(/\\t/, \" \"); print name \"\\t\" $0}";
    let has_parts = classes.iter().any(|class| class.split_once(':').is_some_and(|(_, part)| !part.is_empty()));
    let more = match has_parts {
        true => {
            "\nfor the part in front of the colon alone, write sub(/:.*/, \"\", name) in place of sub(/:$/, \"\", name)"
        }
        false => "",
    };
    Some(("its lines begin with a class", program.to_owned(), more.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Returns what the printed command makes of a file; an empty text without `awk`, and `None` if nothing is said.
    fn table(text: &str) -> Option<String> {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("it's.label");
        std::fs::write(&file, text).expect("writable");
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let said = advice(&file, &lines, &LabelConfig::default())?;
        let (_, command) = said.split_once("of them, with ").expect("a command");
        let (command, _) = command.split_once(" > rows.tsv").expect("a command");
        let ran = Command::new("sh").args(["-c", command]).output().expect("a shell");
        assert!(ran.status.success() || ran.status.code() == Some(127), "{ran:?}");
        Some(String::from_utf8_lossy(&ran.stdout).into_owned())
    }

    #[test]
    fn a_class_in_front_of_each_line_becomes_a_column() {
        let classes = [["HUM:ind", "NUM:date"], ["spam:", "ham:"], ["+1", "-1"], ["0", "4"]];
        for [one, other] in classes {
            let line = |n: usize| format!("{} Who was  {n} ?\r\n", if n.is_multiple_of(3) { one } else { other });
            let Some(made) = table(&(0..20).map(line).collect::<String>()) else { panic!("{one}") };
            let wanted = format!(
                "label\ttext\n{}\tWho was  0 ?\n{}\tWho",
                one.trim_end_matches(':'),
                other.trim_end_matches(':')
            );
            assert!(made.is_empty() || made.starts_with(&wanted) && made.lines().count() == 21, "{made}");
        }
        for text in [
            "How far is it ?\nWho was he ?\n",
            "12:30 it rained a lot\n12:40 and it snowed\n",
            "note: a b\n",
            "1 a b\n1 c d\n",
        ] {
            assert_eq!(table(&text.repeat(9)), None, "{text}");
        }
    }

    #[test]
    fn examples_of_rasa_become_texts_with_their_intents() {
        let yaml = "version: \"3.1\"\nnlu:\n- intent: greet\n  examples: |\n    - hi to [Rome](city) and [NY]{\"entity\": \"city\"}\n    - hello: you\n- \
                    synonym: Rome\n  examples: |\n    - Roma\n- intent: \"faq/ask\"\n  examples: |\n    - why?\nstories:\n- story: a\n  steps:\n  - \
                    intent: greet\n  - action: utter\n";
        let markdown = "## intent:greet\n- hi to [Rome](city) and [NY]{\"entity\": \"city\"}\n- hello: you\n\n## synonym:Rome\n- Roma\n\n## \
                        intent:faq/ask\n- why?\n";
        for text in [yaml, markdown] {
            let made = table(text).expect("examples of Rasa");
            let wanted = "label\ttext\ngreet\thi to Rome and NY\ngreet\thello: you\nfaq/ask\twhy?\n";
            assert!(made.is_empty() || made == wanted, "{made}");
        }
    }
}
