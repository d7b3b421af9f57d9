//! Adapters in the layout of Hugging Face's `peft`: `adapter_config.json` and the tensors of `adapter_model.safetensors`.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::export::export;
use super::import::import;
use super::peft_settings::LORA;
use super::table::{Layout, Piece, Row, Table};
use super::{Family, FileTensor, HfError, ImportPlan, Imported, classes};
use crate::config::{Architecture, ClassHead, LoraConfig, LoraTarget, Positions, Product, TransformerConfig};
use crate::lora::is_adapter;
use crate::named_tensor::{LazyTensor, NamedTensor};

/// `peft` wraps a model twice.
const PREFIX: &str = "base_model.model.";

/// Heads for classes, as `peft` calls them.
const HEADS: [&str; 2] = ["classifier", classes::MODULE];

/// Every target, to look for in a file.
const TARGETS: [LoraTarget; 8] = [
    LoraTarget::Query,
    LoraTarget::Key,
    LoraTarget::Value,
    LoraTarget::Qkv,
    LoraTarget::Output,
    LoraTarget::Gate,
    LoraTarget::Up,
    LoraTarget::Down,
];

/// Adapters exported to `peft`.
#[derive(Debug, Clone, PartialEq)]
pub struct ExportedAdapter {
    /// The family of the model that they belong to.
    pub family: Family,
    /// `adapter_config.json`.
    pub config: Value,
    /// The contents of `adapter_model.safetensors`, in f32.
    pub tensors: Vec<NamedTensor>,
}

/// Adapters imported from `peft`.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportedAdapter {
    /// The model's configuration with the settings of the adapters, and with a head for classes if the file has one.
    pub config: TransformerConfig,
    /// The parameters of the adapters, and of the head if the file has one. It replaces the model's own.
    pub weights: Vec<NamedTensor>,
}

impl ImportedAdapter {
    /// Puts the adapters into `model`, which they were imported for. A head for classes replaces what the model predicted with.
    pub fn add_to(self, model: &mut Imported) {
        model.weights.retain(|tensor| !self.replaces(&tensor.name));
        model.weights.extend(self.weights);
        model.config = self.config;
    }

    /// Does the same as [`Self::add_to`] with a model that has not been read.
    pub fn add_to_plan(self, model: &mut ImportPlan<'_>) {
        model.weights.retain(|tensor| !self.replaces(&tensor.name));
        model.weights.extend(self.weights.into_iter().map(LazyTensor::from));
        model.config = self.config;
    }

    fn replaces(&self, name: &str) -> bool {
        self.weights.iter().any(|new| new.name == name) || (self.config.has_classes() && name == "output.weight")
    }
}

/// Exports the adapters of a model under the names of `peft`, for the model that [`super::export`] would write without them. The head
/// for classes of a decoder goes with them: `peft` trains and saves it whole (`modules_to_save`).
///
/// # Errors
/// If no family of `transformers` computes the same as the model, if the family has other products than the adapters stand next to, or
/// if the model has no adapters.
pub fn export_adapter(config: &TransformerConfig, weights: &[NamedTensor]) -> Result<ExportedAdapter, HfError> {
    let family = Family::nearest(config);
    let refused = |problem: String| HfError::NotExpressible { family, problems: vec![problem] };
    if !config.has_adapters() {
        return Err(refused("model.lora.rank is 0: the model has no adapters; export the whole model".into()));
    }
    if matches!(family, Family::Marian | Family::Pegasus) && config.positions == Positions::Sinusoidal {
        let problem =
            "model.positions = \"sinusoidal\": this family orders features otherwise; export the merged model";
        return Err(refused(problem.into()));
    }
    family.write(config)?;

    let has_head = config.class_head == ClassHead::Last;
    let table = table(family, config, has_head).map_err(|problems| HfError::NotExpressible { family, problems })?;
    let goes_along = |name: &str| is_adapter(name) || (has_head && name == classes::OURS);
    let adapters: Vec<NamedTensor> = weights.iter().filter(|weight| goes_along(&weight.name)).cloned().collect();
    let mut tensors = export(&table, &adapters).map_err(|problems| HfError::Tensors { family, problems })?;
    let modules: BTreeSet<String> =
        tensors.iter().filter_map(|it| Some(it.name.split_once(".lora_")?.0.to_owned())).collect();
    tensors.iter_mut().for_each(|tensor| tensor.name.insert_str(0, PREFIX));

    let LoraConfig { rank, alpha, dropout, .. } = config.lora;
    // Whole numbers are integers in files of peft.
    let alpha = if alpha.fract() == 0.0 { json!(alpha as i64) } else { json!(alpha) };
    let task_type = match config.architecture {
        Architecture::DecoderOnly if has_head => Some("SEQ_CLS"),
        Architecture::DecoderOnly => Some("CAUSAL_LM"),
        Architecture::EncoderDecoder => Some("SEQ_2_SEQ_LM"),
        Architecture::EncoderOnly => None,
    };
    let config = json!({
        "peft_type": "LORA",
        "task_type": task_type,
        "base_model_name_or_path": null,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": dropout,
        "target_modules": modules,
        "fan_in_fan_out": family == Family::Gpt2,
        "bias": "none",
        "inference_mode": true,
        "init_lora_weights": true,
        "use_rslora": false,
        "use_dora": false,
        "rank_pattern": {},
        "alpha_pattern": {},
        "modules_to_save": has_head.then_some([classes::MODULE]),
        "layers_to_transform": null,
    });
    Ok(ExportedAdapter { family, config, tensors })
}

/// Returns why [`export_adapter`] would refuse the adapters that a model with this shape has; empty if it would not.
pub fn adapter_problems(config: &TransformerConfig) -> Vec<String> {
    match config.has_adapters() {
        true => table(Family::nearest(config), config, false).err().unwrap_or_default(),
        false => Vec::new(),
    }
}

/// Reads adapters of `peft` for a model of `family` with the shape `model`, which has none. A decoder may get a head for classes with
/// them, which `modules_to_save` names `score`.
///
/// # Errors
/// If a setting or a tensor is not one that Kiln computes with; the error lists all of them.
pub fn import_adapter(
    family: Family,
    model: &TransformerConfig,
    settings: &Value,
    tensors: &[FileTensor<'_>],
) -> Result<ImportedAdapter, HfError> {
    let wrong = |problems| HfError::Adapter { family, problems };
    let no_object = || wrong(vec!["adapter_config.json is not a JSON object".into()]);
    let settings = settings.as_object().ok_or_else(no_object)?;
    let mut problems = LORA.problems(settings);
    let rank = settings.get("r").and_then(Value::as_u64).and_then(|rank| usize::try_from(rank).ok());
    let number = |key: &str| settings.get(key).and_then(Value::as_f64);
    let (alpha, dropout) = (number("lora_alpha"), number("lora_dropout").unwrap_or(0.0));
    if rank.is_none_or(|rank| rank == 0) {
        problems.push(format!("r is {}, not a rank of at least 1", settings.get("r").unwrap_or(&Value::Null)));
    }
    if alpha.is_none() {
        let found = settings.get("lora_alpha").unwrap_or(&Value::Null);
        problems.push(format!("lora_alpha is {found}, not a number"));
    }
    let (Some(rank), Some(alpha), true) = (rank, alpha, problems.is_empty()) else { return Err(wrong(problems)) };

    let tensors: Vec<FileTensor<'_>> = tensors.iter().map(unwrapped).collect();
    let with_head = with_head(model, settings, &tensors).map_err(|problem| wrong(vec![problem]))?;
    let (has_head, model) = (with_head.is_some(), with_head.as_ref().unwrap_or(model));
    let targets = targets_of(family, model, &tensors);
    let lora = LoraConfig { rank, alpha, dropout, targets };
    let adapted = TransformerConfig { lora: lora.clone(), ..model.clone() };
    let problems = match lora.targets.is_empty() {
        true => vec![format!("it has no adapter of a projection of a {family} model")],
        false => adapted.validate(),
    };
    if !problems.is_empty() {
        return Err(wrong(problems));
    }

    let table = table(family, &adapted, has_head).map_err(wrong)?;
    let taken = import(&table, &tensors).map_err(|problems| HfError::Tensors { family, problems })?;
    Ok(ImportedAdapter { config: adapted, weights: taken.weights })
}

/// Returns the model with the head for classes that the file has, or None if it has none.
fn with_head(
    model: &TransformerConfig,
    settings: &Map<String, Value>,
    tensors: &[FileTensor<'_>],
) -> Result<Option<TransformerConfig>, String> {
    let saved = settings.get("modules_to_save").unwrap_or(&Value::Null);
    let names: Option<Vec<&str>> = match saved {
        Value::Null => Some(Vec::new()),
        Value::Array(names) => names.iter().map(Value::as_str).collect(),
        _ => None,
    };
    // peft names the heads of all its families, and saves the ones that are there.
    let known = |name: &&str| model.architecture == Architecture::DecoderOnly && HEADS.contains(name);
    let Some(names) = names.filter(|names| names.iter().all(known)) else {
        return Err(format!(
            "modules_to_save is {saved}; Kiln's adapters have null, or [\"score\"] for classes of a decoder"
        ));
    };
    if !names.contains(&classes::MODULE) {
        return Ok(None);
    }

    match tensors.iter().find(|tensor| tensor.name == classes::WEIGHT).map(|tensor| tensor.shape.as_slice()) {
        Some(&[n_classes, _]) => {
            Ok(Some(TransformerConfig { class_head: ClassHead::Last, n_classes, ..model.clone() }))
        }
        Some(shape) => Err(format!("{} is {shape:?}, not a matrix of classes by features", classes::WEIGHT)),
        None => Err(format!("modules_to_save is {saved}, but the file has no {PREFIX}{}", classes::WEIGHT)),
    }
}

/// The tensor without the wrapping of `peft` in its name.
fn unwrapped<'a>(tensor: &FileTensor<'a>) -> FileTensor<'a> {
    let name = tensor.name.strip_prefix(PREFIX).unwrap_or(&tensor.name).to_owned();
    FileTensor { name, ..tensor.clone() }
}

/// Returns the targets of which the file has some adapter. Adapters that other layers lack are then missed by name.
fn targets_of(family: Family, model: &TransformerConfig, tensors: &[FileTensor<'_>]) -> Vec<LoraTarget> {
    let has = |target: &LoraTarget| {
        let lora = LoraConfig { rank: 1, targets: vec![*target], ..LoraConfig::default() };
        let Ok(table) = table(family, &TransformerConfig { lora, ..model.clone() }, false) else { return false };
        let bare = |name: &str| name.strip_prefix(table.optional_prefix).unwrap_or(name).to_owned();
        let wanted: BTreeSet<String> =
            table.rows.iter().flat_map(|row| &row.pieces).map(|piece| bare(&piece.theirs)).collect();
        tensors.iter().any(|tensor| wanted.contains(&bare(&tensor.name)))
    };
    TARGETS.iter().filter(|target| has(target)).copied().collect()
}

/// Returns the rows of all adapters, and of the head for classes if the file has it. The error lists the adapters that have no module
/// of their own in the family.
fn table(family: Family, config: &TransformerConfig, has_head: bool) -> Result<Table, Vec<String>> {
    let whole = family.table(config);
    let mut table = Table { optional_prefix: whole.optional_prefix, ..Table::default() };
    let (mut problems, rank) = (BTreeSet::new(), config.lora.rank);

    for row in &whole.rows {
        let Some(path) = row.ours.strip_suffix(".weight") else { continue };
        let (Some(product), Layout::Linear { n_in } | Layout::Conv1d { n_in }) = (Product::at(path), row.layout) else {
            continue;
        };
        for (i, columns) in config.adapters_of(product).into_iter().enumerate() {
            let Some(piece) = piece_at(row, columns.start, columns.width) else {
                problems.insert(no_module(columns.target));
                continue;
            };
            let module = piece.theirs.strip_suffix(".weight").unwrap_or(&piece.theirs);
            for (our_end, their_end, n_in, width) in [("a", "lora_A", n_in, rank), ("b", "lora_B", rank, columns.width)]
            {
                let theirs = format!("{module}.{their_end}.weight");
                table.add_one(&format!("{path}.lora.{i}.{our_end}"), &theirs, Layout::Linear { n_in }, width);
            }
        }
    }
    if has_head {
        table.rows.extend(whole.rows.into_iter().filter(|row| row.ours == classes::OURS));
    }
    if problems.is_empty() { Ok(table) } else { Err(problems.into_iter().collect()) }
}

/// The piece of a parameter that fills exactly these columns.
fn piece_at(row: &Row, start: usize, width: usize) -> Option<&Piece> {
    let mut first = 0;
    row.pieces.iter().find(|piece| {
        first += piece.width;
        (first - piece.width, piece.width) == (start, width)
    })
}

fn no_module(target: LoraTarget) -> String {
    match target {
        LoraTarget::Qkv => {
            "model.lora.targets has \"qkv\", but this family keeps queries, keys and values apart; export the merged \
                            model, or train with \"query\", \"key\" and \"value\""
                .into()
        }
        _ => format!(
            "model.lora.targets has {}, but this family has one module for queries, keys and values; export the merged model, or \
             train with \"qkv\"",
            json!(target)
        ),
    }
}
