//! TensorBoard event files, without TensorFlow: TFRecord framing with masked CRC-32C around hand-encoded protobuf
//! `Event` messages (tensorflow/core/util/event.proto). It writes scalars only, under torchtitan's tags where it has one.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use anyhow::Result;
use kiln_data::files::open_own;

use super::{Record, Sink, scalars, unix_secs};

/// The sink to TensorBoard's event files.
pub struct TensorBoard {
    file: File,
}

impl TensorBoard {
    /// Creates an event file in `folder`. If a run resumes at `start_step`, the file makes TensorBoard ignore later steps in
    /// older files of the folder.
    pub fn create(folder: &Path, start_step: u64) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let secs = unix_secs();
        let host = fs::read_to_string("/etc/hostname").unwrap_or_default();
        let host = if host.trim().is_empty() { "host" } else { host.trim() };
        // TensorBoard reads the files of a folder in the order of their names, so the name begins with the time.
        let name = format!("events.out.tfevents.{:010}.{host}.{}", secs as u64, std::process::id());
        let file = open_own(&folder.join(name))?;
        let mut board = Self { file };
        board.write_record(&version_event(secs))?;
        if start_step > 0 {
            board.write_record(&session_start_event(secs, start_step + 1))?;
        }
        Ok(board)
    }

    fn write_scalars(&mut self, step: u64, scalars: &[(&str, f64)]) -> Result<()> {
        self.write_record(&scalar_event(unix_secs(), step, scalars))
    }

    fn write_record(&mut self, event: &[u8]) -> Result<()> {
        self.file.write_all(&framed(event))?;
        Ok(())
    }
}

impl Sink for TensorBoard {
    fn write(&mut self, record: &Record<'_>) -> Result<()> {
        match record {
            Record::Step(step) => self.write_scalars(step.step, &scalars::of_step(step)),
            Record::Window(window) => {
                let sources = scalars::of_sources(window);
                let sources = sources.iter().map(|(tag, value)| (tag.as_str(), *value));
                let scalars: Vec<_> = scalars::of_window(window).into_iter().chain(sources).collect();
                self.write_scalars(window.step, &scalars)
            }
            Record::Validation(validation) => {
                let figures = scalars::of_figures(validation);
                let figures = figures.iter().map(|(tag, value)| (tag.as_str(), *value));
                let scalars: Vec<_> = scalars::of_validation(validation).into_iter().chain(figures).collect();
                self.write_scalars(validation.step, &scalars)
            }
            Record::Start(_)
            | Record::Sample(_)
            | Record::Preparing(..)
            | Record::Begin(_)
            | Record::Note(_)
            | Record::End(_) => Ok(()),
            Record::Finished => Ok(self.file.sync_all()?),
        }
    }
}

/// `Event { wall_time = 1, file_version = 3 }`: the first record of every file.
fn version_event(wall_time: f64) -> Vec<u8> {
    let mut event = Vec::new();
    put_double(&mut event, 1, wall_time);
    put_bytes(&mut event, 3, b"brain.Event:2");
    event
}

/// `Event { wall_time = 1, step = 2, session_log = 7 { status = 1: START } }`.
fn session_start_event(wall_time: f64, step: u64) -> Vec<u8> {
    let mut event = Vec::new();
    put_double(&mut event, 1, wall_time);
    put_varint_field(&mut event, 2, step);
    let mut session = Vec::new();
    put_varint_field(&mut session, 1, 1);
    put_bytes(&mut event, 7, &session);
    event
}

/// `Event { wall_time = 1, step = 2, summary = 5 { repeated value = 1 { tag = 1, simple_value = 2 } } }`.
fn scalar_event(wall_time: f64, step: u64, scalars: &[(&str, f64)]) -> Vec<u8> {
    let mut event = Vec::new();
    put_double(&mut event, 1, wall_time);
    put_varint_field(&mut event, 2, step);
    let mut summary = Vec::new();
    for (tag, scalar) in scalars {
        let mut value = Vec::new();
        put_bytes(&mut value, 1, tag.as_bytes());
        value.push(2 << 3 | 5);
        value.extend((*scalar as f32).to_le_bytes());
        put_bytes(&mut summary, 1, &value);
    }
    put_bytes(&mut event, 5, &summary);
    event
}

// Protobuf wire format: a key is (field number << 3 | wire type); 0 varint, 1 eight bytes, 2 length and bytes, 5 four.

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_varint_field(out: &mut Vec<u8>, field: u64, value: u64) {
    put_varint(out, field << 3);
    put_varint(out, value);
}

fn put_double(out: &mut Vec<u8>, field: u64, value: f64) {
    put_varint(out, field << 3 | 1);
    out.extend(value.to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    put_varint(out, field << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend(bytes);
}

/// A TFRecord: length, its masked checksum, the data, its masked checksum; little-endian.
fn framed(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(data.len() + 16);
    record.extend(length);
    record.extend(masked_crc32c(&length).to_le_bytes());
    record.extend(data);
    record.extend(masked_crc32c(data).to_le_bytes());
    record
}

/// Returns the checksum rotated and shifted, because a checksum of data that contains its own checksum is weak.
fn masked_crc32c(data: &[u8]) -> u32 {
    crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Returns the CRC-32C (Castagnoli), bit-reversed polynomial 0x82f63b78.
fn crc32c(data: &[u8]) -> u32 {
    const TABLE: [u32; 256] = crc32c_table();
    !data.iter().fold(!0, |crc, byte| TABLE[(crc as u8 ^ byte) as usize] ^ (crc >> 8))
}

const fn crc32c_table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    #[test]
    fn checksums_are_those_of_rfc_3720() {
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&ascending), 0x46dd_794e);
    }

    #[test]
    fn an_event_is_encoded_as_protobuf_does() {
        // Bytes made with TensorBoard's own Event class: wall_time 1.5, step 300, summary {tag "a", simple_value 0.5}.
        let wanted = [
            9, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f, 0x10, 0xac, 0x02, 0x2a, 0x0a, 0x0a, 0x08, 0x0a, 1, b'a', 0x15, 0, 0, 0,
            0x3f,
        ];
        assert_eq!(scalar_event(1.5, 300, &[("a", 0.5)]), wanted);
    }

    /// Returns the payloads of a file of TFRecords after checking lengths and checksums.
    fn payloads(mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        while !bytes.is_empty() {
            let length = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
            assert_eq!(bytes[8..12], masked_crc32c(&bytes[..8]).to_le_bytes());
            let data = &bytes[12..12 + length];
            assert_eq!(bytes[12 + length..16 + length], masked_crc32c(data).to_le_bytes());
            out.push(data.to_vec());
            bytes = &bytes[16 + length..];
        }
        out
    }

    #[test]
    fn a_file_holds_the_version_and_then_one_record_per_write() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut board = TensorBoard::create(&folder.path().join("tb"), 7).expect("writable");
        board.write(&Record::Step(&samples::step(8))).expect("written");
        board.write(&Record::Window(&samples::window(8))).expect("written");
        board.write(&Record::Validation(&samples::validation(8))).expect("written");
        board.write(&Record::Note("not a scalar")).expect("ignored");
        let file = fs::read_dir(folder.path().join("tb")).expect("there").next().expect("one file").expect("readable");
        assert!(file.file_name().to_string_lossy().starts_with("events.out.tfevents."));
        let payloads = payloads(&fs::read(file.path()).expect("readable"));
        assert_eq!(payloads.len(), 5, "version, session start, step, window, validation");
        let text = |at: usize| String::from_utf8_lossy(&payloads[at]).into_owned();
        assert!(text(0).contains("brain.Event:2"));
        assert_eq!(payloads[1][9..], [0x10, 8, 0x3a, 2, 8, 1], "step 8 and later start anew");
        assert!(text(2).contains("loss_metrics/global_avg_loss"));
        assert!(text(3).contains("mfu(%)"));
        assert!(text(4).contains("validation_metrics/bleu") && !text(4).contains("chrf"));
    }
}
