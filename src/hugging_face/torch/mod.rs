//! `pytorch_model.bin`: an archive with a Python pickle that describes tensors, and their elements in files of their own.
//!
//! Unpickling in Python can run any code in the file. This reader runs none: of the pickle's instructions it knows those
//! that build tensors, dictionaries and numbers, and it refuses every other function by its name.

mod archive;
mod pickle;

use std::path::{Path, PathBuf};

use archive::Archive;
use kiln_data::files::open_file;
use kiln_model::hf::{ElementType, FileTensor};
use memmap2::Mmap;
use pickle::Described;

use super::FolderError;

/// A mapped file whose tensors have been found and measured.
#[derive(Debug)]
pub(super) struct TorchFile {
    pub(super) path: PathBuf,
    map: Mmap,
    tensors: Vec<Found>,
}

/// A tensor, and its place in the file.
#[derive(Debug)]
struct Found {
    name: String,
    shape: Vec<usize>,
    element_type: ElementType,
    start: usize,
    len: usize,
}

impl TorchFile {
    pub(super) fn open(path: &Path) -> Result<Self, FolderError> {
        let file = open_file(path).map_err(FolderError::io("read", path))?;
        let bad = |reason: String| FolderError::bad_file(path, reason);
        if file.metadata().map_err(FolderError::io("read", path))?.len() == 0 {
            return Err(bad("is empty; download it again".to_owned()));
        }
        // SAFETY: a map is sound as long as nobody changes the file. Nobody should rewrite a model folder in place while it
        // is read. All bytes are valid input: they are read as numbers or checked as UTF-8.
        #[expect(unsafe_code, reason = "a memory map has no safe constructor; see SAFETY")]
        let map = unsafe { Mmap::map(&file) }.map_err(FolderError::io("map", path))?;
        let tensors = find(&map).map_err(bad)?;
        Ok(Self { path: path.to_path_buf(), map, tensors })
    }

    /// All tensors, sorted by name.
    pub(super) fn tensors(&self) -> Vec<FileTensor<'_>> {
        let tensor = |found: &Found| FileTensor {
            name: found.name.clone(),
            shape: found.shape.clone(),
            element_type: found.element_type.clone(),
            bytes: &self.map[found.start..found.start + found.len],
        };
        self.tensors.iter().map(tensor).collect()
    }
}

/// Finds the tensors in a file.
fn find(bytes: &[u8]) -> Result<Vec<Found>, String> {
    let archive = Archive::open(bytes)?;
    let (folder, pickle) = archive
        .names()
        .find_map(|name| Some((name.strip_suffix("data.pkl")?.to_owned(), archive.file(name)?)))
        .ok_or("has no data.pkl, so it is not a file of torch.save; load it in PyTorch and save it again")?;
    let order = archive.file(&format!("{folder}byteorder")).map(|(start, len)| &bytes[start..start + len]);
    if order.is_some_and(|order| order != b"little") {
        return Err(
            "has big-endian elements, which are not supported; save it again on a little-endian machine".to_owned()
        );
    }

    let described = pickle::tensors(&bytes[pickle.0..pickle.0 + pickle.1])?;
    let mut found = Vec::with_capacity(described.len());
    for Described { name, storage, offset, shape, stride } in described {
        let (element_type, size) = element_type(&storage.kind);
        let elements = shape.iter().try_fold(1_usize, |n, dim| n.checked_mul(*dim));
        if elements != Some(0) && !is_contiguous(&shape, &stride) {
            return Err(format!(
                "{name} is not contiguous (shape {shape:?}, strides {stride:?}); save it with .contiguous()"
            ));
        }

        let file = format!("{folder}data/{}", storage.key);
        let (first, available) =
            archive.file(&file).ok_or_else(|| format!("{name} is in {file}, which is not in the archive"))?;
        let range = elements.and_then(|n| Some((offset.checked_mul(size)?, n.checked_mul(size)?)));
        let Some((start, len)) =
            range.filter(|(start, len)| start.checked_add(*len).is_some_and(|end| end <= available))
        else {
            return Err(format!(
                "{name} of shape {shape:?} needs more than the {available} bytes of {file}; download the file again"
            ));
        };
        found.push(Found { name: name.to_string(), shape, element_type, start: first + start, len });
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// The type of a storage's elements, and their size in bytes.
fn element_type(storage: &str) -> (ElementType, usize) {
    match storage {
        "FloatStorage" => (ElementType::F32, 4),
        "HalfStorage" => (ElementType::F16, 2),
        "BFloat16Storage" => (ElementType::Bf16, 2),
        other => {
            let size = match other {
                "DoubleStorage" | "LongStorage" => 8,
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
