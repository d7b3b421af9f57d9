//! Columns of Arrow as records: one row of a batch as a JSON object.

use std::collections::HashMap;
use std::io::Write;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, Float16Type, Float32Type, Float64Type, Int8Type,
    Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::DataType;

use super::{Wanted, write_string};

/// The deepest nesting of lists and structures.
const DEEPEST: usize = 32;
/// The longest record.
const MAX_RECORD_BYTES: usize = 64 << 20;

/// Names of classes by the column that has their numbers, as `datasets` stores them in the metadata of a file.
#[derive(Debug, Default)]
pub(super) struct ClassNames(HashMap<String, Vec<String>>);

impl ClassNames {
    /// Key of the metadata of `datasets`.
    pub(super) const ENTRY: &str = "huggingface";

    /// Reads the entry [`Self::ENTRY`] of a file's metadata.
    pub(super) fn of(entry: Option<&String>) -> Self {
        let names_of = |text: &String| {
            let json: serde_json::Value = serde_json::from_str(text).ok()?;
            let features = json.get("info")?.get("features")?.as_object()?.clone();
            let columns = features.into_iter().filter_map(|(name, feature)| Some((name, Self::of_feature(&feature)?)));
            Some(columns.collect())
        };
        Self(entry.and_then(names_of).unwrap_or_default())
    }

    /// Returns the names of a class label, or of a list of class labels.
    fn of_feature(feature: &serde_json::Value) -> Option<Vec<String>> {
        let inner = feature.get("feature").or_else(|| feature.as_array()?.first()).unwrap_or(feature);
        if inner.get("_type")?.as_str()? != "ClassLabel" {
            return None;
        }
        inner.get("names")?.as_array()?.iter().map(|name| name.as_str().map(str::to_owned)).collect()
    }
}

/// The rows of a batch, one after another.
pub(super) struct BatchRows {
    columns: Vec<(String, ArrayRef)>,
    n_rows: usize,
    next: usize,
}

impl BatchRows {
    /// Takes the columns of `batch` that hold the wanted fields.
    pub(super) fn new(batch: &RecordBatch, wanted: &Wanted) -> Self {
        let schema = batch.schema();
        let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        let columns = wanted.columns(&names).into_iter().map(|at| (names[at].to_owned(), batch.column(at).clone()));
        Self { columns: columns.collect(), n_rows: batch.num_rows(), next: 0 }
    }

    /// Appends the next row to `json`. Returns `false` after the last one.
    ///
    /// # Errors
    ///
    /// If the row is nested too deeply or too long.
    pub(super) fn next(&mut self, json: &mut Vec<u8>, names: &ClassNames) -> Result<bool, String> {
        if self.next == self.n_rows {
            return Ok(false);
        }
        let row = self.next;
        self.next += 1;
        let mut writer = Writer { limit: json.len() + MAX_RECORD_BYTES, json };
        writer.json.push(b'{');
        for (number, (name, column)) in self.columns.iter().enumerate() {
            writer.begin_field(number, name);
            writer.value(column.as_ref(), row, names.0.get(name).map(Vec::as_slice), 0)?;
        }
        writer.json.push(b'}');
        Ok(true)
    }
}

struct Writer<'a> {
    json: &'a mut Vec<u8>,
    /// The longest that `json` may become.
    limit: usize,
}

impl Writer<'_> {
    fn begin_field(&mut self, number: usize, name: &str) {
        if number > 0 {
            self.json.push(b',');
        }
        write_string(self.json, name);
        self.json.push(b':');
    }

    /// Appends the value of a row. Values that text cannot hold, such as images, become `null`.
    fn value(&mut self, array: &dyn Array, row: usize, names: Option<&[String]>, depth: usize) -> Result<(), String> {
        if depth > DEEPEST {
            return Err(format!("lists or structures are nested more than {DEEPEST} times"));
        }
        if self.json.len() > self.limit {
            return Err("the row is longer than 64 MiB".into());
        }
        if array.is_null(row) {
            self.json.extend_from_slice(b"null");
            return Ok(());
        }

        match array.data_type() {
            DataType::Utf8 => write_string(self.json, array.as_string::<i32>().value(row)),
            DataType::LargeUtf8 => write_string(self.json, array.as_string::<i64>().value(row)),
            DataType::Utf8View => write_string(self.json, array.as_string_view().value(row)),
            DataType::Binary => self.bytes(array.as_binary::<i32>().value(row)),
            DataType::LargeBinary => self.bytes(array.as_binary::<i64>().value(row)),
            DataType::BinaryView => self.bytes(array.as_binary_view().value(row)),
            DataType::FixedSizeBinary(_) => self.bytes(array.as_fixed_size_binary().value(row)),
            DataType::Boolean => self.plain(array.as_boolean().value(row)),
            DataType::List(_) => self.list(&array.as_list::<i32>().value(row), names, depth)?,
            DataType::LargeList(_) => self.list(&array.as_list::<i64>().value(row), names, depth)?,
            DataType::ListView(_) => self.list(&array.as_list_view::<i32>().value(row), names, depth)?,
            DataType::LargeListView(_) => self.list(&array.as_list_view::<i64>().value(row), names, depth)?,
            DataType::FixedSizeList(..) => self.list(&array.as_fixed_size_list().value(row), names, depth)?,
            DataType::Struct(_) => self.structure(array, row, depth)?,
            DataType::Map(..) => self.map(array, row, depth)?,
            DataType::Dictionary(..) => {
                let dictionary = array.as_any_dictionary();
                let key = whole_number(dictionary.keys(), row).and_then(|key| usize::try_from(key).ok());
                let key = key.filter(|key| *key < dictionary.values().len()).ok_or("a key is not in its dictionary")?;
                self.value(dictionary.values().as_ref(), key, names, depth + 1)?;
            }
            _ => self.number(array, row, names),
        }
        Ok(())
    }

    /// Appends text that a column of bytes holds.
    fn bytes(&mut self, bytes: &[u8]) {
        match std::str::from_utf8(bytes) {
            Ok(text) => write_string(self.json, text),
            Err(_) => self.json.extend_from_slice(b"null"),
        }
    }

    fn plain(&mut self, value: impl std::fmt::Display) {
        write!(self.json, "{value}").expect("memory");
    }

    /// Appends a whole number, or the name of its class.
    fn whole(&mut self, value: i64, names: Option<&[String]>) {
        match usize::try_from(value).ok().and_then(|value| names?.get(value)) {
            Some(name) => write_string(self.json, name),
            None => self.plain(value),
        }
    }

    fn fraction(&mut self, value: f64) {
        match value.is_finite() {
            true => serde_json::to_writer(&mut *self.json, &value).expect("memory"),
            false => self.json.extend_from_slice(b"null"),
        }
    }

    fn number(&mut self, array: &dyn Array, row: usize, names: Option<&[String]>) {
        if let Some(number) = whole_number(array, row) {
            return self.whole(number, names);
        }
        match array.data_type() {
            DataType::UInt64 => self.plain(array.as_primitive::<UInt64Type>().value(row)),
            DataType::Float16 => self.fraction(array.as_primitive::<Float16Type>().value(row).to_f64()),
            DataType::Float32 => self.fraction(array.as_primitive::<Float32Type>().value(row).into()),
            DataType::Float64 => self.fraction(array.as_primitive::<Float64Type>().value(row)),
            DataType::Decimal32(..) => self.text(&array.as_primitive::<Decimal32Type>().value_as_string(row)),
            DataType::Decimal64(..) => self.text(&array.as_primitive::<Decimal64Type>().value_as_string(row)),
            DataType::Decimal128(..) => self.text(&array.as_primitive::<Decimal128Type>().value_as_string(row)),
            DataType::Decimal256(..) => self.text(&array.as_primitive::<Decimal256Type>().value_as_string(row)),
            // Dates, durations and unions.
            _ => self.json.extend_from_slice(b"null"),
        }
    }

    fn text(&mut self, text: &str) {
        write_string(self.json, text);
    }

    fn list(&mut self, values: &ArrayRef, names: Option<&[String]>, depth: usize) -> Result<(), String> {
        self.json.push(b'[');
        for at in 0..values.len() {
            if at > 0 {
                self.json.push(b',');
            }
            self.value(values.as_ref(), at, names, depth + 1)?;
        }
        self.json.push(b']');
        Ok(())
    }

    fn structure(&mut self, array: &dyn Array, row: usize, depth: usize) -> Result<(), String> {
        let structure = array.as_struct();
        self.json.push(b'{');
        for (number, (name, column)) in structure.column_names().into_iter().zip(structure.columns()).enumerate() {
            self.begin_field(number, name);
            self.value(column.as_ref(), row, None, depth + 1)?;
        }
        self.json.push(b'}');
        Ok(())
    }

    /// Appends a map whose keys are texts as an object, and any other map as `null`.
    fn map(&mut self, array: &dyn Array, row: usize, depth: usize) -> Result<(), String> {
        let entries = array.as_map().value(row);
        let (keys, values) = (entries.column(0), entries.column(1));
        if *keys.data_type() != DataType::Utf8 {
            self.json.extend_from_slice(b"null");
            return Ok(());
        }
        self.json.push(b'{');
        for at in 0..entries.len() {
            self.begin_field(at, keys.as_string::<i32>().value(at));
            self.value(values.as_ref(), at, None, depth + 1)?;
        }
        self.json.push(b'}');
        Ok(())
    }
}

/// Returns a whole number of at most 63 bits.
fn whole_number(array: &dyn Array, row: usize) -> Option<i64> {
    Some(match array.data_type() {
        DataType::Int8 => array.as_primitive::<Int8Type>().value(row).into(),
        DataType::Int16 => array.as_primitive::<Int16Type>().value(row).into(),
        DataType::Int32 => array.as_primitive::<Int32Type>().value(row).into(),
        DataType::Int64 => array.as_primitive::<Int64Type>().value(row),
        DataType::UInt8 => array.as_primitive::<UInt8Type>().value(row).into(),
        DataType::UInt16 => array.as_primitive::<UInt16Type>().value(row).into(),
        DataType::UInt32 => array.as_primitive::<UInt32Type>().value(row).into(),
        DataType::UInt64 => array.as_primitive::<UInt64Type>().value(row).try_into().ok()?,
        _ => return None,
    })
}
