//! Parquet tables, one row group after another.
//!
//! The library takes memory as a file claims sizes. So each claim is compared with the file first: lengths in the metadata, the places of
//! column chunks, and the size of each page.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::basic::Compression;
use parquet::file::metadata::ColumnChunkMetaData;

use super::columns::{BatchRows, ClassNames};
use super::thrift::Thrift;
use super::{Place, Records, Wanted};
use crate::error::{Error, Result, panic_text};
use crate::files::open_file;

/// Marks the beginning and the end of a file.
const MAGIC: &[u8; 4] = b"PAR1";
/// The length of the metadata and the magic behind them.
const TAIL_BYTES: u64 = 8;
/// The longest metadata: 10,000 row groups of 100 columns have less.
const MAX_METADATA_BYTES: u64 = 256 << 20;
/// The longest page when decompressed. Writers make pages of 1 MiB, and longer ones for a single value.
const MAX_PAGE_BYTES: i64 = 256 << 20;
/// The longest header of a page. It may hold the least and the greatest value.
const MAX_HEADER_BYTES: usize = 16 << 20;
/// Values that a batch of one column may have in bytes, as far as the size of its pages tells.
const BATCH_BYTES: i64 = 256 << 20;
/// Rows of a batch.
const BATCH_ROWS: i64 = 1024;

pub(super) fn open(path: &Path, wanted: &Wanted) -> Result<Box<dyn Records>> {
    Ok(Box::new(RowGroups::open(path, wanted)?))
}

struct RowGroups {
    path: PathBuf,
    file: File,
    n_bytes: u64,
    metadata: ArrowReaderMetadata,
    names: ClassNames,
    wanted: Wanted,
    /// Row groups begun so far, and so the number of the open one, counted from 1.
    n_groups: usize,
    open: Option<OpenGroup>,
    /// Rows read so far.
    n_rows: u64,
}

struct OpenGroup {
    reader: ParquetRecordBatchReader,
    rows: Option<BatchRows>,
    /// Rows that the metadata promises and that were not read yet.
    n_missing: i64,
}

impl RowGroups {
    fn open(path: &Path, wanted: &Wanted) -> Result<Self> {
        let mut file = open_file(path).map_err(Error::io(path, "opening the corpus"))?;
        let n_bytes = check_metadata(path, &mut file)?;
        // What writers store of Arrow is not needed for records.
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let metadata = guarded(|| ArrowReaderMetadata::load(&file, options).map_err(|error| error.to_string()))
            .map_err(|found| damaged(path, &format!("its metadata cannot be read: {found}")))?;

        let entries = metadata.metadata().file_metadata().key_value_metadata();
        let entry = entries.into_iter().flatten().find(|entry| entry.key == ClassNames::ENTRY);
        let names = ClassNames::of(entry.and_then(|entry| entry.value.as_ref()));
        Ok(Self {
            path: path.into(),
            file,
            n_bytes,
            metadata,
            names,
            wanted: wanted.clone(),
            n_groups: 0,
            open: None,
            n_rows: 0,
        })
    }

    fn damaged(&self, found: &str) -> Error {
        damaged(&self.path, &format!("row group {}: {found}", self.n_groups))
    }

    /// Opens the next row group. Returns `false` after the last one.
    fn open_group(&mut self) -> Result<bool> {
        if self.n_groups == self.metadata.metadata().num_row_groups() {
            return Ok(false);
        }
        let number = self.n_groups;
        self.n_groups += 1;
        let group = self.metadata.metadata().row_group(number);
        let schema = self.metadata.parquet_schema();
        let names: Vec<&str> = schema.root_schema().get_fields().iter().map(|field| field.name()).collect();
        let mask = ProjectionMask::roots(schema, self.wanted.columns(&names));

        // Every page of the columns that will be read.
        let mut largest_page = 1;
        for (at, column) in group.columns().iter().enumerate().filter(|(at, _)| mask.leaf_included(*at)) {
            if let Compression::BROTLI(_) | Compression::LZO = column.compression() {
                let found =
                    format!("is compressed with {}: write it with snappy, zstd, gzip or lz4", column.compression());
                return Err(Error::corpus(&self.path, found));
            }
            let page = check_pages(&mut &self.file, column, self.n_bytes);
            let name = names.get(schema.get_column_root_idx(at)).copied().unwrap_or_default();
            largest_page =
                page.map_err(|found| self.damaged(&format!("column \"{name}\": {found}")))?.max(largest_page);
        }

        let n_rows = group.num_rows();
        let file = self.file.try_clone().map_err(Error::io(&self.path, "reading"))?;
        let batch_rows = (BATCH_BYTES / largest_page).clamp(1, BATCH_ROWS) as usize;
        let reader = guarded(|| {
            let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, self.metadata.clone());
            let builder = builder.with_projection(mask).with_row_groups(vec![number]).with_batch_size(batch_rows);
            builder.build().map_err(|error| error.to_string())
        });
        let reader = reader.map_err(|found| self.damaged(&found))?;
        self.open = Some(OpenGroup { reader, rows: None, n_missing: n_rows });
        Ok(true)
    }
}

impl Records for RowGroups {
    fn next(&mut self, json: &mut Vec<u8>) -> Result<Option<Place>> {
        loop {
            let Some(open) = &mut self.open else {
                match self.open_group()? {
                    true => continue,
                    false => return Ok(None),
                }
            };
            let (names, wanted) = (&self.names, &self.wanted);
            let found = guarded(|| open.next(json, names, wanted));
            match found.map_err(|found| self.damaged(&found))? {
                true => {
                    self.n_rows += 1;
                    return Ok(Some(Place::at(self.n_rows)));
                }
                false => self.open = None,
            }
        }
    }
}

impl OpenGroup {
    fn next(&mut self, json: &mut Vec<u8>, names: &ClassNames, wanted: &Wanted) -> Result<bool, String> {
        loop {
            if let Some(rows) = &mut self.rows
                && rows.next(json, names)?
            {
                return Ok(true);
            }
            self.rows = match self.reader.next() {
                None if self.n_missing != 0 => {
                    return Err(format!("{} of its rows are missing", self.n_missing));
                }
                None => return Ok(false),
                Some(batch) => {
                    let batch = batch.map_err(|error| error.to_string())?;
                    self.n_missing -= batch.num_rows() as i64;
                    Some(BatchRows::new(&batch, wanted))
                }
            };
        }
    }
}

fn damaged(path: &Path, found: &str) -> Error {
    Error::corpus(path, format!("is a damaged or unusual Parquet file: {found}; download or write it again"))
}

/// Catches panics: the library checks less than a damaged file can hold.
fn guarded<T>(read: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|panic| Err(panic_text(&*panic).to_owned()))
}

/// Checks all lengths in the metadata at the end of a file. Returns the length of the file.
fn check_metadata(path: &Path, file: &mut File) -> Result<u64> {
    let io = |error| Error::io(path, "reading")(error);
    let n_bytes = file.seek(SeekFrom::End(0)).map_err(io)?;
    let mut start = [0; 4];
    file.rewind()
        .and_then(|()| file.read_exact(&mut start))
        .map_err(|_| damaged(path, "it is shorter than 4 bytes"))?;
    if start != *MAGIC {
        return Err(Error::corpus(
            path,
            "is not a Parquet file: it does not begin with PAR1 (Parquet is not compressed once more)",
        ));
    }
    let mut tail = [0; TAIL_BYTES as usize];
    let position = SeekFrom::Start(n_bytes.saturating_sub(TAIL_BYTES));
    file.seek(position).and_then(|_| file.read_exact(&mut tail)).map_err(io)?;
    if tail[4..] != *MAGIC {
        return Err(damaged(path, "it does not end with PAR1, as a download that stopped"));
    }

    let length = u64::from(u32::from_le_bytes(tail[..4].try_into().expect("4 bytes")));
    if length > MAX_METADATA_BYTES || length + TAIL_BYTES + 4 > n_bytes {
        let found = format!("it claims {length} bytes of metadata, but has {n_bytes} bytes in all");
        return Err(damaged(path, &found));
    }
    let mut metadata = vec![0; length as usize];
    let position = SeekFrom::Start(n_bytes - TAIL_BYTES - length);
    file.seek(position).and_then(|_| file.read_exact(&mut metadata)).map_err(io)?;
    let checked = Thrift::new(&metadata).structure(&mut |_| ());
    checked.ok_or_else(|| damaged(path, "its metadata claim more than they hold"))?;
    Ok(n_bytes)
}

/// Checks the sizes that the pages of a column claim. Returns the largest.
fn check_pages(file: &mut &File, column: &ColumnChunkMetaData, n_bytes: u64) -> Result<i64, String> {
    let (first, len) = (column.data_page_offset(), column.compressed_size());
    let start = column.dictionary_page_offset().filter(|offset| *offset > 0).unwrap_or(first).min(first);
    let range = u64::try_from(start).ok().zip(u64::try_from(len).ok());
    let range = range.and_then(|(start, len)| Some((start, start.checked_add(len).filter(|end| *end <= n_bytes)?)));
    let (mut at, end) = range.ok_or("it claims to lie outside of the file")?;

    let (mut largest, mut buffer) = (1, Vec::new());
    while at < end {
        let (header_bytes, page) = read_header(file, at, end, &mut buffer)?;
        let (size, compressed) = page;
        if !(0..=MAX_PAGE_BYTES).contains(&size) {
            return Err(format!("a page at byte {at} claims {size} bytes, at most {MAX_PAGE_BYTES} are read"));
        }
        let next = u64::try_from(compressed).ok().and_then(|len| (at + header_bytes as u64).checked_add(len));
        at = next
            .filter(|next| *next <= end)
            .ok_or_else(|| format!("the page at byte {at} claims to lie outside of it"))?;
        largest = largest.max(size);
    }
    Ok(largest)
}

/// Reads the header of the page at `at`. Returns the length of the header, and the sizes of the page: decompressed and in the file.
fn read_header(file: &mut &File, at: u64, end: u64, buffer: &mut Vec<u8>) -> Result<(usize, (i64, i64)), String> {
    let mut len = 256;
    loop {
        buffer.clear();
        let io = |error: std::io::Error| error.to_string();
        file.seek(SeekFrom::Start(at)).map_err(io)?;
        file.take((end - at).min(len as u64)).read_to_end(buffer).map_err(io)?;
        let (mut size, mut compressed) = (None, None);
        let mut thrift = Thrift::new(buffer);
        let read = thrift.structure(&mut |field| match field.id {
            2 => size = field.number,
            3 => compressed = field.number,
            _ => {}
        });
        match (read, size, compressed) {
            (Some(()), Some(size), Some(compressed)) => return Ok((thrift.n_read(), (size, compressed))),
            (None, ..) if buffer.len() == len && len < MAX_HEADER_BYTES => len *= 16,
            _ => return Err(format!("the header of the page at byte {at} is damaged")),
        }
    }
}
