//! The order of the fields in the text of a JSON object, which a parsed object does not keep.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Returns the names of the fields of a JSON object as its text has them, with dots for nested objects. Returns none if it is not an
/// object.
pub(super) fn field_order(json: &[u8]) -> Vec<String> {
    serde_json::from_slice(json).map(|Paths(paths)| paths).unwrap_or_default()
}

/// The paths to the fields of a value: none for a value that is not an object.
struct Paths(Vec<String>);

impl<'de> Deserialize<'de> for Paths {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PathVisitor)
    }
}

struct PathVisitor;

impl PathVisitor {
    fn none<E>() -> Result<Paths, E> {
        Ok(Paths(Vec::new()))
    }
}

impl<'de> Visitor<'de> for PathVisitor {
    type Value = Paths;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Paths, A::Error> {
        let mut paths = Vec::new();
        while let Some((key, Paths(inside))) = map.next_entry::<String, Paths>()? {
            match inside.is_empty() {
                true => paths.push(key),
                false => paths.extend(inside.into_iter().map(|path| format!("{key}.{path}"))),
            }
        }
        Ok(Paths(paths))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Paths, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Self::none()
    }

    fn visit_str<E>(self, _: &str) -> Result<Paths, E> {
        Self::none()
    }

    fn visit_unit<E>(self) -> Result<Paths, E> {
        Self::none()
    }

    fn visit_bool<E>(self, _: bool) -> Result<Paths, E> {
        Self::none()
    }

    fn visit_i64<E>(self, _: i64) -> Result<Paths, E> {
        Self::none()
    }

    fn visit_u64<E>(self, _: u64) -> Result<Paths, E> {
        Self::none()
    }

    fn visit_f64<E>(self, _: f64) -> Result<Paths, E> {
        Self::none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_keep_the_order_of_the_text() {
        let row = br#"{"raw": "b", "date": {"to": "d", "from": 1.5}, "id": -3, "list": [{"x": 1}], "a": null, "e": {}, "ok": true}"#;
        assert_eq!(field_order(row), ["raw", "date.to", "date.from", "id", "list", "a", "e", "ok"]);
        assert!(field_order(b"[1]").is_empty() && field_order(b"{").is_empty());
    }
}
