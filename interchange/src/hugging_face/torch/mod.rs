//! `pytorch_model.bin`: an archive with a Python pickle that describes tensors, and their elements in files of their own. Before
//! PyTorch 1.6 it was a sequence of pickles, followed by the elements.
//!
//! Unpickling in Python can run any code in the file. This reader runs none: of the pickle's instructions it knows those
//! that build tensors, dictionaries and numbers, and it refuses every other function by its name.

mod archive;
mod legacy;
mod machine;
mod pickle;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use archive::Archive;
use kiln_data::files::MappedFile;
use kiln_data::files::open_file;
use kiln_model::hf::{ElementType, FileTensor};
use pickle::Described;

use super::FolderError;

const BIG_ENDIAN: &str = "has big-endian elements, which are not supported; save it again on a little-endian machine";

/// A mapped file whose tensors have been found and measured.
#[derive(Debug)]
pub(super) struct TorchFile {
    pub(super) path: PathBuf,
    pub(super) map: MappedFile,
    tensors: Vec<Found>,
}

/// A tensor, and where its elements are.
#[derive(Debug)]
struct Found {
    name: String,
    shape: Vec<usize>,
    element_type: ElementType,
    elements: Elements,
}

/// The elements of a tensor, last dimension fastest.
#[derive(Debug)]
enum Elements {
    /// A part of the file.
    Mapped { start: usize, len: usize },
    /// Copied in this order, because the file has them in another.
    Gathered(Vec<u8>),
}

/// Where a file holds the elements of each storage: start and length.
type Storages = HashMap<Rc<str>, (usize, usize)>;

impl TorchFile {
    pub(super) fn open(path: &Path) -> Result<Self, FolderError> {
        let file = open_file(path).map_err(FolderError::io("read", path))?;
        let bad = |reason: String| FolderError::bad_file(path, reason);
        if file.metadata().map_err(FolderError::io("read", path))?.len() == 0 {
            return Err(bad("is empty; download it again".to_owned()));
        }
        let map = MappedFile::of(&file).map_err(FolderError::io("map", path))?;
        let tensors = find(map.bytes()).map_err(bad)?;
        Ok(Self { path: path.to_path_buf(), map, tensors })
    }

    /// All tensors, sorted by name.
    pub(super) fn tensors(&self) -> Vec<FileTensor<'_>> {
        self.tensors.iter().map(|found| self.tensor(found)).collect()
    }

    fn tensor<'a>(&'a self, found: &'a Found) -> FileTensor<'a> {
        FileTensor {
            name: found.name.clone(),
            shape: found.shape.clone(),
            element_type: found.element_type.clone(),
            bytes: match &found.elements {
                Elements::Mapped { start, len } => &self.map.bytes()[*start..start + len],
                Elements::Gathered(bytes) => bytes,
            },
        }
    }
}

/// Finds the tensors in a file.
fn find(bytes: &[u8]) -> Result<Vec<Found>, String> {
    let (described, storages) = if legacy::is_legacy(bytes) { legacy::read(bytes)? } else { read_archive(bytes)? };
    let mut found = Vec::with_capacity(described.len());
    for tensor in described {
        let Described { name, storage, offset, shape, stride } = &tensor;
        let (element_type, size) = element_type(&storage.kind);
        let (first, available) = *storages
            .get(&storage.key)
            .ok_or_else(|| format!("{name} is in the storage {}, which the file lacks", storage.key))?;
        let cut_short = || {
            format!(
                "{name} of shape {shape:?} needs more than the {available} bytes of the storage {}; download the file again",
                storage.key
            )
        };
        let len = shape.iter().try_fold(size, |n, dim| n.checked_mul(*dim)).ok_or_else(cut_short)?;

        let elements = if len == 0 {
            Elements::Gathered(Vec::new())
        } else if is_contiguous(shape, stride) {
            let start =
                offset.checked_mul(size).filter(|start| start.checked_add(len).is_some_and(|end| end <= available));
            Elements::Mapped { start: first + start.ok_or_else(cut_short)?, len }
        } else if len > available {
            return Err(format!(
                "{name} repeats elements (shape {shape:?}, strides {stride:?}); save it with .contiguous()"
            ));
        } else {
            let stored = &bytes[first..first + available];
            Elements::Gathered(gather(stored, size, &tensor).ok_or_else(cut_short)?)
        };
        found.push(Found { name: name.to_string(), shape: shape.clone(), element_type, elements });
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// Reads the description of an archive, the format of PyTorch since 1.6.
fn read_archive(bytes: &[u8]) -> Result<(Vec<Described>, Storages), String> {
    let archive = Archive::open(bytes)?;
    let (folder, pickle) = archive
        .names()
        .find_map(|name| Some((name.strip_suffix("data.pkl")?.to_owned(), archive.file(name)?)))
        .ok_or("has no data.pkl, so it is not a file of torch.save; load it in PyTorch and save it again")?;
    let order = archive.file(&format!("{folder}byteorder")).map(|(start, len)| &bytes[start..start + len]);
    if order.is_some_and(|order| order != b"little") {
        return Err(BIG_ENDIAN.to_owned());
    }

    let (described, _) = pickle::tensors(&bytes[pickle.0..pickle.0 + pickle.1])?;
    let place = |key: &Rc<str>| Some((key.clone(), archive.file(&format!("{folder}data/{key}"))?));
    let storages = described.iter().filter_map(|tensor| place(&tensor.storage.key)).collect();
    Ok((described, storages))
}

/// Copies the elements of a tensor, each of `size` bytes, from its storage. None if the storage lacks one of them.
fn gather(storage: &[u8], size: usize, tensor: &Described) -> Option<Vec<u8>> {
    let Described { offset, shape, stride, .. } = tensor;
    if shape.len() != stride.len() {
        return None;
    }
    let n = shape.iter().product::<usize>();
    let mut gathered = Vec::with_capacity(n * size);
    let mut index = vec![0; shape.len()];
    for _ in 0..n {
        let steps =
            index.iter().zip(stride).try_fold(*offset, |at, (i, step)| at.checked_add(step.checked_mul(*i)?))?;
        let at = steps.checked_mul(size)?;
        gathered.extend_from_slice(storage.get(at..at.checked_add(size)?)?);

        for (i, dim) in index.iter_mut().zip(shape).rev() {
            *i += 1;
            if *i < *dim {
                break;
            }
            *i = 0;
        }
    }
    Some(gathered)
}

/// The type of a storage's elements, and their size in bytes.
fn element_type(storage: &str) -> (ElementType, usize) {
    match storage {
        "FloatStorage" => (ElementType::F32, 4),
        "DoubleStorage" => (ElementType::F64, 8),
        "HalfStorage" => (ElementType::F16, 2),
        "BFloat16Storage" => (ElementType::Bf16, 2),
        other => {
            let size = match other {
                "LongStorage" => 8,
                "IntStorage" => 4,
                "ShortStorage" => 2,
                _ => 1,
            };
            (ElementType::Other(other.trim_end_matches("Storage").to_owned()), size)
        }
    }
}

/// Whether elements follow each other, last dimension fastest. Strides of dimensions of 1 do not matter.
fn is_contiguous(shape: &[usize], stride: &[usize]) -> bool {
    let mut wanted = 1_usize;
    shape.len() == stride.len()
        && shape.iter().zip(stride).rev().all(|(dim, stride)| {
            let fits = *dim == 1 || *stride == wanted;
            wanted = wanted.saturating_mul(*dim);
            fits
        })
}

#[cfg(test)]
mod tests;
