//! Writes a model folder, completely or not at all.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use half::{bf16, f16};
use kiln_data::files::{remove_dir_if_there, write_synced};
use kiln_model::{Elements, LazyTensor, NamedTensor};
use safetensors::tensor::Dtype;
use serde_json::json;

use super::{ADAPTER_CONFIG_FILE, ADAPTER_FILE, FolderError, INDEX_FILE, WEIGHTS_FILE};
use crate::tensor_file::{TensorHead, usual_threads, write_tensors};

/// Bytes of the weights in a file; more are cut into several, as version 4 of `transformers` does.
const SHARD_BYTES: usize = 5_000_000_000;

/// The element type of the written weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum StoredType {
    /// 32-bit floats, without loss.
    F32,
    /// bfloat16: half the size, 8 bits of precision.
    Bf16,
    /// Half precision: half the size, 11 bits of precision, at most 65504.
    F16,
}

impl StoredType {
    /// The name in `config.json`.
    pub fn torch_name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
            Self::F16 => "float16",
        }
    }

    /// What a file says about `tensor`.
    fn head(self, tensor: &LazyTensor<'_>) -> TensorHead {
        let dtype = match self {
            Self::F32 => Dtype::F32,
            Self::Bf16 => Dtype::BF16,
            Self::F16 => Dtype::F16,
        };
        TensorHead { name: tensor.name.clone(), dtype, shape: tensor.shape.clone() }
    }

    /// Reads the elements of `tensor`, rounded to nearest.
    ///
    /// # Errors
    /// If an element is beyond the type's range, or not finite.
    fn elements(self, tensor: &LazyTensor<'_>) -> Result<Elements, FolderError> {
        let elements = tensor.elements();
        let stored = match (self, elements) {
            (Self::F32, elements) => Elements::F32(elements.into_f32()),
            (Self::Bf16, kept @ Elements::Bf16(_)) | (Self::F16, kept @ Elements::F16(_)) => kept,
            (Self::Bf16, elements) => Elements::Bf16(elements.into_f32().into_iter().map(bf16::from_f32).collect()),
            (Self::F16, elements) => Elements::F16(elements.into_f32().into_iter().map(f16::from_f32).collect()),
        };
        // A fold has no early exit, so that the compiler takes many elements at once.
        let is_sound = match &stored {
            Elements::F32(values) => values.iter().fold(true, |sound, x| sound & x.is_finite()),
            Elements::F16(values) => values.iter().fold(true, |sound, x| sound & x.is_finite()),
            Elements::Bf16(values) => values.iter().fold(true, |sound, x| sound & x.is_finite()),
        };
        if is_sound {
            return Ok(stored);
        }
        let is_lost = |x: &f32| match self {
            Self::F32 => !x.is_finite(),
            Self::Bf16 => !bf16::from_f32(*x).is_finite(),
            Self::F16 => !f16::from_f32(*x).is_finite(),
        };
        let value = tensor.read().values.into_iter().find(is_lost).unwrap_or(f32::NAN);
        Err(FolderError::Beyond { tensor: tensor.name.clone(), value, stored: self.torch_name() })
    }
}

/// Writes `tensors` and `files` (plain names and contents) to the new folder `dir`. It fills a temporary folder next to `dir`
/// and renames it, so that `dir` is never incomplete.
pub fn write_folder(
    dir: &Path,
    tensors: &[NamedTensor],
    stored: StoredType,
    files: &[(&str, Vec<u8>)],
) -> Result<(), FolderError> {
    let tensors: Vec<_> = tensors.iter().map(LazyTensor::borrowed).collect();
    write_model(dir, &tensors, stored, files)
}

/// Does the same as [`write_folder`] with tensors that are read one by one. Weights of more than 5 GB are written to several
/// files side by side.
pub fn write_model(
    dir: &Path,
    tensors: &[LazyTensor<'_>],
    stored: StoredType,
    files: &[(&str, Vec<u8>)],
) -> Result<(), FolderError> {
    write_shards(dir, tensors, stored, files, SHARD_BYTES)
}

/// Does the same as [`write_model`] with files of another size.
pub(super) fn write_shards(
    dir: &Path,
    tensors: &[LazyTensor<'_>],
    stored: StoredType,
    files: &[(&str, Vec<u8>)],
    shard_bytes: usize,
) -> Result<(), FolderError> {
    write_named(dir, files, |dir| {
        let shards = shards(tensors, stored, shard_bytes);
        if let [_] | [] = shards.as_slice() {
            return write_file(&dir.join(WEIGHTS_FILE), tensors, stored, usual_threads());
        }
        let named: Vec<_> = (1..)
            .zip(&shards)
            .map(|(i, shard)| (format!("model-{i:05}-of-{:05}.safetensors", shards.len()), *shard))
            .collect();
        write_side_by_side(dir, &named, stored)?;

        let names = named.iter().flat_map(|(file, shard)| shard.iter().map(move |tensor| (tensor.name.clone(), file)));
        let total: usize = tensors.iter().map(|tensor| stored.head(tensor).n_bytes()).sum();
        let map: BTreeMap<String, &String> = names.collect();
        let index = json!({"metadata": {"total_size": total}, "weight_map": map});
        write_plain(&dir.join(INDEX_FILE), format!("{index:#}\n").as_bytes())
    })
}

/// Writes adapters to the new folder `dir` as [`write_folder`] writes a model.
pub fn write_adapter(
    dir: &Path,
    tensors: &[NamedTensor],
    stored: StoredType,
    settings: Vec<u8>,
) -> Result<(), FolderError> {
    let tensors: Vec<_> = tensors.iter().map(LazyTensor::borrowed).collect();
    let files = [(ADAPTER_CONFIG_FILE, settings)];
    write_named(dir, &files, |dir| write_file(&dir.join(ADAPTER_FILE), &tensors, stored, usual_threads()))
}

/// Lets `write_weights` fill a temporary folder next to `dir`, adds `files`, and renames it.
fn write_named(
    dir: &Path,
    files: &[(&str, Vec<u8>)],
    write_weights: impl FnOnce(&Path) -> Result<(), FolderError>,
) -> Result<(), FolderError> {
    if dir.exists() && fs::read_dir(dir).map_or(true, |mut entries| entries.next().is_some()) {
        return Err(FolderError::Taken(dir.to_path_buf()));
    }

    let mut name = dir.file_name().unwrap_or_default().to_owned();
    name.push(".tmp");
    let temporary = dir.with_file_name(name);
    remove_dir_if_there(&temporary).map_err(FolderError::io("remove", &temporary))?;
    fs::create_dir_all(&temporary).map_err(FolderError::io("create", &temporary))?;

    let mut written = write_weights(&temporary);
    for (name, content) in files {
        written = written.and_then(|()| write_plain(&temporary.join(name), content));
    }
    let written = written.and_then(|()| {
        if dir.exists() {
            // It is empty: see above.
            fs::remove_dir(dir).map_err(FolderError::io("replace", dir))?;
        }
        fs::rename(&temporary, dir).map_err(FolderError::io("rename to", dir))
    });
    if written.is_err() {
        // Do not leave half a model on a full disk.
        let _ = fs::remove_dir_all(&temporary);
    }
    written
}

/// Cuts the tensors into files of at most `bytes`, in their order. A larger tensor has a file of its own.
fn shards<'a, 'b>(tensors: &'a [LazyTensor<'b>], stored: StoredType, bytes: usize) -> Vec<&'a [LazyTensor<'b>]> {
    let (mut shards, mut first, mut used) = (Vec::new(), 0, 0);
    for (i, tensor) in tensors.iter().enumerate() {
        let len = stored.head(tensor).n_bytes();
        if i > first && used + len > bytes {
            shards.push(&tensors[first..i]);
            (first, used) = (i, 0);
        }
        used += len;
    }
    shards.push(&tensors[first..]);
    shards
}

/// Writes several files at the same time. All threads together hold as many tensors as one file's usually do.
fn write_side_by_side(
    dir: &Path,
    shards: &[(String, &[LazyTensor<'_>])],
    stored: StoredType,
) -> Result<(), FolderError> {
    let n = usual_threads().min(shards.len());
    let next = AtomicUsize::new(0);
    let write = || -> Result<(), FolderError> {
        while let Some((name, tensors)) = shards.get(next.fetch_add(1, Ordering::Relaxed)) {
            write_file(&dir.join(name), tensors, stored, usual_threads() / n)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..n).map(|_| scope.spawn(write)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("writing does not panic"))
    })
}

/// Writes tensors to a file.
fn write_file(
    path: &Path,
    tensors: &[LazyTensor<'_>],
    stored: StoredType,
    n_threads: usize,
) -> Result<(), FolderError> {
    let heads: Vec<_> = tensors.iter().map(|tensor| stored.head(tensor)).collect();
    write_tensors(
        path,
        &heads,
        n_threads,
        |i| stored.elements(&tensors[i]),
        |_| (),
        |error| FolderError::io("write", path)(error),
    )
}

fn write_plain(path: &Path, content: &[u8]) -> Result<(), FolderError> {
    write_synced(path, content).map_err(FolderError::io("write", path))
}
