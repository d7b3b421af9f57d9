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

/// The tags of a run.
#[derive(Debug)]
pub(super) struct Tags {
    /// For each class its prefix (B, I, E, S or O) and its type.
    of_classes: Vec<(u8, usize)>,
    /// Whether an entity must begin with B and end with E, as in seqeval's scheme BILOU.
    is_strict: bool,
}

/// The type of `O`, which has none.
const NO_TYPE: usize = usize::MAX;

impl Tags {
    /// Returns `None` if the names are not tags of entities: none begins with `B-` or `I-`.
    pub(super) fn of(names: &[String]) -> Option<Self> {
        if !names.iter().any(|name| name.starts_with("B-") || name.starts_with("I-")) {
            return None;
        }
        let has = |prefixes: &[&str]| names.iter().any(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)));
        // B, M and E; a single word has S, W or U.
        let has_ends = has(&["E-", "L-"]);

        let mut types: Vec<&str> = Vec::new();
        let of_classes = names.iter().map(|name| {
            let (prefix, kind) = match name.split_once('-') {
                Some((prefix @ ("B" | "I" | "E" | "S"), kind)) => (prefix.as_bytes()[0], kind),
                Some(("L", kind)) => (b'E', kind),
                Some(("U", kind)) => (b'S', kind),
                Some(("M", kind)) if has_ends => (b'I', kind),
                Some(("W", kind)) if has_ends => (b'S', kind),
                _ => return (b'O', NO_TYPE),
            };
            let at = types.iter().position(|known| *known == kind).unwrap_or_else(|| {
                types.push(kind);
                types.len() - 1
            });
            (prefix, at)
        });
        let of_classes = of_classes.collect();
        Some(Self { of_classes, is_strict: has(&["L-", "U-"]) })
    }

    /// Finds the entities of a row: type, first word, and the word behind the last.
    fn entities(&self, classes: &[i32]) -> BTreeSet<(usize, usize, usize)> {
        let tag = |class: &i32| {
            usize::try_from(*class)
                .ok()
                .and_then(|class| self.of_classes.get(class))
                .copied()
                .unwrap_or((b'O', NO_TYPE))
        };
        if self.is_strict {
            return strict(&classes.iter().map(tag).collect::<Vec<_>>());
        }
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

/// Finds the entities that begin with B and end with E, or are a single word with S.
fn strict(tags: &[(u8, usize)]) -> BTreeSet<(usize, usize, usize)> {
    let mut found = BTreeSet::new();
    let mut start = 0;
    while start < tags.len() {
        let (prefix, kind) = tags[start];
        let mut end = start + 1;
        if matches!(prefix, b'B' | b'S') {
            while end < tags.len()
                && matches!(tags[end - 1].0, b'B' | b'I')
                && matches!(tags[end].0, b'I' | b'E')
                && tags[end].1 == kind
            {
                end += 1;
            }
            if matches!(tags[end - 1].0, b'E' | b'S') {
                found.insert((kind, start, end));
            }
        }
        start = end;
    }
    found
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

    /// seqeval's scheme BILOU, and the same with M, E and S or W.
    #[test]
    fn entities_of_one_word_and_last_words_are_counted() {
        for [inside, last, single] in [["I", "L", "U"], ["I", "E", "S"], ["M", "E", "S"], ["M", "E", "W"]] {
            let row = ["O", "B-x", "I-x", "L-x", "U-x", "U-x", "O", "U-y", "B-y", "L-y"];
            let renamed = |tag: &&str| {
                tag.replace("I-", &format!("{inside}-"))
                    .replace("L-", &format!("{last}-"))
                    .replace("U-", &format!("{single}-"))
            };
            let row: Vec<String> = row.iter().map(renamed).collect();
            let mut names = row.clone();
            names.sort();
            names.dedup();
            let tags = Tags::of(&names).expect("tags of entities");
            let ids: Vec<i32> =
                row.iter().map(|tag| names.iter().position(|name| name == tag).expect("a tag") as i32).collect();
            let found: Vec<_> = tags.entities(&ids).into_iter().map(|(_, start, end)| (start, end)).collect();
            let mut sorted = found.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [(1, 4), (4, 5), (5, 6), (7, 8), (8, 10)], "{inside} {last} {single}");
        }

        let (names, tags) = tags(&["O", "B-x", "I-x", "L-x", "U-x", "L-y"]);
        let entities = |row: &[&str]| {
            let id = |tag: &&str| names.iter().position(|name| name == tag).expect("a tag") as i32;
            tags.entities(&row.iter().map(id).collect::<Vec<_>>()).len()
        };
        for broken in [&["B-x", "I-x", "O"][..], &["I-x", "L-x"], &["B-x", "L-y"], &["B-x"], &["L-x"]] {
            assert_eq!(entities(broken), 0, "{broken:?}");
        }
        assert_eq!(entities(&["B-x", "U-x"]), 1);
    }

    #[test]
    fn other_names_are_not_tags_of_entities() {
        assert!(Tags::of(&["noun", "verb", "O"].map(str::to_owned)).is_none());
    }
}
