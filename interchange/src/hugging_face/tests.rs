use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use kiln_model::NamedTensor;
use kiln_model::hf::ElementType;
use serde_json::json;

use super::*;

fn fixture(family: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join("model/fixtures/hf").join(family)
}

fn tensor(name: &str, shape: &[usize], first: f32) -> NamedTensor {
    let n = shape.iter().product::<usize>();
    NamedTensor { name: name.into(), shape: shape.to_vec(), values: (0..n).map(|i| first + i as f32 / 3.0).collect() }
}

/// A folder with two shards and an index.
fn sharded() -> (tempfile::TempDir, PathBuf) {
    let parent = tempfile::tempdir().expect("a folder");
    let dir = parent.path().join("sharded");
    fs::create_dir(&dir).expect("writable");
    let mut weight_map = BTreeMap::new();
    for (i, name) in ["a", "b"].into_iter().enumerate() {
        let part = parent.path().join(name);
        write_folder(&part, &[tensor(name, &[2, 3], i as f32)], StoredType::F32, &[]).expect("writable");
        let file = format!("model-0000{}-of-00002.safetensors", i + 1);
        fs::rename(part.join(WEIGHTS_FILE), dir.join(&file)).expect("movable");
        weight_map.insert(name, file);
    }
    fs::write(dir.join(INDEX_FILE), json!({"metadata": {}, "weight_map": weight_map}).to_string()).expect("writable");
    fs::write(dir.join(CONFIG_FILE), "{\"model_type\": \"gpt2\"}").expect("writable");
    (parent, dir)
}

fn error(dir: &Path) -> String {
    Folder::open(dir).expect_err("refused").to_string()
}

#[test]
fn a_folder_of_transformers_is_opened() {
    let folder = Folder::open(&fixture("llama")).expect("a model folder");
    assert_eq!(folder.config()["model_type"], "llama");
    let tensors = folder.tensors();
    assert_eq!(tensors.len(), 21);
    assert_eq!((tensors[0].name.as_str(), tensors[0].shape.as_slice()), ("lm_head.weight", &[320, 32][..]));
    assert_eq!(tensors[0].bytes.len(), 320 * 32 * 4);
    assert!(folder.tokenizer().is_some());
    assert_eq!(folder.tokenizer_config().expect("JSON")["bos_token"], "<s>");
}

#[test]
fn shards_are_read_through_their_index() {
    let (_parent, dir) = sharded();
    let folder = Folder::open(&dir).expect("both shards are there");
    let names: Vec<_> = folder.tensors().into_iter().map(|tensor| tensor.name).collect();
    assert_eq!(names, ["a", "b"]);
}

#[test]
fn an_index_that_does_not_match_its_shards_is_refused() {
    let (_parent, dir) = sharded();
    let index = |map: serde_json::Value| {
        fs::write(dir.join(INDEX_FILE), json!({"weight_map": map}).to_string()).expect("writable");
        error(&dir)
    };
    let [one, two] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let text = index(json!({"a": one, "b": two, "c": "model-00003-of-00003.safetensors"}));
    assert!(text.contains("lists shards that are not here: model-00003-of-00003.safetensors"), "{text}");
    let text = index(json!({"a": one, "b": one, "c": two}));
    for part in ["b in model-00002-of-00002.safetensors is not listed", "b is not in model-00001", "c is not in"] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    let text = index(json!({"a": "../elsewhere.safetensors"}));
    assert!(text.contains("which is not a plain file name"), "{text}");
    fs::write(dir.join(INDEX_FILE), "[]").expect("writable");
    assert!(error(&dir).contains("model.safetensors.index.json: cannot be read"), "{}", error(&dir));
}

#[test]
fn other_folders_are_refused_with_a_reason() {
    let parent = tempfile::tempdir().expect("a folder");
    let dir = parent.path().join("model");
    assert!(error(&dir).contains("no such folder"), "{}", error(&dir));
    fs::create_dir(&dir).expect("writable");
    assert!(error(&dir).contains("no config.json here"), "{}", error(&dir));
    fs::write(dir.join(CONFIG_FILE), "{}").expect("writable");
    assert!(error(&dir).contains("neither model.safetensors nor"), "{}", error(&dir));
    fs::write(dir.join("other.bin"), "PK").expect("writable");
    assert!(error(&dir).contains("only weights under other names"), "{}", error(&dir));
    fs::write(dir.join(TORCH_FILE), "PK").expect("writable");
    assert!(error(&dir).contains("pytorch_model.bin: is not a file of torch.save"), "{}", error(&dir));
    fs::write(dir.join(CONFIG_FILE), "{").expect("writable");
    fs::write(dir.join(WEIGHTS_FILE), "12345").expect("writable");
    assert!(error(&dir).contains("config.json: cannot be read"), "{}", error(&dir));
    fs::write(dir.join(CONFIG_FILE), "{}").expect("writable");
    assert!(error(&dir).contains("model.safetensors: has 5 bytes"), "{}", error(&dir));
    fs::write(dir.join(WEIGHTS_FILE), b"\x02\0\0\0\0\0\0\0[]").expect("writable");
    assert!(error(&dir).contains("is not a safetensors file"), "{}", error(&dir));
}

#[test]
fn a_truncated_download_is_noticed_at_any_length() {
    let parent = tempfile::tempdir().expect("a folder");
    let whole = fs::read(fixture("bert").join(WEIGHTS_FILE)).expect("committed");
    fs::write(parent.path().join(CONFIG_FILE), "{}").expect("writable");
    for length in [whole.len() - 1, whole.len() / 2, 100] {
        fs::write(parent.path().join(WEIGHTS_FILE), &whole[..length]).expect("writable");
        let text = error(parent.path());
        assert!(text.contains(&format!("is cut short: it has {length} bytes, but its header requires")), "{text}");
    }
}

#[test]
fn written_weights_can_be_read_in_every_type() {
    let parent = tempfile::tempdir().expect("a folder");
    for (stored, element_type) in [
        (StoredType::F32, ElementType::F32),
        (StoredType::F16, ElementType::F16),
        (StoredType::Bf16, ElementType::Bf16),
    ] {
        let dir = parent.path().join(stored.torch_name());
        let tensors = [tensor("w", &[2, 2], 1.0), tensor("v", &[1], 0.1)];
        write_folder(&dir, &tensors, stored, &[(CONFIG_FILE, b"{}".to_vec())]).expect("writable");
        let folder = Folder::open(&dir).expect("just written");
        let read = folder.tensors();
        assert_eq!(read.iter().map(|tensor| tensor.name.as_str()).collect::<Vec<_>>(), ["v", "w"]);
        assert_eq!(read[1].element_type, element_type);
        assert_eq!(&read[1].bytes[..read[1].bytes.len() / 4], stored.bytes_of(1.0));
    }
    let names: Vec<_> = fs::read_dir(parent.path()).expect("there").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(names.len(), 3, "nothing temporary is left: {names:?}");
}

/// A reader of the whole folder, and `transformers`, join the files of an export by its index.
#[test]
fn a_large_model_is_written_as_several_files() {
    let parent = tempfile::tempdir().expect("a folder");
    let tensors: Vec<_> =
        [("a", 4), ("b", 4), ("c", 9), ("d", 1), ("e", 3)].map(|(name, n)| tensor(name, &[n], n as f32)).into();
    let lazy: Vec<_> = tensors.iter().map(kiln_model::LazyTensor::borrowed).collect();
    let dir = parent.path().join("model");
    write::write_shards(&dir, &lazy, StoredType::F32, &[(CONFIG_FILE, b"{}".to_vec())], 32).expect("writable");
    let read = |name: &str| fs::read(dir.join(name)).expect("written");
    let index: serde_json::Value = serde_json::from_slice(&read(INDEX_FILE)).expect("JSON");
    assert_eq!(index["metadata"]["total_size"], 4 * 21);
    let files = [1, 1, 2, 3, 3].map(|i| format!("model-{i:05}-of-00003.safetensors"));
    for (tensor, file) in tensors.iter().zip(&files) {
        assert_eq!(index["weight_map"][&tensor.name], *file);
    }

    let folder = Folder::open(&dir).expect("index and shards agree");
    let found: Vec<_> = folder.tensors().iter().map(|tensor| (tensor.name.clone(), tensor.values())).collect();
    let wanted: Vec<_> = tensors.iter().map(|tensor| (tensor.name.clone(), tensor.values.clone())).collect();
    assert_eq!(found, wanted);
    assert!(!dir.join(WEIGHTS_FILE).exists());
}

impl StoredType {
    fn bytes_of(self, value: f32) -> Vec<u8> {
        match self {
            Self::F32 => value.to_le_bytes().to_vec(),
            Self::Bf16 => half::bf16::from_f32(value).to_le_bytes().to_vec(),
            Self::F16 => half::f16::from_f32(value).to_le_bytes().to_vec(),
        }
    }
}

#[test]
fn a_folder_with_something_in_it_is_not_overwritten() {
    let parent = tempfile::tempdir().expect("a folder");
    let dir = parent.path().join("model");
    fs::create_dir(&dir).expect("writable");
    write_folder(&dir, &[], StoredType::F32, &[]).expect("an empty folder is free");
    let error = write_folder(&dir, &[], StoredType::F32, &[]).expect_err("taken").to_string();
    assert!(error.contains("exists already and is not empty"), "{error}");
}

#[test]
fn tokens_are_found_in_every_kind_of_vocabulary() {
    for (family, id, token, n_ids, unknown) in [
        ("gpt2", 0, "<|endoftext|>", 290, None),
        ("llama", 2, "</s>", 320, Some("<unk>")),
        ("bert", 4, "[MASK]", 120, Some("[UNK]")),
        ("marian", 48, "<pad>", 49, Some("<unk>")),
    ] {
        let file = TokenizerFile::read(&fixture(family).join(TOKENIZER_FILE)).expect("a tokenizer");
        assert_eq!((file.token(id), file.n_ids(), file.unknown()), (Some(token), n_ids, unknown), "{family}");
        assert!(file.has(token) && !file.has("no such token") && file.token(9999).is_none());
    }
    let parent = tempfile::tempdir().expect("a folder");
    let path = parent.path().join(TOKENIZER_FILE);
    fs::write(&path, "{}").expect("writable");
    let error = TokenizerFile::read(&path).expect_err("empty").to_string();
    assert!(error.contains("its model has no vocab"), "{error}");
}

/// The special tokens that Kiln puts around a text become part of the file, also if the file puts others.
#[test]
fn an_exported_tokenizer_puts_the_same_tokens_around_a_text() {
    let parent = tempfile::tempdir().expect("a folder");
    let path = parent.path().join(TOKENIZER_FILE);
    let around = || kiln_data::TextTokenizer::load_dir(parent.path()).expect("it can be loaded").around();
    let original = fs::read_to_string(fixture("bert").join(TOKENIZER_FILE)).expect("committed");
    let mut json: serde_json::Value = serde_json::from_str(&original).expect("JSON");
    json["post_processor"] = serde_json::Value::Null;
    fs::write(&path, json.to_string()).expect("writable");
    let bare = TokenizerFile::read(&path).expect("a tokenizer");
    assert_eq!(bare.around().expect("a tokenizer"), None);
    fs::write(&path, bare.with_tokens_around(&[2], &[3, 4]).expect("a tokenizer")).expect("writable");
    assert_eq!(around(), (vec![2], vec![3, 4]));
    let file = TokenizerFile::read(&path).expect("a tokenizer");
    assert_eq!(file.around().expect("a tokenizer"), Some((vec![2], vec![3, 4])));
    let again = file.with_tokens_around(&[2], &[3, 4]).expect("a tokenizer");
    assert_eq!(again, fs::read_to_string(&path).expect("written"), "nothing to change");
    fs::write(&path, file.with_tokens_around(&[], &[0]).expect("a tokenizer")).expect("writable");
    assert_eq!(around(), (vec![], vec![0]));
    let file = TokenizerFile::read(&path).expect("a tokenizer");
    fs::write(&path, file.with_tokens_around(&[], &[]).expect("a tokenizer")).expect("writable");
    assert_eq!(TokenizerFile::read(&path).expect("a tokenizer").around().expect("one"), Some((vec![], vec![])));
}

/// A mask that a published tokenizer finds otherwise than Kiln's own keeps its settings.
#[test]
fn settings_of_a_mask_are_kept_where_they_matter() {
    let of = |kind: &str, lstrip: bool, pre_tokenizer: &str| {
        let json = serde_json::json!({
            "model": {"type": kind, "vocab": {"a": 0, "<mask>": 1}},
            "pre_tokenizer": {"type": pre_tokenizer, "prepend_scheme": "always"},
            "added_tokens": [{"id": 1, "content": "<mask>", "lstrip": lstrip, "special": true}],
        });
        let file = TokenizerFile::parse(json.to_string().as_bytes(), Path::new("tokenizer.json")).expect("a tokenizer");
        file.mask_settings("<mask>")
    };
    assert_eq!(of("WordPiece", false, "BertPreTokenizer"), None, "no spaces to take");
    assert_eq!(of("BPE", true, "ByteLevel"), None, "as Kiln's own");
    let kept = of("BPE", false, "ByteLevel").expect("settings");
    assert_eq!((&kept["content"], &kept["lstrip"]), (&"<mask>".into(), &false.into()));
    assert!(kept["id"].is_null());
    assert!(of("Unigram", true, "Metaspace").is_some(), "text behind the mask begins with a space");
}
