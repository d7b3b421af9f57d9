//! Entities in tagged words, as `seqeval` finds them: runs of words with tags such as `B-place`, `I-place`.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::ratio::{f1, ratio};

/// Scores of whole entities: type, first and last word must be right.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EntityScores {
    /// Fraction of the predicted entities that are right, 0 to 1.
    pub precision: f64,
    /// Fraction of the entities that were found, 0 to 1.
    pub recall: f64,
    /// Harmonic mean of both, 0 to 1.
    pub f1: f64,
    /// Entities of the data.
    pub support: u64,
}

/// The tags of a run: for each class its prefix (B, I, E, S or O) and its type.
#[derive(Debug)]
pub(super) struct Tags(Vec<(u8, usize)>);

/// The type of `O`, which has none.
const NO_TYPE: usize = usize::MAX;

impl Tags {
    /// Returns `None` if the names are not tags of entities: none begins with `B-` or `I-`.
    pub(super) fn of(names: &[String]) -> Option<Self> {
        if !names.iter().any(|name| name.starts_with("B-") || name.starts_with("I-")) {
            return None;
        }
        let mut types: Vec<&str> = Vec::new();
        let tags = names.iter().map(|name| {
            let (prefix, kind) = match name.split_once('-') {
                Some((prefix @ ("B" | "I" | "E" | "S"), kind)) => (prefix.as_bytes()[0], kind),
                _ => return (b'O', NO_TYPE),
            };
            let at = types.iter().position(|known| *known == kind).unwrap_or_else(|| {
                types.push(kind);
                types.len() - 1
            });
            (prefix, at)
        });
        Some(Self(tags.collect()))
    }

    /// Finds the entities of a row: type, first word, and the word behind the last.
    fn entities(&self, classes: &[i32]) -> BTreeSet<(usize, usize, usize)> {
        let tag = |class: &i32| {
            usize::try_from(*class).ok().and_then(|class| self.0.get(class)).copied().unwrap_or((b'O', NO_TYPE))
        };
        let mut found = BTreeSet::new();
        let (mut before, mut start) = ((b'O', NO_TYPE), 0);
        for (at, now) in classes.iter().map(tag).chain([(b'O', NO_TYPE)]).enumerate() {
            let is_other = before.1 != now.1;
            let ends = match before.0 {
                b'E' | b'S' => true,
                b'B' | b'I' => matches!(now.0, b'B' | b'S' | b'O') || is_other,
                _ => false,
            };
            let starts = match now.0 {
                b'B' | b'S' => true,
                b'I' | b'E' => matches!(before.0, b'E' | b'S' | b'O') || is_other,
                _ => false,
            };

            if ends {
                found.insert((before.1, start, at));
            }
            if starts {
                start = at;
            }
            before = now;
        }
        found
    }
}

/// Entities that were counted.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct EntityCounts {
    right: u64,
    predicted: u64,
    wanted: u64,
}

impl EntityCounts {
    /// Adds the words of a row.
    pub(super) fn count(&mut self, tags: &Tags, wanted: &[i32], found: &[i32]) {
        let (wanted, found) = (tags.entities(wanted), tags.entities(found));
        self.right += wanted.intersection(&found).count() as u64;
        self.predicted += found.len() as u64;
        self.wanted += wanted.len() as u64;
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.right += other.right;
        self.predicted += other.predicted;
        self.wanted += other.wanted;
    }

    pub(super) fn scores(&self) -> EntityScores {
        let Self { right, predicted, wanted } = *self;
        EntityScores {
            precision: ratio(right, predicted),
            recall: ratio(right, wanted),
            f1: f1(right, predicted, wanted),
            support: wanted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(names: &[&str]) -> (Vec<String>, Tags) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let tags = Tags::of(&names).expect("tags of entities");
        (names, tags)
    }

    /// The examples of seqeval's README and of its tests of `get_entities`.
    #[test]
    fn entities_are_those_of_seqeval() {
        let (names, tags) = tags(&["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-MISC", "I-MISC"]);
        let ids = |row: &[&str]| -> Vec<i32> {
            let id = |tag: &&str| names.iter().position(|name| name == tag).expect("a tag") as i32;
            row.iter().map(id).collect()
        };
        let entities = |row: &[&str]| tags.entities(&ids(row)).into_iter().collect::<Vec<_>>();
        assert_eq!(entities(&["B-PER", "I-PER", "O", "B-LOC"]), [(0, 0, 2), (1, 3, 4)]);
        assert_eq!(entities(&["I-PER", "I-LOC", "I-LOC"]), [(0, 0, 1), (1, 1, 3)], "no B is needed");
        assert_eq!(entities(&["B-PER", "B-PER", "O", "O"]), [(0, 0, 1), (0, 1, 2)]);
        assert_eq!(entities(&[]), []);

        let mut counts = EntityCounts::default();
        let wanted = ["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"];
        counts.count(&tags, &ids(&wanted), &ids(&["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"]));
        let person = ids(&["B-PER", "I-PER", "O"]);
        counts.count(&tags, &person, &person);
        let scores = counts.scores();
        assert_eq!((scores.precision, scores.recall, scores.f1, scores.support), (0.5, 0.5, 0.5, 2));
    }

    #[test]
    fn other_names_are_not_tags_of_entities() {
        assert!(Tags::of(&["noun", "verb", "O"].map(str::to_owned)).is_none());
    }
}
