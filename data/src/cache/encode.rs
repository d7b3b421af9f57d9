//! Blocks of text into blocks of ids, on worker threads.

use std::iter;
use std::path::{Path, PathBuf};

use super::pool::{Lent, Pool};
use super::seen::SeenRows;
use crate::corpus::{
    ChatMessage, Conversation, DocumentPart, Pair, PairBlock, PairCorpus, Preference, RowParser, RowReport, TextBlock,
    TextCorpus, length_problem, row_hash,
};
use crate::error::Result;
use crate::formats::RowProblem;
use crate::tokenizer::{ChatEncoder, Encoded, FLAG, PairEncoder, PairTokenizers, TextEncoder, TextTokenizer};

/// The rows of one block, as they will lie in the file.
#[derive(Default)]
pub(super) struct EncodedBlock {
    pub(super) tokens: Vec<u8>,
    /// Of each row the tokens of its first part, and all numbers: the first part of a pair is its source, of answers to compare the longer
    /// one, of a labelled row its text. A document has 0.
    pub(super) rows: Vec<(u32, u32)>,
    /// Whether the first of `rows` continues the last document of the block before.
    pub(super) continues: bool,
    pub(super) report: RowReport,
    /// Where `rows` come from, if repeated ones are dropped.
    origins: Option<Origins>,
}

/// The places of some rows in the text.
struct Origins {
    path: PathBuf,
    /// Line of each row, counted from 1, and a hash of its text. `None` for a document that is read in parts.
    rows: Vec<(u64, Option<u128>)>,
}

impl EncodedBlock {
    /// Returns a block without rows, of the file at `path`.
    pub(super) fn of(path: &Path, drops_duplicates: bool) -> Self {
        let origins = drops_duplicates.then(|| Origins { path: path.into(), rows: Vec::new() });
        Self { origins, ..Self::default() }
    }

    /// Notes where a row comes from, which has just been added.
    pub(super) fn add_origin(&mut self, line: u64, hash: impl FnOnce() -> Option<u128>) {
        if let Some(origins) = &mut self.origins {
            origins.rows.push((line, hash()));
        }
    }

    /// Drops the rows that were seen before, and counts them. Returns their numbers in the block.
    pub(super) fn drop_repeated(&mut self, seen: &mut SeenRows) -> Result<Vec<u32>> {
        let mut repeated = Vec::new();
        for (row, (_, hash)) in (0..).zip(self.origins.iter().flat_map(|origins| &origins.rows)) {
            if !hash.map_or(Ok(true), |hash| seen.insert(hash))? {
                repeated.push(row);
            }
        }
        self.drop_rows(&repeated);
        Ok(repeated)
    }

    /// Drops rows that repeat earlier ones, by their numbers in the block, which ascend, and counts them.
    pub(super) fn drop_rows(&mut self, repeated: &[u32]) {
        let Some(Origins { path, rows: origins }) = self.origins.take() else { return };
        let n_tokens: usize = self.rows.iter().map(|(_, both)| *both as usize).sum();
        let token_bytes = self.tokens.len() / n_tokens.max(1);

        let (mut read, mut written, mut kept) = (0, 0, Vec::with_capacity(self.rows.len()));
        for ((number, row), (line, _)) in (0..).zip(std::mem::take(&mut self.rows)).zip(origins) {
            let bytes = read..read + row.1 as usize * token_bytes;
            read = bytes.end;
            if repeated.binary_search(&number).is_ok() {
                self.report.drop_repeated(&path, line);
                continue;
            }
            let n_bytes = bytes.len();
            self.tokens.copy_within(bytes, written);
            written += n_bytes;
            kept.push(row);
        }
        self.tokens.truncate(written);
        self.rows = kept;
    }

    pub(super) fn extend(&mut self, ids: &[u32], narrow: bool) {
        if narrow {
            self.tokens.extend(ids.iter().flat_map(|id| (*id as u16).to_le_bytes()));
        } else {
            self.tokens.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
        }
    }
}

/// Tokenizes pairs.
pub(super) struct PairBlockEncoder<'a> {
    corpus: &'a PairCorpus,
    encoder: Lent<'a, PairEncoder>,
    narrow: bool,
    source: Vec<u32>,
    target: Vec<u32>,
}

impl<'a> PairBlockEncoder<'a> {
    pub(super) fn new(
        corpus: &'a PairCorpus,
        tokenizers: &PairTokenizers,
        pool: &'a Pool<PairEncoder>,
        narrow: bool,
    ) -> Self {
        let new = || tokenizers.encoder().splitting_special_tokens(corpus.config().split_special_tokens);
        let encoder = pool.lend(new);
        Self { corpus, encoder, narrow, source: Vec::new(), target: Vec::new() }
    }

    pub(super) fn encode(&mut self, block: &PairBlock, parser: &RowParser) -> Result<EncodedBlock> {
        let path = self.corpus.inputs()[block.input].main_file();
        let drops_duplicates = self.corpus.config().filter.as_ref().is_some_and(|filter| filter.drops_duplicates());
        let mut encoded = EncodedBlock::of(path, drops_duplicates);
        for (line, row) in block.rows(parser) {
            let problem = match &row {
                Ok(pair) => self.encode_row(pair, &mut encoded)?,
                Err(problem) => Some(problem.clone()),
            };
            match (problem, row) {
                (None, Ok(pair)) => {
                    encoded.report.add_kept(1);
                    encoded.add_origin(line, || Some(row_hash([&*pair.source, &*pair.target])));
                }
                (problem, _) => encoded.report.add_bad(path, line, &problem.expect("the row has one")),
            }
        }
        Ok(encoded)
    }

    fn encode_row(&mut self, pair: &Pair<'_>, encoded: &mut EncodedBlock) -> Result<Option<RowProblem>> {
        self.source.clear();
        self.target.clear();
        self.encoder.encode_source(&pair.source, &mut self.source)?;
        self.encoder.encode_target(&pair.target, &mut self.target)?;
        let problem = length_problem(self.source.len() + 1, self.target.len() + 1, self.corpus.config());
        if problem.is_some() {
            return Ok(problem);
        }
        self.encoder.count_unknown_source(&pair.source, &self.source, &mut encoded.report.unknown)?;
        self.encoder.count_unknown_target(&pair.target, &self.target, &mut encoded.report.unknown)?;
        let special = self.encoder.count_spelled(&pair.source, &pair.target);
        encoded.report.add_special(special, self.encoder.splits_special_tokens(), "data.corpus");
        encoded.extend(&self.source, self.narrow);
        encoded.extend(&self.target, self.narrow);
        encoded.rows.push((self.source.len() as u32, (self.source.len() + self.target.len()) as u32));
        Ok(None)
    }
}

/// Tokenizes documents.
pub(super) struct TextBlockEncoder<'a> {
    corpus: &'a TextCorpus,
    encoder: Lent<'a, TextEncoder>,
    narrow: bool,
    ids: Vec<u32>,
}

impl<'a> TextBlockEncoder<'a> {
    pub(super) fn new(
        corpus: &'a TextCorpus,
        tokenizer: &TextTokenizer,
        pool: &'a Pool<TextEncoder>,
        narrow: bool,
    ) -> Self {
        let new = || tokenizer.encoder().splitting_special_tokens(corpus.config().split_special_tokens);
        let encoder = pool.lend(new);
        Self { corpus, encoder, narrow, ids: Vec::new() }
    }

    pub(super) fn encode(&mut self, block: &TextBlock) -> Result<EncodedBlock> {
        let path = self.corpus.path_of(block);
        let filter = self.corpus.config().filter.as_ref();
        let mut encoded = EncodedBlock::of(path, filter.is_some_and(|filter| filter.drops_duplicates()));
        for part in block.document_parts(self.corpus) {
            let DocumentPart { line, continues, whole, text } = part?;
            let problem = match &text {
                Ok(text) => {
                    self.ids.clear();
                    self.encoder.encode(text, &mut self.ids)?;
                    self.encoder.count_unknown(text, &self.ids, &mut encoded.report.unknown)?;
                    let special = self.encoder.count_spelled(text);
                    encoded.report.add_special(special, self.encoder.splits_special_tokens(), "data.text");
                    let nothing = self.ids.is_empty() && !continues;
                    nothing.then(|| RowProblem::Malformed("the document has no tokens after normalization".into()))
                }
                Err(problem) => Some(problem.clone()),
            };

            if let Some(problem) = problem {
                encoded.report.add_bad(path, line, &problem);
                continue;
            }
            // Only the first part of a block can continue a document of the block before.
            if continues && !encoded.rows.is_empty() {
                encoded.rows.last_mut().expect("not empty").1 += self.ids.len() as u32;
            } else {
                encoded.continues |= continues;
                encoded.rows.push((0, self.ids.len() as u32));
                encoded.add_origin(line, || text.as_deref().ok().filter(|_| whole).map(|text| row_hash([text])));
            }
            encoded.report.add_kept(u64::from(!continues));
            let is_unfiltered = filter.is_some_and(|filter| filter.judges_texts()) && !continues && !whole;
            encoded.report.unfiltered += u64::from(is_unfiltered);
            encoded.extend(&self.ids, self.narrow);
        }
        Ok(encoded)
    }
}

/// Renders and tokenizes conversations.
pub(super) struct ChatBlockEncoder<'a> {
    corpus: &'a TextCorpus,
    encoder: ChatEncoder,
}

impl<'a> ChatBlockEncoder<'a> {
    pub(super) fn new(corpus: &'a TextCorpus, encoder: ChatEncoder) -> Self {
        Self { corpus, encoder }
    }

    pub(super) fn encode(&mut self, block: &TextBlock) -> Result<EncodedBlock> {
        match self.corpus.config().is_preferences() {
            true => self.encode_all(block, block.preferences(self.corpus.config())),
            false => self.encode_all(block, block.conversations(self.corpus.config())),
        }
    }

    fn encode_all<T: Messages>(
        &mut self,
        block: &TextBlock,
        rows: impl Iterator<Item = (u64, Result<T, RowProblem>)>,
    ) -> Result<EncodedBlock> {
        let rows: Vec<_> = rows.collect();
        let kept = rows.iter().filter_map(|(_, row)| row.as_ref().ok());
        let conversations: Vec<&[ChatMessage]> = kept.flat_map(T::messages).collect();
        let mut ids = self.encoder.encode(&conversations)?.into_iter();

        let path = self.corpus.path_of(block);
        let filter = self.corpus.config().filter.as_ref();
        let mut encoded = EncodedBlock::of(path, filter.is_some_and(|filter| filter.drops_duplicates()));
        for (line, row) in &rows {
            let row_ids = match row {
                Ok(row) => self.ids_of(ids.by_ref().take(row.messages().count()).collect()),
                Err(problem) => Err(problem.clone()),
            };
            match row_ids {
                Ok(row_ids) => {
                    let messages = row.iter().flat_map(T::messages);
                    let special = messages.map(|messages| self.encoder.count_spelled(messages)).sum();
                    encoded.report.add_special(special, self.corpus.config().split_special_tokens, "data.text");
                    encoded.report.add_kept(1);
                    row.iter().for_each(|row| encoded.report.add_left_out(row.left_out()));
                    let unread = self.encoder.unread(row.iter().flat_map(T::messages).flatten());
                    let unread: Vec<String> = unread.into_iter().map(|name| format!("{name} of messages")).collect();
                    encoded.report.add_left_out(&unread);
                    encoded.rows.push((longer_answer(row, &row_ids), row_ids.len() as u32));
                    encoded.add_origin(*line, || Some(hash_of(row.iter().flat_map(T::messages))));
                    encoded.extend(&row_ids, false);
                }
                Err(problem) => encoded.report.add_bad(path, *line, &problem),
            }
        }
        Ok(encoded)
    }

    /// Returns the ids of a row. The ids of two conversations stand behind the length of the first.
    fn ids_of(&self, encoded: Vec<Encoded>) -> Result<Vec<u32>, RowProblem> {
        let checked: Vec<Vec<u32>> = encoded.into_iter().map(|ids| self.checked(ids)).collect::<Result<_, _>>()?;
        Ok(match &checked[..] {
            [chosen, rejected] => [&[chosen.len() as u32][..], chosen, rejected].concat(),
            _ => checked.concat(),
        })
    }

    /// Refuses a conversation that is too long, or has nothing to learn.
    fn checked(&self, ids: Encoded) -> Result<Vec<u32>, RowProblem> {
        let ids = ids.map_err(|problem| RowProblem::Malformed(problem.to_string()))?;
        let limit = self.corpus.config().seq_len;
        if limit > 0 && ids.len() > limit {
            let found = format!("the conversation has {} tokens, {limit} are allowed (data.text.seq_len)", ids.len());
            return Err(RowProblem::OverLong(found, ids.len() as u64));
        }
        // The first token has none before it to be predicted from.
        let learns = ids.iter().skip(1).any(|id| id & FLAG != 0);
        if learns { Ok(ids) } else { Err(RowProblem::Malformed("no token of an answer is left to learn".into())) }
    }
}

/// Returns the length of the longer answer of two, with their prompt; of one conversation 0.
fn longer_answer<T: Messages>(row: &Result<T, RowProblem>, ids: &[u32]) -> u32 {
    let are_two = row.as_ref().is_ok_and(|row| row.messages().count() == 2);
    match ids {
        [chosen, both @ ..] if are_two => (*chosen).max(both.len() as u32 - chosen),
        _ => 0,
    }
}

/// Returns a hash of conversations: of who wrote each message and of all its texts.
fn hash_of<'a>(conversations: impl Iterator<Item = &'a [ChatMessage]>) -> u128 {
    let mut texts = Vec::new();
    for messages in conversations {
        for message in messages {
            texts.extend([message.role.name(), message.content.as_str()]);
            texts.extend(message.is_unlearned_answer().then_some("context"));
            texts.extend(message.more.iter().flat_map(|(name, text)| [name.as_str(), text.as_str()]));
        }
        texts.push("");
    }
    row_hash(texts)
}

/// A row of conversations.
trait Messages {
    fn messages(&self) -> impl Iterator<Item = &[ChatMessage]>;

    /// Returns the fields with a text that no message has.
    fn left_out(&self) -> &[String];
}

impl Messages for Conversation {
    fn messages(&self) -> impl Iterator<Item = &[ChatMessage]> {
        iter::once(self.messages.as_slice())
    }

    fn left_out(&self) -> &[String] {
        &self.left_out
    }
}

/// Its question is in both conversations, and counts twice.
impl Messages for Preference {
    fn messages(&self) -> impl Iterator<Item = &[ChatMessage]> {
        [&self.chosen, &self.rejected].into_iter().map(|conversation| conversation.messages.as_slice())
    }

    fn left_out(&self) -> &[String] {
        &self.chosen.left_out
    }
}
