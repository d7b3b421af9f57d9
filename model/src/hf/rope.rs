//! Rotary positions in `config.json`.

use serde_json::{Map, Value, json};

use super::demands::object;
use super::fields::Fields;
use crate::config::RopeScaling;

/// The tables that describe rotary positions: `rope_parameters` in version 5 of `transformers`, `rope_scaling` in version 4.
const TABLES: [&str; 2] = ["rope_parameters", "rope_scaling"];

/// The wavelengths of some layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rope {
    pub(super) theta: f64,
    pub(super) scaling: Option<RopeScaling>,
}

impl Rope {
    /// Reads wavelengths that all layers have, from `rope_parameters`, or from `rope_theta` and `rope_scaling`.
    pub(super) fn read(fields: &mut Fields<'_>, default_theta: f64) -> Self {
        let mut rope = Self { theta: fields.number_or("rope_theta", default_theta), scaling: None };
        for key in TABLES {
            let Some(Value::Object(table)) = fields.get(key) else { continue };
            let (theta, scaling) = read_table(key, table, &mut fields.problems);
            rope = Self { theta: theta.unwrap_or(rope.theta), scaling: rope.scaling.or(scaling) };
        }
        rope
    }

    /// Reads the wavelengths of one kind of layers: `rope_parameters.KIND`, or, as in version 4, `theta_key` and, if `is_scaled`,
    /// `rope_scaling`.
    pub(super) fn read_kind(
        fields: &mut Fields<'_>,
        kind: &str,
        (theta_key, default_theta): (&str, f64),
        is_scaled: bool,
    ) -> Self {
        let theta = fields.number_or(theta_key, default_theta);
        let of_kind = fields.get("rope_parameters").and_then(|tables| tables.get(kind)).and_then(Value::as_object);
        let (key, table) = match of_kind {
            Some(table) => (format!("rope_parameters.{kind}"), Some(table)),
            None => ("rope_scaling".to_owned(), fields.get("rope_scaling").and_then(Value::as_object)),
        };
        let Some(table) = table.filter(|_| of_kind.is_some() || is_scaled) else {
            return Self { theta, scaling: None };
        };
        let (of_table, scaling) = read_table(&key, table, &mut fields.problems);
        if !is_scaled && scaling.is_some() {
            fields
                .problems
                .push(format!("{key} has a scaling, which is not supported: only layers without a window have one"));
        }
        Self { theta: of_table.unwrap_or(theta), scaling }
    }

    /// The wavelengths as `transformers` describes them.
    pub(super) fn table(&self) -> Map<String, Value> {
        let mut table = object(json!({"rope_type": "default", "rope_theta": self.theta}));
        match self.scaling {
            Some(scaling) if scaling.is_linear() => {
                table.extend(object(json!({"rope_type": "linear", "factor": scaling.factor})));
            }
            Some(scaling) => table.extend(object(json!({
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_max_positions,
            }))),
            None => {}
        }
        table
    }
}

/// Reads one table, and refuses what Kiln does not compute.
fn read_table(key: &str, table: &Map<String, Value>, problems: &mut Vec<String>) -> (Option<f64>, Option<RopeScaling>) {
    if let Some(factor) = table.get("partial_rotary_factor").filter(|factor| factor.as_f64() != Some(1.0)) {
        problems.push(format!("{key}.partial_rotary_factor {factor} is not supported; Kiln rotates whole heads"));
    }

    let theta = table.get("rope_theta").and_then(Value::as_f64);
    let kind = table.get("rope_type").or_else(|| table.get("type")).unwrap_or(&Value::Null);
    let scaling = match kind.as_str() {
        Some(kind @ ("llama3" | "linear")) => {
            let mut number = |name: &str| {
                table.get(name).and_then(Value::as_f64).unwrap_or_else(|| {
                    problems.push(format!(
                        "{key}.{name} is missing or not a number; rotary positions of type {kind} need it"
                    ));
                    1.0
                })
            };

            let linear = RopeScaling::linear(number("factor"));
            Some(if kind == "linear" {
                linear
            } else {
                RopeScaling {
                    low_freq_factor: number("low_freq_factor"),
                    high_freq_factor: number("high_freq_factor"),
                    original_max_positions: number("original_max_position_embeddings") as usize,
                    ..linear
                }
            })
        }
        Some("default") => None,
        _ if kind.is_null() => None,
        _ => {
            problems.push(format!("{key} of type {kind} is not supported; supported: default, linear, llama3"));
            None
        }
    };
    (theta, scaling)
}
