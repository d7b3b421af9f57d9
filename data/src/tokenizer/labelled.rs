//! Texts, pairs of texts and words as rows for a model that predicts classes.

use serde_json::Value;
use tokenizers::Tokenizer;

use super::TextTokenizer;
use super::guard;
use super::text::TextEncoder;
use super::vocabulary::not_a_tokenizer;
use crate::corpus::{LabelledInput, Unknown};
use crate::error::{Error, Result};

/// A row as a model that predicts classes reads it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelledRow {
    /// Ids, special tokens included.
    pub ids: Vec<u32>,
    /// Type of each token (BERT's "segments"): 0 for the first text, 1 for the second where the tokenizer says so.
    pub types: Vec<u8>,
    /// Place of the first token of each word; `None` for a word without tokens, or one that was cut off.
    pub words: Vec<Option<u32>>,
    /// Whether the text was longer than the limit.
    pub is_cut: bool,
}

/// Encodes rows on one thread, with the special tokens of the tokenizer's post-processor. Without one, BERT's stand
/// around and between the texts; around texts for a decoder, the tokens that start and end a document.
#[derive(Debug)]
pub struct LabelledEncoder {
    encoder: TextEncoder,
    single: Template<2>,
    pair: Template<3>,
    /// Puts a space in front of each word: vocabularies such as GPT-2's begin words with it.
    spaced: bool,
    max_len: usize,
    /// Rows do not end with this token, which is padding.
    padding: Option<u32>,
    /// Stands for a text without tokens.
    fill: u32,
    unknown: Unknown,
    /// Special tokens that the texts so far spell.
    n_spelled: u64,
}

/// Special tokens around N - 1 texts, and the types of these tokens and texts.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Template<const N: usize> {
    special: [Vec<u32>; N],
    special_types: [Vec<u8>; N],
    /// Of the first and of the second text.
    text_types: [u8; 2],
}

impl<const N: usize> Template<N> {
    fn n_special(&self) -> usize {
        self.special.iter().map(Vec::len).sum()
    }

    /// Writes the special tokens number `n`.
    fn put(&self, n: usize, row: &mut LabelledRow) {
        row.ids.extend(&self.special[n]);
        row.types.extend(&self.special_types[n]);
    }

    /// Divides an encoding of N - 1 texts, whose special tokens are known; `None` if a text has no token.
    fn of(encoding: &tokenizers::Encoding) -> Option<Self> {
        let mut special = [const { Vec::new() }; N];
        let mut special_types = [const { Vec::new() }; N];
        let (mut text_types, mut part, mut in_text) = ([0; 2], 0, false);
        let sequences = encoding.get_sequence_ids();
        for (at, is_special) in encoding.get_special_tokens_mask().iter().enumerate() {
            let kind = encoding.get_type_ids()[at].min(1) as u8;
            if *is_special == 1 {
                if in_text {
                    (part, in_text) = (part + 1, false);
                }
                special.get_mut(part)?.push(encoding.get_ids()[at]);
                special_types[part].push(kind);
            } else {
                let text = sequences[at]?;
                // Texts that nothing separates.
                part = part.max(text);
                in_text = true;
                *text_types.get_mut(text)? = kind;
            }
        }
        let last_text = sequences.iter().flatten().max()?;
        (*last_text + 2 == N).then_some(Self { special, special_types, text_types })
    }
}

impl LabelledEncoder {
    /// Makes rows of at most `max_len` tokens for an encoder.
    ///
    /// # Errors
    ///
    /// If `max_len` has no room for a token next to the special tokens of a pair.
    pub fn new(tokenizer: &TextTokenizer, max_len: usize) -> Result<Self> {
        Self::around_with(tokenizer, max_len, tokenizer.around(), None)
    }

    /// Makes rows of at most `max_len` tokens for a decoder, which reads the class at the last token that is not padding. So padding
    /// at the end of a row is left out, as `transformers` passes over it: [`TextTokenizer::padding_of_decoder`].
    ///
    /// # Errors
    ///
    /// As [`Self::new`].
    pub fn for_decoder(tokenizer: &TextTokenizer, max_len: usize) -> Result<Self> {
        let before = tokenizer.before_prompt().to_vec();
        // A tokenizer that puts nothing in front of a text puts nothing behind it.
        let behind = tokenizer.special().eos.filter(|_| !before.is_empty());
        let around = (before, behind.into_iter().collect());
        Self::around_with(tokenizer, max_len, around, tokenizer.padding_of_decoder())
    }

    /// Puts `around` around texts if the tokenizer has no post-processor.
    fn around_with(
        tokenizer: &TextTokenizer,
        max_len: usize,
        around: (Vec<u32>, Vec<u32>),
        padding: Option<u32>,
    ) -> Result<Self> {
        let (single, pair) = templates(tokenizer, around)?;
        let least = pair.n_special().max(single.n_special()) + 2;
        if max_len < least {
            return Err(Error::Invalid(format!(
                "rows of {max_len} tokens have no room for text next to the special tokens: raise model.max_positions or \
                 data.text.seq_len to at least {least}"
            )));
        }

        Ok(Self {
            encoder: tokenizer.encoder(),
            single,
            pair,
            spaced: has_byte_level(tokenizer.json())?,
            max_len,
            padding,
            fill: tokenizer.special().fill().cast_unsigned(),
            unknown: Unknown::default(),
            n_spelled: 0,
        })
    }

    /// Returns an encoder that splits special tokens in a text like other text, or without `splits` reads them as tokens.
    pub fn splitting_special_tokens(self, splits: bool) -> Self {
        Self { encoder: self.encoder.splitting_special_tokens(splits), ..self }
    }

    /// Returns the special tokens in front of and behind a text.
    pub fn around_text(&self) -> (&[u32], &[u32]) {
        let [before, behind] = &self.single.special;
        (before, behind)
    }

    /// Encodes a row, cut to the limit. Of two texts, the longer one is cut first.
    ///
    /// # Errors
    ///
    /// If the tokenizer fails.
    pub fn encode(&mut self, input: &LabelledInput) -> Result<LabelledRow> {
        let mut row = self.encode_whole(input)?;
        if let Some(padding) = self.padding {
            let n_last = row.ids.iter().rev().take_while(|id| **id == padding).count();
            row.ids.truncate(row.ids.len() - n_last);
        }
        if row.ids.is_empty() {
            row.ids.push(self.fill);
        }
        row.types.resize(row.ids.len(), 0);
        Ok(row)
    }

    fn encode_whole(&mut self, input: &LabelledInput) -> Result<LabelledRow> {
        match input {
            LabelledInput::Text { text, pair: None } => {
                let mut ids = self.ids(text)?;
                let room = self.max_len - self.single.n_special();
                let is_cut = ids.len() > room;
                ids.truncate(room);
                Ok(self.around(&ids, is_cut))
            }
            LabelledInput::Text { text, pair: Some(pair) } => {
                let (mut first, mut second) = (self.ids(text)?, self.ids(pair)?);
                let room = self.max_len - self.pair.n_special();
                let is_cut = first.len() + second.len() > room;
                let [a, b] = longest_first([first.len(), second.len()], room);
                first.truncate(a);
                second.truncate(b);

                let mut row = LabelledRow { is_cut, ..LabelledRow::default() };
                for (n, text) in [&first, &second].into_iter().enumerate() {
                    self.pair.put(n, &mut row);
                    row.ids.extend(text);
                    row.types.resize(row.ids.len(), self.pair.text_types[n]);
                }
                self.pair.put(2, &mut row);
                Ok(row)
            }
            LabelledInput::Words(words) => self.encode_words(words),
        }
    }

    fn encode_words(&mut self, words: &[String]) -> Result<LabelledRow> {
        let room = self.max_len - self.single.n_special();
        let first = self.single.special[0].len() as u32;
        let (mut ids, mut places, mut is_cut) = (Vec::new(), Vec::with_capacity(words.len()), false);
        for word in words {
            let start = ids.len();
            match self.spaced && !word.starts_with(' ') {
                true => ids.extend(self.ids(&format!(" {word}"))?),
                false => ids.extend(self.ids(word)?),
            }
            is_cut |= ids.len() > room;
            places.push((ids.len() > start && start < room).then_some(first + start as u32));
            ids.truncate(room);
        }
        let row = self.around(&ids, is_cut);
        Ok(LabelledRow { words: places, ..row })
    }

    /// Returns what the vocabulary could not spell in the rows since the last call, and how many special tokens their texts spell.
    pub fn take_counts(&mut self) -> (Unknown, u64) {
        (std::mem::take(&mut self.unknown), std::mem::take(&mut self.n_spelled))
    }

    fn ids(&mut self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        self.n_spelled += self.encoder.count_spelled(text);
        self.encoder.encode(text, &mut ids)?;
        self.encoder.count_unknown(text, &ids, &mut self.unknown)?;
        Ok(ids)
    }

    fn around(&self, ids: &[u32], is_cut: bool) -> LabelledRow {
        let mut row = LabelledRow { is_cut, ..LabelledRow::default() };
        self.single.put(0, &mut row);
        row.ids.extend(ids);
        row.types.resize(row.ids.len(), self.single.text_types[0]);
        self.single.put(1, &mut row);
        row
    }
}

/// Returns whether a `tokenizer.json` cuts words in front of spaces, as GPT-2's.
fn has_byte_level(json: &str) -> Result<bool> {
    let parts: Value = serde_json::from_str(json).map_err(|e| not_a_tokenizer(None, &e))?;
    let is_byte_level = |part: &Value| part["type"] == "ByteLevel";
    let whole = &parts["pre_tokenizer"];
    Ok(is_byte_level(whole) || whole["pretokenizers"].as_array().into_iter().flatten().any(is_byte_level))
}

/// Returns how many tokens of two texts are kept.
fn longest_first([a, b]: [usize; 2], room: usize) -> [usize; 2] {
    if a + b <= room {
        return [a, b];
    }
    let short = a.min(b).min(room / 2);
    if a <= b { [short, room - short] } else { [room - short, short] }
}

/// Finds the special tokens that the post-processor puts around one text and around two. Without one, these are `before` and `behind`.
fn templates(tokenizer: &TextTokenizer, (before, behind): (Vec<u32>, Vec<u32>)) -> Result<(Template<2>, Template<3>)> {
    /// Texts to try: a vocabulary may lack any letter.
    const TEXTS: [&str; 4] = ["a", "1", ".", "\u{3042}"];
    let mut whole: Tokenizer = guard::read(tokenizer.json()).map_err(|e| not_a_tokenizer(None, &e))?;
    if whole.get_post_processor().is_some() {
        whole.with_padding(None);
        whole.with_truncation(None).map_err(|e| not_a_tokenizer(None, &e))?;
        for text in TEXTS {
            let single = guard::encode(&whole, text).map_err(|e| not_a_tokenizer(None, &e))?;
            let pair = guard::encode(&whole, (text, text)).map_err(|e| not_a_tokenizer(None, &e))?;
            if let (Some(single), Some(pair)) = (Template::of(&single), Template::of(&pair)) {
                return Ok((single, pair));
            }
        }
    }

    let types = |ids: &[u32], kind: u8| vec![kind; ids.len()];
    let single = Template {
        special_types: [types(&before, 0), types(&behind, 0)],
        special: [before.clone(), behind.clone()],
        text_types: [0, 1],
    };
    let pair = Template {
        special_types: [types(&before, 0), types(&behind, 0), types(&behind, 1)],
        special: [before, behind.clone(), behind],
        text_types: [0, 1],
    };
    Ok((single, pair))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::TextFixture;
    use crate::tokenizer::{TokenizerConfig, TokenizerKind};

    fn tokenizer(kind: TokenizerKind) -> TextTokenizer {
        let config = TokenizerConfig { kind, vocab_size: 300, ..TokenizerConfig::default() };
        TextFixture::new(&vec!["the old man walked down to the river".to_owned(); 20], &config).tokenizer
    }

    fn text(text: &str, pair: Option<&str>) -> LabelledInput {
        LabelledInput::Text { text: text.into(), pair: pair.map(Into::into) }
    }

    #[test]
    fn two_texts_have_types_and_the_longer_one_is_cut() {
        let tokenizer = tokenizer(TokenizerKind::WordPiece);
        let mut encoder = LabelledEncoder::new(&tokenizer, 9).expect("room");
        let ids = |text: &str| tokenizer.encode(text).expect("text");
        let (cls, sep) = (tokenizer.special().cls.expect("cls"), tokenizer.special().sep.expect("sep"));

        let row = encoder.encode(&text("the man", Some("the river"))).expect("a row");
        assert_eq!(row.ids, [&[cls][..], &ids("the man"), &[sep], &ids("the river"), &[sep]].concat());
        assert_eq!((&row.types[..], row.is_cut), (&[0, 0, 0, 0, 1, 1, 1][..], false));
        let long = encoder.encode(&text("man", Some("the old man walked down to the river"))).expect("a row");
        assert_eq!(long.ids, [&[cls][..], &ids("man"), &[sep], &ids("the old man walked down"), &[sep]].concat());
        assert!(long.is_cut);
        assert!(LabelledEncoder::new(&tokenizer, 4).expect_err("no room").to_string().contains("at least 5"));
    }

    #[test]
    fn rows_of_a_decoder_stand_between_start_and_end_and_do_not_end_with_padding() {
        let tokenizer = tokenizer(TokenizerKind::ByteLevelBpe);
        let special = tokenizer.special();
        let (bos, eos) = (special.bos.expect("bos"), special.eos.expect("eos"));
        let pad = special.pad.expect("pad");
        let ids = |text: &str| tokenizer.encode(text).expect("text");
        assert_eq!(tokenizer.padding_of_decoder(), Some(pad));
        let mut encoder = LabelledEncoder::for_decoder(&tokenizer, 64).expect("room");
        assert_eq!(encoder.around_text(), (&[bos][..], &[eos][..]));
        let whole = [&[bos][..], &ids("the man"), &[eos]].concat();
        assert_eq!(encoder.encode(&text("the man", None)).expect("a row").ids, whole);
        let both = [&whole[..], &ids("the river"), &[eos]].concat();
        let pair = encoder.encode(&text("the man", Some("the river"))).expect("a row");
        assert_eq!((pair.ids.len(), pair.ids), (pair.types.len(), both.clone()));

        // Where the end token is padding, nothing reads it at the end of a row.
        encoder.padding = Some(eos);
        assert_eq!(encoder.encode(&text("the man", None)).expect("a row").ids, whole[..whole.len() - 1]);
        let pair = encoder.encode(&text("the man", Some("the river"))).expect("a row");
        assert_eq!(pair.ids, both[..both.len() - 1]);
        // A row has a token to read.
        encoder.single.special[0] = vec![eos];
        assert_eq!(encoder.encode(&text("", None)).expect("a row").ids, [pad]);
    }

    #[test]
    fn the_shares_of_two_texts_fill_the_room() {
        for (lengths, kept) in [
            ([3, 4], [3, 4]),
            ([9, 4], [6, 4]),
            ([4, 9], [4, 6]),
            ([9, 9], [5, 5]),
            ([2, 20], [2, 8]),
            ([20, 0], [10, 0]),
        ] {
            assert_eq!(longest_first(lengths, 10), kept, "{lengths:?}");
        }
    }

    #[test]
    fn each_word_has_the_place_of_its_first_token() {
        for kind in [TokenizerKind::WordPiece, TokenizerKind::ByteLevelBpe] {
            let tokenizer = tokenizer(kind);
            let words: Vec<String> = ["the", "", "manor", "river"].map(Into::into).into();
            let mut encoder = LabelledEncoder::new(&tokenizer, 64).expect("room");
            let row = encoder.encode(&LabelledInput::Words(words.clone())).expect("a row");
            let [the, none, manor, river] = row.words[..] else { panic!("{row:?}") };
            // A vocabulary of bytes spells the space in front of an empty word.
            assert_eq!(none.is_none(), kind == TokenizerKind::WordPiece, "{row:?}");
            let of =
                |from: Option<u32>, to: u32| tokenizer.decode(&row.ids[from.expect("a place") as usize..to as usize]);
            let end = row.ids.len() as u32 - u32::from(tokenizer.around().1.len() as u32 > 0);
            assert_eq!(of(the, none.or(manor).expect("a place")).expect("text").trim(), "the");
            assert_eq!(of(manor, river.expect("a place")).expect("text").trim(), "manor");
            assert_eq!(of(river, end).expect("text").trim(), "river");

            let first = tokenizer.around().0.len() + 1;
            let mut short = LabelledEncoder::new(&tokenizer, first + tokenizer.around().1.len() + 4).expect("room");
            let cut = short.encode(&LabelledInput::Words(vec!["river".into(); 9])).expect("a row");
            assert!(cut.is_cut && cut.words[0].is_some() && cut.words[8].is_none(), "{cut:?}");
        }
    }
}
