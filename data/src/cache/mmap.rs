//! A file as a slice of memory: the only `unsafe` of this crate.

use std::path::Path;

use memmap2::Mmap;

use crate::error::{Error, Result};
use crate::files::open_file;

/// A file mapped read-only.
#[derive(Debug)]
pub(crate) struct MappedFile {
    /// `None` for an empty file, which cannot be mapped.
    map: Option<Mmap>,
}

impl MappedFile {
    /// Maps a whole file. Errors name `action`.
    pub(crate) fn open(path: &Path, action: &'static str) -> Result<Self> {
        let file = open_file(path).map_err(Error::io(path, action))?;
        let metadata = file.metadata().map_err(Error::io(path, action))?;
        if !metadata.is_file() {
            return Err(Error::corpus(path, "is not a regular file, so it cannot be mapped into memory"));
        }
        if metadata.len() == 0 {
            return Ok(Self { map: None });
        }
        // SAFETY: a map is sound as long as nobody changes the file meanwhile. Caches are written under another name,
        // renamed when complete and never changed in place. Corpora belong to the user and, like any mapped input, must
        // not be rewritten in place during a run. Any bytes are valid: they are only read as integers or checked as
        // UTF-8.
        #[expect(unsafe_code, reason = "a memory map has no safe constructor; see SAFETY")]
        let map = unsafe { Mmap::map(&file) }.map_err(Error::io(path, "mapping into memory"))?;
        Ok(Self { map: Some(map) })
    }

    /// Returns the contents.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }
}
