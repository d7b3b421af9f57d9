//! Fields of rows that Kiln leaves out.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::RowReport;

/// Fields that are counted.
const MOST_FIELDS: usize = 100;
/// Fields that a note names.
const FIELDS_SHOWN: usize = 8;

impl RowReport {
    /// Names the fields that are left out; fields of the same number of rows together.
    pub(super) fn left_out_note(&self) -> Option<String> {
        let mut by_rows: BTreeMap<Reverse<u64>, Vec<&str>> = BTreeMap::new();
        for (field, rows) in &self.left_out {
            by_rows.entry(Reverse(*rows)).or_default().push(field);
        }
        let more = by_rows.values().map(Vec::len).sum::<usize>().saturating_sub(FIELDS_SHOWN);
        let mut room = FIELDS_SHOWN;
        let mut parts = Vec::new();
        for (Reverse(rows), mut fields) in by_rows {
            fields.truncate(room);
            room -= fields.len();
            let s = if rows == 1 { "" } else { "s" };
            parts.extend((!fields.is_empty()).then(|| format!("{} (in {rows} row{s})", fields.join(", "))));
        }
        parts.extend((more > 0).then(|| format!("{more} more")));
        let advice = "put texts that the model must read into the messages";
        (!parts.is_empty()).then(|| format!("fields that are left out: {}; {advice}", parts.join(", ")))
    }

    /// Counts the fields of a usable row that are left out.
    pub(crate) fn add_left_out(&mut self, fields: &[String]) {
        fields.iter().for_each(|field| self.add_field(field, 1));
    }

    pub(super) fn add_field(&mut self, field: &str, rows: u64) {
        // Rows may have names at random.
        if self.left_out.len() < MOST_FIELDS || self.left_out.contains_key(field) {
            *self.left_out.entry(field.to_owned()).or_default() += rows;
        }
    }
}
