//! Conversations to ids, with a flag on each token that the model learns to predict.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::OnceLock;

use serde_json::Value;
use tokenizers::Tokenizer;

use super::template::{ChatTemplate, Marked, TemplateError};
use crate::corpus::{ChatMessage, Learn};
use crate::error::{Error, Result};
use crate::tokenizer::vocabulary::not_a_tokenizer;

/// Marks the ids of tokens that the model learns to predict. Vocabularies are far smaller.
pub(crate) const FLAG: u32 = 1 << 31;

/// Encodes conversations on one thread, a block at a time: each block is rendered in a process of its own.
#[derive(Debug)]
pub(crate) struct ChatEncoder {
    template: ChatTemplate,
    tokenizer: SpecialEncoder,
    learn: Learn,
    splits: bool,
}

/// The ids of a conversation, or why it has none.
pub(crate) type Encoded = std::result::Result<Vec<u32>, TemplateError>;

impl ChatEncoder {
    pub(crate) fn new(tokenizer: SpecialEncoder, template: ChatTemplate, learn: Learn) -> Self {
        Self { template, tokenizer, learn, splits: true }
    }

    /// Returns an encoder that splits special tokens in a message like other text, or without `splits` reads them as tokens.
    pub(crate) fn splitting_special_tokens(self, splits: bool) -> Self {
        Self { splits, ..self }
    }

    /// Returns how many special tokens the messages spell.
    pub(crate) fn count_spelled(&self, messages: &[ChatMessage]) -> u64 {
        let spellings = &self.tokenizer.spellings;
        let in_text = |text: &str| spellings.iter().map(|spelling| text.matches(spelling).count() as u64).sum::<u64>();
        messages.iter().map(|message| in_text(&message.content)).sum()
    }

    /// Returns the further texts of messages that the template does not read, each name once.
    pub(crate) fn unread<'a>(&self, messages: impl Iterator<Item = &'a ChatMessage>) -> BTreeSet<&'a str> {
        let texts = messages.flat_map(|message| &message.more).filter(|(_, text)| !text.trim().is_empty());
        texts.map(|(name, _)| name.as_str()).filter(|name| !self.template.source().contains(name)).collect()
    }

    /// Returns the ids of each rendered conversation. The ids of tokens to learn have the [`FLAG`].
    ///
    /// A token counts if it begins within an answer: the model writes it after the beginning of the answer. Where the template
    /// marks the answers, a token counts if it has any part of one, as in `transformers`.
    pub(crate) fn encode(&self, conversations: &[&[ChatMessage]]) -> Result<Vec<Encoded>> {
        let guarded: Vec<Cow<'_, [ChatMessage]>> = conversations
            .iter()
            .map(|messages| if self.splits { self.tokenizer.guarded(messages) } else { Cow::Borrowed(*messages) })
            .collect();
        let guarded: Vec<&[ChatMessage]> = guarded.iter().map(AsRef::as_ref).collect();
        let rendered = self.template.render_to_learn(&guarded, self.learn);
        let rendered = rendered.map_err(|problem| Error::Invalid(format!("the chat template: {problem}")))?;

        let encode = |(messages, rendered): (&&[ChatMessage], std::result::Result<Marked, TemplateError>)| {
            if messages.iter().any(|message| message.content.contains(GUARD)) {
                return Ok(Err(TemplateError("a message contains U+FDD2, which is not a character: remove it".into())));
            }
            match rendered {
                Ok((text, spans)) => self.encode_rendered(&text, spans).map(Ok),
                Err(problem) => Ok(Err(problem)),
            }
        };
        conversations.iter().zip(rendered).map(encode).collect()
    }

    /// Returns the ids of a rendered conversation, of which the model learns `spans`.
    fn encode_rendered(&self, text: &str, spans: Vec<Range<usize>>) -> Result<Vec<u32>> {
        let encoding = self.tokenizer.encode_guarded(text)?;
        let marks = self.template.marks_answers() && self.learn != Learn::Everything;
        let mut spans = spans.into_iter().peekable();
        let mut ids = Vec::with_capacity(encoding.len());
        for (id, Range { start, end }) in encoding {
            while spans.next_if(|span| span.end <= start).is_some() {}
            let begins = |span: &Range<usize>| span.start <= start || marks && span.start < end;
            let counts = start < end && spans.peek().is_some_and(begins);
            ids.push(if counts { id | FLAG } else { id });
        }
        Ok(ids)
    }
}

/// Stands within a special token that a message spells. Not a character, so that no text has it.
pub(super) const GUARD: char = '\u{fdd2}';

/// Returns the ids of a `section` that begins at byte `begin`, without its [`GUARD`]s, and their places with them.
fn as_text(reader: &Tokenizer, section: &str, begin: usize) -> Result<Vec<(u32, Range<usize>)>> {
    let plain = section.replace(GUARD, "");
    let encoding = encoded(reader, &plain)?;
    let guards: Vec<usize> = section.match_indices(GUARD).map(|(at, _)| at).collect();
    let with_guards = |at: usize| {
        let before = (0..guards.len()).take_while(|i| guards[*i] < at + i * GUARD.len_utf8()).count();
        begin + at + before * GUARD.len_utf8()
    };
    let places = encoding.get_offsets().iter().map(|(start, end)| with_guards(*start)..with_guards(*end));
    Ok(encoding.get_ids().iter().copied().zip(places).collect())
}

fn encoded(tokenizer: &Tokenizer, text: &str) -> Result<tokenizers::Encoding> {
    tokenizer.encode(text, false).map_err(|e| Error::tokenizer(None, format!("encoding a conversation failed: {e}")))
}

/// Encodes texts in which special tokens are spelled, such as rendered conversations. No token is added. Made by
/// [`TextTokenizer::special_encoder`](crate::TextTokenizer::special_encoder).
#[derive(Debug, Clone)]
pub struct SpecialEncoder {
    tokenizer: Tokenizer,
    /// Reads special tokens as text. Made when a message spells one.
    as_text: OnceLock<Tokenizer>,
    /// The spellings of special tokens, which a message may contain as text.
    spellings: Vec<String>,
}

impl SpecialEncoder {
    /// Loads the content of a `tokenizer.json`.
    pub(in crate::tokenizer) fn new(json: &str) -> Result<Self> {
        let mut parts: Value = serde_json::from_str(json).map_err(|e| not_a_tokenizer(None, &e))?;
        for part in ["truncation", "padding", "post_processor"] {
            parts[part] = Value::Null;
        }
        if parts["model"]["dropout"].is_number() {
            parts["model"]["dropout"] = Value::Null;
        }
        let tokenizer: Tokenizer = serde_json::from_value(parts).map_err(|e| not_a_tokenizer(None, &e))?;
        let special = tokenizer.get_added_tokens_decoder().into_values().filter(|token| token.special);
        let spellings = special.map(|token| token.content).filter(|content| content.chars().nth(1).is_some()).collect();
        Ok(Self { tokenizer, as_text: OnceLock::new(), spellings })
    }

    /// Returns the messages with a [`GUARD`] within each special token that they spell: nobody's data may end a turn.
    pub(super) fn guarded<'m>(&self, messages: &'m [ChatMessage]) -> Cow<'m, [ChatMessage]> {
        let spells = |message: &ChatMessage| self.spellings.iter().any(|spelling| message.content.contains(spelling));
        if !messages.iter().any(spells) {
            return Cow::Borrowed(messages);
        }
        let mut guarded = messages.to_vec();
        for message in &mut guarded {
            for spelling in &self.spellings {
                let first = spelling.chars().next().map_or(0, char::len_utf8);
                let split = format!("{}{GUARD}{}", &spelling[..first], &spelling[first..]);
                message.content = message.content.replace(spelling, &split);
            }
        }
        Cow::Owned(guarded)
    }

    /// Returns the ids of a rendered conversation, and the place of each, in bytes. What lies between two special tokens and
    /// has a [`GUARD`] is encoded without it, as text.
    fn encode_guarded(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>> {
        let encoding = self.encoding(text)?;
        let places = encoding.get_offsets().iter().map(|(start, end)| *start..*end);
        let tokens: Vec<_> = encoding.get_ids().iter().copied().zip(places).collect();
        if !text.contains(GUARD) {
            return Ok(tokens);
        }

        let added = self.tokenizer.get_added_vocabulary();
        let is_special = |id: u32| self.tokenizer.id_to_token(id).is_some_and(|token| added.is_special_token(&token));
        let reader = self.as_text.get_or_init(|| {
            let mut reader = self.tokenizer.clone();
            reader.set_encode_special_tokens(true);
            reader
        });

        let (mut all, mut rest, mut begin) = (Vec::with_capacity(tokens.len()), tokens.as_slice(), 0);
        loop {
            let n = rest.iter().position(|(id, _)| is_special(*id)).unwrap_or(rest.len());
            let end = rest.get(n).map_or(text.len(), |(_, place)| place.start);
            let section = &text[begin..end];
            if section.contains(GUARD) {
                all.extend(as_text(reader, section, begin)?);
            } else {
                all.extend_from_slice(&rest[..n]);
            }
            let Some(special) = rest.get(n) else { return Ok(all) };
            all.push(special.clone());
            (rest, begin) = (&rest[n + 1..], special.1.end);
        }
    }

    /// Returns the ids of a text.
    ///
    /// # Errors
    /// If the text cannot be encoded.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.encoding(text)?.get_ids().to_vec())
    }

    /// Returns the spelling of the added token that a text begins with, such as `<|im_end|>`; `None` if it begins with other
    /// text.
    ///
    /// # Errors
    /// If the text cannot be encoded.
    pub fn first_added_token(&self, text: &str) -> Result<Option<String>> {
        let first = self.encode(text)?.first().copied();
        let mut added = self.tokenizer.get_added_tokens_decoder();
        Ok(first.and_then(|id| added.remove(&id)).map(|token| token.content).filter(|token| text.starts_with(token)))
    }

    fn encoding(&self, text: &str) -> Result<tokenizers::Encoding> {
        encoded(&self.tokenizer, text)
    }
}
