//! A file of tensors whose size and hash agree with the manifest. It is mapped, so that each tensor is read when it is needed.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use kiln_data::files::MappedFile;
use kiln_data::files::open_file;
use kiln_model::LazyTensor;
use kiln_model::hf::{ElementType, FileTensor};
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;

use super::manifest::ManifestFile;
use super::{CheckpointError, NamedTensor};

/// A verified and mapped file.
#[derive(Debug)]
pub(super) struct TensorFile {
    pub(super) path: PathBuf,
    map: MappedFile,
    /// Sorted by name.
    tensors: Vec<Entry>,
}

/// A tensor, and the place of its elements in the file.
#[derive(Debug)]
struct Entry {
    name: String,
    shape: Vec<usize>,
    element_type: ElementType,
    place: Range<usize>,
}

impl TensorFile {
    /// Opens the file that the manifest calls `expected`. Its elements are f32, or also of 16 bits if that is allowed.
    pub(super) fn open(dir: &Path, expected: &ManifestFile, allows_16_bits: bool) -> Result<Self, CheckpointError> {
        let (path, file) = (dir.join(&expected.name), open_verified(dir, expected)?);
        let map = MappedFile::of(&file).map_err(CheckpointError::io("map", &path))?;
        let foreign = |reason| CheckpointError::Foreign { file: path.clone(), reason };
        let header = SafeTensors::deserialize(map.bytes()).map_err(|error| foreign(error.to_string()))?;
        let mut tensors = Vec::with_capacity(header.len());
        for (name, view) in header.iter() {
            let element_type = match view.dtype() {
                Dtype::F32 => ElementType::F32,
                Dtype::F16 if allows_16_bits => ElementType::F16,
                Dtype::BF16 if allows_16_bits => ElementType::Bf16,
                other => return Err(foreign(format!("{name} is {other:?}, not F32"))),
            };
            let first = view.data().as_ptr().addr() - map.bytes().as_ptr().addr();
            let place = first..first + view.data().len();
            tensors.push(Entry { name: name.to_owned(), shape: view.shape().to_vec(), element_type, place });
        }
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self { path, map, tensors })
    }

    /// All tensors, sorted by name. They are read when their elements are.
    pub(super) fn tensors(&self) -> impl ExactSizeIterator<Item = FileTensor<'_>> {
        self.tensors.iter().map(|Entry { name, shape, element_type, place }| FileTensor {
            name: name.clone(),
            shape: shape.clone(),
            element_type: element_type.clone(),
            bytes: &self.map.bytes()[place.clone()],
        })
    }

    /// Reads a tensor of this file, and gives the memory of its pages back.
    pub(super) fn read(&self, tensor: FileTensor<'_>) -> NamedTensor {
        let values = tensor.values();
        self.map.release();
        NamedTensor { name: tensor.name, shape: tensor.shape, values }
    }

    /// Returns a tensor of this file as a parameter that is read when it is needed.
    pub(super) fn lazy<'a>(&'a self, tensor: FileTensor<'a>) -> LazyTensor<'a> {
        tensor.lazy(|| self.map.release())
    }

    /// Reads all tensors, sorted by name.
    pub(super) fn read_all(&self) -> Vec<NamedTensor> {
        self.tensors().map(|tensor| self.read(tensor)).collect()
    }
}

/// Opens a file, and compares its size and hash with the manifest, a part at a time. The size comes first, so that a damaged
/// manifest cannot cause an allocation larger than the file.
pub(super) fn open_verified(dir: &Path, expected: &ManifestFile) -> Result<File, CheckpointError> {
    let path = dir.join(&expected.name);
    let damaged = |found: String, wanted: String| CheckpointError::Damaged { file: path.clone(), found, wanted };
    let file = match open_file(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(damaged("no such file".to_string(), format!("{} bytes", expected.bytes)));
        }
        Err(source) => return Err(CheckpointError::io("read", &path)(source)),
    };
    let size = file.metadata().map_err(CheckpointError::io("read", &path))?.len();
    if size != expected.bytes {
        return Err(damaged(format!("{size} bytes"), format!("{} bytes", expected.bytes)));
    }

    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(&file).map_err(CheckpointError::io("read", &path))?;
    let hash = hasher.finalize().to_hex();
    if hash.as_str() != expected.blake3 {
        return Err(damaged(short_hash(&hash), short_hash(&expected.blake3)));
    }
    Ok(file)
}

/// Returns as much of a hash as distinguishes it from another one.
pub(super) fn short_hash(hash: &str) -> String {
    format!("BLAKE3 {}..", hash.get(..12).unwrap_or(hash))
}
