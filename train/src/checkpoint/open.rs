//! Opening: a checkpoint whose files are verified, and whose tensors are read one by one.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use kiln_model::hf::FileTensor;
use kiln_model::{LazyTensor, TransformerConfig};

use super::manifest::{Manifest, ManifestFile};
use super::tensor_file::TensorFile;
use super::verified::{foreign, model_of, read_manifest, read_verified, state_of};
use super::{
    CheckpointError, EMA_FILE, MANIFEST_FILE, MODEL_CONFIG_FILE, MODEL_FILE, NamedState, NamedTensor, OPTIMIZER_FILE,
    OUTER_FILE, Replicas, STATE_FILE, Snapshot, StoredFile, TrainerState, Weights, is_optimizer_state, replica_file,
    states,
};

/// A checkpoint with all its files verified. Of its tensors, only names and shapes are in memory.
#[derive(Debug)]
pub struct OpenCheckpoint {
    /// Optimizer steps done.
    pub step: u64,
    /// The model's shape.
    pub model: TransformerConfig,
    /// Files stored unchanged.
    pub files: Vec<StoredFile>,
    /// Every file, as the manifest lists it.
    pub listed: Vec<ManifestFile>,
    /// Counters and data position; `None` if the checkpoint holds weights only.
    pub state: Option<TrainerState>,
    weights: TensorFile,
    ema: Option<TensorFile>,
    /// The optimizer's state of each device; of a run whose devices share it, one.
    states: Vec<StatesFile>,
    outer: Option<TensorFile>,
}

impl OpenCheckpoint {
    /// Opens the checkpoint in `dir`.
    ///
    /// # Errors
    /// If a file has changed since it was written, or if the files do not belong together.
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        Self::of_manifest(dir, &read_manifest(dir)?)
    }

    pub(super) fn of_manifest(dir: &Path, manifest: &Manifest) -> Result<Self, CheckpointError> {
        let listed = Listed { dir, manifest };
        let weights = listed.tensors(MODEL_FILE)?;
        let model = model_of(dir, &listed.bytes(MODEL_CONFIG_FILE)?)?;
        let ema = listed.find(EMA_FILE).is_some().then(|| listed.tensors(EMA_FILE)).transpose()?;
        let mut taken = HashSet::from([MODEL_FILE, MODEL_CONFIG_FILE, EMA_FILE, STATE_FILE].map(str::to_owned));
        let (mut state, mut states, mut outer) = (None, Vec::new(), None);

        if listed.find(OPTIMIZER_FILE).is_some() {
            let found = state_of(dir, &listed.bytes(STATE_FILE)?)?;
            let is_trained = |weight: &FileTensor<'_>| found.frozen.binary_search(&weight.name).is_err();
            let trained: Vec<FileTensor<'_>> = weights.tensors().filter(is_trained).collect();
            let n = found.replicas.len();
            let names = [OPTIMIZER_FILE.to_owned()].into_iter().chain((1..n).map(replica_file));
            for name in names {
                states.push(StatesFile::new(listed.tensors(&name)?, &trained, manifest.format)?);
                taken.insert(name);
            }
            if n > 0 {
                outer = Some(listed.tensors(OUTER_FILE)?);
                taken.insert(OUTER_FILE.to_owned());
            }
            state = Some(found);
        }

        let step = state.as_ref().map_or(manifest.step, |state| state.step);
        let mut files = listed.stored_files(|name| !taken.contains(name))?;
        files.sort_by(|a, b| a.name.cmp(&b.name));
        let listed = manifest.files.clone();
        Ok(Self { step, model, files, listed, state, weights, ema, states, outer })
    }

    /// Reads the weights one by one.
    pub fn weights(&self) -> impl Iterator<Item = NamedTensor> {
        self.weights.tensors().map(|tensor| self.weights.read(tensor))
    }

    /// Reads the optimizer's state one tensor after the other.
    pub fn optimizer_states(&self) -> impl Iterator<Item = NamedTensor> {
        self.states.iter().flat_map(|file| file.tensors().map(|(_, tensor)| tensor))
    }

    /// Reads everything. `None` if the checkpoint holds weights only.
    pub(super) fn into_snapshot(self) -> Option<Snapshot> {
        let mut states = self.states.iter().map(StatesFile::read_all);
        let optimizer = states.next()?;
        let other_states = states.collect();
        Some(Snapshot {
            weights: self.weights.read_all(),
            optimizer,
            ema: self.ema.as_ref().map(TensorFile::read_all),
            replicas: self.outer.as_ref().map(|outer| Replicas { momentum: outer.read_all(), other_states }),
            state: self.state?,
            model: self.model,
            files: self.files,
        })
    }
}

/// The weights of a checkpoint, with what is needed to use them. All their files are verified, and of their tensors only names and
/// shapes are in memory.
#[derive(Debug)]
pub struct OpenWeights {
    /// Optimizer steps done.
    pub step: u64,
    /// The model's shape.
    pub model: TransformerConfig,
    /// Files stored unchanged.
    pub files: Vec<StoredFile>,
    weights: TensorFile,
    /// Averages, which stand in for the weights of the same names. Frozen weights have none.
    averages: Option<TensorFile>,
}

impl OpenWeights {
    /// Opens the weights of the last step in `dir`. Verifies everything but the optimizer's state.
    pub(super) fn trained(dir: &Path) -> Result<Self, CheckpointError> {
        let manifest = read_manifest(dir)?;
        let listed = Listed { dir, manifest: &manifest };
        let is_state = |name: &str| is_optimizer_state(name) || [STATE_FILE, EMA_FILE].contains(&name);
        let is_own = |name: &str| [MODEL_FILE, MODEL_CONFIG_FILE].contains(&name);
        Ok(Self {
            step: manifest.step,
            weights: listed.tensors(MODEL_FILE)?,
            model: model_of(dir, &listed.bytes(MODEL_CONFIG_FILE)?)?,
            files: listed.stored_files(|name| !is_state(name) && !is_own(name))?,
            averages: None,
        })
    }

    /// Opens the averaged weights in `dir`, or refuses a checkpoint that has none.
    pub(super) fn averaged(dir: &Path) -> Result<Self, CheckpointError> {
        let manifest = read_manifest(dir)?;
        let listed = Listed { dir, manifest: &manifest };
        if listed.find(EMA_FILE).is_none() {
            return Err(CheckpointError::NoAverage(dir.to_path_buf()));
        }
        let averages = Some(listed.tensors(EMA_FILE)?);
        Ok(Self { averages, ..Self::trained(dir)? })
    }

    /// Opens the weights of the last step in `dir`, or their average. Refuses weights that are not finite, one tensor after the other.
    ///
    /// # Errors
    /// As [`read_weights`](super::read_weights) and [`read_average`](super::read_average).
    pub fn open(dir: &Path, averaged: bool) -> Result<Self, CheckpointError> {
        let opened = if averaged { Self::averaged(dir)? } else { Self::trained(dir)? };
        for (file, tensor) in opened.places() {
            finite(&file.path, file.read(tensor))?;
        }
        Ok(opened)
    }

    /// The weights, sorted by name. Each is read when it is needed.
    pub fn tensors(&self) -> Vec<LazyTensor<'_>> {
        self.places().into_iter().map(|(file, tensor)| file.lazy(tensor)).collect()
    }

    /// The tensors in use, each with its file.
    fn places(&self) -> Vec<(&TensorFile, FileTensor<'_>)> {
        let averages = self.averages.iter().flat_map(|file| file.tensors().map(move |tensor| (file, tensor)));
        let mut averages: HashMap<String, _> = averages.map(|(file, it)| (it.name.clone(), (file, it))).collect();
        let tensors = self.weights.tensors();
        tensors.map(|tensor| averages.remove(&tensor.name).unwrap_or((&self.weights, tensor))).collect()
    }

    /// Reads all weights.
    ///
    /// # Errors
    /// [`CheckpointError::NotFinite`], because nothing can be computed with such weights.
    pub(super) fn read(self) -> Result<Weights, CheckpointError> {
        let read = |(file, tensor): (&TensorFile, _)| finite(&file.path, file.read(tensor));
        let weights = self.places().into_iter().map(read).collect::<Result<_, _>>()?;
        Ok(Weights { step: self.step, weights, model: self.model, files: self.files })
    }
}

/// Returns `tensor`, all of whose elements are finite numbers.
fn finite(file: &Path, tensor: NamedTensor) -> Result<NamedTensor, CheckpointError> {
    match tensor.not_finite() {
        Some(value) => Err(CheckpointError::NotFinite { file: file.to_path_buf(), tensor: tensor.name, value }),
        None => Ok(tensor),
    }
}

/// The files that a manifest lists.
struct Listed<'a> {
    dir: &'a Path,
    manifest: &'a Manifest,
}

impl Listed<'_> {
    fn find(&self, name: &str) -> Option<&ManifestFile> {
        self.manifest.files.iter().find(|file| file.name == name)
    }

    fn get(&self, name: &str) -> Result<&ManifestFile, CheckpointError> {
        self.find(name).ok_or_else(|| foreign(&self.dir.join(MANIFEST_FILE), format!("it lists no {name}")))
    }

    fn tensors(&self, name: &str) -> Result<TensorFile, CheckpointError> {
        let allows_16_bits = (name == MODEL_FILE || is_optimizer_state(name)) && self.manifest.format >= 2;
        TensorFile::open(self.dir, self.get(name)?, allows_16_bits)
    }

    fn bytes(&self, name: &str) -> Result<Vec<u8>, CheckpointError> {
        read_verified(self.dir, self.get(name)?)
    }

    /// Reads the files whose names are wanted.
    fn stored_files(&self, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<StoredFile>, CheckpointError> {
        let wanted = self.manifest.files.iter().filter(|file| is_wanted(&file.name));
        wanted.map(|file| Ok(StoredFile { name: file.name.clone(), bytes: read_verified(self.dir, file)? })).collect()
    }
}

/// A file with the optimizer's state of the trained weights.
#[derive(Debug)]
struct StatesFile {
    file: TensorFile,
}

impl StatesFile {
    /// Checks that each tensor belongs to one of the trained `weights` and has its shape. `format` is the checkpoint's.
    fn new(file: TensorFile, weights: &[FileTensor<'_>], format: u32) -> Result<Self, CheckpointError> {
        let weights: HashMap<&str, &[usize]> =
            weights.iter().map(|weight| (weight.name.as_str(), weight.shape.as_slice())).collect();
        let found: Vec<(String, Vec<usize>)> = file.tensors().map(|tensor| (tensor.name, tensor.shape)).collect();
        states::check(&file.path, &found, &weights, format)?;
        Ok(Self { file })
    }

    /// Reads each tensor, with the name of its state and under the name of its weight.
    fn tensors(&self) -> impl Iterator<Item = (String, NamedTensor)> {
        self.file.tensors().map(|tensor| {
            let tensor = self.file.read(tensor);
            let (state, weight) = tensor.name.split_once('.').expect("checked when it was opened");
            (state.to_owned(), NamedTensor { name: weight.to_owned(), ..tensor })
        })
    }

    /// Reads all states, sorted by name, each in the order of the weights.
    fn read_all(&self) -> Vec<NamedState> {
        let mut by_name: BTreeMap<String, Vec<NamedTensor>> = BTreeMap::new();
        self.tensors().for_each(|(state, tensor)| by_name.entry(state).or_default().push(tensor));
        by_name.into_iter().map(|(name, tensors)| NamedState { name, tensors }).collect()
    }
}
