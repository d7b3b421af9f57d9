//! Where a block of a corpus begins.

use serde::{Deserialize, Serialize};

/// Where a block begins. A block that begins with a whole row can be read again from there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BlockStart {
    /// Number of the file, or of the entry of a corpus of pairs.
    pub(crate) file: usize,
    /// Byte offset in the file; 0 for its first block, whatever stands before the text.
    pub(crate) offset: u64,
    /// Lines before it.
    pub(crate) lines: u64,
    /// Parallel files: byte offset in the second file. The number of lines before it is the same.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) second: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
