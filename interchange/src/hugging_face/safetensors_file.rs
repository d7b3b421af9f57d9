//! A `.safetensors` file, mapped into memory.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use kiln_data::files::MappedFile;
use kiln_data::files::open_file;
use kiln_model::hf::{ElementType, FileTensor};
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use serde::Deserialize;

use super::FolderError;

/// A mapped file with checked header and size.
#[derive(Debug)]
pub(super) struct SafetensorsFile {
    pub(super) path: PathBuf,
    pub(super) map: MappedFile,
}

/// An entry of the header, reduced to what determines the size of the file.
#[derive(Deserialize)]
struct Extent {
    data_offsets: Option<[u64; 2]>,
}

impl SafetensorsFile {
    pub(super) fn open(path: &Path) -> Result<Self, FolderError> {
        let file = open_file(path).map_err(FolderError::io("read", path))?;
        let metadata = file.metadata().map_err(FolderError::io("read", path))?;
        if !metadata.is_file() || metadata.len() < 8 {
            let reason =
                format!("has {} bytes, but a safetensors file has at least 8; download it again", metadata.len());
            return Err(FolderError::bad_file(path, reason));
        }
        let map = MappedFile::of(&file).map_err(FolderError::io("map", path))?;
        if let Some(reason) = size_problem(map.bytes()) {
            return Err(FolderError::bad_file(path, reason));
        }
        SafeTensors::deserialize(map.bytes())
            .map_err(|error| FolderError::bad_file(path, format!("is not a safetensors file: {error}")))?;
        Ok(Self { path: path.to_path_buf(), map })
    }

    /// All tensors, sorted by name.
    pub(super) fn tensors(&self) -> Vec<FileTensor<'_>> {
        let file = SafeTensors::deserialize(self.map.bytes()).expect("checked when it was opened");
        let mut tensors: Vec<_> = file
            .iter()
            .map(|(name, view)| FileTensor {
                name: name.to_owned(),
                shape: view.shape().to_vec(),
                element_type: match view.dtype() {
                    Dtype::F64 => ElementType::F64,
                    Dtype::F32 => ElementType::F32,
                    Dtype::F16 => ElementType::F16,
                    Dtype::BF16 => ElementType::Bf16,
                    other => ElementType::Other(format!("{other:?}")),
                },
                bytes: self.slice_of(view.data()),
            })
            .collect();
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        tensors
    }

    /// The same bytes, borrowed from the map instead of its short-lived view.
    fn slice_of(&self, data: &[u8]) -> &[u8] {
        let first = data.as_ptr().addr() - self.map.bytes().as_ptr().addr();
        &self.map.bytes()[first..first + data.len()]
    }
}

/// Reports a file that is shorter than its header requires. The parser's own errors do not say so.
fn size_problem(bytes: &[u8]) -> Option<String> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    let length = u64::from_le_bytes(*length);
    let cut_short = |wanted: u64| {
        format!("is cut short: it has {} bytes, but its header requires {wanted}; download it again", bytes.len())
    };
    let Some(header) = usize::try_from(length).ok().and_then(|length| rest.get(..length)) else {
        // The standard limits a header to 100 MB, and the parser refuses a longer one.
        return (length <= 100_000_000).then(|| cut_short(length.saturating_add(8)));
    };
    let entries: HashMap<String, Extent> = serde_json::from_slice(header).ok()?;
    let end = entries.values().filter_map(|extent| extent.data_offsets).map(|[_, end]| end).max().unwrap_or(0);
    let wanted = end.saturating_add(length).saturating_add(8);
    (wanted > bytes.len() as u64).then(|| cut_short(wanted))
}
