//! Reads a model folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use kiln_data::files::read_file;
use kiln_model::hf::FileTensor;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::safetensors_file::SafetensorsFile;
use super::torch::TorchFile;
use super::{
    CONFIG_FILE, FolderError, GENERATION_CONFIG_FILE, INDEX_FILE, TOKENIZER_CONFIG_FILE, TOKENIZER_FILE, TORCH_FILE,
    TORCH_INDEX_FILE, WEIGHTS_FILE,
};

/// An open model folder, with its configuration read, its weights mapped and their sizes checked.
#[derive(Debug)]
pub struct Folder {
    dir: PathBuf,
    config: Value,
    shards: Vec<WeightsFile>,
}

/// A file with weights.
#[derive(Debug)]
enum WeightsFile {
    Safetensors(SafetensorsFile),
    Torch(TorchFile),
}

impl WeightsFile {
    /// Opens a file of the format that its name tells.
    fn open(path: &Path) -> Result<Self, FolderError> {
        Ok(match path.extension().is_some_and(|extension| extension == "bin") {
            true => Self::Torch(TorchFile::open(path)?),
            false => Self::Safetensors(SafetensorsFile::open(path)?),
        })
    }

    fn path(&self) -> &Path {
        match self {
            Self::Safetensors(file) => &file.path,
            Self::Torch(file) => &file.path,
        }
    }

    fn release(&self) {
        match self {
            Self::Safetensors(file) => file.map.release(),
            Self::Torch(file) => file.map.release(),
        }
    }

    fn tensors(&self) -> Vec<FileTensor<'_>> {
        match self {
            Self::Safetensors(file) => file.tensors(),
            Self::Torch(file) => file.tensors(),
        }
    }
}

/// `model.safetensors.index.json`, or `pytorch_model.bin.index.json`.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Folder {
    /// Opens the folder `dir`.
    ///
    /// # Errors
    /// If the folder, its `config.json` or its weights do not exist, a file is truncated, or index and shards disagree.
    pub fn open(dir: &Path) -> Result<Self, FolderError> {
        let not_a_model = |reason: &str| FolderError::NotAModel { path: dir.to_path_buf(), reason: reason.to_owned() };
        if dir.is_file() && dir.extension().is_some_and(|ending| ending == "gguf") {
            return Err(not_a_model(
                "a file for llama.cpp, which Kiln writes but does not read: import the folder of transformers that it was made from",
            ));
        }
        if dir.is_file() {
            let folder = dir.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            return Err(not_a_model(&format!(
                "a file; name the folder that has it and a {CONFIG_FILE}: {}",
                folder.display()
            )));
        }
        if !dir.is_dir() {
            return Err(not_a_model("no such folder; give one with a config.json and a model.safetensors"));
        }
        if !dir.join(CONFIG_FILE).is_file() {
            return Err(not_a_model("there is no config.json here, so it is not a Hugging Face model folder"));
        }

        let config = parse(&dir.join(CONFIG_FILE))?;
        let [single, index, torch, torch_index] =
            [WEIGHTS_FILE, INDEX_FILE, TORCH_FILE, TORCH_INDEX_FILE].map(|name| dir.join(name));
        let shards = if single.is_file() {
            vec![WeightsFile::open(&single)?]
        } else if index.is_file() {
            open_shards(dir, &index)?
        } else if torch.is_file() {
            vec![WeightsFile::open(&torch)?]
        } else if torch_index.is_file() {
            open_shards(dir, &torch_index)?
        } else {
            return Err(not_a_model(&no_weights(dir)));
        };
        Ok(Self { dir: dir.to_path_buf(), config, shards })
    }

    /// The content of `config.json`.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// All tensors of all shards, with their bytes in the mapped files.
    pub fn tensors(&self) -> Vec<FileTensor<'_>> {
        self.shards.iter().flat_map(WeightsFile::tensors).collect()
    }

    /// Gives the memory of what has been read of the tensors back to the system.
    pub fn release(&self) {
        self.shards.iter().for_each(WeightsFile::release);
    }

    /// Path of the folder's `tokenizer.json`, if it exists.
    pub fn tokenizer(&self) -> Option<PathBuf> {
        Some(self.dir.join(TOKENIZER_FILE)).filter(|path| path.is_file())
    }

    /// The content of `tokenizer_config.json`, or an empty object if it does not exist.
    pub fn tokenizer_config(&self) -> Result<Value, FolderError> {
        Ok(self.optional(TOKENIZER_CONFIG_FILE)?.unwrap_or_else(|| Value::Object(serde_json::Map::new())))
    }

    /// The settings of generation: `generation_config.json`, or, as in `transformers`, `config.json` if it does not exist.
    pub fn generation_config(&self) -> Result<Value, FolderError> {
        Ok(self.optional(GENERATION_CONFIG_FILE)?.unwrap_or_else(|| self.config.clone()))
    }

    fn optional(&self, name: &str) -> Result<Option<Value>, FolderError> {
        let path = self.dir.join(name);
        if path.is_file() { parse(&path).map(Some) } else { Ok(None) }
    }
}

/// Opens the files that `index` lists, and checks that they hold exactly the listed tensors.
fn open_shards(dir: &Path, index: &Path) -> Result<Vec<WeightsFile>, FolderError> {
    let Index { weight_map } = parse(index)?;
    let files: BTreeSet<&String> = weight_map.values().collect();
    if let Some(file) = files.iter().find(|file| file.contains(['/', '\\']) || file.starts_with('.')) {
        return Err(FolderError::bad_file(index, format!("lists the shard {file:?}, which is not a plain file name")));
    }
    let missing: Vec<_> = files.iter().filter(|file| !dir.join(file).is_file()).map(|file| file.as_str()).collect();
    if !missing.is_empty() {
        let reason = format!("lists shards that are not here: {}; download them too", missing.join(", "));
        return Err(FolderError::bad_file(index, reason));
    }

    let shards = files.iter().map(|file| WeightsFile::open(&dir.join(file))).collect::<Result<Vec<_>, _>>()?;
    let mut problems = Vec::new();
    let mut unseen: BTreeMap<&str, &str> = weight_map.iter().map(|(name, file)| (&**name, &**file)).collect();
    for shard in &shards {
        let file = shard.path().file_name().unwrap_or_default().to_string_lossy();
        for tensor in shard.tensors() {
            match unseen.get(tensor.name.as_str()) {
                Some(wanted) if **wanted == *file => drop(unseen.remove(tensor.name.as_str())),
                _ => problems.push(format!("{} in {file} is not listed", tensor.name)),
            }
        }
    }

    problems.extend(unseen.into_iter().map(|(name, file)| format!("{name} is not in {file}")));
    if problems.is_empty() {
        return Ok(shards);
    }
    Err(FolderError::bad_file(index, format!("does not match the shards: {}", problems.join("; "))))
}

/// Explains why there are no weights, and how to get them.
fn no_weights(dir: &Path) -> String {
    let has = |end: &str| {
        let names = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.into_iter().any(|name| name.to_string_lossy().ends_with(end))
    };
    if has(".bin") || has(".pt") || has(".pth") {
        return format!(
            "there is neither {WEIGHTS_FILE} nor {TORCH_FILE} here, only weights under other names; rename a file of torch.save to \
             {TORCH_FILE}, or load the model with transformers and save it with save_pretrained"
        );
    }
    format!("there is neither {WEIGHTS_FILE} nor {INDEX_FILE} nor {TORCH_FILE} here")
}

fn parse<T: DeserializeOwned>(path: &Path) -> Result<T, FolderError> {
    let bytes = read_file(path).map_err(FolderError::io("read", path))?;
    serde_json::from_slice(&bytes).map_err(|error| FolderError::bad_file(path, format!("cannot be read: {error}")))
}
