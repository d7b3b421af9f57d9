//! Lines with a class in front of the text or behind it, such as `HUM:ind Who was he?` and `Profits rose.@positive`, and examples of intents
//! as Rasa has them: how they become a table.

use std::collections::HashSet;
use std::path::Path;

use super::LabelConfig;
use crate::corpus::fields::is_label;
use crate::corpus::jq::piped;

/// Lines from which it is not chance.
const ENOUGH_LINES: usize = 8;
/// The share of lines with a class in front, in percent.
const MARKED: usize = 95;
/// Signs between a text and its class, the surest first. Tabs divide a table.
const DIVIDERS: [&str; 7] = ["|||", "@", "|", "#", ";", ":", ","];
/// Longest name of a class, in bytes.
const LONGEST_CLASS: usize = 40;

/// Says how lines become a table; `None` for other lines.
pub(super) fn advice(path: &Path, lines: &[String], config: &LabelConfig) -> Option<String> {
    let (what, program, more) =
        of_rasa(lines).or_else(|| of_trees(lines)).or_else(|| in_front(lines)).or_else(|| divided(lines))?;
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

/// Trees in brackets with a class in front of each part, as in the Stanford Sentiment Treebank.
fn of_trees(lines: &[String]) -> Option<Found> {
    let filled: Vec<&str> = lines.iter().map(|line| line.trim()).filter(|line| !line.is_empty()).collect();
    let is_tree = |line: &&str| {
        let [b'(', class, b' ', ..] = line.as_bytes() else { return false };
        class.is_ascii_digit() && line.ends_with(')') && line.matches('(').count() == line.matches(')').count()
    };
    if filled.len() < ENOUGH_LINES || !filled.iter().all(is_tree) {
        return None;
    }
    let program = "NF {name = substr($1, 2); gsub(/\\([0-9] /, \"\"); gsub(/\\)/, \"\"); print name \"\\t\" $0}";
    Some(("its lines are trees with a class for each part", program.to_owned(), String::new()))
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
        let is_text = text.contains(' ') && text.contains(char::is_alphabetic);
        (is_class(word) && is_text && !line.contains('\t')).then(|| word.to_owned())
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

/// A class in front of each line or behind it, with a sign between the class and the text.
fn divided(lines: &[String]) -> Option<Found> {
    let filled: Vec<&str> = lines.iter().map(|line| line.trim()).filter(|line| !line.is_empty()).collect();
    let is_class = |part: &str| {
        let is_of_words = |c: char| c.is_alphanumeric() || "_- /".contains(c);
        !part.is_empty() && part.len() <= LONGEST_CLASS && part.chars().all(is_of_words) && part.split(' ').count() < 4
    };
    let are_classes = |parts: &[(&str, &str)]| {
        let fits = |(class, text): &&(&str, &str)| is_class(class) && text.contains(' ');
        let classes: Vec<&str> = parts.iter().filter(fits).map(|(class, _)| *class).collect();
        let n_distinct = classes.iter().collect::<HashSet<_>>().len();
        let recur = n_distinct > 1 && 4 * n_distinct <= classes.len();
        let n_texts = parts.iter().map(|(_, text)| text).collect::<HashSet<_>>().len();
        recur && 100 * classes.len() >= MARKED * filled.len() && 2 * n_texts > parts.len()
    };
    let divide = |divider: &str, is_behind: bool| {
        let parts = filled.iter().filter_map(|line| match is_behind {
            true => line.rsplit_once(divider).map(|(text, class)| (class.trim(), text.trim())),
            false => line.split_once(divider).map(|(class, text)| (class.trim(), text.trim())),
        });
        are_classes(&parts.collect::<Vec<_>>())
    };
    // Rows of a table have further columns, or names above them.
    let is_table = |divider: &str| {
        let n = filled.first().map_or(0, |line| line.matches(divider).count());
        let has_name = |line: &&str| line.split(divider).any(|cell| is_label(cell.trim()));
        let n_alike = filled.iter().filter(|line| line.matches(divider).count() == n).count();
        filled.first().is_some_and(has_name) || n > 1 && 10 * n_alike >= 9 * filled.len()
    };

    let candidates = DIVIDERS.into_iter().filter(|divider| filled.len() >= ENOUGH_LINES && !is_table(divider));
    let sides = candidates.flat_map(|divider| [(divider, true), (divider, false)]);
    let (divider, is_behind) = sides.into_iter().find(|(divider, is_behind)| divide(divider, *is_behind))?;
    let pattern: String = divider.chars().map(|c| if c == '|' { "[|]".to_owned() } else { c.to_string() }).collect();
    let program = match is_behind {
        true => {
            let n = divider.len();
            format!(
                "(n = split($0, part, /{pattern}/)) > 1 {{name = part[n]; text = substr($0, 1, length($0) - length(name) - {n})"
            )
        }
        false => format!(
            "(at = index($0, \"{divider}\")) > 0 {{name = substr($0, 1, at - 1); text = substr($0, at + {})",
            divider.len()
        ),
    };
    let program = format!(
        "{program}; gsub(/\\t/, \" \", text); gsub(/^ +| +$/, \"\", name); gsub(/^ +| +$/, \"\", text); print name \"\\t\" text}}"
    );
    let what = if is_behind { "its lines end with a class" } else { "its lines begin with a class" };
    Some((what, program, String::new()))
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
    fn a_class_behind_a_sign_becomes_a_column() {
        for divider in [" ||| ", "@", "|", ";", ": "] {
            for is_behind in [true, false] {
                let line = |n: usize| {
                    let text = format!("Sales of {n}, not less{}", if n % 3 == 1 { " by mail @home" } else { "" });
                    let class = ["up", "no change"][n % 2];
                    if is_behind { format!("{text}{divider}{class}\n") } else { format!("{class}{divider}{text}\n") }
                };
                let text: String = (0..20).map(line).collect();
                let Some(made) = table(&text) else { panic!("{text}") };
                let wanted = "label\ttext\nup\tSales of 0, not less\nno change\tSales of 1, not less by mail @home\n";
                assert!(made.is_empty() || made.starts_with(wanted) && made.lines().count() == 21, "{divider}: {made}");
            }
        }
        for text in ["a b|c|x\na d|c|y\n", "text|label\na b|x\na c|y\n", "he said: no\nshe said: yes it is\n"] {
            assert_eq!(table(&text.repeat(9)), None, "{text}");
        }
    }

    #[test]
    fn trees_become_texts_with_the_class_of_the_whole() {
        let made = table(&"(3 (2 It) (4 (2 's) (4 good)))\n(1 (2 A) (1 bore))\n".repeat(9)).expect("trees");
        assert!(made.is_empty() || made.starts_with("label\ttext\n3\tIt 's good\n1\tA bore\n"), "{made}");
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
