//! The format of `torch.save` before PyTorch 1.6 (`_legacy_save` in `torch/serialization.py`): a magic number, a version, the
//! facts of the machine, the description of the tensors and the names of the storages, each a pickle. The storages follow, each
//! after the number of its elements.

use std::rc::Rc;

use super::pickle::{self, Described};
use super::{BIG_ENDIAN, Storages, element_type};

/// The pickles of the magic number and of version 1001.
const START: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.";

/// Whether a file has this format.
pub(super) fn is_legacy(bytes: &[u8]) -> bool {
    bytes.starts_with(START)
}

/// Reads the tensors' description and the places of the storages.
pub(super) fn read(bytes: &[u8]) -> Result<(Vec<Described>, Storages), String> {
    let mut at = START.len();
    let (is_little_endian, len) = pickle::number_of(&bytes[at..], "little_endian")?;
    if is_little_endian == Some(0) {
        return Err(BIG_ENDIAN.to_owned());
    }
    at += len;
    let (described, len) = pickle::tensors(&bytes[at..])?;
    at += len;
    let (keys, len) = pickle::texts(&bytes[at..])?;
    at += len;

    let mut storages = Storages::new();
    for key in keys {
        let size = described
            .iter()
            .find(|tensor| tensor.storage.key == key)
            .map(|tensor| element_type(&tensor.storage.kind).1);
        let (start, len) = place(bytes, at, size, &key)?;
        at = start + len;
        storages.insert(key, (start, len));
    }
    Ok((described, storages))
}

/// The start and length of the storage that is described at `at`, with elements of `size` bytes.
fn place(bytes: &[u8], at: usize, size: Option<usize>, key: &Rc<str>) -> Result<(usize, usize), String> {
    let size = size.ok_or_else(|| format!("has a storage {key}, which no tensor uses; it is damaged"))?;
    let n_elements: Option<[u8; 8]> = bytes.get(at..at.saturating_add(8)).and_then(|digits| digits.try_into().ok());
    let len = n_elements.and_then(|n| usize::try_from(u64::from_le_bytes(n)).ok()?.checked_mul(size));
    let start = at.saturating_add(8);
    len.filter(|len| start.checked_add(*len).is_some_and(|end| end <= bytes.len()))
        .map(|len| (start, len))
        .ok_or_else(|| format!("is cut short: the storage {key} is not all there; download it again"))
}
