//! Reads the protocol buffer of a SentencePiece model (`sentencepiece_model.proto`), as far as encoding needs it.

/// One piece of the vocabulary.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Piece {
    pub(super) text: String,
    pub(super) score: f32,
    pub(super) kind: Kind,
}

/// What a piece is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    Unknown,
    Control,
    /// Always one token wherever a text spells it.
    UserDefined,
    /// Helps to merge other pieces, but is never a result.
    Unused,
    /// One byte of a character without a piece.
    Byte,
}

/// The algorithms of the `model_type` field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithm {
    Unigram,
    Bpe,
}

/// The content of a file.
#[derive(Debug, Clone)]
pub(super) struct Proto {
    pub(super) pieces: Vec<Piece>,
    pub(super) algorithm: Algorithm,
    pub(super) byte_fallback: bool,
    pub(super) whitespace_as_suffix: bool,
    /// Precompiled rules of normalization; may be empty.
    pub(super) charsmap: Vec<u8>,
    pub(super) add_dummy_prefix: bool,
    pub(super) remove_extra_whitespaces: bool,
    pub(super) escape_whitespaces: bool,
}

/// More pieces than any published vocabulary has.
const MAX_PIECES: usize = 4 << 20;
/// A longer piece is damage. SentencePiece's trainer makes pieces of at most 16 characters, unless it is asked for more.
const MAX_PIECE_BYTES: usize = 1 << 12;

impl Proto {
    /// Reads a file.
    ///
    /// # Errors
    /// If the bytes are not a SentencePiece model, or one that this crate cannot apply exactly; the text says why.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        let mut proto = Self {
            pieces: Vec::new(),
            algorithm: Algorithm::Unigram,
            byte_fallback: false,
            whitespace_as_suffix: false,
            charsmap: Vec::new(),
            add_dummy_prefix: true,
            remove_extra_whitespaces: true,
            escape_whitespaces: true,
        };

        let mut fields = Fields::new(bytes, 0);
        while let Some((number, value)) = fields.next()? {
            match (number, value) {
                (1, Value::Bytes(piece, at)) => {
                    if proto.pieces.len() == MAX_PIECES {
                        return Err(format!("has more than {MAX_PIECES} pieces"));
                    }
                    proto.pieces.push(piece_of(piece, at, proto.pieces.len())?);
                }
                (2, Value::Bytes(trainer, at)) => proto.read_trainer(Fields::new(trainer, at))?,
                (3, Value::Bytes(normalizer, at)) => proto.read_normalizer(Fields::new(normalizer, at))?,
                (5, Value::Bytes(denormalizer, at)) => refuse_denormalizer(Fields::new(denormalizer, at))?,
                _ => (),
            }
        }

        proto.check()?;
        Ok(proto)
    }

    fn read_trainer(&mut self, mut fields: Fields<'_>) -> Result<(), String> {
        while let Some((number, value)) = fields.next()? {
            match (number, value) {
                (3, Value::Number(1)) => self.algorithm = Algorithm::Unigram,
                (3, Value::Number(2)) => self.algorithm = Algorithm::Bpe,
                (3, Value::Number(other)) => {
                    let name = match other {
                        3 => "word".to_owned(),
                        4 => "char".to_owned(),
                        other => other.to_string(),
                    };
                    return Err(format!(
                        "has the model type {name}; Kiln reads unigram and bpe: train it with one of them"
                    ));
                }
                (24, Value::Number(flag)) => self.whitespace_as_suffix = flag != 0,
                (35, Value::Number(flag)) => self.byte_fallback = flag != 0,
                _ => (),
            }
        }
        Ok(())
    }

    fn read_normalizer(&mut self, mut fields: Fields<'_>) -> Result<(), String> {
        while let Some((number, value)) = fields.next()? {
            match (number, value) {
                (2, Value::Bytes(charsmap, _)) => self.charsmap = charsmap.to_vec(),
                (3, Value::Number(flag)) => self.add_dummy_prefix = flag != 0,
                (4, Value::Number(flag)) => self.remove_extra_whitespaces = flag != 0,
                (5, Value::Number(flag)) => self.escape_whitespaces = flag != 0,
                _ => (),
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        if self.pieces.is_empty() {
            return Err("has no pieces: it is not a SentencePiece model".to_owned());
        }
        match self.pieces.iter().filter(|piece| piece.kind == Kind::Unknown).count() {
            1 => (),
            n => return Err(format!("has {n} unknown pieces, but a SentencePiece model has exactly one")),
        }
        let mut seen = std::collections::HashSet::with_capacity(self.pieces.len());
        if let Some(twice) = self.pieces.iter().find(|piece| !seen.insert(piece.text.as_str())) {
            return Err(format!("has the piece {:?} twice", twice.text));
        }
        if self.byte_fallback {
            let missing = (0..=u8::MAX)
                .map(byte_piece)
                .find(|byte| !self.pieces.iter().any(|piece| piece.kind == Kind::Byte && piece.text == *byte));
            if let Some(missing) = missing {
                return Err(format!("spells unknown characters as bytes (byte_fallback), but has no piece {missing}"));
            }
        }
        Ok(())
    }
}

/// Returns the spelling of a byte.
pub(super) fn byte_piece(byte: u8) -> String {
    format!("<0x{byte:02X}>")
}

fn piece_of(bytes: &[u8], at: usize, number: usize) -> Result<Piece, String> {
    let mut piece = Piece { text: String::new(), score: 0.0, kind: Kind::Normal };
    let mut fields = Fields::new(bytes, at);
    while let Some((field, value)) = fields.next()? {
        match (field, value) {
            (1, Value::Bytes(text, _)) if text.len() > MAX_PIECE_BYTES => {
                return Err(format!(
                    "has a piece of {} bytes (number {number}); at most {MAX_PIECE_BYTES}",
                    text.len()
                ));
            }
            (1, Value::Bytes(text, _)) => {
                let text =
                    std::str::from_utf8(text).map_err(|_| format!("has a piece that is not UTF-8 ({number})"))?;
                piece.text = text.to_owned();
            }
            (2, Value::Float(score)) if !score.is_finite() => {
                return Err(format!("has the score {score} at piece {number}"));
            }
            (2, Value::Float(score)) => piece.score = score,
            (3, Value::Number(kind)) => {
                let known = kind_of(kind);
                piece.kind = known.ok_or_else(|| format!("has the unknown type {kind} at piece {number}"))?;
            }
            _ => (),
        }
    }

    if piece.text.is_empty() {
        return Err(format!("has an empty piece (number {number}): it is not a SentencePiece model"));
    }
    Ok(piece)
}

/// Returns the kind with this number.
fn kind_of(number: u64) -> Option<Kind> {
    Some(match number {
        1 => Kind::Normal,
        2 => Kind::Unknown,
        3 => Kind::Control,
        4 => Kind::UserDefined,
        5 => Kind::Unused,
        6 => Kind::Byte,
        _ => return None,
    })
}

/// Decoding would have to apply a second set of rules, which no published model has.
fn refuse_denormalizer(mut fields: Fields<'_>) -> Result<(), String> {
    while let Some((number, value)) = fields.next()? {
        if let (2, Value::Bytes(charsmap, _)) = (number, value)
            && !charsmap.is_empty()
        {
            return Err(
                "changes decoded text by rules of its own (denormalizer_spec), which Kiln does not support: train \
                        it without --denormalization_rule_tsv"
                    .to_owned(),
            );
        }
    }
    Ok(())
}

/// The value of a field.
enum Value<'a> {
    Number(u64),
    Float(f32),
    /// Bytes, and their offset in the file.
    Bytes(&'a [u8], usize),
    /// 64 bits that nothing here needs.
    Wide,
}

/// The fields of a message, in order.
struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Offset of the message in the file.
    start: usize,
}

impl<'a> Fields<'a> {
    fn new(bytes: &'a [u8], start: usize) -> Self {
        Self { bytes, at: 0, start }
    }

    /// Returns the number and the value of the next field.
    fn next(&mut self) -> Result<Option<(u64, Value<'a>)>, String> {
        if self.at == self.bytes.len() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Number(self.varint()?),
            1 => {
                self.take(8)?;
                Value::Wide
            }
            2 => {
                let length = self.varint()?;
                let length = usize::try_from(length).map_err(|_| self.damaged())?;
                let at = self.start + self.at;
                Value::Bytes(self.take(length)?, at)
            }
            5 => {
                let bytes = self.take(4)?;
                Value::Float(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
            }
            _ => return Err(self.damaged()),
        };
        Ok(Some((tag >> 3, value)))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], String> {
        let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len()).ok_or_else(|| self.damaged())?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, String> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.damaged())
    }

    fn damaged(&self) -> String {
        format!(
            "is not a SentencePiece model, or is truncated: its byte {} does not continue a protocol buffer; copy the file \
             again",
            self.start + self.at
        )
    }
}
