//! Text files as rows: pairs from JSONL, TSV, CSV and parallel files ([`PairCorpus`]), documents from plain text and
//! JSONL ([`TextCorpus`]). Files may be compressed with gzip or zstd.
//!
//! A corpus is read in order, in blocks of whole rows. Worker threads parse the blocks ([`for_each_block`]), and their
//! results come back in the order of the files.

mod anki;
mod asked;
mod block_start;
mod breaks;
mod class_texts;
mod columns;
mod compared;
mod field_order;
mod fields;
mod filter;
#[cfg(test)]
mod followed;
mod jq;
mod json;
mod judgements;
mod labelled;
mod layout;
#[cfg(test)]
mod matrix;
mod merged;
mod one_hot;
mod ordered;
mod origins;
mod pairs;
mod path;
mod plain_forms;
#[cfg(test)]
mod printed_commands;
mod report;
mod reviews;
mod roles;
mod scores;
mod share;
mod size;
mod table_lines;
mod template;
mod text;
mod unknown;
mod values;

pub(crate) use block_start::BlockStart;
pub(crate) use filter::row_hash;
pub use filter::{FilterConfig, FilteredRows, HeldOut, LengthUnit, RowFilter};
pub(crate) use labelled::LabelledRecord;
pub use labelled::{Classes, LabelConfig, Labelled, LabelledCorpus, LabelledInput, LabelledText};
pub use layout::{RowReader, check_layout, layout_notes};
pub(crate) use ordered::for_each_block;
pub use origins::Origins;
pub use pairs::{CorpusConfig, CorpusFormat, CorpusInput, Example, Header, PairCorpus, Table};
pub(crate) use pairs::{Pair, PairBlock, RowParser, length_problem};
pub use report::{BadRow, BadRowKind, DroppedRows, RowReport, spelled_tokens};
pub use size::{count_pairs, count_words, count_words_in};
pub use text::{ChatMessage, Learn, Role};
pub(crate) use text::{Conversation, DocumentPart, Preference, TextBlock, TextFile};
pub use text::{Packing, Task, TextConfig, TextCorpus, TextFormat, files_in};
pub use unknown::{CharacterCounts, Unknown};

/// What the fingerprint of a corpus gets for how special tokens in the text are read. Nothing for the default, so that caches of earlier
/// versions stay valid.
pub(crate) fn mark_of_special_tokens(splits: bool) -> &'static [u8] {
    if splits { b"" } else { b"special tokens\0" }
}
