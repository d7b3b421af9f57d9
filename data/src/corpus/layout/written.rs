//! Lists that are written in a text, as cells of tables have them: the command that joins their parts.

use std::path::Path;

use serde_json::{Map, Value};

use super::RowReader;
use crate::corpus::jq::{self, fed, path_in_jq};
use crate::corpus::path::value_at;
use crate::corpus::template::RowTemplate;
use crate::corpus::text::Task;
use crate::corpus::values::written_texts;
use crate::formats::{CsvRows, FileFormat};

/// Whether a text is a list of several texts as Python writes it.
fn is_of_python(text: &str) -> bool {
    let inside = text.trim().strip_prefix("['").and_then(|text| text.strip_suffix("']"));
    inside.is_some_and(|inside| inside.contains("', '"))
}

impl RowReader<'_> {
    /// Warns of fields whose texts are lists with their brackets and quotes, and says how their parts are joined.
    pub(super) fn note_on_lists(
        &self,
        (file, format): (&Path, FileFormat),
        rows: &[Map<String, Value>],
    ) -> Option<String> {
        if self.task == Task::Tagging || self.text.is_chat() {
            return None;
        }
        let fields = self.fields_read().into_iter().filter(|field| **field != self.labels.label_field);
        let in_template =
            |field: &String| RowTemplate::of(field).map_or(Some(vec![field.clone()]), |found| found.fields());
        let fields: Vec<String> = fields.filter_map(in_template).flatten().collect();
        let most = |field: &String, is_one: &dyn Fn(&str) -> bool| {
            let texts: Vec<&str> = rows.iter().filter_map(|row| value_at(row, field)?.as_str()).collect();
            !texts.is_empty() && 2 * texts.iter().filter(|text| is_one(text)).count() > texts.len()
        };
        let of = |is_one: &dyn Fn(&str) -> bool| -> Vec<&String> {
            fields.iter().filter(|field| most(field, is_one)).collect()
        };
        let as_json = of(&|text| written_texts(text).is_some());
        let as_python = of(&is_of_python);

        let (named, command) = match (as_json.first(), as_python.first()) {
            (Some(_), _) => (&as_json, jq::command(file, format, &of_json(&as_json))),
            (None, Some(_)) => (&as_python, of_python(file, format, &as_python)?),
            (None, None) => return None,
        };
        let names: Vec<String> = named.iter().map(|name| format!("\"{name}\"")).collect();
        Some(format!(
            "warning: the texts in {} of {} are lists, and the model reads their brackets, quotes and escapes; to join the parts by spaces: \
             {command}\nand read rows.jsonl with the same flags",
            names.join(" and "),
            file.display()
        ))
    }
}

/// Returns the program of jq that joins lists of JSON.
fn of_json(fields: &[&String]) -> String {
    let of = |field: &&String| {
        let path = path_in_jq(&field.split('.').map(str::to_owned).collect::<Vec<_>>());
        format!("{path} = ({path} | (fromjson? // .) | if type == \"array\" then join(\" \") else . end)")
    };
    fields.iter().map(of).collect::<Vec<_>>().join(" | ")
}

/// Returns the command that joins lists of Python in a table; `None` for other files, and for names that need quoting.
fn of_python(file: &Path, format: FileFormat, fields: &[&String]) -> Option<String> {
    let is_table = [FileFormat::CSV, FileFormat::TSV].contains(&format);
    if !is_table || fields.iter().any(|field| field.contains(['\'', '"', '\\'])) {
        return None;
    }
    let options = CsvRows::options_of_python(file);
    let names: Vec<String> = fields.iter().map(|field| format!("\"{field}\"")).collect();
    let script = format!(
        "python3 -c 'import ast, csv, json\nfor row in csv.DictReader(open(0, encoding=\"utf-8-sig\", newline=\"\"){options}):\n  \
         for name in [{}]:\n    if row[name].strip().startswith(\"[\"): row[name] = \" \".join(map(str, ast.literal_eval(row[name])))\n  \
         print(json.dumps(row))'",
        names.join(", ")
    );
    Some(format!("{} > rows.jsonl", fed(file, &script)))
}
