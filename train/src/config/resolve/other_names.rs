//! Names of nanoGPT, fairseq, OpenNMT, axolotl, LLaMA-Factory and the Hugging Face trainer, and what Kiln calls them.

use toml::Value;

/// Returns our key or option for a `name` of another trainer.
pub(super) fn other_name(name: &str) -> Option<&'static str> {
    let wanted = squashed(name);
    OTHER_NAMES.into_iter().find(|(other, _)| squashed(other) == wanted).map(|(_, meant)| meant)
}

/// Returns whether `name` is what another trainer calls the number of layers.
pub(super) fn is_number_of_layers(name: &str) -> bool {
    LAYERS.map(squashed).contains(&squashed(name))
}

/// Returns the keys with the number of layers of a model whose keys are `known`.
pub(super) fn layer_keys(known: &[(String, Value)]) -> String {
    let architecture = known.iter().find(|(key, _)| key == "model.architecture").and_then(|(_, value)| value.as_str());
    let [encoder, decoder] = LAYER_KEYS;
    match architecture {
        Some("encoder_only") => encoder.into(),
        Some("decoder_only") => decoder.into(),
        _ => format!("{encoder} or {decoder}"),
    }
}

/// Returns the letters and digits of a name.
pub(super) fn squashed(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).map(|c| c.to_ascii_lowercase()).collect()
}

/// Names that other trainers have for the number of layers. Kiln has a number for each side of the model.
pub(super) const LAYERS: [&str; 7] =
    ["layers", "n_layer", "n_layers", "num_layers", "num_layer", "num_hidden_layers", "n_hidden_layers"];

/// The keys of both sides.
pub(super) const LAYER_KEYS: [&str; 2] = ["model.n_encoder_layers", "model.n_decoder_layers"];

/// Names that other trainers use, and our keys or options.
pub(super) const OTHER_NAMES: [(&str, &str); 153] = [
    ("learning_rate", "optim.lr"),
    ("max_lr", "optim.lr"),
    ("warmup", "optim.warmup_steps"),
    ("warmup_iters", "optim.warmup_steps"),
    ("warmup_updates", "optim.warmup_steps"),
    ("clip_norm", "optim.max_grad_norm"),
    ("grad_clip", "optim.max_grad_norm"),
    ("adam_beta1", "optim.beta1"),
    ("adam_beta2", "optim.beta2"),
    ("lr_scheduler", "optim.schedule"),
    ("lr_scheduler_type", "optim.schedule"),
    ("max_steps", "train.steps"),
    ("max_iters", "train.steps"),
    ("max_update", "train.steps"),
    ("train_steps", "train.steps"),
    ("accum_count", "train.grad_accum_steps"),
    ("gradient_accumulation_steps", "train.grad_accum_steps"),
    ("update_freq", "train.grad_accum_steps"),
    ("eval_every", "train.validate_every"),
    ("eval_interval", "train.validate_every"),
    ("eval_steps", "train.validate_every"),
    ("checkpoint_every", "train.save_every"),
    ("save_interval", "train.save_every"),
    ("save_steps", "train.save_every"),
    ("save_total_limit", "train.keep_last"),
    ("log_interval", "train.log_every"),
    ("logging_steps", "train.log_every"),
    ("bf16", "train.precision"),
    ("fp16", "train.precision"),
    ("dtype", "train.precision"),
    ("label_smoothing_factor", "train.label_smoothing"),
    ("batch_size", "loader.batch_rows"),
    ("max_tokens", "loader.batch_tokens"),
    ("per_device_train_batch_size", "loader.batch_rows"),
    ("block_size", "data.text.seq_len"),
    ("hidden_size", "model.d_model"),
    ("n_embd", "model.d_model"),
    ("n_head", "model.n_heads"),
    ("num_attention_heads", "model.n_heads"),
    ("intermediate_size", "model.d_ff"),
    ("lr_decay_iters", "train.steps"),
    ("min_lr", "optim.min_lr_ratio"),
    ("decay_lr", "optim.schedule"),
    ("warmup_ratio", "optim.warmup_ratio"),
    ("valid_steps", "train.validate_every"),
    ("eval_strategy", "train.validate_every"),
    ("evaluation_strategy", "train.validate_every"),
    ("save_strategy", "train.save_every"),
    ("save_checkpoint_steps", "train.save_every"),
    ("keep_checkpoint", "train.keep_last"),
    ("keep_last_epochs", "train.keep_last"),
    ("early_stopping", "train.patience"),
    ("early_stopping_patience", "train.patience"),
    ("metric_for_best_model", "train.best_metric"),
    ("best_checkpoint_metric", "train.best_metric"),
    ("model_dtype", "train.precision"),
    ("gradient_checkpointing", "train.activation_checkpointing"),
    ("optim", "train.optimizer"),
    ("micro_batch_size", "loader.batch_rows"),
    ("dataloader_num_workers", "loader.num_workers"),
    ("sequence_len", "data.text.seq_len"),
    ("max_seq_length", "data.text.seq_len"),
    ("max_seq_len", "data.text.seq_len"),
    ("max_length", "data.text.seq_len"),
    ("cutoff_len", "data.text.seq_len"),
    ("tokens_per_sample", "data.text.seq_len"),
    ("sample_packing", "data.text.packing"),
    ("train_on_inputs", "data.text.learn"),
    ("chat_template", "data.text.chat_template"),
    ("train_file", "data.train"),
    ("datasets", "data.train"),
    ("dataset", "data.train"),
    ("validation_file", "data.valid"),
    ("test_datasets", "data.valid"),
    ("val_set_size", "data.split"),
    ("val_size", "data.split"),
    ("validation_split_percentage", "data.split"),
    ("src_vocab_size", "tokenizer.vocab_size"),
    ("tgt_vocab_size", "tokenizer.vocab_size"),
    ("max_source_length", "data.corpus.max_source_len"),
    ("max_source_positions", "data.corpus.max_source_len"),
    ("src_seq_length", "data.corpus.max_source_len"),
    ("max_target_length", "data.corpus.max_target_len"),
    ("max_target_positions", "data.corpus.max_target_len"),
    ("tgt_seq_length", "data.corpus.max_target_len"),
    ("encoder_layers", "model.n_encoder_layers"),
    ("enc_layers", "model.n_encoder_layers"),
    ("decoder_layers", "model.n_decoder_layers"),
    ("dec_layers", "model.n_decoder_layers"),
    ("encoder_embed_dim", "model.d_model"),
    ("decoder_embed_dim", "model.d_model"),
    ("word_vec_size", "model.d_model"),
    ("encoder_ffn_embed_dim", "model.d_ff"),
    ("decoder_ffn_embed_dim", "model.d_ff"),
    ("transformer_ff", "model.d_ff"),
    ("encoder_attention_heads", "model.n_heads"),
    ("decoder_attention_heads", "model.n_heads"),
    ("heads", "model.n_heads"),
    ("share_all_embeddings", "model.tie_embeddings"),
    ("share_embeddings", "model.tie_embeddings"),
    ("num_key_value_heads", "model.n_kv_heads"),
    ("lora_r", "model.lora.rank"),
    ("lora_rank", "model.lora.rank"),
    ("lora_alpha", "model.lora.alpha"),
    ("target_modules", "model.lora.targets"),
    ("lora_target_modules", "model.lora.targets"),
    ("lora_target", "model.lora.targets"),
    ("lora_target_linear", "model.lora.targets"),
    ("lenpen", "generate.length_penalty"),
    ("num_beams", "generate.beam_size"),
    ("beam", "generate.beam_size"),
    ("max_new_tokens", "generate.max_new_tokens"),
    ("base_model", "--from"),
    ("model_name_or_path", "--from"),
    ("init_from", "--from"),
    ("train_from", "--from"),
    ("finetune_from_model", "--from"),
    ("resume_from_checkpoint", "--resume"),
    ("output_dir", "--run"),
    ("out_dir", "--run"),
    ("save_dir", "--run"),
    ("save_model", "--run"),
    ("arch", "--preset"),
    ("device", "--device"),
    ("gpu_ranks", "--devices"),
    ("world_size", "--devices"),
    ("max_train_steps", "train.steps"),
    ("num_train_steps", "train.steps"),
    ("num_steps", "train.steps"),
    ("warmup_proportion", "optim.warmup_ratio"),
    ("adam_epsilon", "optim.eps"),
    ("adam_eps", "optim.eps"),
    ("mixed_precision", "train.precision"),
    ("train_batch_size", "loader.batch_rows"),
    ("per_gpu_train_batch_size", "loader.batch_rows"),
    ("max_sentences", "loader.batch_rows"),
    ("train_data", "data.train"),
    ("train_dataset", "data.train"),
    ("trainpref", "data.train"),
    ("eval_file", "data.valid"),
    ("eval_dataset", "data.valid"),
    ("validpref", "data.valid"),
    ("valid_data", "data.valid"),
    ("tokenizer_name", "tokenizer.path"),
    ("lora", "model.lora.rank"),
    ("use_lora", "model.lora.rank"),
    ("use_peft", "model.lora.rank"),
    ("adapter", "model.lora.rank"),
    ("checkpoint_dir", "--run"),
    ("output", "--run"),
    ("num_gpus", "--devices"),
    ("n_gpu", "--devices"),
    ("plain_operators", "--reference-operators"),
];
