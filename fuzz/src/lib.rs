//! One entry point for each reader of foreign files and of the network. Each takes any bytes and must not panic.
//!
//! Hashes would reject most damaged files at once. So each input with hashes is tried twice: as it is, and with
//! corrected hashes, as an attacker would write them.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::{fs, slice};

use kiln::checkpoint::{
    self, Checkpoints, FORMAT, MANIFEST_FILE, Manifest, NamedState, NamedTensor, Snapshot, StoredFile, TrainerState,
};
use kiln::config::{Config, Sources, load};
use kiln::distributed::link::foreign::read_foreign;
use kiln::hugging_face::{AdapterFolder, Folder};
use kiln_data::built_in::numbers;
use kiln_data::{
    BatchSource, ChatSource, CorpusConfig, CorpusFormat, LoaderConfig, M2m100Files, MarianFiles, OnePass, PairCorpus,
    PairSource, PairTokenizers, Position, PreferenceSource, TextConfig, TextCorpus, TextFormat, TextTokenizer,
    TokenCache, TokenizerConfig, TokenizerKind, prepare_chat, prepare_pairs,
};
use kiln_model::hf::Family;
use kiln_model::{TransformerConfig, hf};

/// An entry point: its name, which is also the name of its folder of seeds, and its function.
pub type EntryPoint = (&'static str, fn(&[u8]));

/// All entry points.
pub const ENTRY_POINTS: [EntryPoint; 10] = [
    ("cache", fuzz_cache),
    ("checkpoint", fuzz_checkpoint),
    ("safetensors", fuzz_safetensors),
    ("rows", fuzz_rows),
    ("chat", fuzz_chat),
    ("config", fuzz_config),
    ("link", read_foreign),
    ("sentencepiece", fuzz_sentencepiece),
    ("marian", fuzz_marian),
    ("tokenizer", fuzz_tokenizer),
];

thread_local! {
    /// Made once per thread: making a folder takes longer than reading one.
    static FOLDER: tempfile::TempDir = tempfile::tempdir().expect("a folder");
    /// The folder of the good checkpoint.
    static CHECKPOINT: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
}

fn path(name: &str) -> PathBuf {
    FOLDER.with(|folder| folder.path().join(name))
}

fn write(path: &Path, bytes: &[u8]) {
    // A new file each time: the one before may still be mapped.
    let _ = fs::remove_file(path);
    fs::write(path, bytes).expect("writable");
}

fn tokenizers() -> &'static PairTokenizers {
    static TOKENIZERS: OnceLock<PairTokenizers> = OnceLock::new();
    TOKENIZERS.get_or_init(|| {
        let text = path("tokenizer.jsonl");
        let rows = numbers::examples(200, 0, 4, 1).expect("numbers");
        numbers::write_jsonl(&text, &rows.train).expect("writable");
        let corpus = PairCorpus::open(&[text], &CorpusConfig::default()).expect("a corpus");
        PairTokenizers::train(&numbers::tokenizer_config(), &corpus, 1).expect("a tokenizer")
    })
}

/// Opens and verifies a token cache, and makes its batches.
pub fn fuzz_cache(input: &[u8]) {
    let file = path("fuzzed.tokens");
    for bytes in [input.to_vec(), with_cache_hashes(input)] {
        write(&file, &bytes);
        let Ok(cache) = TokenCache::open(&file) else { continue };
        let _ = cache.verify();
        let _ = (cache.fingerprint(), cache.n_source_tokens(), cache.n_target_tokens());
        let config = LoaderConfig { num_workers: 0, batch_tokens: 256, ..LoaderConfig::default() };
        let Ok(source) = PairSource::new(cache, tokenizers(), &config) else { continue };
        let Ok(pass) = OnePass::new(Arc::new(source) as Arc<dyn BatchSource>, &config) else { continue };
        pass.take(100).for_each(drop);
    }
}

/// Corrects the hashes in a cache's header. `data/src/cache/format.rs` documents the layout.
fn with_cache_hashes(input: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    if bytes.len() < 512 {
        return bytes;
    }
    let u64_at = |at: usize| u64::from_le_bytes(input[at..at + 8].try_into().expect("8 bytes"));
    let width = u64::from(u32::from_le_bytes(input[12..16].try_into().expect("4 bytes")));
    let index = u64_at(24).checked_mul(width).and_then(|tokens| tokens.checked_add(512 + 7)).map(|end| end / 8 * 8);
    if let Some(rest) = index.and_then(|start| input.get(usize::try_from(start).ok()?..)) {
        bytes[152..184].copy_from_slice(blake3::hash(rest).as_bytes());
    }
    let hash = blake3::hash(&bytes[..480]);
    bytes[480..512].copy_from_slice(hash.as_bytes());
    bytes
}

/// Returns the bytes of a good cache, as a seed.
pub fn good_cache() -> Vec<u8> {
    let (text, file) = (path("good.jsonl"), path("good.tokens"));
    numbers::write_jsonl(&text, &numbers::examples(40, 0, 4, 2).expect("numbers").train).expect("writable");
    let corpus = PairCorpus::open(&[text], &CorpusConfig::default()).expect("a corpus");
    drop(prepare_pairs(&file, &corpus, tokenizers(), 1, &mut |_| {}).expect("a cache"));
    fs::read(&file).expect("there")
}

/// Reads a checkpoint with one replaced file. The first byte chooses the file, the others are its content.
pub fn fuzz_checkpoint(input: &[u8]) {
    let Some((&which, content)) = input.split_first() else { return };
    let dir = good_checkpoint();
    let mut names: Vec<_> = fs::read_dir(&dir)
        .expect("there")
        .map(|entry| entry.expect("readable").file_name().into_string().expect("plain"))
        .collect();
    names.sort();
    let name = &names[usize::from(which) % names.len()];
    let (file, manifest) = (dir.join(name), dir.join(MANIFEST_FILE));
    let (good_file, good_manifest) = (fs::read(&file).expect("there"), fs::read(&manifest).expect("there"));

    write(&file, content);
    let read = || {
        let _ = checkpoint::verify(&dir);
        let _ = checkpoint::read(&dir);
        let _ = checkpoint::read_weights(&dir);
    };
    read();

    if let Ok(mut parsed) = serde_json::from_slice::<Manifest>(&fs::read(&manifest).expect("there")) {
        for listed in parsed.files.iter_mut().filter(|listed| listed.name == *name) {
            (listed.bytes, listed.blake3) = (content.len() as u64, blake3::hash(content).to_hex().to_string());
        }
        parsed.digest = parsed.computed_digest();
        write(&manifest, &serde_json::to_vec(&parsed).expect("plain"));
        let outside = parsed.files.iter().any(|file| file.name.contains(['/', '\\']) || file.name.starts_with('.'));
        assert!(!outside || checkpoint::read(&dir).is_err(), "a path outside the folder");
        read();
    }

    write(&manifest, &good_manifest);
    write(&file, &good_file);
}

/// Returns the folder of a good checkpoint, made once per thread.
pub fn good_checkpoint() -> PathBuf {
    CHECKPOINT.with(|made| {
        made.borrow_mut()
            .get_or_insert_with(|| {
                let tensor = |name: &str, shape: &[usize]| NamedTensor {
                    name: name.into(),
                    shape: shape.into(),
                    values: (0..shape.iter().product()).map(|i| i as f32 / 7.0).collect(),
                };
                let tensors = || vec![tensor("norm.gamma", &[3]), tensor("weight", &[2, 3])];

                let state = TrainerState {
                    format: FORMAT,
                    run: None,
                    step: 7,
                    micro_steps: 7,
                    group_size: None,
                    position: Position::default(),
                    epoch_batches: Some(3),
                    data_fingerprint: "data".into(),
                    validation_fingerprint: None,
                    tokenizer_fingerprint: "tokenizer".into(),
                    source_tokens: 1,
                    target_tokens: 1,
                    sources: Default::default(),
                    train_secs: 1.0,
                    skipped_steps: 0,
                    loss_scale: None,
                    non_finite_steps: 0,
                    best: None,
                    patience: None,
                    frozen: Vec::new(),
                    master_weights: Default::default(),
                    replicas: Vec::new(),
                };

                let snapshot = Snapshot {
                    weights: tensors(),
                    optimizer: ["m", "v"].map(|name| NamedState::new(name, tensors())).into(),
                    state,
                    model: TransformerConfig::tiny(),
                    files: vec![StoredFile { name: "config.toml".into(), bytes: b"seed = 1\n".into() }],
                    ema: Some(tensors()),
                    replicas: None,
                };
                Checkpoints::of_run(&path("run")).save(&snapshot, true).expect("writable")
            })
            .clone()
    })
}

/// Reads a model folder: the bytes as the safetensors file of a small Llama, as a configuration, and as an index of
/// shards.
pub fn fuzz_safetensors(input: &[u8]) {
    let dir = path("model");
    fs::create_dir_all(&dir).expect("writable");
    let config = serde_json::json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 16,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 10,
        "max_position_embeddings": 16, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": true, "bos_token_id": 1, "eos_token_id": 2
    });
    write(&dir.join("config.json"), config.to_string().as_bytes());
    write(&dir.join("model.safetensors"), input);
    if let Ok(folder) = Folder::open(&dir) {
        let _ = hf::import(folder.config(), &folder.tensors());
    }

    // The same bytes as a file of torch.save.
    let _ = fs::remove_file(dir.join("model.safetensors"));
    write(&dir.join("pytorch_model.bin"), input);
    if let Ok(folder) = Folder::open(&dir) {
        let _ = hf::import(folder.config(), &folder.tensors());
    }
    let _ = fs::remove_file(dir.join("pytorch_model.bin"));
    write(&dir.join("model.safetensors"), input);

    // The same bytes as the configuration of a folder, and as an index of shards.
    write(&dir.join("config.json"), input);
    if let Ok(folder) = Folder::open(&dir) {
        let _ = hf::import(folder.config(), &folder.tensors());
    }
    let _ = fs::remove_file(dir.join("model.safetensors"));
    write(&dir.join("model.safetensors.index.json"), input);
    let _ = Folder::open(&dir);
    let _ = fs::remove_file(dir.join("model.safetensors.index.json"));

    // As adapters of that model, and as their settings.
    let settings = serde_json::json!({"r": 2, "lora_alpha": 4, "bias": "none", "num_virtual_tokens": 2});
    for (settings, weights) in
        [(settings.to_string().as_bytes(), input), (input, &[2, 0, 0, 0, 0, 0, 0, 0, b'{', b'}'])]
    {
        write(&dir.join("adapter_config.json"), settings);
        write(&dir.join("adapter_model.safetensors"), weights);
        if let Ok(adapter) = AdapterFolder::open(&dir) {
            let _ = hf::import_adapter(Family::Llama, &small_llama(), adapter.settings(), &adapter.tensors());
            let _ = hf::import_prompt(Family::Llama, &small_llama(), adapter.settings(), &adapter.tensors());
        }
    }
}

/// The model that the adapters are for.
fn small_llama() -> TransformerConfig {
    let shape = TransformerConfig {
        d_model: 8,
        d_ff: 16,
        n_heads: 2,
        n_kv_heads: 1,
        n_decoder_layers: 1,
        ..TransformerConfig::llama_125m()
    };
    shape.with_vocab_size(10)
}

/// Reads pairs as JSONL, TSV and CSV, plain text in every format, and records of every format.
pub fn fuzz_rows(input: &[u8]) {
    let tolerant = CorpusConfig { max_bad_rows: 1.0, ..CorpusConfig::default() };
    for format in [CorpusFormat::Jsonl, CorpusFormat::Tsv, CorpusFormat::Csv] {
        let file = path("rows.txt");
        write(&file, input);
        let config = CorpusConfig { format, ..tolerant.clone() };
        if let Ok(corpus) = PairCorpus::open(&[file], &config) {
            let _ = corpus.read_all();
        }
    }

    for format in [TextFormat::Lines, TextFormat::BlankLines, TextFormat::Files, TextFormat::Jsonl] {
        let file = path("text.txt");
        write(&file, input);
        let config = TextConfig { format, ..TextConfig::default() };
        if let Ok(corpus) = TextCorpus::open(&[file], &config) {
            let _ = corpus.read_all();
        }
    }

    for ending in ["json", "csv", "tsv", "conll", "conllu", "parquet", "arrow"] {
        let file = path(&format!("rows.{ending}"));
        write(&file, input);
        let config = TextConfig { format: TextFormat::Records, ..TextConfig::default() };
        if let Ok(corpus) = TextCorpus::open(&[file], &config) {
            let _ = corpus.read_all();
        }
    }
}

/// Reads conversations and preferences, and writes them with a chat template. A zero byte divides the rows from the template; without one,
/// the template is ChatML.
pub fn fuzz_chat(input: &[u8]) {
    static TOKENIZER: OnceLock<TextTokenizer> = OnceLock::new();
    let tokenizer = TOKENIZER.get_or_init(|| {
        let config =
            TokenizerConfig { kind: TokenizerKind::ByteLevelBpe, vocab_size: 300, ..TokenizerConfig::default() };
        TextTokenizer::train_on_documents(&config, &["user and assistant".into()], 1).expect("a tokenizer")
    });

    let divided = input.iter().position(|byte| *byte == 0);
    let (rows, source) = divided.map_or((input, None), |at| (&input[..at], Some(&input[at + 1..])));
    let source = source.map(String::from_utf8_lossy);
    let tokenizer = source.iter().fold(tokenizer.clone(), |tokenizer, source| tokenizer.with_chat_template(source));
    let Ok(template) = tokenizer.chat_template() else { return };
    let _ = template.end_of_turn();

    let (file, cache) = (path("chat.jsonl"), path("chat.tokens"));
    write(&file, rows);
    let loader = LoaderConfig { num_workers: 0, batch_tokens: 512, ..LoaderConfig::default() };
    for format in [TextFormat::Chat, TextFormat::Preferences] {
        let _ = fs::remove_file(&cache);
        let config = TextConfig { format, seq_len: 256, max_bad_rows: 1.0, ..TextConfig::default() };
        let Ok(corpus) = TextCorpus::open(slice::from_ref(&file), &config) else { continue };
        let _ = (corpus.read_all(), corpus.first_question());
        let Ok(prepared) = prepare_chat(&cache, &corpus, &tokenizer, &template, 1, &mut |_| {}) else { continue };
        let cache = prepared.cache;
        let source: Arc<dyn BatchSource> = match format {
            TextFormat::Chat => {
                Arc::new(ChatSource::new(cache, &tokenizer, &config, &loader).expect("a cache just made"))
            }
            _ => Arc::new(PreferenceSource::new(cache, &tokenizer, 256, &loader, 0.1).expect("a cache just made")),
        };
        OnePass::new(source, &loader).expect("good settings").take(100).for_each(drop);
    }
}

/// Reads a `tokenizer.json`, and encodes and decodes texts with it.
pub fn fuzz_tokenizer(input: &[u8]) {
    let folder = path("tokenizer");
    fs::create_dir_all(&folder).expect("writable");
    write(&folder.join("tokenizer.json"), input);
    let Ok(tokenizer) = TextTokenizer::load_dir(&folder) else { return };
    for text in ["", "a", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa! a", "\u{e9}e\u{301} \u{8a9e}\u{1f600}\n\t x"] {
        if let Ok(ids) = tokenizer.encode(text) {
            let _ = tokenizer.decode(&ids);
        }
    }
}

/// Reads a configuration: as a run's own file, as a file of the command line, and line by line as `--set`.
pub fn fuzz_config(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    if let Ok(config) = Config::from_toml(&text) {
        let _ = config.validate();
        let again = Config::from_toml(&config.to_toml()).expect("written text can be read");
        assert_eq!(again.to_toml(), config.to_toml());
    }
    let file = path("config.toml");
    write(&file, input);
    let _ = load(&Sources { file: Some(file), ..Sources::default() });
    let set = text.lines().take(8).map(str::to_string).collect();
    let _ = load(&Sources { set, ..Sources::default() });
}

/// Reads a SentencePiece model, and encodes and decodes texts with it.
pub fn fuzz_sentencepiece(input: &[u8]) {
    let file = path("fuzzed.model");
    write(&file, input);
    let config = TokenizerConfig { path: Some(file), ..TokenizerConfig::default() };
    let Ok(tokenizer) = TextTokenizer::load(&config) else { return };
    for text in ["", "the file", " fif\u{301} <turn>\0a ", "e\u{301}\u{1f600}\u{5b57}aaaaaaaa"] {
        let ids = tokenizer.encode(text).expect("every text can be encoded");
        assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()), "an id without a row");
        tokenizer.decode(&ids).expect("every id can be decoded");
    }
}

/// Reads the vocabulary of a folder as OPUS-MT and M2M-100 publish it, and encodes and decodes texts with it.
pub fn fuzz_marian(input: &[u8]) {
    const MODEL: &[u8] = include_bytes!("../seeds/sentencepiece/unigram.model");
    const NAMES: &[u8] = br#"{"pad_token": "<pad>", "bos_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}"#;
    let (folder, run) = (path("marian"), path("marian-run"));
    fs::create_dir_all(&folder).expect("writable");
    fs::create_dir_all(&run).expect("writable");
    for (name, bytes) in [("source.spm", MODEL), ("target.spm", MODEL), ("vocab.json", input)] {
        write(&folder.join(name), bytes);
    }
    write(&folder.join(M2m100Files::MODEL), MODEL);
    let _ = M2m100Files::read(&folder);
    let Ok(Some(files)) = MarianFiles::read(&folder) else { return };
    files.into_files().iter().for_each(|(name, bytes)| write(&run.join(name), bytes));
    write(&run.join("tokenizer_config.json"), NAMES);
    let Ok(tokenizers) = PairTokenizers::load_dir(&run) else { return };
    for row in tokenizers.encode_sources(&[">>ita<< the file", ">><<", ""]).expect("every text can be encoded") {
        assert!(row.iter().all(|id| (*id as usize) < tokenizers.source_vocab_size()), "an id without a row");
        tokenizers.decode(&row).expect("every id can be decoded");
    }
}
