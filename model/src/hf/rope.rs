//! Rotary positions in `config.json`.

use serde_json::{Map, Value, json};

use super::demands::object;
use super::fields::Fields;
use crate::config::{RopeScaling, TransformerConfig};

/// The table of rotary positions in version 5 of `transformers`.
const PARAMETERS: &str = "rope_parameters";
/// The same in version 4, where the base stands outside it.
const SCALING: &str = "rope_scaling";

/// Positions that a model was trained with before its texts were lengthened.
const ORIGINAL: &str = "original_max_position_embeddings";

/// The wavelengths of some layers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rope {
    pub(super) theta: f64,
    pub(super) scaling: Option<RopeScaling>,
}

impl Rope {
    /// Reads wavelengths that all layers have. As in `transformers`, `rope_scaling` replaces the whole of `rope_parameters`, its base too;
    /// `rope_theta` counts where the table has none.
    pub(super) fn read(fields: &mut Fields<'_>, default_theta: f64, max_positions: usize) -> Self {
        let theta = fields.number_or("rope_theta", default_theta);
        let [parameters, scaling] = [PARAMETERS, SCALING].map(|key| table_of(fields, key));
        let scaling = scaling.filter(|table| !table.is_empty());
        if let (Some(parameters), Some(scaling)) = (parameters, scaling)
            && parameters != scaling
        {
            fields.notes.push(format!("{PARAMETERS} and {SCALING} differ: as in transformers, {SCALING} counts"));
        }
        let found = scaling.map(|table| (SCALING, table)).or(parameters.map(|table| (PARAMETERS, table)));
        let Some((key, table)) = found else { return Self { theta, scaling: None } };
        let original = fields.get(ORIGINAL).is_some().then(|| fields.size_or(ORIGINAL, 0));
        Table { key, table, max_positions, original }.read(theta, &mut fields.problems)
    }

    /// Reads the wavelengths of layers without a window: `rope_parameters.KIND`, with the keys of `rope_scaling` in place of its own.
    pub(super) fn read_global(fields: &mut Fields<'_>, kind: &str, default_theta: f64, max_positions: usize) -> Self {
        let theta = fields.number_or("rope_theta", default_theta);
        let [parameters, scaling] = [PARAMETERS, SCALING].map(|key| table_of(fields, key));
        let of_kind = parameters.and_then(|tables| tables.get(kind)).and_then(Value::as_object);
        if parameters.is_some() && of_kind.is_none() && scaling.is_some() {
            fields.problems.push(format!(
                "{PARAMETERS} has no {kind}, which {SCALING} is about; add {PARAMETERS}.{kind}, or leave {PARAMETERS} out"
            ));
        }

        let mut table = of_kind.cloned().unwrap_or_else(|| object(json!({"rope_type": "default"})));
        table.extend(scaling.cloned().unwrap_or_default());
        let key = if scaling.is_some() { SCALING.to_owned() } else { format!("{PARAMETERS}.{kind}") };
        if table.get("truncate").is_some_and(|truncate| *truncate != true) {
            fields.problems.push(format!(
                "{key}.truncate has no effect in transformers, where layers differ; remove it, for the usual true"
            ));
        }
        Table { key: &key, table: &table, max_positions, original: None }.read(theta, &mut fields.problems)
    }

    /// Reads the base of layers with a window: `rope_parameters.KIND`, or `theta_key`. They are not scaled.
    pub(super) fn read_local(fields: &mut Fields<'_>, kind: &str, (theta_key, default_theta): (&str, f64)) -> f64 {
        let theta = fields.number_or(theta_key, default_theta);
        let of_kind = table_of(fields, PARAMETERS).and_then(|tables| tables.get(kind)).and_then(Value::as_object);
        let Some(table) = of_kind else { return theta };
        let (key, rope_type) = (format!("{PARAMETERS}.{kind}"), type_of(table));
        if !(rope_type.is_null() || *rope_type == "default") {
            fields.problems.push(format!(
                "{key} has a scaling, which only layers without a window have; {key} of type {rope_type} is not supported"
            ));
            return theta;
        }
        Table { key: &key, table, max_positions: 0, original: None }.read(theta, &mut fields.problems).theta
    }

    /// The wavelengths as `transformers` describes them.
    pub(super) fn table(&self) -> Map<String, Value> {
        let mut table = object(json!({"rope_type": "default", "rope_theta": self.theta}));
        let Some(scaling) = &self.scaling else { return table };
        table.extend(object(json!({"rope_type": scaling.name(), "factor": scaling.factor()})));
        match scaling {
            RopeScaling::Linear { .. } | RopeScaling::Dynamic { .. } => {}
            RopeScaling::Llama3 { low_freq_factor, high_freq_factor, original_max_positions, .. } => {
                table.extend(object(json!({
                    "low_freq_factor": low_freq_factor,
                    "high_freq_factor": high_freq_factor,
                    ORIGINAL: original_max_positions,
                })));
            }
            RopeScaling::Yarn { original_max_positions, beta_fast, beta_slow, truncate, .. } => {
                table.extend(object(json!({
                    ORIGINAL: original_max_positions,
                    "beta_fast": beta_fast,
                    "beta_slow": beta_slow,
                })));
                if !truncate {
                    table.insert("truncate".to_owned(), json!(false));
                }
            }

            RopeScaling::Longrope { original_max_positions, short_factor, long_factor, .. } => {
                table.extend(object(json!({
                    ORIGINAL: original_max_positions,
                    "short_factor": short_factor,
                    "long_factor": long_factor,
                })));
            }
        }

        if let RopeScaling::Yarn { attention_factor: Some(factor), .. }
        | RopeScaling::Longrope { attention_factor: Some(factor), .. } = scaling
        {
            table.insert("attention_factor".to_owned(), json!(factor));
        }
        table
    }
}

/// The positions of texts that Kiln computes, at most `max_position_embeddings`. Beyond its first limit, longrope stretches otherwise.
pub(super) fn computed_positions(
    max_positions: usize,
    scaling: Option<&RopeScaling>,
    fields: &mut Fields<'_>,
) -> usize {
    match scaling {
        Some(RopeScaling::Longrope { original_max_positions, .. }) if *original_max_positions < max_positions => {
            fields.notes.push(format!(
                "longrope: Kiln computes texts of up to {ORIGINAL} {original_max_positions} tokens, with short_factor; \
                 long_factor, for {max_positions}, is kept for an export"
            ));
            *original_max_positions
        }
        _ => max_positions,
    }
}

/// `max_position_embeddings` of a model: [`computed_positions`] and, with longrope, those with the long stretches.
pub(super) fn written_positions(config: &TransformerConfig) -> usize {
    match &config.rope_scaling {
        Some(RopeScaling::Longrope { factor, original_max_positions, .. })
            if config.max_positions == *original_max_positions =>
        {
            (*original_max_positions as f64 * factor).round() as usize
        }
        _ => config.max_positions,
    }
}

/// The table `key`. Anything but a table is a problem.
fn table_of<'a>(fields: &mut Fields<'a>, key: &str) -> Option<&'a Map<String, Value>> {
    let value = fields.get(key)?;
    if !value.is_object() {
        fields.problems.push(format!("{key} is {value}, not a table"));
    }
    value.as_object()
}

/// What is done to the wavelengths; `rope_type` comes before its older name.
fn type_of(table: &Map<String, Value>) -> &Value {
    table.get("rope_type").or_else(|| table.get("type")).unwrap_or(&Value::Null)
}

/// A table of `config.json`, and what `transformers` takes from outside it.
struct Table<'a> {
    key: &'a str,
    table: &'a Map<String, Value>,
    /// `max_position_embeddings`.
    max_positions: usize,
    /// `original_max_position_embeddings` outside the table, which comes before the one in it (Phi 3).
    original: Option<usize>,
}

impl Table<'_> {
    /// Reads the table, and refuses what Kiln does not compute.
    fn read(&self, theta: f64, problems: &mut Vec<String>) -> Rope {
        let Self { key, table, .. } = self;
        if let Some(factor) = table.get("partial_rotary_factor").filter(|factor| factor.as_f64() != Some(1.0)) {
            problems.push(format!("{key}.partial_rotary_factor {factor} is not supported; Kiln rotates whole heads"));
        }
        if let Some((kind, _)) = table.iter().find(|(_, value)| value.is_object()) {
            problems.push(format!("{key}.{kind} is a table, which is not supported: this family's layers are alike"));
        }
        let theta = self.optional("rope_theta", problems).unwrap_or(theta);
        Rope { theta, scaling: self.scaling(problems) }
    }

    fn scaling(&self, problems: &mut Vec<String>) -> Option<RopeScaling> {
        let kind = type_of(self.table);
        match kind.as_str() {
            Some("linear") => Some(RopeScaling::Linear { factor: self.number("factor", problems) }),
            Some("dynamic") => Some(RopeScaling::Dynamic { factor: self.number("factor", problems) }),
            Some("llama3") => Some(RopeScaling::Llama3 {
                factor: self.number("factor", problems),
                low_freq_factor: self.number("low_freq_factor", problems),
                high_freq_factor: self.number("high_freq_factor", problems),
                original_max_positions: self.original(problems),
            }),
            Some("yarn") => Some(self.yarn(problems)),
            Some("longrope") => Some(self.longrope(problems)),
            Some("default") => None,
            _ if kind.is_null() => None,
            _ => {
                problems.push(format!(
                    "{} of type {kind} is not supported; supported: default, linear, llama3, yarn, dynamic, longrope",
                    self.key
                ));
                None
            }
        }
    }

    fn yarn(&self, problems: &mut Vec<String>) -> RopeScaling {
        let original_max_positions = self.original(problems);
        let factor = match self.table.get("factor") {
            Some(Value::Null) => self.lengthened(original_max_positions),
            _ => self.number("factor", problems),
        };
        // 0 stands for the usual number.
        let or = |found: Option<f64>, usual: f64| found.filter(|x| *x != 0.0).unwrap_or(usual);
        let scales = ["mscale", "mscale_all_dim"].map(|key| or(self.optional(key, problems), 0.0));
        let attention_factor = self.optional("attention_factor", problems);
        let of_scales = || {
            let [of, all] = scales.map(|scale| 1.0 + 0.1 * scale * factor.max(1.0).ln());
            (!scales.contains(&0.0)).then_some(of / all)
        };
        RopeScaling::Yarn {
            factor,
            original_max_positions,
            beta_fast: or(self.optional("beta_fast", problems), RopeScaling::BETA_FAST),
            beta_slow: or(self.optional("beta_slow", problems), RopeScaling::BETA_SLOW),
            attention_factor: attention_factor.or_else(of_scales),
            truncate: self.table.get("truncate") != Some(&Value::Bool(false)),
        }
    }

    fn longrope(&self, problems: &mut Vec<String>) -> RopeScaling {
        let original_max_positions = self.original(problems);
        let factor = self.optional("factor", problems).unwrap_or_else(|| self.lengthened(original_max_positions));
        let mut list = |name: &str| {
            let numbers = self.table.get(name).and_then(Value::as_array);
            let numbers: Option<Vec<f64>> = numbers.and_then(|all| all.iter().map(Value::as_f64).collect());
            numbers.unwrap_or_else(|| {
                problems.push(format!(
                    "{}.{name} is missing or not a list of numbers; rotary positions of type longrope need it",
                    self.key
                ));
                Vec::new()
            })
        };
        let (short_factor, long_factor) = (list("short_factor"), list("long_factor"));
        let attention_factor = self.optional("attention_factor", problems);
        RopeScaling::Longrope { factor, original_max_positions, short_factor, long_factor, attention_factor }
    }

    /// How many times longer texts became.
    fn lengthened(&self, original: usize) -> f64 {
        self.max_positions as f64 / original as f64
    }

    /// The positions before that; absent: as many as now.
    fn original(&self, problems: &mut Vec<String>) -> usize {
        let in_table = self.optional(ORIGINAL, problems).map(|positions| positions as usize);
        self.original.or(in_table).unwrap_or(self.max_positions)
    }

    fn number(&self, name: &str, problems: &mut Vec<String>) -> f64 {
        self.table.get(name).and_then(Value::as_f64).unwrap_or_else(|| {
            problems.push(format!(
                "{}.{name} is missing or not a number; rotary positions of type {} need it",
                self.key,
                type_of(self.table).as_str().unwrap_or_default()
            ));
            1.0
        })
    }

    fn optional(&self, name: &str, problems: &mut Vec<String>) -> Option<f64> {
        let value = self.table.get(name).filter(|value| !value.is_null())?;
        if value.as_f64().is_none() {
            problems.push(format!("{}.{name} is {value}, not a number", self.key));
        }
        value.as_f64()
    }
}
