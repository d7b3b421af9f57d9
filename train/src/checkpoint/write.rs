//! Writing: fills a temporary folder, syncs it, writes the manifest last, then renames the folder.

use std::borrow::Cow;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use kiln_data::files::replace::{remove_dir_if_there, rename, replace_file, sync_dir, write_synced};
use kiln_interchange::tensor_file::{TensorHead, usual_threads, write_tensors};
use kiln_model::{Elements, FloatType, LazyTensor, TransformerConfig};
use safetensors::tensor::Dtype;
use serde::Serialize;

use super::manifest::{Manifest, ManifestFile};
use super::{
    CheckpointError, Checkpoints, EMA_FILE, FORMAT, MANIFEST_FILE, MODEL_CONFIG_FILE, MODEL_FILE, NamedState,
    NamedTensor, OPTIMIZER_FILE, OUTER_FILE, Pointer, Replicas, STATE_FILE, Snapshot, StoredFile, TrainerState,
    Weights, folder_name, replica_file, states,
};
use crate::config::MasterWeights;

impl Checkpoints {
    /// Writes `snapshot` and moves the pointer `last` to it; with `is_best`, `best` too. Returns its folder.
    ///
    /// It replaces an existing checkpoint of the same step: a run that resumed from an older one repeats steps.
    pub fn save(&self, snapshot: &Snapshot, is_best: bool) -> Result<PathBuf, CheckpointError> {
        let target = self.write_folder(snapshot.state.step, |folder| folder.put_snapshot(snapshot))?;
        self.record_run(&snapshot.state)?;
        if is_best {
            self.point(Pointer::Best, &folder_name(snapshot.state.step))?;
        } else if let Err(CheckpointError::Pointer { .. }) = self.pointed(Pointer::Best) {
            // A pointer that was damaged since must not cost the best checkpoint.
            self.point_to_best(snapshot)?;
        }
        Ok(target)
    }

    /// Writes a checkpoint of `weights` only, and moves the pointer `last` to it. Returns its folder.
    pub fn save_weights(&self, weights: &Weights) -> Result<PathBuf, CheckpointError> {
        self.write_folder(weights.step, |folder| {
            folder.put_named(MODEL_FILE, &weights.weights, |_| FloatType::F32)?;
            folder.put_files(&weights.model, &weights.files)
        })
    }

    /// Does the same as [`Self::save_weights`] with weights that are read one by one. Weights of 16 bits stay so.
    pub fn save_tensors(
        &self,
        step: u64,
        weights: &[LazyTensor<'_>],
        model: &TransformerConfig,
        files: &[StoredFile],
    ) -> Result<PathBuf, CheckpointError> {
        self.write_folder(step, |folder| {
            let heads: Vec<_> = weights.iter().map(|it| head(&it.name, it.float_type, &it.shape)).collect();
            folder.put_tensors(MODEL_FILE, &heads, |i| weights[i].elements())?;
            folder.put_files(model, files)
        })
    }

    /// Lets `write` fill a temporary folder, then renames it to the checkpoint of `step`.
    fn write_folder(
        &self,
        step: u64,
        write: impl FnOnce(&mut NewFolder<'_>) -> Result<(), CheckpointError>,
    ) -> Result<PathBuf, CheckpointError> {
        self.ensure_in_place()?;
        let name = folder_name(step);
        let (target, temporary) = (self.dir.join(&name), self.dir.join(format!("{name}.tmp")));
        remove_dir_if_there(&temporary)?;
        let is_first = !self.dir.exists();
        self.create(&temporary)?;
        if is_first && let Some(run_dir) = self.dir.parent() {
            sync_dir(run_dir)?;
        }

        let mut folder = NewFolder::new(&temporary, step);
        if let Err(error) = write(&mut folder).and_then(|()| folder.finish()) {
            // Do not leave half a checkpoint on a full disk.
            let _ = fs::remove_dir_all(&temporary);
            return Err(error);
        }

        if let Err(error) = self.ensure_in_place() {
            let _ = fs::remove_dir_all(&temporary);
            return Err(error);
        }
        if target.exists() {
            // A kill between the two renames leaves the old checkpoint complete as `.stale`, and `clean` restores its name.
            let stale = self.dir.join(format!("{name}.stale"));
            remove_dir_if_there(&stale)?;
            rename(&target, &stale)?;
            rename(&temporary, &target)?;
            sync_dir(&self.dir)?;
            remove_dir_if_there(&stale)?;
        } else {
            rename(&temporary, &target)?;
        }
        sync_dir(&self.dir)?;
        self.point(Pointer::Last, &name)?;
        Ok(target)
    }

    /// Creates the folder of a checkpoint. A run folder that was moved meanwhile is not made again in its old place.
    fn create(&self, folder: &Path) -> Result<(), CheckpointError> {
        let made = match self.held {
            Some(_) => {
                let parent = fs::create_dir(&self.dir).or_else(|error| match error.kind() {
                    ErrorKind::AlreadyExists => Ok(()),
                    _ => Err(error),
                });
                parent.and_then(|()| fs::create_dir(folder))
            }
            None => fs::create_dir_all(folder),
        };
        made.map_err(CheckpointError::io("create", folder))
    }

    /// Moves `pointer` to the folder `name`, atomically.
    pub(super) fn point(&self, pointer: Pointer, name: &str) -> Result<(), CheckpointError> {
        self.ensure_in_place()?;
        Ok(replace_file(&self.dir.join(pointer.name()), format!("{name}\n").as_bytes())?)
    }
}

/// The folder of a checkpoint that is being written.
struct NewFolder<'a> {
    dir: &'a Path,
    manifest: Manifest,
}

impl<'a> NewFolder<'a> {
    fn new(dir: &'a Path, step: u64) -> Self {
        let kiln = env!("CARGO_PKG_VERSION").to_string();
        Self { dir, manifest: Manifest { format: FORMAT, kiln, step, files: Vec::new(), digest: String::new() } }
    }

    fn put_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), CheckpointError> {
        let TrainerState { master_weights, frozen, .. } = &snapshot.state;
        let trained = if *master_weights == MasterWeights::Bf16 { FloatType::Bf16 } else { FloatType::F32 };
        let type_of = |name: &str| if frozen.iter().any(|path| path == name) { FloatType::F32 } else { trained };
        self.put_named(MODEL_FILE, &snapshot.weights, type_of)?;
        self.put_files(&snapshot.model, &snapshot.files)?;
        self.put_states(OPTIMIZER_FILE, &snapshot.optimizer, trained)?;
        if let Some(average) = &snapshot.ema {
            self.put_named(EMA_FILE, average, |_| FloatType::F32)?;
        }

        if let Some(Replicas { momentum, other_states }) = &snapshot.replicas {
            self.put_named(OUTER_FILE, momentum, |_| FloatType::F32)?;
            for (replica, states) in (1..).zip(other_states) {
                self.put_states(&replica_file(replica), states, trained)?;
            }
        }
        self.put(STATE_FILE, &json(&snapshot.state))
    }

    fn put_files(&mut self, model: &TransformerConfig, files: &[StoredFile]) -> Result<(), CheckpointError> {
        self.put(MODEL_CONFIG_FILE, &json(model))?;
        files.iter().try_for_each(|file| self.put(&file.name, &file.bytes))
    }

    /// Puts tensors in memory into the file `name`, each in the type that `type_of` returns for its name. The type has its numbers.
    fn put_named(
        &mut self,
        name: &str,
        tensors: &[NamedTensor],
        type_of: impl Fn(&str) -> FloatType,
    ) -> Result<(), CheckpointError> {
        let tensors = tensors.iter().map(|tensor| (tensor.name.clone(), type_of(&tensor.name), tensor));
        self.put_typed(name, &tensors.collect::<Vec<_>>())
    }

    /// Puts the optimizer's states into the file `name`, each before the name of its weight and in a type that has its numbers.
    fn put_states(&mut self, name: &str, states: &[NamedState], of: FloatType) -> Result<(), CheckpointError> {
        let tensors: Vec<_> = states::in_file(states).map(|(name, tensor)| (name, of, tensor)).collect();
        self.put_typed(name, &tensors)
    }

    fn put_typed(&mut self, name: &str, tensors: &[(String, FloatType, &NamedTensor)]) -> Result<(), CheckpointError> {
        let heads: Vec<_> = tensors.iter().map(|(name, of, tensor)| head(name, *of, &tensor.shape)).collect();
        self.put_tensors(name, &heads, |i| match &tensors[i] {
            (_, FloatType::F32, tensor) => Cow::Borrowed(bytemuck::cast_slice(&tensor.values)),
            (_, of, tensor) => Cow::<[u8]>::Owned(Elements::rounded(&tensor.values, *of).as_ref().to_vec()),
        })
    }

    /// Puts the tensors `heads` into the file `name`. `read` returns the elements of one of them.
    fn put_tensors<B: AsRef<[u8]> + Send>(
        &mut self,
        name: &str,
        heads: &[TensorHead],
        read: impl Fn(usize) -> B + Sync,
    ) -> Result<(), CheckpointError> {
        let (mut hasher, mut n_bytes) = (blake3::Hasher::new(), 0);
        let read = |i| Ok::<_, CheckpointError>(read(i));
        let path = self.dir.join(name);
        let written = |bytes: &[u8]| {
            hasher.update(bytes);
            n_bytes += bytes.len() as u64;
        };
        write_tensors(&path, heads, usual_threads(), read, written, |error| {
            CheckpointError::io("write", &path)(error)
        })?;
        self.list(name, n_bytes, &hasher.finalize());
        Ok(())
    }

    fn put(&mut self, name: &str, bytes: &[u8]) -> Result<(), CheckpointError> {
        write_synced(&self.dir.join(name), bytes)?;
        self.list(name, bytes.len() as u64, &blake3::hash(bytes));
        Ok(())
    }

    /// Lists a file in the manifest.
    fn list(&mut self, name: &str, bytes: u64, hash: &blake3::Hash) {
        let files = &mut self.manifest.files;
        assert!(
            !name.contains(['/', '\\']) && name != MANIFEST_FILE && files.iter().all(|file| file.name != name),
            "a checkpoint cannot hold a second {name:?}"
        );
        files.push(ManifestFile { name: name.to_string(), bytes, blake3: hash.to_hex().to_string() });
    }

    /// Writes the manifest: the folder is complete.
    fn finish(&mut self) -> Result<(), CheckpointError> {
        self.manifest.digest = self.manifest.computed_digest();
        write_synced(&self.dir.join(MANIFEST_FILE), &json(&self.manifest))?;
        Ok(sync_dir(self.dir)?)
    }
}

fn head(name: &str, of: FloatType, shape: &[usize]) -> TensorHead {
    let dtype = match of {
        FloatType::F32 => Dtype::F32,
        FloatType::F16 => Dtype::F16,
        FloatType::Bf16 => Dtype::BF16,
    };
    TensorHead { name: name.to_owned(), dtype, shape: shape.to_vec() }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec_pretty(value).expect("plain numbers and strings can be written")
}
