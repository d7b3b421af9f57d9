//! Writes a model folder, completely or not at all.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;

use half::{bf16, f16};
use kiln_data::files::write_fresh;
use kiln_model::NamedTensor;
use safetensors::tensor::{Dtype, TensorView};

use super::{ADAPTER_CONFIG_FILE, ADAPTER_FILE, FolderError, WEIGHTS_FILE};

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

    fn dtype(self) -> Dtype {
        match self {
            Self::F32 => Dtype::F32,
            Self::Bf16 => Dtype::BF16,
            Self::F16 => Dtype::F16,
        }
    }

    /// Converts to little-endian elements, rounded to nearest.
    ///
    /// # Errors
    /// If an element is beyond the type's range, or not finite.
    fn bytes(self, tensor: &NamedTensor) -> Result<Vec<u8>, FolderError> {
        let values = &tensor.values;
        let beyond = match self {
            Self::F32 => tensor.not_finite(),
            Self::Bf16 => values.iter().copied().find(|x| !bf16::from_f32(*x).is_finite()),
            Self::F16 => values.iter().copied().find(|x| !f16::from_f32(*x).is_finite()),
        };
        if let Some(value) = beyond {
            return Err(FolderError::Beyond { tensor: tensor.name.clone(), value, stored: self.torch_name() });
        }
        Ok(match self {
            Self::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Self::Bf16 => values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
            Self::F16 => values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
        })
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
    write_named(dir, WEIGHTS_FILE, tensors, stored, files)
}

/// Writes adapters to the new folder `dir` as [`write_folder`] writes a model.
pub fn write_adapter(
    dir: &Path,
    tensors: &[NamedTensor],
    stored: StoredType,
    settings: Vec<u8>,
) -> Result<(), FolderError> {
    write_named(dir, ADAPTER_FILE, tensors, stored, &[(ADAPTER_CONFIG_FILE, settings)])
}

fn write_named(
    dir: &Path,
    weights_file: &str,
    tensors: &[NamedTensor],
    stored: StoredType,
    files: &[(&str, Vec<u8>)],
) -> Result<(), FolderError> {
    if dir.exists() && fs::read_dir(dir).map_or(true, |mut entries| entries.next().is_some()) {
        return Err(FolderError::Taken(dir.to_path_buf()));
    }

    let mut name = dir.file_name().unwrap_or_default().to_owned();
    name.push(".tmp");
    let temporary = dir.with_file_name(name);
    remove_if_there(&temporary)?;
    fs::create_dir_all(&temporary).map_err(FolderError::io("create", &temporary))?;

    let written = write_all(&temporary, weights_file, tensors, stored, files).and_then(|()| {
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

fn write_all(
    dir: &Path,
    weights_file: &str,
    tensors: &[NamedTensor],
    stored: StoredType,
    files: &[(&str, Vec<u8>)],
) -> Result<(), FolderError> {
    let bytes = tensors.iter().map(|tensor| stored.bytes(tensor)).collect::<Result<Vec<_>, _>>()?;
    let views = tensors.iter().zip(&bytes).map(|(tensor, bytes)| {
        let view = TensorView::new(stored.dtype(), tensor.shape.clone(), bytes).expect("values fill their shape");
        (tensor.name.clone(), view)
    });

    let path = dir.join(weights_file);
    // transformers refuses files that do not name the framework that wrote them.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize_to_file(views, Some(metadata), &path)
        .map_err(io::Error::other)
        .and_then(|()| File::open(&path)?.sync_all())
        .map_err(FolderError::io("write", &path))?;

    for (name, content) in files {
        let path = dir.join(name);
        write_fresh(&path, content)
            .and_then(|()| File::open(&path)?.sync_all())
            .map_err(FolderError::io("write", &path))?;
    }

    // `serialize_to_file` makes a file that nobody else can read.
    if let Some((name, _)) = files.first() {
        let usual = fs::metadata(dir.join(name)).map(|file| file.permissions());
        usual.and_then(|usual| fs::set_permissions(&path, usual)).map_err(FolderError::io("write", &path))?;
    }
    Ok(())
}

fn remove_if_there(path: &Path) -> Result<(), FolderError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(FolderError::io("remove", path)(error)),
        _ => Ok(()),
    }
}
