//! Rows to batches: which rows a batch has and what its shape is ([`EpochPlan`], [`Buckets`]), and how rows are written
//! into its buffer ([`Collator`] for pairs, [`RowWriter`] for text).

mod bucket;
mod bucket_order;
mod collate;
mod document_order;
mod interleave;
mod mixed_shards;
mod plan;
mod rows;
mod window_buckets;
mod windows;

pub use bucket::Buckets;
pub(crate) use bucket_order::BucketOrder;
pub use collate::Collator;
pub(crate) use document_order::DocumentOrder;
pub(crate) use interleave::Interleave;
pub(crate) use mixed_shards::{MixedShards, MixedUnit};
pub use plan::EpochPlan;
pub(crate) use plan::MixedRows;
pub(crate) use rows::{Around, RowFormat, RowWriter};
pub(crate) use window_buckets::{Layout, WindowBuckets};
pub(crate) use windows::WindowOrder;
