//! Reads `config.json` and collects all problems instead of stopping at the first.

use kiln_kernels::Activation;
use serde_json::{Map, Value};

use crate::config::{FeedForwardActivation, TieEmbeddings};

/// The fields of one `config.json`. As in `transformers`, `null` means absent.
pub(super) struct Fields<'a> {
    object: &'a Map<String, Value>,
    /// Reasons to refuse the file.
    pub(super) problems: Vec<String>,
    /// Accepted fields that mean something slightly different in Kiln.
    pub(super) notes: Vec<String>,
    /// The keys that were asked for.
    #[cfg(test)]
    pub(super) read: std::cell::RefCell<std::collections::BTreeSet<String>>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(object: &'a Map<String, Value>) -> Self {
        Self {
            object,
            problems: Vec::new(),
            notes: Vec::new(),
            #[cfg(test)]
            read: std::cell::RefCell::default(),
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        #[cfg(test)]
        self.read.borrow_mut().insert(key.to_owned());
        self.object.get(key).filter(|value| !value.is_null())
    }

    /// Whether the field is present as `null`, for the few whose default is a value.
    pub(super) fn is_null(&self, key: &str) -> bool {
        self.object.get(key).is_some_and(Value::is_null)
    }

    /// Reads a size that determines shapes, and must be present.
    pub(super) fn size(&mut self, key: &str) -> usize {
        match self.get(key) {
            Some(_) => self.size_or(key, 1),
            None => {
                self.problems.push(format!("{key} is missing; it determines the shapes of the weights"));
                1
            }
        }
    }

    /// Reads a whole number, or returns `default` if it is absent.
    pub(super) fn size_or(&mut self, key: &str, default: usize) -> usize {
        let Some(value) = self.get(key) else { return default };
        match value.as_u64().and_then(|n| usize::try_from(n).ok()) {
            Some(n) => n,
            None => {
                self.problems.push(format!("{key} is {value}, not a whole number"));
                default
            }
        }
    }

    pub(super) fn number_or(&mut self, key: &str, default: f64) -> f64 {
        let Some(value) = self.get(key) else { return default };
        value.as_f64().unwrap_or_else(|| {
            self.problems.push(format!("{key} is {value}, not a number"));
            default
        })
    }

    /// Reads a token's id; of a list, the first.
    pub(super) fn token_id(&mut self, key: &str) -> Option<u32> {
        let mut value = self.get(key)?;
        if let Value::Array(several) = value {
            let others = if key == "eos_token_id" {
                "ends the texts of a training; any of them ends an answer"
            } else {
                "is used"
            };
            self.notes.push(format!("{key} {value}: the first one {others}"));
            value = several.first()?;
        }
        // Some files have -1 for "none".
        if value.as_i64() == Some(-1) {
            return None;
        }
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        if id.is_none() {
            self.problems.push(format!("{key} is {value}, not a token id"));
        }
        id
    }

    /// Reads two dropout rates that are one in Kiln. The first one counts; it affects training only.
    pub(super) fn one_dropout(&mut self, [first, second]: [(&str, f64); 2]) -> f64 {
        let (x, y) = (self.number_or(first.0, first.1), self.number_or(second.0, second.1));
        if x != y {
            self.notes.push(format!(
                "{} {x} and {} {y}: Kiln trains with the first for both (model.dropout)",
                first.0, second.0
            ));
        }
        x
    }

    pub(super) fn flag_or(&mut self, key: &str, default: bool) -> bool {
        let Some(value) = self.get(key) else { return default };
        value.as_bool().unwrap_or_else(|| {
            self.problems.push(format!("{key} is {value}, not true or false"));
            default
        })
    }

    /// Reads whether the output projection is tied to the token table of the same side.
    pub(super) fn tied_output_or(&mut self, default: bool) -> TieEmbeddings {
        if self.flag_or("tie_word_embeddings", default) { TieEmbeddings::Output } else { TieEmbeddings::None }
    }

    /// Reads a text that must be one of `choices`, and returns its meaning. `default` is an index.
    pub(super) fn choice<T: Copy>(&mut self, key: &str, choices: &[(&str, T)], default: usize) -> T {
        let Some(value) = self.get(key) else { return choices[default].1 };
        let found = choices.iter().find(|(name, _)| value.as_str() == Some(name));
        found.map_or_else(
            || {
                let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
                self.problems.push(format!("{key} {value} is not supported; supported: {}", names.join(", ")));
                choices[default].1
            },
            |(_, choice)| *choice,
        )
    }

    /// Reads the name of an element-wise activation.
    pub(super) fn activation_or(&mut self, key: &str, default: Activation) -> FeedForwardActivation {
        let names = |by: Activation| by.names_in_transformers().iter().map(move |name| (*name, by.into()));
        let choices: Vec<(&str, FeedForwardActivation)> = Activation::ALL.into_iter().flat_map(names).collect();
        let default = choices.iter().position(|(_, known)| *known == default.into()).expect("each has a name");
        self.choice(key, &choices, default)
    }

    /// Refuses any value but `wanted`, unless the field is absent.
    pub(super) fn only(&mut self, key: &str, wanted: impl Into<Value>, why: &str) {
        let wanted = wanted.into();
        if let Some(value) = self.get(key)
            && *value != wanted
            && value.as_f64().is_none_or(|n| Some(n) != wanted.as_f64())
        {
            self.problems.push(format!("{key} {value} is not supported, only {wanted}: {why}"));
        }
    }

    /// Refuses different values of two fields that are one in Kiln.
    pub(super) fn same<T: PartialEq + std::fmt::Display>(&mut self, [(a, x), (b, y)]: [(&str, &T); 2], why: &str) {
        if x != y {
            self.problems.push(format!("{a} {x} and {b} {y} differ, which is not supported: {why}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_problem_is_kept() {
        let value = json!({"a": -1, "b": "x", "c": 1.0, "d": null, "e": "swish", "f": true});
        let mut fields = Fields::new(value.as_object().expect("an object"));
        fields.size("a");
        fields.number_or("b", 0.0);
        fields.flag_or("c", false);
        fields.size("d");
        fields.choice("e", &[("relu", 1), ("gelu", 2)], 0);
        fields.only("f", false, "because");
        fields.only("c", 1, "an integer is the same number");
        fields.only("absent", 1, "absent is fine");
        assert_eq!(
            fields.problems,
            [
                "a is -1, not a whole number",
                "b is \"x\", not a number",
                "c is 1.0, not true or false",
                "d is missing; it determines the shapes of the weights",
                "e \"swish\" is not supported; supported: relu, gelu",
                "f true is not supported, only false: because",
            ]
        );
    }
}
