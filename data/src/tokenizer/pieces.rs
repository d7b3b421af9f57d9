//! How a tokenizer divides texts into pieces whose ids can be remembered.
//!
//! `tokenizers` builds strings with alignments for every text, which costs about a microsecond per token. Most
//! tokenizers divide a text into short pieces before their model sees it. The ids of the text are the ids of its pieces
//! in sequence. Nearly every piece has occurred before, so a look-up replaces the work. This file reads the kind of
//! pieces from a `tokenizer.json`. If it does not know them, texts stay whole.

use std::borrow::Cow;

use serde_json::Value;
use tokenizers::utils::SysRegex;

/// The pattern with which GPT-2 divides texts. The `ByteLevel` pre-tokenizer of `tokenizers` has it built in.
pub(super) const GPT2_PATTERN: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The pieces of a text whose ids do not depend on each other.
#[derive(Debug)]
pub(crate) enum Pieces {
    /// Words between single spaces: the Metaspace family of SentencePiece, which [`super::train`] makes for pairs.
    /// Metaspace splits at every space, and NFC and NFKC never look across one (U+0020 neither combines nor is
    /// reordered).
    Spaces {
        /// Stands for the space in front of a word.
        meta: char,
        /// Words are split further (at digits, say) before the model sees them.
        split_further: bool,
    },
    /// Matches of a pattern and the gaps between them, spelled as bytes: GPT-2, RoBERTa, Llama 3, Qwen.
    Pattern {
        /// The pattern.
        pattern: SysRegex,
        /// A text that does not start with a space gets one.
        add_prefix_space: bool,
    },
    /// Words between white space: BERT.
    WhiteSpace,
    /// A word with the spaces in front of it: Llama 2. Its model sees the whole text, but none of its tokens joins the
    /// end of a word to the space behind it.
    Prefixed {
        /// Stands for a space.
        meta: char,
    },
    /// The same, but a text that begins with a space has no other in front: Llama 2 as `transformers` 5 has it.
    PrefixedOnce {
        /// Stands for a space.
        meta: char,
    },
    /// The whole text.
    Whole,
}

impl Pieces {
    /// Reads from the parts of a `tokenizer.json` how it divides texts.
    pub(crate) fn of(parts: &Value) -> Self {
        let pre_tokenizer = &parts["pre_tokenizer"];
        let (first, rest) = match pre_tokenizer["pretokenizers"].as_array().map(Vec::as_slice) {
            Some([first, rest @ ..]) => (first, rest),
            _ => (pre_tokenizer, &[][..]),
        };
        let unicode_form = |part: &Value| matches!(kind(part), "NFC" | "NFKC" | "NFD" | "NFKD");
        let normalizer = &parts["normalizer"];
        let unicode_forms = normalizer.is_null()
            || unicode_form(normalizer)
            || kind(normalizer) == "Sequence"
                && normalizer["normalizers"].as_array().is_some_and(|all| all.iter().all(unicode_form));

        let found = match kind(first) {
            "Metaspace" if first["split"] == false => prefixed_once(parts, first).filter(|_| rest.is_empty()),
            "Metaspace" if unicode_forms && added_tokens_fit_words(parts) => spaces(first, rest),
            "ByteLevel" | "Split" if unicode_forms => pattern(first, rest),
            "BertPreTokenizer" if kind(normalizer) == "BertNormalizer" && rest.is_empty() => {
                added_tokens_fit_words(parts).then_some(Self::WhiteSpace)
            }
            "" if pre_tokenizer.is_null() => prefixed(parts),
            _ => None,
        };
        found.unwrap_or(Self::Whole)
    }
}

fn kind(part: &Value) -> &str {
    part["type"].as_str().unwrap_or_default()
}

/// Whether added tokens lie within words: none contains a space or strips the spaces around it.
fn added_tokens_fit_words(parts: &Value) -> bool {
    parts["added_tokens"].as_array().into_iter().flatten().all(|token| {
        let strips = token["lstrip"] == Value::Bool(true) || token["rstrip"] == Value::Bool(true);
        let spaces = token["content"].as_str().is_none_or(|content| content.contains(char::is_whitespace));
        token["special"] == Value::Bool(true) || !(strips || spaces)
    })
}

fn spaces(metaspace: &Value, rest: &[Value]) -> Option<Pieces> {
    let rest_fits = rest.iter().all(|part| matches!(kind(part), "Digits" | "Punctuation"));
    let fits = metaspace["prepend_scheme"].as_str().is_none_or(|scheme| scheme != "never")
        && metaspace["add_prefix_space"] != Value::Bool(false)
        && metaspace["split"] != Value::Bool(false);
    let meta = metaspace["replacement"].as_str()?.chars().next()?;
    (fits && rest_fits).then_some(Pieces::Spaces { meta, split_further: !rest.is_empty() })
}

fn pattern(first: &Value, rest: &[Value]) -> Option<Pieces> {
    let (pattern, byte_level) = match (kind(first), rest) {
        ("ByteLevel", []) if first["use_regex"] != Value::Bool(false) => (GPT2_PATTERN, first),
        ("Split", [byte_level]) if kind(byte_level) == "ByteLevel" => {
            let isolated = first["behavior"] == "Isolated" && first["invert"] != Value::Bool(true);
            // After another splitter, `ByteLevel` would put a space in front of each piece.
            if !isolated || byte_level["use_regex"] != Value::Bool(false) || byte_level["add_prefix_space"] != false {
                return None;
            }
            (first["pattern"]["Regex"].as_str()?, byte_level)
        }
        _ => return None,
    };
    let add_prefix_space = byte_level["add_prefix_space"] == Value::Bool(true);
    Some(Pieces::Pattern { pattern: SysRegex::new(pattern).ok()?, add_prefix_space })
}

fn prefixed(parts: &Value) -> Option<Pieces> {
    let [prepend, replace] = parts["normalizer"]["normalizers"].as_array()?.as_slice() else { return None };
    let mut letters = prepend["prepend"].as_str()?.chars();
    let (meta, more) = (letters.next()?, letters.next());
    let fits = kind(prepend) == "Prepend"
        && more.is_none()
        && kind(replace) == "Replace"
        && replace["pattern"]["String"] == " "
        && replace["content"].as_str().is_some_and(|content| content.chars().eq([meta]));
    (fits && has_words_apart(parts, meta)).then_some(Pieces::Prefixed { meta })
}

fn prefixed_once(parts: &Value, metaspace: &Value) -> Option<Pieces> {
    let meta = metaspace["replacement"].as_str()?.chars().next()?;
    let fits = parts["normalizer"].is_null() && metaspace["prepend_scheme"] != "never";
    (fits && has_words_apart(parts, meta)).then_some(Pieces::PrefixedOnce { meta })
}

/// Whether no token joins the end of a word to the space behind it.
fn has_words_apart(parts: &Value, meta: char) -> bool {
    let model = &parts["model"];
    let Some(vocab) = model["vocab"].as_object() else { return false };
    // Unknown characters must become bytes: otherwise the ones of two words could fuse into one token.
    let bytes = model["byte_fallback"] == Value::Bool(true)
        && (0..=u8::MAX).all(|byte| vocab.contains_key(&format!("<0x{byte:02X}>")));
    let joins_words = |token: &String| token.trim_start_matches(meta).contains(meta);
    bytes && kind(model) == "BPE" && !vocab.keys().any(joins_words)
}

/// Returns the characters that stand for bytes in byte-level vocabularies: printable Latin-1 for itself, other bytes
/// from U+0100 on. Source: `bytes_to_unicode` of GPT-2's `encoder.py`.
pub(super) fn byte_characters() -> [char; 256] {
    let mut next = 0x100;
    std::array::from_fn(|byte| match byte as u8 {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => byte as u8 as char,
        _ => {
            next += 1;
            char::from_u32(next - 1).expect("a letter of Latin Extended-A")
        }
    })
}

/// Calls `each` with the matches of a pattern and the gaps between them, in order.
pub(super) fn matches_and_gaps<'t>(pattern: &SysRegex, text: &'t str, mut each: impl FnMut(&'t str)) {
    let mut done = 0;
    for (start, end) in pattern.find_iter(text) {
        for piece in [done..start, start..end] {
            if !piece.is_empty() {
                each(&text[piece]);
            }
        }
        done = end;
    }
    if done < text.len() {
        each(&text[done..]);
    }
}

/// Calls `each` with the words of a text, each with the meta symbols in front of it.
pub(super) fn prefixed_words(text: &str, meta: char, mut each: impl FnMut(&str)) {
    let mut start = 0;
    let mut previous = meta;
    for (at, c) in text.char_indices() {
        if c == meta && previous != meta {
            each(&text[start..at]);
            start = at;
        }
        previous = c;
    }
    if start < text.len() {
        each(&text[start..]);
    }
}

/// Returns `text` as Llama 2 normalizes it.
pub(super) fn with_meta(text: &str, meta: char) -> Cow<'_, str> {
    if text.is_empty() {
        return Cow::Borrowed(text);
    }
    let mut normalized = String::with_capacity(text.len() + text.len() / 4 + 3);
    normalized.push(meta);
    normalized.extend(text.chars().map(|c| if c == ' ' { meta } else { c }));
    Cow::Owned(normalized)
}
