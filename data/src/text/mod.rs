//! Batches for language models: documents from a token cache, packed into rows.
//!
//! # Which tokens are labels
//!
//! A document of n tokens d0 .. dn-1 takes n + 1 places when the next token is to be predicted:
//!
//! | place | 0 | 1 | .. | n-1 | n |
//! |---|---|---|---|---|---|
//! | input | start | d0 | .. | dn-2 | dn-1 |
//! | label | d0 | d1 | .. | dn-1 | end |
//!
//! The start token is the vocabulary's `bos`, or the end-of-text token where both are one (GPT-2). So every token of every
//! document, and an end for each, is a label exactly once; a start token is never one. For masked language modelling a
//! document takes the places of its tokens and of those that go around it (`[CLS]`, `[SEP]`), and labels are the input.
//!
//! Packed rows are cut from the places of all documents one behind the other: row r has places r T .. (r + 1) T. A document
//! that reaches beyond its row goes on in the next; its second part is read without the first, but a label stays the label of
//! the token before it, so a cut loses and repeats nothing. Only the last row is padded.
//!
//! # Order
//!
//! Every epoch packs the documents in another order and shuffles the rows that come out, both as the seed and the epoch say:
//! documents meet other neighbours and are cut at other places, and the parts of a long document do not follow each other.
//! The order is computed from the lengths alone, so any position is reached without reading a token.

mod rows;
mod source;

pub use source::TextSource;
