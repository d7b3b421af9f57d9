//! The manifest: names, sizes and hashes of all other files.

use serde::{Deserialize, Serialize};

/// `manifest.json`: the content of the folder. It is written last, so its presence means that the folder is complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`FORMAT`](super::FORMAT).
    pub format: u32,
    /// Version of Kiln that wrote it.
    pub kiln: String,
    /// Optimizer steps done.
    pub step: u64,
    /// Every other file.
    pub files: Vec<ManifestFile>,
    /// BLAKE3 hash of this manifest as compact JSON with an empty `digest`.
    pub digest: String,
}

impl Manifest {
    /// Computes [`Self::digest`].
    pub fn computed_digest(&self) -> String {
        let bare = Self { digest: String::new(), ..self.clone() };
        blake3::hash(&serde_json::to_vec(&bare).expect("plain numbers and strings can be written")).to_hex().to_string()
    }
}

/// One file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestFile {
    /// Plain file name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// BLAKE3 hash of its content, hexadecimal.
    pub blake3: String,
}
