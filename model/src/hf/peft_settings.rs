//! The settings of `peft`'s adapters: which ones Kiln acts on, which ones must have the value that Kiln computes with, and which ones
//! change nothing. A setting that is in none of the lists is refused, unless it is off.

use serde_json::{Map, Value};

/// The settings of one kind of adapter.
pub(super) struct Settings {
    /// What Kiln reads.
    read: &'static [&'static str],
    /// What changes the adapter's results: the values with which Kiln computes the same, the usual one first.
    plain: &'static [(&'static str, &'static [&'static str])],
    /// What changes nothing once the adapter is trained, and why.
    without_effect: &'static [(&'static str, &'static str)],
}

const OFF: &[&str] = &["false", "null", "{}", "[]"];

/// `LoraConfig`
pub(super) const LORA: Settings = Settings {
    read: &["r", "lora_alpha", "lora_dropout", "modules_to_save"],
    plain: &[
        ("peft_type", &["\"LORA\""]),
        // Others, such as pissa, olora, corda, loftq and lora_ga, subtract the adapter's first value from the model's weights when peft
        // loads it.
        ("init_lora_weights", &["true", "false", "null", "\"gaussian\"", "\"eva\"", "\"orthogonal\""]),
        ("bias", &["\"none\"", "null"]),
        ("use_rslora", OFF),
        ("use_dora", OFF),
        ("use_qalora", OFF),
        ("use_bdlora", OFF),
        ("lora_bias", OFF),
        ("rank_pattern", OFF),
        ("alpha_pattern", OFF),
        ("layers_to_transform", OFF),
        ("layer_replication", OFF),
        ("target_parameters", OFF),
        ("trainable_token_indices", OFF),
        ("alora_invocation_tokens", OFF),
        ("ensure_weight_tying", OFF),
        ("megatron_config", OFF),
        ("arrow_config", OFF),
        ("velora_config", OFF),
        ("kasa_config", OFF),
        ("monteclora_config", OFF),
    ],
    without_effect: &[
        ("target_modules", "the tensors of the file say which modules have an adapter"),
        ("exclude_modules", "as target_modules"),
        ("layers_pattern", "says where layers_to_transform counts, which must be off"),
        ("fan_in_fan_out", "peft sets it by the kind of the module"),
        ("loftq_config", "belongs to init_lora_weights = loftq"),
        ("corda_config", "belongs to init_lora_weights = corda"),
        ("lora_ga_config", "belongs to init_lora_weights = lora_ga"),
        ("eva_config", "how first values were found; the file has the trained ones"),
        ("qalora_group_size", "belongs to use_qalora"),
        ("megatron_core", "belongs to megatron_config"),
        ("task_type", "modules_to_save says which head the file has"),
        ("auto_mapping", "names classes of Python"),
        ("base_model_name_or_path", "the command names the model"),
        ("revision", "of base_model_name_or_path"),
        ("inference_mode", "says whether peft trains it further"),
        ("peft_version", "a version"),
        ("runtime_config", "where peft computes first values"),
    ],
};

/// `PromptTuningConfig`
pub(super) const PROMPT_TUNING: Settings = Settings {
    read: &["num_virtual_tokens", "token_dim", "num_transformer_submodules", "modules_to_save"],
    plain: &[("peft_type", &["\"PROMPT_TUNING\""])],
    without_effect: &[
        ("prompt_tuning_init", "how first values were found; the file has the trained ones"),
        ("prompt_tuning_init_text", "as prompt_tuning_init"),
        ("tokenizer_name_or_path", "as prompt_tuning_init"),
        ("tokenizer_kwargs", "as prompt_tuning_init"),
        ("num_attention_heads", "of the model, for other kinds of prompts"),
        ("num_layers", "of the model, for other kinds of prompts"),
        ("task_type", "the model says what it does"),
        ("auto_mapping", "names classes of Python"),
        ("base_model_name_or_path", "the command names the model"),
        ("revision", "of base_model_name_or_path"),
        ("inference_mode", "says whether peft trains it further"),
        ("peft_version", "a version"),
    ],
};

impl Settings {
    /// Lists the settings with which `peft` computes something else than Kiln.
    pub(super) fn problems(&self, settings: &Map<String, Value>) -> Vec<String> {
        let problem = |(key, value): (&String, &Value)| {
            let text = value.to_string().to_lowercase();
            match self.plain.iter().find(|(plain, _)| plain == key) {
                Some((_, plain)) if plain.iter().any(|plain| plain.to_lowercase() == text) => None,
                Some((_, plain)) => Some(format!("{key} is {value}; Kiln's adapters have {}", plain[0])),
                None if self.reads_or_ignores(key) || OFF.contains(&text.as_str()) => None,
                None => Some(format!("{key} is {value}; Kiln does not know this setting")),
            }
        };
        settings.iter().filter_map(problem).collect()
    }

    fn reads_or_ignores(&self, key: &str) -> bool {
        self.read.contains(&key) || self.without_effect.iter().any(|(name, _)| *name == key)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A new version of peft fails here until somebody decides what its new settings mean.
    #[test]
    fn every_setting_of_peft_is_in_one_list() {
        let of_peft: Value =
            serde_json::from_str(include_str!("../../fixtures/settings/peft.json")).expect("written by make.py");
        for (name, settings) in [("LORA", &LORA), ("PROMPT_TUNING", &PROMPT_TUNING)] {
            let names = of_peft[name].as_array().expect("a list");
            assert!(names.len() > 10);
            for key in names.iter().map(|key| key.as_str().expect("a name")) {
                let is_plain = settings.plain.iter().any(|(plain, _)| *plain == key);
                assert!(is_plain != settings.reads_or_ignores(key), "{name}: {key} is in no list, or in two");
            }
        }
    }

    #[test]
    fn what_is_unknown_is_refused_unless_it_is_off() {
        let problems = |settings: Value| LORA.problems(settings.as_object().expect("an object"));
        assert_eq!(problems(json!({"use_new": false, "new_config": null, "r": 8, "peft_type": "LORA"})).len(), 0);
        assert_eq!(problems(json!({"init_lora_weights": "Gaussian"})).len(), 0);
        assert_eq!(problems(json!({"use_new": true})), ["use_new is true; Kiln does not know this setting"]);
        for init in ["pissa", "pissa_niter_16", "olora", "corda", "loftq", "lora_ga", "mica"] {
            let found = problems(json!({"init_lora_weights": init}));
            assert!(found[0].starts_with(&format!("init_lora_weights is \"{init}\"; ")), "{found:?}");
        }
    }
}
