//! Learned prompts in the layout of Hugging Face's `peft` (`PROMPT_TUNING`).

use serde_json::{Value, json};

use super::peft::ExportedAdapter;
use super::peft_settings::PROMPT_TUNING;
use super::{Family, FileTensor, HfError};
use crate::config::{Architecture, TransformerConfig};
use crate::learned_prompt::is_learned_prompt;
use crate::named_tensor::NamedTensor;

/// Its name in `adapter_model.safetensors`.
const TENSOR: &str = "prompt_embeddings";

/// Returns whether `adapter_config.json` describes a learned prompt.
pub fn is_prompt(settings: &Value) -> bool {
    settings["peft_type"] == "PROMPT_TUNING"
}

/// Refuses to leave out a learned prompt, which no family has.
pub(super) fn refuse(family: Family, config: &TransformerConfig) -> Result<(), HfError> {
    match config.prompt_tokens {
        0 => Ok(()),
        _ if config.architecture == Architecture::EncoderOnly => Err(of_encoder(family)),
        p => Err(HfError::NotExpressible {
            family,
            problems: vec![format!(
                "model.prompt_tokens is {p}: a model of transformers has no learned prompt; export the prompt alone for peft \
                 (kiln export --adapter), and the model from the run that it was trained on"
            )],
        }),
    }
}

fn of_encoder(family: Family) -> HfError {
    let problem = "the learned prompt of an encoder stands behind the first token, and peft puts its prompts in front of it: use the model \
                   with Kiln, or train adapters (model.lora.rank), which can be exported";
    HfError::NotExpressible { family, problems: vec![problem.into()] }
}

/// Exports the learned prompt of a model under the names of `peft`, for the model that [`super::export`] would write without it.
///
/// # Errors
/// If no family of `transformers` computes the same as the model, or if the model has no learned prompt.
pub fn export_prompt(config: &TransformerConfig, weights: &[NamedTensor]) -> Result<ExportedAdapter, HfError> {
    let family = Family::nearest(config);
    if config.architecture == Architecture::EncoderOnly {
        return Err(of_encoder(family));
    }
    family.write(config)?;
    let missing = || HfError::NotExpressible {
        family,
        problems: vec!["model.prompt_tokens is 0: the model has no learned prompt; export the whole model".into()],
    };
    let prompt = weights.iter().find(|tensor| is_learned_prompt(&tensor.name)).ok_or_else(missing)?;

    let settings = json!({
        "peft_type": "PROMPT_TUNING",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": null,
        "num_virtual_tokens": config.prompt_tokens,
        "token_dim": config.d_model,
        "num_transformer_submodules": 1,
        "num_attention_heads": config.n_heads,
        "num_layers": config.n_decoder_layers,
        "prompt_tuning_init": "RANDOM",
        "prompt_tuning_init_text": null,
        "tokenizer_name_or_path": null,
        "modules_to_save": null,
        "inference_mode": true,
    });
    let tensors = vec![NamedTensor { name: TENSOR.to_owned(), ..prompt.clone() }];
    Ok(ExportedAdapter { family, config: settings, tensors })
}

/// Reads a learned prompt of `peft` for a model of `family` with the shape `model`, which has none. Returns the number of its vectors,
/// and the parameter.
///
/// # Errors
/// If a setting or a tensor is not one that Kiln computes with; the error lists all of them.
pub fn import_prompt(
    family: Family,
    model: &TransformerConfig,
    settings: &Value,
    tensors: &[FileTensor<'_>],
) -> Result<(usize, NamedTensor), HfError> {
    let wrong = |problems| HfError::Adapter { family, problems };
    if model.architecture != Architecture::DecoderOnly {
        let problem = "peft_type is \"PROMPT_TUNING\"; Kiln has learned prompts for models that continue text alone";
        return Err(wrong(vec![problem.into()]));
    }
    let found = settings["num_virtual_tokens"].as_u64().and_then(|n| usize::try_from(n).ok());
    let n = found.filter(|n| (1..model.max_positions.saturating_sub(1)).contains(n));
    let no_object = || wrong(vec!["adapter_config.json is not a JSON object".into()]);
    let mut problems = PROMPT_TUNING.problems(settings.as_object().ok_or_else(no_object)?);
    if n.is_none() {
        let found = &settings["num_virtual_tokens"];
        let most = model.max_positions.saturating_sub(2);
        problems.push(format!(
            "num_virtual_tokens is {found}; a model of {} positions takes 1 to {most}",
            model.max_positions
        ));
    }
    for (key, plain) in [("token_dim", json!(model.d_model)), ("num_transformer_submodules", json!(1))] {
        if !settings[key].is_null() && settings[key] != plain {
            problems.push(format!("{key} is {}; this model has {plain}", settings[key]));
        }
    }
    if !(settings["modules_to_save"].is_null() || settings["modules_to_save"] == json!([])) {
        problems.push(format!("modules_to_save is {}; Kiln reads the prompt alone", settings["modules_to_save"]));
    }
    let (Some(n), true) = (n, problems.is_empty()) else { return Err(wrong(problems)) };

    let shape = vec![n, model.d_model];
    let unfit = |problem: String| HfError::Tensors { family, problems: vec![problem] };
    let [tensor] = tensors else {
        return Err(unfit(format!("the file has {} tensors, wanted one, {TENSOR}", tensors.len())));
    };
    if tensor.name != TENSOR || tensor.shape != shape {
        return Err(unfit(format!("{} is {:?}, wanted {TENSOR} of {shape:?}", tensor.name, tensor.shape)));
    }
    match tensor.problem() {
        Some(problem) => Err(unfit(problem)),
        None => Ok((n, NamedTensor { name: "learned_prompt.table".to_owned(), shape, values: tensor.values() })),
    }
}
