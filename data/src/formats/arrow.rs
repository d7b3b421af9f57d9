//! Arrow tables: files (Feather 2) and streams, which `datasets` writes.
//!
//! A file is a stream between a magic and a footer, so both are read as a stream. The sizes that a message claims are compared with the
//! bytes that are there before memory is taken for them.

use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use arrow_buffer::Buffer;
use arrow_ipc::reader::StreamDecoder;
use arrow_ipc::{Message, MessageHeader, RecordBatch as BatchMessage, root_as_message};

use super::columns::{BatchRows, ClassNames};
use super::{Place, Records, Wanted, compressed};
use crate::error::{Error, Result, panic_text};

/// Begins a file; a stream has none.
const MAGIC: &[u8; 8] = b"ARROW1\0\0";
/// Begins a message since version 0.15 of Arrow.
const CONTINUATION: u32 = 0xffff_ffff;
/// The longest description of a message.
const MAX_METADATA_BYTES: u64 = 64 << 20;
/// The longest message, also when decompressed: as much as 32-bit offsets reach.
const MAX_BODY_BYTES: u64 = 2 << 30;
/// Rows of one message.
const MAX_ROWS: u64 = 1 << 24;

pub(super) fn open(path: &Path, wanted: &Wanted) -> Result<Box<dyn Records>> {
    let mut batches = Batches {
        path: path.into(),
        reader: compressed::open(path)?,
        decoder: StreamDecoder::new(),
        names: ClassNames::default(),
        wanted: wanted.clone(),
        rows: None,
        n_messages: 0,
        n_rows: 0,
        is_over: false,
        is_file: false,
    };
    batches.read_start()?;
    Ok(Box::new(batches))
}

struct Batches {
    path: PathBuf,
    reader: Box<dyn std::io::BufRead + Send>,
    decoder: StreamDecoder,
    names: ClassNames,
    wanted: Wanted,
    rows: Option<BatchRows>,
    /// Messages begun so far.
    n_messages: u64,
    /// Rows read so far.
    n_rows: u64,
    is_over: bool,
    /// Whether a footer follows the messages.
    is_file: bool,
}

impl Batches {
    /// Skips the magic of a file.
    fn read_start(&mut self) -> Result<()> {
        let start = self.reader.fill_buf().map_err(Error::io(&self.path, "reading"))?;
        match start {
            start if start.starts_with(MAGIC) => {
                self.is_file = true;
                self.reader.consume(MAGIC.len());
            }
            [0xff, 0xff, 0xff, 0xff, ..] => {}
            _ => {
                let found = "is not an Arrow file: it begins neither like a file (ARROW1) nor like a stream; Feather 1 and Arrow before \
                     0.15 must be written again";
                return Err(Error::corpus(&self.path, found));
            }
        }
        Ok(())
    }

    fn damaged(&self, found: &str) -> Error {
        let found = format!(
            "is a damaged or unusual Arrow file: message {}: {found}; download or write it again",
            self.n_messages
        );
        Error::corpus(&self.path, found)
    }

    /// Reads `n` bytes, or fewer at the end of the file. Takes memory as they come.
    fn read(&mut self, n: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        (&mut self.reader).take(n).read_to_end(&mut bytes).map_err(Error::io(&self.path, "reading"))?;
        Ok(bytes)
    }

    /// Reads exactly `n` bytes.
    fn read_all(&mut self, n: u64) -> Result<Vec<u8>> {
        let bytes = self.read(n)?;
        match bytes.len() as u64 == n {
            true => Ok(bytes),
            false => Err(self.damaged(&format!("the file ends after {} of its {n} bytes", bytes.len()))),
        }
    }

    /// Reads the next message with rows. Returns `false` at the end.
    fn read_batch(&mut self) -> Result<bool> {
        loop {
            self.n_messages += 1;
            let start = self.read(4)?;
            // A stream may end without a mark.
            if start.is_empty() && self.n_messages > 1 && !self.is_file {
                return Ok(false);
            }
            let start = <[u8; 4]>::try_from(start).map_err(|_| self.damaged("the file ends in its length"))?;
            if u32::from_le_bytes(start) != CONTINUATION {
                return Err(self.damaged("it does not begin with FFFFFFFF"));
            }
            let length = self.read_all(4)?;
            let length = u64::from(u32::from_le_bytes(length.try_into().expect("4 bytes")));
            match length {
                0 => return Ok(false),
                length if length > MAX_METADATA_BYTES => {
                    return Err(self.damaged(&format!("it claims {length} bytes of metadata")));
                }
                _ => {}
            }

            let metadata = self.read_all(length)?;
            let body_bytes = check_message(&metadata).map_err(|found| self.damaged(&found))?;
            let body = self.read_all(body_bytes)?;
            check_body(&metadata, &body).map_err(|found| self.damaged(&found))?;
            if self.decode(&metadata, body)? {
                return Ok(true);
            }
        }
    }

    /// Decodes a message. Returns whether it holds rows.
    fn decode(&mut self, metadata: &[u8], body: Vec<u8>) -> Result<bool> {
        let header = [&CONTINUATION.to_le_bytes()[..], &(metadata.len() as u32).to_le_bytes(), metadata].concat();
        let decoder = &mut self.decoder;
        // The decoder takes a message in when something follows it: here its body.
        let decoded = catch_unwind(AssertUnwindSafe(|| {
            let mut batch = decoder.decode(&mut Buffer::from_vec(header)).map_err(|error| error.to_string())?;
            let mut body = Buffer::from_vec(body);
            if batch.is_none() && !body.is_empty() {
                batch = decoder.decode(&mut body).map_err(|error| error.to_string())?;
            }
            Ok(batch)
        }));
        let decoded = decoded.unwrap_or_else(|panic| Err(panic_text(&*panic).to_owned()));
        let batch = decoded.map_err(|found| self.damaged(&found))?;
        let Some(batch) = batch else { return Ok(false) };

        if self.rows.is_none() {
            self.names = ClassNames::of(batch.schema().metadata().get(ClassNames::ENTRY));
        }
        self.rows = Some(BatchRows::new(&batch, &self.wanted));
        Ok(true)
    }
}

impl Records for Batches {
    fn next(&mut self, json: &mut Vec<u8>) -> Result<Option<Place>> {
        loop {
            let (rows, names) = (&mut self.rows, &self.names);
            let read = AssertUnwindSafe(|| rows.as_mut().map_or(Ok(false), |rows| rows.next(json, names)));
            let found = catch_unwind(read).unwrap_or_else(|panic| Err(panic_text(&*panic).to_owned()));
            if found.map_err(|found| self.damaged(&found))? {
                self.n_rows += 1;
                return Ok(Some(Place::at(self.n_rows)));
            }
            self.is_over = self.is_over || !self.read_batch()?;
            if self.is_over {
                return Ok(None);
            }
        }
    }
}

fn message(metadata: &[u8]) -> Result<Message<'_>, String> {
    root_as_message(metadata).map_err(|error| format!("its metadata are not valid: {error}"))
}

/// Checks what the metadata of a message claim. Returns the length of its body.
fn check_message(metadata: &[u8]) -> Result<u64, String> {
    let message = message(metadata)?;
    let body = u64::try_from(message.bodyLength()).ok().filter(|body| *body <= MAX_BODY_BYTES);
    let body = body.ok_or_else(|| format!("it claims {} bytes, at most 2 GiB are read", message.bodyLength()))?;
    if let Some(batch) = batch_of(&message) {
        let lengths = batch.nodes().into_iter().flatten().map(|node| node.length()).chain([batch.length()]);
        for length in lengths {
            if u64::try_from(length).is_err() {
                return Err(format!("it claims {length} rows"));
            }
        }
        if batch.length() as u64 > MAX_ROWS {
            return Err(format!("it claims {} rows, at most {MAX_ROWS} are read at once", batch.length()));
        }
    }
    Ok(body)
}

/// Returns the rows that a message holds, for columns or for a dictionary.
fn batch_of<'a>(message: &Message<'a>) -> Option<BatchMessage<'a>> {
    match message.header_type() {
        MessageHeader::RecordBatch => message.header_as_record_batch(),
        MessageHeader::DictionaryBatch => message.header_as_dictionary_batch()?.data(),
        _ => None,
    }
}

/// Checks that each buffer lies in the body, and how long it claims to be when decompressed.
fn check_body(metadata: &[u8], body: &[u8]) -> Result<(), String> {
    let message = message(metadata)?;
    let Some(batch) = batch_of(&message) else { return Ok(()) };
    let is_compressed = batch.compression().is_some();
    let mut total = 0u64;
    for buffer in batch.buffers().into_iter().flatten() {
        let range = usize::try_from(buffer.offset()).ok().zip(usize::try_from(buffer.length()).ok());
        let bytes = range.and_then(|(start, len)| body.get(start..start.checked_add(len)?));
        let bytes = bytes.ok_or("a buffer claims to lie outside of it")?;
        if is_compressed && let Some(prefix) = bytes.first_chunk::<8>() {
            // -1: not compressed.
            let claimed = i64::from_le_bytes(*prefix);
            total += u64::try_from(claimed).unwrap_or(bytes.len() as u64).min(MAX_BODY_BYTES + 1);
        }
        if total > MAX_BODY_BYTES {
            return Err("it claims more than 2 GiB when decompressed".into());
        }
    }
    Ok(())
}
