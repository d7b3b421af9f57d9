//! Labelled rows as the rows of a token cache.

use std::fs::{self, File};
use std::ops::Range;
use std::path::Path;

use blake3::Hash;

use super::build::with_suffix;
use super::encode::EncodedBlock;
use super::fingerprint::{Ledger, label_fingerprint};
use super::format::{CacheKind, Header};
use super::pool::Pool;
use super::rows::{Placed, Rows, Sink, text_header};
use crate::corpus::{
    BlockStart, Classes, Labelled, LabelledRecord, LabelledText, RowFilter, RowReport, TextBlock, for_each_block,
};
use crate::error::{Error, Result};
use crate::files::{open_own, read_file, write_fresh};
use crate::formats::RowProblem;
use crate::tokenizer::{FLAG, LabelledEncoder, LabelledShape, TextTokenizer};

/// Texts or words with labels, whose classes are known.
#[derive(Debug)]
pub(super) struct Labels {
    text: LabelledText,
    tokenizer: TextTokenizer,
    shape: LabelledShape,
    encoders: Pool<Option<LabelledEncoder>>,
    header: Header,
}

impl Labels {
    pub(super) fn new(text: LabelledText, tokenizer: &TextTokenizer, shape: LabelledShape) -> Self {
        let header = Header { max_target_len: shape.max_len as u32, ..text_header(CacheKind::Labelled, tokenizer) };
        Self { text, tokenizer: tokenizer.clone(), shape, encoders: Pool::default(), header }
    }
}

impl Rows for Labels {
    fn header(&self) -> &Header {
        &self.header
    }

    fn filter(&self) -> Option<&RowFilter> {
        self.text.config().filter.as_deref()
    }

    fn fingerprint(&self, seen: &Ledger) -> Result<(Hash, Ledger)> {
        label_fingerprint(&self.text, Some(self.shape), seen)
    }

    fn check(&self, report: &RowReport) -> Result<()> {
        self.text.check(report)
    }

    fn file(&self, number: usize) -> &Path {
        &self.text.text_files()[number].path
    }

    fn can_start_within(&self) -> Result<Vec<bool>> {
        self.text.text_files().iter().map(|file| file.can_start_within()).collect()
    }

    fn encode(&self, start: BlockStart, blocks: Range<usize>, num_threads: usize, sink: Sink<'_>) -> Result<()> {
        let resolve = self.text.resolver();
        for_each_block(
            self.text.blocks_from(start).take(blocks.end).skip(blocks.start),
            num_threads,
            || self.encoders.lend(|| None),
            |encoder, block| {
                let encoder = match &mut **encoder {
                    Some(encoder) => encoder,
                    none => none.insert(self.shape.encoder(&self.tokenizer)?),
                };
                Ok(Placed::of(&block, self.encode_block(&block, encoder, &resolve)?))
            },
            sink,
        )
    }
}

impl Labels {
    fn encode_block(
        &self,
        block: &TextBlock,
        encoder: &mut LabelledEncoder,
        resolve: &dyn Fn(LabelledRecord) -> std::result::Result<Labelled, RowProblem>,
    ) -> Result<EncodedBlock> {
        let path = self.text.path_of(block);
        let drops_duplicates = self.filter().is_some_and(RowFilter::drops_duplicates);
        let mut encoded = EncodedBlock::of(path, drops_duplicates);
        for (line, record) in self.text.rows(block) {
            let hash = record.as_ref().ok().filter(|_| drops_duplicates).map(LabelledRecord::hash);
            match record.and_then(resolve) {
                Ok(row) => {
                    let found = encoder.encode(&row.input)?;
                    let labels = found.label_places(&row);
                    let with_types = found.ids.iter().zip(&found.types);
                    let of_token = |(id, kind): (&u32, &u8)| if *kind == 0 { *id } else { id | FLAG };
                    let mut numbers: Vec<u32> = with_types.map(of_token).collect();
                    let n_tokens = numbers.len() as u32;
                    numbers.extend(labels.iter().flat_map(|(place, class)| [*place, *class]));

                    encoded.report.add_kept(1);
                    encoded.report.cut += u64::from(found.is_cut);
                    encoded.rows.push((n_tokens, numbers.len() as u32));
                    encoded.add_origin(line, || hash);
                    encoded.extend(&numbers, false);
                }
                Err(problem) => encoded.report.add_bad(path, line, &problem),
            }
        }
        let (unknown, n_spelled) = encoder.take_counts();
        encoded.report.unknown.merge(unknown);
        encoded.report.add_special(n_spelled, self.shape.splits_special_tokens, "data.text");
        Ok(encoded)
    }
}

/// Finds the classes of labelled rows in `folder`, or reads all rows once to find them.
///
/// # Errors
///
/// As [`LabelledText::classes`], and if they cannot be written.
pub fn find_classes(folder: &Path, text: &LabelledText, num_threads: usize) -> Result<Classes> {
    fs::create_dir_all(folder).map_err(Error::io(folder, "creating the cache folder"))?;
    let path = folder.join("classes.json");
    // As for the index, a second process waits.
    let lock = open_own(&with_suffix(&path, ".lock"));
    let _ = lock.as_ref().map(File::lock);
    let (hash, ledger) = label_fingerprint(text, None, &Ledger::read(&path))?;
    let of = hash.to_hex().to_string();
    let found = read_file(&path).ok().and_then(|json| serde_json::from_slice::<(String, Classes)>(&json).ok());
    if let Some((_, classes)) = found.filter(|(found, _)| *found == of) {
        return Ok(classes);
    }
    let classes = text.classes(num_threads)?;
    let json = serde_json::to_vec(&(&of, &classes)).expect("plain data");
    write_fresh(&path, &json).map_err(Error::io(&path, "writing the classes"))?;
    ledger.write(&path, of);
    Ok(classes)
}
