//! Values that other programs have for some keys, and the flags of Kiln that mean the same.

use super::other_names::squashed;

/// Returns the flags that set what `value` of `key` means elsewhere.
pub(super) fn other_value(key: &str, value: &str) -> Option<&'static str> {
    let table: &[(&str, &str)] = match key {
        "task" => &TASKS,
        "data.text.format" => &FORMATS,
        "train.precision" => &PRECISIONS,
        "train.optimizer" => &OPTIMIZERS,
        _ => return None,
    };
    let wanted = squashed(value);
    table.iter().find(|(other, _)| squashed(other) == wanted).map(|(_, flags)| *flags)
}

const CHAT: &str = "--task lm --set data.text.format=chat";
const PREFERENCES: &str = "--task lm --set data.text.format=preferences";

/// Tasks of `trl`, of pipelines of `transformers`, and of people.
const TASKS: [(&str, &str); 36] = [
    ("sft", CHAT),
    ("chat", CHAT),
    ("instruct", CHAT),
    ("instruction", CHAT),
    ("instruction_tuning", CHAT),
    ("conversation", CHAT),
    ("conversational", CHAT),
    ("qa", CHAT),
    ("dpo", PREFERENCES),
    ("preferences", PREFERENCES),
    ("preference", PREFERENCES),
    ("rlhf", PREFERENCES),
    ("clm", "--task lm"),
    ("causal_lm", "--task lm"),
    ("gpt", "--task lm"),
    ("gpt2", "--task lm"),
    ("pretrain", "--task lm"),
    ("pretraining", "--task lm"),
    ("language_model", "--task lm"),
    ("language_modeling", "--task lm"),
    ("text_generation", "--task lm"),
    ("bert", "--task mlm"),
    ("masked_lm", "--task mlm"),
    ("fill_mask", "--task mlm"),
    ("translate", "--task translation"),
    ("seq2seq", "--task translation"),
    ("seq2seq_lm", "--task translation"),
    ("mt", "--task translation"),
    ("text_classification", "--task classification"),
    ("sequence_classification", "--task classification"),
    ("classify", "--task classification"),
    ("classifier", "--task classification"),
    ("token_classification", "--task tagging"),
    ("ner", "--task tagging"),
    ("pos", "--task tagging"),
    ("tag", "--task tagging"),
];

/// Layouts of rows and endings of files.
const FORMATS: [(&str, &str); 15] = [
    ("sharegpt", "--set data.text.format=chat"),
    ("alpaca", "--set data.text.format=chat"),
    ("openai", "--set data.text.format=chat"),
    ("messages", "--set data.text.format=chat"),
    ("conversations", "--set data.text.format=chat"),
    ("chatml", "--set data.text.format=chat"),
    ("instruct", "--set data.text.format=chat"),
    ("instruction", "--set data.text.format=chat"),
    ("dpo", "--set data.text.format=preferences"),
    ("json", "--set data.text.format=jsonl"),
    ("csv", "--set data.text.format=records"),
    ("tsv", "--set data.text.format=records"),
    ("parquet", "--set data.text.format=records"),
    ("arrow", "--set data.text.format=records"),
    ("txt", "--set data.text.format=auto"),
];

const PRECISIONS: [(&str, &str); 9] = [
    ("fp32", "--set train.precision=f32"),
    ("float32", "--set train.precision=f32"),
    ("no", "--set train.precision=f32"),
    ("bfloat16", "--set train.precision=bf16"),
    ("bf16_mixed", "--set train.precision=bf16"),
    ("float16", "--set train.precision=fp16"),
    ("f16", "--set train.precision=fp16"),
    ("half", "--set train.precision=fp16"),
    ("16_mixed", "--set train.precision=fp16"),
];

const OPTIMIZERS: [(&str, &str); 4] = [
    ("adam", "--set train.optimizer=adamw"),
    ("adamw_torch", "--set train.optimizer=adamw"),
    ("adamw_torch_fused", "--set train.optimizer=adamw"),
    ("paged_adamw_8bit", "--set train.optimizer=adamw"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::resolve::{Sources, resolve};

    #[test]
    fn every_other_value_is_answered_with_flags_that_are_accepted() {
        let tables = [
            ("task", &TASKS[..]),
            ("data.text.format", &FORMATS),
            ("train.precision", &PRECISIONS),
            ("train.optimizer", &OPTIMIZERS),
        ];
        for (key, table) in tables {
            for (value, flags) in table {
                let set = vec![format!("{key}={value}")];
                let error = resolve(&Sources { set, ..Sources::default() }).expect_err(value).to_string();
                assert!(error.contains(&format!("did you mean {flags}?")), "{error}");

                let (mut words, mut right) = (flags.split(' '), Sources::default());
                while let (Some(option), Some(value)) = (words.next(), words.next()) {
                    match option {
                        "--task" => right.task = Some(value.into()),
                        _ => right.set.push(value.into()),
                    }
                }
                // Preferences train a model that exists; plain text formats are for lm.
                right.task.get_or_insert_with(|| "lm".into());
                right.set.push("data.train=a.jsonl".into());
                assert!(resolve(&right).is_ok(), "{flags}: {:?}", resolve(&right));
            }
        }
    }
}
