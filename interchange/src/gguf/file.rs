//! The file format: numbers and texts under keys, then tensors that begin at multiples of 32 bytes.

use kiln_data::files::create_fresh;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use half::{bf16, f16};
use kiln_model::LazyTensor;

use super::GgufError;

const MAGIC: &[u8; 4] = b"GGUF";
const VERSION: u32 = 3;
/// Tensors begin at multiples of this many bytes.
const ALIGNMENT: u64 = 32;
/// Numbers of a block of Q8_0.
pub(super) const BLOCK: usize = 32;

/// The type of a tensor's elements, with the format's number for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum GgufType {
    /// 32-bit floats, without loss.
    F32 = 0,
    /// bfloat16: half the size, 8 bits of precision.
    Bf16 = 30,
    /// Half precision: half the size, 11 bits of precision, at most 65504.
    F16 = 1,
    /// GGUF: blocks of 32 eight-bit numbers with a common factor, a bit more than a quarter of the size. Matrices whose rows are not
    /// multiples of 32 are f16.
    #[value(name = "q8_0")]
    Q8_0 = 8,
}

impl GgufType {
    /// Returns the bytes of `n` elements.
    fn len(self, n: usize) -> u64 {
        (match self {
            Self::F32 => 4 * n,
            Self::F16 | Self::Bf16 => 2 * n,
            Self::Q8_0 => n / BLOCK * (BLOCK + 2),
        }) as u64
    }

    /// Returns the first element that is not finite once it is stored.
    pub(super) fn beyond(self, values: &[f32]) -> Option<f32> {
        let find = |is_lost: fn(f32) -> bool| values.iter().copied().find(|x| is_lost(*x));
        match self {
            Self::F32 => find(|x| !x.is_finite()),
            Self::F16 => find(|x| !f16::from_f32(x).is_finite()),
            Self::Bf16 => find(|x| !bf16::from_f32(x).is_finite()),
            // A block's factor is f16.
            Self::Q8_0 => find(|x| !f16::from_f32(x / 127.0).is_finite()),
        }
    }

    /// The name in the message about an element that is lost.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
        }
    }

    /// Converts elements, rounded to nearest.
    pub(super) fn bytes(self, values: &[f32]) -> Vec<u8> {
        match self {
            Self::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Self::F16 => values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
            Self::Bf16 => values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
            Self::Q8_0 => values.chunks_exact(BLOCK).flat_map(block).collect(),
        }
    }
}

/// Quantizes a block as ggml's `quantize_row_q8_0_ref` does: a factor, so that the largest number is 127, and 32 signed bytes.
fn block(values: &[f32]) -> Vec<u8> {
    let largest = values.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
    let factor = largest / 127.0;
    let inverse = if factor == 0.0 { 0.0 } else { 1.0 / factor };
    let mut bytes = f16::from_f32(factor).to_le_bytes().to_vec();
    bytes.extend(values.iter().map(|x| (x * inverse).round() as i8 as u8));
    bytes
}

/// A value under a key.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Entry {
    U32(u32),
    F32(f32),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
}

impl Entry {
    /// Writes the number of the type, of a list also its elements' type and its length, and then the value.
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let list = |out: &mut dyn Write, of: u32, len: usize| -> io::Result<()> {
            out.write_all(&9_u32.to_le_bytes())?;
            out.write_all(&of.to_le_bytes())?;
            out.write_all(&(len as u64).to_le_bytes())
        };
        match self {
            Self::U32(x) => [4_u32, *x].iter().try_for_each(|x| out.write_all(&x.to_le_bytes())),
            Self::F32(x) => out.write_all(&6_u32.to_le_bytes()).and_then(|()| out.write_all(&x.to_le_bytes())),
            Self::Bool(x) => out.write_all(&7_u32.to_le_bytes()).and_then(|()| out.write_all(&[u8::from(*x)])),
            Self::Text(x) => out.write_all(&8_u32.to_le_bytes()).and_then(|()| text(out, x)),
            Self::Texts(items) => list(out, 8, items.len()).and_then(|()| items.iter().try_for_each(|x| text(out, x))),
            Self::I32s(items) => {
                list(out, 5, items.len())?;
                items.iter().try_for_each(|x| out.write_all(&x.to_le_bytes()))
            }
            Self::F32s(items) => {
                list(out, 6, items.len())?;
                items.iter().try_for_each(|x| out.write_all(&x.to_le_bytes()))
            }
        }
    }
}

fn text(out: &mut impl Write, text: &str) -> io::Result<()> {
    out.write_all(&(text.len() as u64).to_le_bytes())?;
    out.write_all(text.as_bytes())
}

/// A tensor, read and converted when it is written.
#[derive(Debug)]
pub(super) struct Tensor<'a> {
    /// Its dimensions are as PyTorch counts them, the fastest last.
    pub(super) tensor: LazyTensor<'a>,
    pub(super) stored: GgufType,
}

/// The content of a file.
#[derive(Debug, Default)]
pub(super) struct GgufFile<'a> {
    entries: Vec<(String, Entry)>,
    tensors: Vec<Tensor<'a>>,
}

impl<'a> GgufFile<'a> {
    pub(super) fn add(&mut self, key: impl Into<String>, entry: Entry) {
        self.entries.push((key.into(), entry));
    }

    pub(super) fn push(&mut self, tensor: Tensor<'a>) {
        self.tensors.push(tensor);
    }

    /// Writes a temporary file next to `path`, and renames it.
    pub(super) fn write(&self, path: &Path) -> Result<(), GgufError> {
        let failed = |source| GgufError::Io { path: path.to_path_buf(), source };
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".tmp");
        let temporary = path.with_file_name(name);
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let written = self.write_to(&temporary, failed);
        let written = written.and_then(|()| fs::rename(&temporary, path).map_err(failed));
        if written.is_err() {
            // Do not leave half a model on a full disk.
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    fn write_to(&self, path: &Path, failed: impl Fn(io::Error) -> GgufError + Copy) -> Result<(), GgufError> {
        let file = create_fresh(path).map_err(failed)?;
        let mut out = Counted { out: BufWriter::new(file), written: 0 };
        self.write_head(&mut out).map_err(failed)?;
        for Tensor { tensor, stored } in &self.tensors {
            let values = tensor.elements().into_f32();
            if let Some(value) = stored.beyond(&values) {
                return Err(GgufError::Beyond { tensor: tensor.name.clone(), value, stored: stored.name() });
            }
            out.align().and_then(|()| out.write_all(&stored.bytes(&values))).map_err(failed)?;
        }
        let end = out.align().and_then(|()| out.out.into_inner().map_err(io::IntoInnerError::into_error));
        end.and_then(|file| file.sync_all()).map_err(failed)
    }

    /// Writes everything in front of the elements.
    fn write_head(&self, out: &mut Counted) -> io::Result<()> {
        out.write_all(MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        out.write_all(&(self.tensors.len() as u64).to_le_bytes())?;
        out.write_all(&(self.entries.len() as u64).to_le_bytes())?;
        for (key, entry) in &self.entries {
            text(out, key)?;
            entry.write(out)?;
        }

        let mut offset = 0;
        for Tensor { tensor, stored } in &self.tensors {
            text(out, &tensor.name)?;
            out.write_all(&(tensor.shape.len() as u32).to_le_bytes())?;
            tensor.shape.iter().rev().try_for_each(|size| out.write_all(&(*size as u64).to_le_bytes()))?;
            out.write_all(&(*stored as u32).to_le_bytes())?;
            out.write_all(&u64::to_le_bytes(offset))?;
            offset += stored.len(tensor.n_elements()).next_multiple_of(ALIGNMENT);
        }
        Ok(())
    }
}

/// A file whose bytes are counted.
struct Counted {
    out: BufWriter<File>,
    written: u64,
}

impl Counted {
    fn align(&mut self) -> io::Result<()> {
        let missing = self.written.next_multiple_of(ALIGNMENT) - self.written;
        self.write_all(&vec![0; missing as usize])
    }
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.out.write(bytes)?;
        self.written += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
