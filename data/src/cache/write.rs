//! The file of a cache, written from front to back.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::encode::EncodedBlock;
use super::format::{CacheKind, HEADER_BYTES, Header};
use super::seen::SeenRows;
use crate::corpus::{RowFilter, RowReport};
use crate::error::{Error, Result};
use crate::files::create_fresh;

/// What fails if a cache cannot be completed.
pub(super) const FINISHING: &str = "finishing the token cache";

/// Writes tokens as they arrive, and the index at the end.
pub(super) struct Writer {
    path: PathBuf,
    file: BufWriter<File>,
    hasher: blake3::Hasher,
    token_bytes: u64,
    kind: CacheKind,
    offsets: Vec<u64>,
    source_lens: Vec<u32>,
    pub(super) report: RowReport,
    /// The rows so far, if repeated ones are dropped.
    seen: Option<SeenRows>,
}

impl Writer {
    pub(super) fn create(path: &Path, kind: CacheKind) -> Result<Self> {
        let file = create_fresh(path).map_err(Error::io(path, "creating the token cache"))?;
        let mut file = BufWriter::with_capacity(1 << 20, file);
        // The header is written last: until then the file has no magic number.
        file.write_all(&[0; HEADER_BYTES]).map_err(Error::io(path, "writing"))?;
        Ok(Self {
            path: path.into(),
            file,
            hasher: blake3::Hasher::new(),
            token_bytes: 0,
            kind,
            offsets: vec![0],
            source_lens: Vec::new(),
            report: RowReport::default(),
            seen: None,
        })
    }

    /// Drops rows that repeat an earlier one from here on, if `filter` says so.
    pub(super) fn watch_repeated(&mut self, filter: Option<&RowFilter>) {
        let drops_duplicates = filter.is_some_and(RowFilter::drops_duplicates);
        self.seen = drops_duplicates.then(|| SeenRows::new(&self.path));
    }

    pub(super) fn push(&mut self, mut block: EncodedBlock) -> Result<()> {
        if let Some(seen) = &mut self.seen {
            block.drop_repeated(seen)?;
        }

        self.write(&block.tokens)?;
        self.hasher.update(&block.tokens);
        self.token_bytes += block.tokens.len() as u64;
        let mut end = *self.offsets.last().expect("starts with 0");
        for (i, (source, both)) in block.rows.into_iter().enumerate() {
            end += u64::from(both);
            if i == 0 && block.continues {
                *self.offsets.last_mut().expect("the start of the document") = end;
                continue;
            }
            self.offsets.push(end);
            if self.kind.has_first_lengths() {
                self.source_lens.push(source);
            }
        }
        if self.offsets.len() > u32::MAX as usize {
            return Err(Error::Invalid(
                "the corpus has more than 4,294,967,295 rows, the limit of one cache: split it".into(),
            ));
        }
        self.report.merge(block.report);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(Error::io(&self.path, "writing"))
    }

    /// Completes `header`, and writes the index and the header. Returns the file, which is not synced.
    pub(super) fn finish(mut self, mut header: Header) -> Result<File> {
        let report = serde_json::to_vec(&self.report).expect("plain data");
        header.n_rows = self.offsets.len() as u64 - 1;
        header.n_tokens = *self.offsets.last().expect("starts with 0");
        header.report_bytes = report.len() as u64;
        header.tokens_hash = self.hasher.finalize();

        let padding = self.token_bytes.next_multiple_of(8) - self.token_bytes;
        self.write(&vec![0; padding as usize])?;
        let (offsets, source_lens) = (std::mem::take(&mut self.offsets), std::mem::take(&mut self.source_lens));
        let mut hasher = blake3::Hasher::new();
        for part in [bytemuck::cast_slice(&offsets), bytemuck::cast_slice(&source_lens), &report] {
            hasher.update(part);
            self.write(part)?;
        }
        header.index_hash = hasher.finalize();

        let finish = |file: &mut BufWriter<File>| {
            file.flush()?;
            file.get_mut().seek(SeekFrom::Start(0))?;
            file.get_mut().write_all(&header.to_bytes())
        };
        finish(&mut self.file).map_err(Error::io(&self.path, FINISHING))?;
        self.file.into_inner().map_err(|error| Error::io(&self.path, FINISHING)(error.into_error()))
    }
}
