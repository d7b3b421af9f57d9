//! Commands for the shell that write files anew, which messages offer.

use std::path::Path;

use serde_json::Value;

use crate::error::Error;
use crate::formats::{CsvRows, FileFormat, is_json_lines, is_western_file};
use crate::terminal::{shell_path, shell_word};

/// The program that makes UTF-8 of Western European text.
const TO_UTF8: &str = "iconv -f cp1252 -t utf-8";

/// Returns the path of a field for `jq`.
pub(super) fn in_jq(field: &str) -> String {
    let mut characters = field.chars();
    let is_name = characters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && characters.all(|other| other.is_ascii_alphanumeric() || other == '_');
    if is_name { format!(".{field}") } else { format!(".[{}]", Value::from(field)) }
}

/// Returns the path of a field inside of others for `jq`.
pub(super) fn path_in_jq(path: &[String]) -> String {
    let step = |name: &String| {
        let step = in_jq(name);
        step.strip_prefix(".[").map_or(step.clone(), |quoted| format!("[{quoted}"))
    };
    let steps: String = path.iter().map(step).collect();
    if steps.starts_with('[') { format!(".{steps}") } else { steps }
}

/// Returns the command that writes what `program` makes of each row of a file into `rows.jsonl`.
pub(super) fn command(file: &Path, format: FileFormat, program: &str) -> String {
    let is_table = [FileFormat::CSV, FileFormat::TSV].contains(&format);
    if !is_table && format != FileFormat::JSON {
        return format!("jq -c {} on its rows as JSON lines", shell_word(program));
    }
    let is_array = !is_table && !is_json_lines(file).unwrap_or(true);
    let program = shell_word(&if is_array { format!(".[] | {program}") } else { program.to_owned() });
    if !is_table {
        return format!("{} > rows.jsonl", piped(file, &format!("jq -c {program}")));
    }

    let options = CsvRows::options_of_python(file);
    let read = format!(
        "python3 -c 'import csv, json; [print(json.dumps(row)) for row in csv.DictReader(open(0, encoding=\"utf-8-sig\", \
         newline=\"\"){options})]'"
    );
    format!("{} | jq -c {program} > rows.jsonl", fed(file, &read))
}

/// Returns the command that writes what `program` makes of the list of all rows of a file into `rows.jsonl`.
pub(super) fn command_of_all(file: &Path, format: FileFormat, program: &str) -> String {
    let rows = command(file, format, ".");
    let is_array = format == FileFormat::JSON && !is_json_lines(file).unwrap_or(true);
    let program = shell_word(program);
    match (format == FileFormat::JSON, is_array) {
        (true, true) => format!("{} > rows.jsonl", piped(file, &format!("jq -c {program}"))),
        (true, false) => format!("{} > rows.jsonl", piped(file, &format!("jq -cs {program}"))),
        // The rows of other formats come from another program.
        (false, _) => rows.replace("jq -c '.'", &format!("jq -cs {program}")),
    }
}

/// Returns what is said of a file, so that no command in it writes into the file that it reads.
pub(super) fn kept_apart(file: &Path, said: &str) -> String {
    let Some(name) = file.file_name().map(|name| name.to_string_lossy()) else { return said.to_owned() };
    let [own, new] = [name.to_string(), format!("new-{name}")].map(|name| shell_path(Path::new(&name)));
    if !["\n", " ", ",", ";", ")"].iter().any(|end| format!("{said}\n").contains(&format!("> {own}{end}"))) {
        return said.to_owned();
    }
    ["> ", "read ", "train on "]
        .iter()
        .fold(said.to_owned(), |said, before| said.replace(&format!("{before}{own}"), &format!("{before}{new}")))
}

/// Returns an error about a file, so that no command in it writes into this file.
pub(super) fn with_other_output(error: Error) -> Error {
    match error {
        Error::Corpus { path, problem } => Error::Corpus { problem: kept_apart(&path, &problem), path },
        other => other,
    }
}

/// Returns the command that passes the text of a file to a `program`, which reads stdin or a file.
pub(super) fn piped(file: &Path, program: &str) -> String {
    match unpack(file) {
        Some(unpack) if program == "cat" => unpack,
        Some(unpack) => format!("{unpack} | {program}"),
        None => format!("{program} {}", shell_path(file)),
    }
}

/// Returns the command that lets a `program` read the text of a file from stdin.
pub(super) fn fed(file: &Path, program: &str) -> String {
    match unpack(file) {
        Some(unpack) => format!("{unpack} | {program}"),
        None => format!("{program} < {}", shell_path(file)),
    }
}

/// Returns the command that unpacks a compressed file and turns another encoding into UTF-8. `None` for other files.
fn unpack(file: &Path) -> Option<String> {
    let name = file.to_string_lossy().to_ascii_lowercase();
    let packed = [(".gz", "gzip"), (".zst", "zstd"), (".xz", "xz")].into_iter().find(|(end, _)| name.ends_with(end));
    let unpacked = packed.map(|(_, program)| format!("{program} -dc {}", shell_path(file)));
    if !is_western_file(file) {
        return unpacked;
    }
    Some(match unpacked {
        Some(unpacked) => format!("{unpacked} | {TO_UTF8}"),
        None => format!("{TO_UTF8} {}", shell_path(file)),
    })
}
