//! Normalization by precompiled rules, after `normalizer.cc` of SentencePiece.
//!
//! The normalizer `Precompiled` of `tokenizers` applies the same rules, but to graphemes: it replaces a whole grapheme by
//! the rule of its shortest prefix. SentencePiece takes the longest rule at every position, which differs for combining
//! marks and emoji.

use std::collections::HashSet;

use super::META;
use super::proto::{Kind, Proto};

/// How a text is written before it is divided into pieces.
#[derive(Debug)]
pub(super) struct Normalizer {
    /// A double array trie (`darts_clone`) over the UTF-8 bytes of the texts to replace.
    trie: Vec<u32>,
    /// Replacements, each ended by a zero byte.
    replacements: String,
    user_defined: LongestMatch,
    add_dummy_prefix: bool,
    remove_extra_whitespaces: bool,
    escape_whitespaces: bool,
    whitespace_as_suffix: bool,
}

impl Normalizer {
    pub(super) fn new(proto: &Proto) -> Result<Self, String> {
        let (trie, replacements) = read_charsmap(&proto.charsmap)?;
        let user_defined = proto.pieces.iter().filter(|piece| piece.kind == Kind::UserDefined);
        Ok(Self {
            trie,
            replacements,
            user_defined: LongestMatch::new(user_defined.map(|piece| piece.text.clone())),
            add_dummy_prefix: proto.add_dummy_prefix,
            remove_extra_whitespaces: proto.remove_extra_whitespaces,
            escape_whitespaces: proto.escape_whitespaces,
            whitespace_as_suffix: proto.whitespace_as_suffix,
        })
    }

    /// The pieces that a text always keeps whole.
    pub(super) fn user_defined(&self) -> &LongestMatch {
        &self.user_defined
    }

    /// Returns the text that is divided into pieces: rules applied, spaces written as the meta symbol.
    pub(super) fn normalize(&self, text: &str) -> String {
        let mut rest = text;
        if self.remove_extra_whitespaces {
            while !rest.is_empty() {
                let (replaced, length) = self.first(rest);
                if replaced != " " {
                    break;
                }
                rest = &rest[length..];
            }
        }
        let mut normalized = String::with_capacity(rest.len() + rest.len() / 4 + 3);
        if rest.is_empty() {
            return normalized;
        }

        let space = if self.escape_whitespaces { META } else { ' ' };
        if self.add_dummy_prefix && !self.whitespace_as_suffix {
            normalized.push(space);
        }
        let mut after_space = self.remove_extra_whitespaces;
        while !rest.is_empty() {
            let (mut replaced, length) = self.first(rest);
            if after_space {
                replaced = replaced.trim_start_matches(' ');
            }
            if !replaced.is_empty() {
                normalized.extend(replaced.chars().map(|c| if c == ' ' { space } else { c }));
                after_space = replaced.ends_with(' ');
            }
            after_space &= self.remove_extra_whitespaces;
            rest = &rest[length..];
        }

        if self.remove_extra_whitespaces {
            normalized.truncate(normalized.trim_end_matches(space).len());
        }
        if self.add_dummy_prefix && self.whitespace_as_suffix {
            normalized.push(space);
        }
        normalized
    }

    /// Returns what replaces the beginning of a text, and the length of that beginning in bytes.
    fn first<'t>(&'t self, text: &'t str) -> (&'t str, usize) {
        if let Some(length) = self.user_defined.at_start(text) {
            return (&text[..length], length);
        }
        let rule = self.longest_rule(text.as_bytes());
        // A rule may end within a character only in a damaged file.
        if let Some((length, at)) = rule.filter(|(length, _)| text.is_char_boundary(*length)) {
            let replacement = self.replacements.get(at..).unwrap_or_default();
            return (replacement.split('\0').next().unwrap_or_default(), length);
        }
        let length = text.chars().next().map_or(0, char::len_utf8);
        (&text[..length], length)
    }

    /// Returns the length of the longest text to replace at the start of `key`, and the place of its replacement. Source:
    /// `DoubleArrayImpl::commonPrefixSearch` of `darts_clone`.
    fn longest_rule(&self, key: &[u8]) -> Option<(usize, usize)> {
        // SentencePiece looks at this many rules per position.
        const MOST_RULES: usize = 32;
        let offset = |unit: u32| ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize;
        let mut found = None;
        let mut n_found = 0;
        let mut node = offset(*self.trie.first()?);
        for (i, byte) in key.iter().enumerate() {
            node ^= usize::from(*byte);
            let Some(&unit) = self.trie.get(node) else { break };
            if unit & (1 << 31 | 0xff) != u32::from(*byte) {
                break;
            }
            node ^= offset(unit);
            if unit >> 8 & 1 == 1 {
                let Some(&leaf) = self.trie.get(node) else { break };
                found = Some((i + 1, (leaf & !(1 << 31)) as usize));
                n_found += 1;
                if n_found == MOST_RULES {
                    break;
                }
            }
        }
        found
    }
}

/// Divides the rules into trie and replacements: the size of the trie in bytes, the trie, the replacements.
fn read_charsmap(charsmap: &[u8]) -> Result<(Vec<u32>, String), String> {
    if charsmap.is_empty() {
        return Ok((Vec::new(), String::new()));
    }
    let damaged = || "has damaged rules of normalization (precompiled_charsmap); copy the file again".to_owned();
    let (size, rest) = charsmap.split_first_chunk::<4>().ok_or_else(damaged)?;
    let size = u32::from_le_bytes(*size) as usize;
    if size == 0 || !size.is_multiple_of(4) || size > rest.len() {
        return Err(damaged());
    }
    let (trie, replacements) = rest.split_at(size);
    let trie = trie.chunks_exact(4).map(|unit| u32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]]));
    let replacements = std::str::from_utf8(replacements).map_err(|_| damaged())?;
    Ok((trie.collect(), replacements.to_owned()))
}

/// Texts of which the longest one at the start of another text is found.
#[derive(Debug, Default)]
pub(super) struct LongestMatch {
    texts: HashSet<String>,
    /// Their lengths in bytes, longest first.
    lengths: Vec<usize>,
}

impl LongestMatch {
    fn new(texts: impl Iterator<Item = String>) -> Self {
        let texts: HashSet<String> = texts.collect();
        let mut lengths: Vec<usize> = texts.iter().map(String::len).collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        lengths.dedup();
        Self { texts, lengths }
    }

    /// Returns the length of the longest one, in bytes.
    pub(super) fn at_start(&self, text: &str) -> Option<usize> {
        self.lengths.iter().copied().find(|&length| text.get(..length).is_some_and(|start| self.texts.contains(start)))
    }
}
