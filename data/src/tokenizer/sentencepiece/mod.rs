//! SentencePiece models (Kudo and Richardson 2018), applied as the `sentencepiece` library applies them.
//!
//! A model becomes a `tokenizer.json` ([`convert`]), which holds the ids of the pieces and which other programs can load.
//! `tokenizers` would encode most texts alike, but not all: see [`normalizer`] and [`bpe`]. So this module divides texts
//! itself, and the file stays next to the `tokenizer.json`.

mod bpe;
mod convert;
mod normalizer;
mod proto;
mod unigram;

use ahash::AHashMap;

use normalizer::Normalizer;
use proto::{Algorithm, Kind, Piece, Proto, byte_piece};

pub(crate) use convert::to_json;

/// Stands for a space in pieces.
pub(crate) const META: char = '\u{2581}';

/// A SentencePiece model whose pieces have the ids of a vocabulary.
#[derive(Debug)]
pub(crate) struct SentencePiece {
    /// The file.
    pub(crate) bytes: Vec<u8>,
    algorithm: Algorithm,
    normalizer: Normalizer,
    pieces: Pieces,
    /// For each piece, its id in the vocabulary.
    ids: Vec<u32>,
    unknown: u32,
    /// The ids of bytes, if unknown characters are spelled with them.
    bytes_ids: Option<Box<[u32; 256]>>,
    /// The vocabulary, if it has entries of its own (Marian): it may know a text that the model does not.
    own_ids: Option<AHashMap<String, u32>>,
    /// Whether a text may begin with the code of a language (Marian).
    has_codes: bool,
    /// What an id spells.
    spelled: AHashMap<u32, Spelled>,
    /// Decoding removes the space in front.
    strips_start: bool,
    /// It removes all spaces in front.
    strips_all: bool,
}

/// The text of an id.
#[derive(Debug, Clone)]
enum Spelled {
    Text(String),
    Byte(u8),
    Nothing,
}

/// The pieces that a text can be divided into.
#[derive(Debug)]
struct Pieces {
    /// Without bytes, control pieces and the unknown piece.
    by_text: AHashMap<String, u32>,
    kinds: Vec<Kind>,
    scores: Vec<f32>,
    unknown: u32,
    /// Bytes of the longest piece.
    longest: usize,
    /// The lowest and the highest score of a normal piece.
    lowest_score: f32,
    highest_score: f32,
}

impl Pieces {
    fn new(proto: &Proto) -> Self {
        let in_text = |kind| matches!(kind, Kind::Normal | Kind::UserDefined | Kind::Unused);
        let by_text: AHashMap<String, u32> =
            (0..).zip(&proto.pieces).filter(|(_, p)| in_text(p.kind)).map(|(id, p)| (p.text.clone(), id)).collect();
        let normal = || proto.pieces.iter().filter(|piece| piece.kind == Kind::Normal).map(|piece| piece.score);
        Self {
            longest: by_text.keys().map(String::len).max().unwrap_or(0),
            by_text,
            kinds: proto.pieces.iter().map(|piece| piece.kind).collect(),
            scores: proto.pieces.iter().map(|piece| piece.score).collect(),
            unknown: proto.pieces.iter().position(|piece| piece.kind == Kind::Unknown).unwrap_or(0) as u32,
            lowest_score: normal().fold(f32::MAX, f32::min),
            // SentencePiece begins with the smallest positive number, so that no negative score is the highest.
            highest_score: normal().fold(f32::MIN_POSITIVE, f32::max),
        }
    }
}

impl SentencePiece {
    /// Reads a model whose pieces have ids in `vocabulary` (of the `tokenizer.json` that was made of it). A text that spells one of
    /// `controls` is divided into other pieces, even if the model has it as a user-defined symbol.
    ///
    /// # Errors
    /// If the bytes are not a model, or the vocabulary lacks its unknown piece or its bytes; the text says why.
    pub(crate) fn new(bytes: Vec<u8>, vocabulary: AHashMap<String, u32>, controls: &[u32]) -> Result<Self, String> {
        let mut proto = Proto::read(&bytes)?;
        let is_control = |piece: &Piece| vocabulary.get(&piece.text).is_some_and(|id| controls.contains(id));
        let symbols = proto.pieces.iter_mut().filter(|piece| piece.kind == Kind::UserDefined);
        symbols.filter(|piece| is_control(piece)).for_each(|piece| piece.kind = Kind::Control);
        let normalizer = Normalizer::new(&proto)?;
        let pieces = Pieces::new(&proto);
        let missing = |piece: &str| format!("has the piece {piece:?}, but the tokenizer.json next to it does not");
        let unknown_piece = &proto.pieces[pieces.unknown as usize].text;
        let unknown = *vocabulary.get(unknown_piece).ok_or_else(|| missing(unknown_piece))?;
        let ids: Vec<u32> =
            proto.pieces.iter().map(|piece| vocabulary.get(&piece.text).copied().unwrap_or(unknown)).collect();

        let mut bytes_ids = None;
        if proto.byte_fallback {
            let mut all = Box::new([0; 256]);
            for byte in 0..=u8::MAX {
                let piece = byte_piece(byte);
                all[usize::from(byte)] = *vocabulary.get(&piece).ok_or_else(|| missing(&piece))?;
            }
            bytes_ids = Some(all);
        }

        let kinds: AHashMap<&str, Kind> = proto.pieces.iter().map(|piece| (piece.text.as_str(), piece.kind)).collect();
        let spell = |text: &String| match kinds.get(text.as_str()) {
            Some(Kind::Control) => Spelled::Nothing,
            Some(Kind::Byte) => byte_of(text).map_or_else(|| Spelled::Text(text.clone()), Spelled::Byte),
            _ => Spelled::Text(text.clone()),
        };
        let spelled = vocabulary.iter().map(|(text, id)| (*id, spell(text))).collect();
        let other_ids = (0..).zip(&ids).any(|(number, id): (u32, &u32)| number != *id);

        let is_code = |token: &String| token.starts_with(">>") && token.ends_with("<<");
        let is_own = |token: &String| !kinds.contains_key(&**token);
        let has_own_ids = other_ids || vocabulary.keys().any(|token| is_code(token) && is_own(token));
        // The languages of M2M-100 are not part of texts.
        let is_language = |token: &String| token.len() > 4 && token.starts_with("__") && token.ends_with("__");
        let has_codes = has_own_ids && !vocabulary.keys().any(|token| is_language(token) && is_own(token));
        Ok(Self {
            bytes,
            algorithm: proto.algorithm,
            normalizer,
            pieces,
            ids,
            unknown,
            bytes_ids,
            own_ids: has_own_ids.then_some(vocabulary),
            has_codes,
            spelled,
            strips_start: proto.add_dummy_prefix || proto.remove_extra_whitespaces,
            strips_all: proto.remove_extra_whitespaces,
        })
    }

    /// Divides a text into its language code (`>>ita<<`), which only Marian's vocabularies have, and the rest.
    /// Source: `remove_language_code` of `MarianTokenizer`.
    fn language_code<'t>(&self, text: &'t str) -> (Option<u32>, &'t str) {
        let Some(ids) = self.own_ids.as_ref().filter(|_| self.has_codes) else { return (None, text) };
        let end = text.starts_with(">>").then(|| text.find("<<")).flatten();
        match end {
            Some(end) => {
                let (code, rest) = text.split_at(end + 2);
                (Some(ids.get(code).copied().unwrap_or(self.unknown)), rest)
            }
            None => (None, text),
        }
    }

    /// Returns the text that is divided into pieces: the rules of normalization applied, spaces written as [`META`].
    pub(crate) fn normalize(&self, text: &str) -> String {
        self.normalizer.normalize(text)
    }

    /// Returns the ids of the symbols that the trainer of the model defined (`user_defined_symbols`): a text that spells one has it.
    pub(crate) fn symbols(&self) -> impl Iterator<Item = u32> {
        self.pieces.kinds.iter().zip(&self.ids).filter(|(kind, _)| **kind == Kind::UserDefined).map(|(_, id)| *id)
    }

    /// Returns `text` with a space in place of each user-defined symbol.
    pub(crate) fn without_symbols(&self, text: &str) -> String {
        let (mut kept, mut rest) = (String::with_capacity(text.len()), text);
        while let Some(first) = rest.chars().next() {
            let symbol = self.normalizer.user_defined().at_start(rest);
            kept.push(if symbol.is_some() { ' ' } else { first });
            rest = &rest[symbol.unwrap_or(first.len_utf8())..];
        }
        kept
    }

    /// Appends the ids of a whole text.
    pub(crate) fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        let (code, rest) = self.language_code(text);
        ids.extend(code);
        self.encode_normalized(&self.normalize(rest), ids);
    }

    /// Appends the ids of a normalized text.
    fn encode_normalized(&self, text: &str, ids: &mut Vec<u32>) {
        // Unknown characters in sequence are one unknown piece.
        let mut unknown: Option<(usize, usize)> = None;
        let mut at = 0;
        let mut each = |piece: &str, id: Option<u32>| {
            let start = at;
            at += piece.len();
            match (id, &self.bytes_ids) {
                (Some(id), _) => {
                    self.close_unknown(text, &mut unknown, ids);
                    ids.push(self.ids[id as usize]);
                }
                (None, Some(bytes)) => ids.extend(piece.bytes().map(|byte| bytes[usize::from(byte)])),
                (None, None) => unknown = Some((unknown.map_or(start, |(start, _)| start), at)),
            }
        };
        match self.algorithm {
            Algorithm::Unigram => unigram::divide(&self.pieces, text, &mut each),
            Algorithm::Bpe => bpe::divide(&self.pieces, self.normalizer.user_defined(), text, &mut each),
        }
        self.close_unknown(text, &mut unknown, ids);
    }

    /// Appends the id of an unknown piece. A vocabulary with ids of its own may know it (from the other language).
    fn close_unknown(&self, text: &str, unknown: &mut Option<(usize, usize)>, ids: &mut Vec<u32>) {
        if let Some((start, end)) = unknown.take() {
            let known = self.own_ids.as_ref().and_then(|ids| ids.get(&text[start..end]).copied());
            ids.push(known.unwrap_or(self.unknown));
        }
    }

    /// Returns the text of some ids. An id without a piece has no text.
    pub(crate) fn decode(&self, ids: &[u32]) -> String {
        let (mut text, mut bytes) = (String::new(), Vec::new());
        let mut strips = self.strips_start;

        for id in ids {
            let piece = match self.spelled.get(id) {
                Some(Spelled::Byte(byte)) => {
                    bytes.push(*byte);
                    continue;
                }
                Some(Spelled::Text(piece)) => piece.as_str(),
                Some(Spelled::Nothing) | None => "",
            };
            push_bytes(&mut text, &mut bytes);
            strips &= text.is_empty();
            let rest = if strips { piece.strip_prefix(META) } else { None };
            if rest.is_some() && !self.strips_all {
                strips = false;
            }
            text.extend(rest.unwrap_or(piece).chars().map(|c| if c == META { ' ' } else { c }));
        }

        push_bytes(&mut text, &mut bytes);
        match self.own_ids {
            Some(_) => text.trim().to_owned(), // as `MarianTokenizer` and `M2M100Tokenizer` do
            None => text,
        }
    }
}

/// Appends bytes that spell characters; U+FFFD for each byte that does not.
fn push_bytes(text: &mut String, bytes: &mut Vec<u8>) {
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    bytes.clear();
}

/// Returns the byte that a piece such as `<0x0A>` spells.
fn byte_of(piece: &str) -> Option<u8> {
    u8::from_str_radix(piece.strip_prefix("<0x")?.strip_suffix('>')?, 16).ok()
}

#[cfg(test)]
mod tests;
