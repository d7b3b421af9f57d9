//! Characters of a text that a vocabulary lacks.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Characters that are shown.
const SHOWN: usize = 8;

/// Characters with the number of times that they occur.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CharacterCounts(BTreeMap<char, u64>);

impl CharacterCounts {
    /// Counts a character.
    pub fn add(&mut self, character: char) {
        *self.0.entry(character).or_default() += 1;
    }

    /// Adds the counts of another text.
    pub fn merge(&mut self, other: Self) {
        for (character, count) in other.0 {
            *self.0.entry(character).or_default() += count;
        }
    }

    /// Returns whether no character was counted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The most frequent characters: `é (12 times), ß (once) and 3 more characters`.
impl fmt::Display for CharacterCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut counts: Vec<(&char, &u64)> = self.0.iter().collect();
        counts.sort_by_key(|(_, count)| Reverse(**count));
        for (number, (character, count)) in counts.iter().take(SHOWN).enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            let times = if **count == 1 { "once".to_owned() } else { format!("{count} times") };
            // Characters that cannot be seen are spelled out.
            match character {
                '\\' | '"' | '\'' => write!(f, "{comma}{character} ({times})")?,
                other => write!(f, "{comma}{} ({times})", other.escape_debug())?,
            }
        }
        match counts.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            1 => f.write_str(" and 1 more character"),
            more => write!(f, " and {more} more characters"),
        }
    }
}

/// Tokens that stand for text which the vocabulary cannot spell.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unknown {
    /// The number of unknown tokens.
    pub tokens: u64,
    /// The characters that the vocabulary lacks.
    pub characters: CharacterCounts,
}

impl Unknown {
    pub(crate) fn is_empty(&self) -> bool {
        self.tokens == 0
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.characters.merge(other.characters);
    }
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = if self.tokens == 1 { "" } else { "s" };
        write!(f, "{} unknown token{s}", self.tokens)?;
        if !self.characters.is_empty() {
            write!(f, ": the vocabulary lacks {}", self.characters)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_characters_come_first() {
        let mut unknown = Unknown { tokens: 1, characters: CharacterCounts::default() };
        assert_eq!(unknown.to_string(), "1 unknown token");
        let mut other = Unknown { tokens: 2, characters: CharacterCounts::default() };
        "ßéé\u{7}".chars().for_each(|c| other.characters.add(c));
        unknown.merge(other);
        assert_eq!(unknown.to_string(), "3 unknown tokens: the vocabulary lacks é (2 times), \\u{7} (once), ß (once)");
        let mut quoted = CharacterCounts::default();
        quoted.add('\\');
        assert_eq!(quoted.to_string(), "\\ (once)", "as it stands in the text");
        ('a'..='i').for_each(|c| unknown.characters.add(c));
        assert!(unknown.to_string().ends_with("f (once) and 4 more characters"), "{unknown}");
        let json = serde_json::to_string(&unknown).expect("plain data");
        assert_eq!(serde_json::from_str::<Unknown>(&json).expect("its own JSON"), unknown);
    }
}
