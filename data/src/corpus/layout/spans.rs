//! Labels of spans of characters: how a row has them, and the command that makes words with tags of them.

use std::path::Path;

use serde_json::{Map, Value};

use super::rejected;
use crate::corpus::jq::{self, fed, in_jq, piped};
use crate::corpus::path::value_at;
use crate::formats::{FileFormat, is_json_lines};

/// Names of the fields of a span with its first character, its end and its label.
const STARTS: [&str; 5] = ["start", "start_offset", "start_char", "begin", "begin_offset"];
const ENDS: [&str; 4] = ["end", "end_offset", "end_char", "stop"];
const LABELS: [&str; 12] = [
    "label",
    "tag",
    "type",
    "entity",
    "entity_type",
    "entity_group",
    "category",
    "class",
    "name",
    "labels",
    "tags",
    "hypertextlabels",
];

/// How a list has spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::corpus) enum SpanForm {
    /// `[0, 4, "NAME"]`
    Lists,
    /// `{"start": 0, "end": 4, "label": "NAME"}`, with the names of these three fields.
    Objects([&'static str; 3]),
    /// The same with a list of labels.
    Listed([&'static str; 3]),
    /// Without a label that is known.
    Other,
}

/// A list of spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::corpus) struct SpanList {
    /// The path to the list.
    list: String,
    /// The path from an element of the list to its span. Empty if the elements are spans.
    inner: String,
    form: SpanForm,
}

/// Whether the value is a span with a label. Tokens have places without labels.
pub(super) fn has_span(value: &Value) -> bool {
    span_form(value).is_some_and(|form| form != SpanForm::Other)
}

/// Returns how a value is a span of characters with a label, if it is one.
pub(super) fn span_form(value: &Value) -> Option<SpanForm> {
    match value {
        Value::Array(span) => {
            let is_span = span.len() == 3 && span[0].is_u64() && span[1].is_u64() && span[2].is_string();
            is_span.then_some(SpanForm::Lists)
        }
        Value::Object(span) => {
            let find = |names: &[&'static str], is_one: fn(&Value) -> bool| {
                names.iter().copied().find(|name| span.get(*name).is_some_and(is_one))
            };
            let (start, end) = (find(&STARTS, Value::is_u64)?, find(&ENDS, Value::is_u64)?);
            let label = find(&LABELS, Value::is_string).map(|label| SpanForm::Objects([start, end, label]));
            let listed = || find(&LABELS, |labels| labels.get(0).is_some_and(Value::is_string));
            let listed = || listed().map(|labels| SpanForm::Listed([start, end, labels]));
            Some(label.or_else(listed).unwrap_or(SpanForm::Other))
        }
        _ => None,
    }
}

/// Returns a path for `jq`.
fn in_jq_path(path: &str) -> String {
    let step = |name: &str| match name.parse::<usize>() {
        Ok(at) => format!("[{at}]"),
        Err(_) => {
            let step = in_jq(name);
            step.strip_prefix(".[").map_or(step.clone(), |quoted| format!("[{quoted}"))
        }
    };
    let steps: String = path.split('.').filter(|name| !name.is_empty()).map(step).collect();
    if steps.starts_with('[') { format!(".{steps}") } else { steps }
}

impl SpanList {
    pub(super) fn new(list: &str, inner: &str, form: SpanForm) -> Self {
        let inner = inner.trim_start_matches('.').to_owned();
        Self { list: list.to_owned(), inner, form }
    }

    /// Says how rows with spans of characters in the field `text` become words with tags. `rows` are the first ones of the file.
    pub(super) fn advice(&self, file: &Path, text: &str, rows: &[Map<String, Value>]) -> String {
        let is_simple = |name: &str| !name.contains(['.', '\'', '"', '{']);
        if self.form == SpanForm::Other || text.contains('{') {
            return "make words and as many tags of them, such as {\"tokens\": [\"Rome\"], \"tags\": [\"B-place\"]}"
                .to_owned();
        }
        let mark = rejected::field_of(rows);
        let field = &self.list;
        let each = match self.form {
            SpanForm::Lists if is_simple(field) => format!("a, b, t in row[\"{field}\"]"),
            SpanForm::Objects([start, end, label]) if is_simple(field) && self.inner.is_empty() => {
                format!("a, b, t in [(s[\"{start}\"], s[\"{end}\"], s[\"{label}\"]) for s in row[\"{field}\"]]")
            }
            _ => String::new(),
        };
        if !each.is_empty() && is_simple(text) {
            let is_array = !is_json_lines(file).unwrap_or(true);
            let rows = is_array.then(|| piped(file, "jq -c '.[]'"));
            return words_with_tags((text, &each), mark.as_deref(), rows, file);
        }

        let kept = mark.as_ref().map_or(String::new(), |mark| format!(", {mark}"));
        let program = self.program(&in_jq_path(text), rows, &kept);
        let rows = jq::command(file, FileFormat::JSON, &program).replace(" > rows.jsonl", "");
        words_with_tags(("text", IN_ENTITIES), mark.as_deref(), Some(rows), file)
    }

    /// Returns the program of jq that makes a row with `text`, which is an expression, and a list of spans as lists.
    fn program(&self, text: &str, rows: &[Map<String, Value>], kept: &str) -> String {
        let (list, inner) = (in_jq_path(&self.list), in_jq_path(&self.inner));
        let spans = match self.form {
            SpanForm::Lists | SpanForm::Other => list.clone(),
            SpanForm::Objects([start, end, label]) => {
                format!("[{list}[]{inner} | select(.{label}?) | [.{start}, .{end}, .{label}]]")
            }
            SpanForm::Listed([start, end, labels]) => {
                format!("[{list}[]{inner} | select(.{labels}?[0]) | [.{start}, .{end}, .{labels}[0]]]")
            }
        };
        // An annotator may have skipped a text.
        let annotation = self.list.find(".0.").map(|end| &self.list[..end + 2]);
        let skipped = annotation.map(|path| format!("{path}.was_cancelled"));
        let skipped = skipped.filter(|path| rows.iter().any(|row| value_at(row, path).is_some()));
        let skipped = skipped.map_or(String::new(), |path| format!(" and ({} | not)", in_jq_path(&path)));
        format!("select(({list} | type == \"array\"){skipped}) | {{text: {text}, entities: {spans}{kept}}}")
    }
}

/// Where new rows have their spans.
const IN_ENTITIES: &str = "a, b, t in row[\"entities\"]";

/// Says how texts without names in lists become words with tags, which have an object with the spans behind them: `program` makes a row
/// with a text and a list of spans of each.
pub(super) fn of_lists(file: &Path, program: &str) -> String {
    let rows = jq::command(file, FileFormat::JSON, program).replace(" > rows.jsonl", "");
    words_with_tags(("text", IN_ENTITIES), None, Some(rows), file)
}

/// Returns the command that makes words with tags of `rows`, which another command writes, or else of the lines of a file. The rows have
/// a `text`, and their spans are `each` of a list.
fn words_with_tags((text, each): (&str, &str), mark: Option<&str>, rows: Option<String>, file: &Path) -> String {
    let (skip, counted, said) = mark.map_or_else(Default::default, |mark| {
        let skip = format!(
            "  if str(row.get(\"{mark}\")).strip().lower() in {}: left += 1; continue\n",
            rejected::in_python()
        );
        let counted = format!("\nprint(\"rows left out by their {mark}:\", left, file=sys.stderr)");
        (skip, counted, format!(", without rows that \"{mark}\" rejects"))
    });
    let script = format!(
        "python3 -c 'import json, re, sys\nleft = 0\nfor line in sys.stdin:\n  row = json.loads(line)\n{skip}  \
         words = list(re.finditer(r\"\\w+|[^\\w\\s]\", row[\"{text}\"]))\n  tag = lambda w: next(((\"B-\" if w.start() == a else \
         \"I-\") + t for {each} if a <= w.start() < b), \"O\")\n  print(json.dumps({{\"tokens\": [w[0] for w in words], \"tags\": \
         [tag(w) for w in words]}})){counted}'"
    );
    let command = match rows {
        Some(rows) => format!("{rows} | {script}"),
        None => fed(file, &script),
    };
    format!("to make words with tags of them{said}:\n{command} > words.jsonl")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use serde_json::Value;

    use super::super::class_tests::refused;
    use crate::corpus::labelled::LabelConfig;
    use crate::corpus::text::Task;

    /// Returns the rows that the printed command makes of a file; none without Python and `jq`.
    fn words(name: &str, text: &str) -> Option<String> {
        let said = refused(name, text, Task::Tagging, &LabelConfig::default());
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join(name), text).expect("writable");
        let (_, command) =
            said.split_once("words with tags of them").unwrap_or_else(|| panic!("a command: {text}: {said}"));
        let (_, command) = command.split_once(":\n").expect("a command");
        let (command, _) = command.split_once(" > words.jsonl").expect("a command");
        let (begin, file) = command.rsplit_once(&format!("/{name}")).expect("the file");
        let (begin, _) = begin.rsplit_once([' ', '\'']).expect("a word");
        let ran = Command::new("sh")
            .args(["-c", &format!("{begin} {name}{file}")])
            .current_dir(folder.path())
            .output()
            .ok()?;
        assert!(ran.status.success() || ran.status.code() == Some(127), "{ran:?}: {command}");
        ran.status.success().then(|| String::from_utf8_lossy(&ran.stdout).into_owned())
    }

    const SPANS: [[&str; 3]; 2] = [["0", "4", "STAR"], ["16", "24", "CITY"]];

    fn spans(one: impl Fn(&[&str; 3]) -> String) -> String {
        format!("[{}]", SPANS.iter().map(one).collect::<Vec<_>>().join(", "))
    }

    #[test]
    fn spans_of_every_program_become_the_same_words_with_tags() {
        let text = "\"Vega rises over New York today.\"";
        let lists = spans(|[start, end, label]| format!("[{start}, {end}, \"{label}\"]"));
        let listed = |more: &str| {
            spans(|[start, end, label]| format!(r#"{{"start": {start}, "end": {end}, "labels": ["{label}"]{more}}}"#))
        };
        let within = spans(|[start, end, label]| {
            format!(
                r#"{{"id": "a", "type": "labels", "value": {{"start": {start}, "end": {end}, "text": "x", "labels": ["{label}"]}}}}"#
            )
        });
        let relation = within.replacen('[', r#"[{"type": "relation", "from_id": "a", "to_id": "b"}, "#, 1);
        let studio = |result: &str| {
            format!(
                r#"{{"id": 7, "annotations": [{{"id": 1, "result": {result}, "was_cancelled": false}}], "data": {{"text": {text}}}, "project": 1}}"#
            )
        };
        let cancelled = studio(&within).replace("false", "true");

        let entities = format!("[{text}, {{\"entities\": {lists}}}]");
        let rows = [
            studio(&within),
            format!("{}, {}, {cancelled}", studio(&within), studio(&relation)),
            format!("{{\"id\": 3, \"annotations\": [], \"data\": {{\"text\": {text}}}}}, {}", studio(&within)),
            format!("{{\"id\": 0, \"text\": {text}, \"label\": {}, \"annotator\": 1}}", listed("")),
            format!("{{\"data\": {text}, \"spans\": {}}}", listed(", \"text\": \"x\"")),
            format!("{{\"text\": {text}, \"annotation\": {{\"entities\": {lists}}}}}"),
            entities.clone(),
            entities.replace("entities", "spans"),
        ];
        let wanted = "\"tags\": [\"B-STAR\", \"O\", \"O\", \"B-CITY\", \"I-CITY\", \"O\", \"O\"]";
        let mut files: Vec<(&str, String)> = rows.iter().map(|rows| ("b.json", format!("[{rows}, {rows}]"))).collect();
        let is_one = |row: &&String| serde_json::from_str::<Value>(row).is_ok();
        files.extend(rows.iter().filter(is_one).map(|row| ("a.jsonl", format!("{row}\n{row}\n"))));
        files.push((
            "a.json",
            format!(
                "{{\"classes\": [\"STAR\", \"CITY\"], \"annotations\": [{entities}, null, {entities}, {entities}]}}"
            ),
        ));
        for (name, text) in files {
            let Some(made) = words(name, &text) else { return };
            assert!(made.lines().count() > 1 && made.lines().all(|line| line.contains(wanted)), "{text}\n{made}");
            let n_cancelled = text.matches("true").count();
            let n_texts =
                text.matches("rises").count() - n_cancelled - 2 * usize::from(text.contains("\"annotations\": []"));
            assert_eq!(made.lines().count(), n_texts, "{text}\n{made}");
        }
    }
}
