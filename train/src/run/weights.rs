//! Weights that a run starts from: of another run, imported or averaged.

use anyhow::Result;
use kiln_metrics::units::thousands;
use kiln_model::{
    ClassHead, LoraConfig, Positions, TransformerConfig, is_adapter, is_learned_prompt, merge_adapters,
    prompt_of_tokens,
};

use super::error::RunError;
use super::new_vocabulary::with_vocabulary;
use super::trained_model::TrainedModel;
use crate::checkpoint::{CheckpointError, Checkpoints, NamedTensor, RUN_CONFIG_FILE, Weights, initial_tensors};
use crate::config::Config;
use crate::dataset::Vocabulary;

/// Stores the weights of `run` in the new run, as its checkpoint before the first step: a run that is interrupted
/// before its first save starts there again. A missing head is initialized. With a `vocabulary` of its own, the new run keeps the
/// rows of tokens that both have. Without `checkpoints` nothing is stored. Also returns what the user should know about rows and
/// heads that are new or left out.
pub(crate) fn start_from(
    run: &TrainedModel,
    config: &Config,
    vocabulary: Option<&Vocabulary>,
    checkpoints: Option<&Checkpoints>,
) -> Result<(Weights, Vec<String>)> {
    let mut weights = run.which.read(&run.path)?;
    let mut notes = match vocabulary {
        Some(vocabulary) => with_vocabulary(&mut weights, vocabulary, config)?,
        None => Vec::new(),
    };
    // Adapters may be added to a model that has none, and merged into a model that goes on without them. Preferences are compared
    // with the model without adapters, so it takes in what they have learned.
    let (mut has, wants) = (run.model.has_adapters(), config.model.has_adapters());
    let are_taken_in = has && wants && config.data.text.is_preferences() && have_learned(&weights.weights);
    if has && (!wants || are_taken_in) {
        let missing = |path: String| CheckpointError::Mismatch(format!("{path} is missing"));
        (weights.model, weights.weights) = merge_adapters(&run.model, &weights.weights).map_err(missing)?;
        has = false;
    }
    let lora = if has == wants { weights.model.lora.clone() } else { config.model.lora.clone() };
    notes.extend(exchange_prompts(config, &mut weights));
    if !fits(&TransformerConfig { lora, ..weights.model.clone() }, &config.model) {
        return Err(RunError::OtherModel(run.path.clone()).into());
    }

    // Parameters that the model did not have.
    if wants && !has {
        let drawn = initial_tensors(&config.model, config.seed);
        weights.weights.extend(drawn.into_iter().filter(|tensor| is_adapter(&tensor.name)));
    }
    notes.extend(exchange_heads(run, config, &mut weights.weights));
    if are_taken_in {
        notes.push(
            "--from: its adapters are merged into the model that answers are compared with; new ones are trained"
                .to_owned(),
        );
    }

    weights.step = 0;
    weights.model = config.model.clone();
    for file in weights.files.iter_mut().filter(|file| file.name == RUN_CONFIG_FILE) {
        file.bytes = config.to_toml().into_bytes();
    }
    if let Some(checkpoints) = checkpoints {
        checkpoints.save_weights(&weights)?;
    }
    Ok((weights, notes))
}

/// Leaves out a learned prompt that the configured model lacks, or adds one that the saved model lacks. Returns a sentence about it.
fn exchange_prompts(config: &Config, weights: &mut Weights) -> Option<String> {
    let wanted = config.model.prompt_tokens;
    match (weights.model.prompt_tokens, wanted) {
        (0, 1..) => {
            weights.weights.extend(prompt_of_tokens(&config.model, &weights.weights, config.seed));
            weights.model.prompt_tokens = wanted;
            Some(format!("--from: a prompt of {wanted} vectors is new, initialized with vectors of the vocabulary"))
        }
        (1.., 0) => {
            weights.weights.retain(|tensor| !is_learned_prompt(&tensor.name));
            weights.model.prompt_tokens = 0;
            Some("--from: the learned prompt is left out".to_owned())
        }
        _ => None,
    }
}

/// Returns whether adapters change what the model computes: the second matrix of a new one is zero.
fn have_learned(weights: &[NamedTensor]) -> bool {
    let mut second = weights.iter().filter(|tensor| is_adapter(&tensor.name) && tensor.name.ends_with(".b"));
    second.any(|tensor| tensor.values.iter().any(|x| *x != 0.0))
}

/// Leaves out the heads that the configured model lacks, and initializes the ones that the saved model lacks. A head for
/// other classes is another head; one for the same classes in another order follows the order. Returns a sentence for each change.
fn exchange_heads(run: &TrainedModel, config: &Config, weights: &mut Vec<NamedTensor>) -> Vec<String> {
    let (saved, wanted) = (&run.model, &config.model);
    let order = places_of(&config.data.labels.names, &run.config.data.labels.names)
        .filter(|_| (saved.class_head, saved.n_classes) == (wanted.class_head, wanted.n_classes));
    let same_classes = order.is_some();
    let has_classes = |model: &TransformerConfig| model.class_head != ClassHead::None;
    let mut notes = Vec::new();
    if let Some(order) = order.filter(|order| !order.is_sorted()) {
        reorder_classes(&order, weights);
        notes.push("--from: the head for classes is kept, in the order of data.labels.names".to_owned());
    }
    for (prefix, what, drops, adds) in [
        ("head.", "the head for masked tokens", !wanted.mlm_head, wanted.mlm_head && !saved.mlm_head),
        ("pooler.", "the pooler", !wanted.pooler, wanted.pooler && !saved.pooler),
        ("output.", "the projection to the vocabulary", wanted.class_head == ClassHead::Last, false),
        ("classifier.", "the head for classes", !same_classes, has_classes(wanted) && !same_classes),
    ] {
        let n_before = weights.len();
        if drops {
            weights.retain(|tensor| !tensor.name.starts_with(prefix));
        }
        if weights.len() < n_before {
            notes.push(format!("--from: {what} is left out"));
        }

        if adds {
            let drawn = initial_tensors(wanted, config.seed);
            let new: Vec<NamedTensor> = drawn.into_iter().filter(|tensor| tensor.name.starts_with(prefix)).collect();
            let names: Vec<&str> = new.iter().map(|tensor| tensor.name.as_str()).collect();
            let n: usize = new.iter().map(|tensor| tensor.values.len()).sum();
            let n = thousands(n as f64);
            notes.push(format!("--from: {what} is new, {n} parameters, initialized at random: {}", names.join(", ")));
            weights.extend(new);
        }
    }
    notes
}

/// Returns the places in `there` of the `names`, if both have the same ones.
fn places_of(names: &[String], there: &[String]) -> Option<Vec<usize>> {
    let places = names.iter().map(|name| there.iter().position(|other| other == name));
    places.collect::<Option<Vec<_>>>().filter(|places| places.len() == there.len())
}

/// Gives class `i` of the head what class `order[i]` had.
fn reorder_classes(order: &[usize], weights: &mut [NamedTensor]) {
    for tensor in weights.iter_mut().filter(|tensor| tensor.name.starts_with("classifier.output.")) {
        let rows = tensor.values.chunks_exact(order.len());
        tensor.values = rows.flat_map(|row| order.iter().map(|place| row[*place])).collect();
    }
}

/// Returns whether weights of the model `saved` compute the same in `wanted`.
pub(super) fn fits(saved: &TransformerConfig, wanted: &TransformerConfig) -> bool {
    let max_positions = if saved.positions == Positions::Learned { saved.max_positions } else { wanted.max_positions };
    let lora = LoraConfig { dropout: wanted.lora.dropout, ..saved.lora.clone() };
    let without = !saved.has_adapters() && !wanted.has_adapters();
    let changed = TransformerConfig {
        lora: if without { wanted.lora.clone() } else { lora },
        max_positions,
        dropout: wanted.dropout,
        attention_dropout: wanted.attention_dropout,
        activation_dropout: wanted.activation_dropout,
        mlm_head: if wanted.class_head == ClassHead::None {
            saved.mlm_head || wanted.mlm_head
        } else {
            wanted.mlm_head
        },
        pooler: saved.pooler || wanted.pooler,
        class_head: wanted.class_head,
        n_classes: wanted.n_classes,
        init: wanted.init,
        logits_chunk_rows: wanted.logits_chunk_rows,
        ..saved.clone()
    };
    changed == *wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_leaves_the_weights_their_meaning_may_change() {
        type Change = fn(&mut TransformerConfig);
        let changes: [(bool, Change); 11] = [
            (true, |_| ()),
            (true, |model| model.dropout = 0.3),
            (true, |model| model.activation_dropout = Some(0.0)),
            (true, |model| model.max_positions = 1000),
            (true, |model| model.lora.alpha = 3.0),
            (true, |model| model.lora.dropout = 0.5),
            (false, |model| model.lora.rank = 3),
            (false, |model| model.d_model = 128),
            (false, |model| model.n_heads = 2),
            (false, |model| model.positions = Positions::SinusoidalHalves),
            (false, |model| (model.positions, model.max_positions) = (Positions::Learned, 1000)),
        ];
        for (i, (wanted, change)) in changes.into_iter().enumerate() {
            let mut model = TransformerConfig::tiny();
            change(&mut model);
            assert_eq!(fits(&TransformerConfig::tiny(), &model), wanted, "change {i}");
        }
    }
}
