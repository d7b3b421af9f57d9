//! Lists that may only shrink: what breaks a rule today, each with its number, committed as `allowed.txt`.

use std::collections::BTreeMap;
use std::fmt;

/// Something that breaks a rule: which rule, by how much, and what it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Offence {
    pub(super) rule: String,
    pub(super) what: String,
    pub(super) number: usize,
}

impl Offence {
    pub(super) fn new(rule: &str, number: usize, what: String) -> Self {
        Self { rule: rule.to_owned(), what, number }
    }
}

impl fmt::Display for Offence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<12}{:>5}  {}", self.rule, self.number, self.what)
    }
}

/// Where the tree and the list differ.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Difference {
    /// In the tree and not in the list, or with a smaller number there.
    pub(super) new: Vec<Offence>,
    /// In the list and not in the tree, or with a smaller number here.
    pub(super) mended: Vec<Offence>,
}

/// Reads a list as [`write`] makes it.
pub(super) fn read(list: &str) -> Vec<Offence> {
    let lines = list.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines.map(|line| entry(line).unwrap_or_else(|| panic!("not `RULE NUMBER WHAT`: {line:?}"))).collect()
}

fn entry(line: &str) -> Option<Offence> {
    let (rule, rest) = line.split_once(' ')?;
    let (number, what) = rest.trim_start().split_once(' ')?;
    Some(Offence::new(rule, number.parse().ok()?, what.trim_start().to_owned()))
}

/// Writes a list: a heading, then an entry per line, sorted by rule and name.
pub(super) fn write(heading: &str, offences: &[Offence]) -> String {
    let mut text: String = heading.lines().map(|line| format!("# {line}").trim_end().to_owned() + "\n").collect();
    for (i, offence) in offences.iter().enumerate() {
        if i == 0 || offences[i - 1].rule != offence.rule {
            text.push('\n');
        }
        text.push_str(&format!("{offence}\n"));
    }
    text
}

/// Gives a second and third offence of one name their numbers, the largest first, and sorts.
pub(super) fn named(mut offences: Vec<Offence>) -> Vec<Offence> {
    offences.sort_by(|a, b| (&a.rule, &a.what).cmp(&(&b.rule, &b.what)).then(b.number.cmp(&a.number)));
    let mut seen: BTreeMap<(String, String), usize> = BTreeMap::new();
    for offence in &mut offences {
        let count = seen.entry((offence.rule.clone(), offence.what.clone())).or_default();
        *count += 1;
        if *count > 1 {
            offence.what.push_str(&format!(" #{count}"));
        }
    }
    offences.sort();
    offences
}

/// Compares what is in the tree with the list.
pub(super) fn compare(found: &[Offence], allowed: &[Offence]) -> Difference {
    let key = |offence: &Offence| (offence.rule.clone(), offence.what.clone());
    let listed: BTreeMap<_, _> = allowed.iter().map(|offence| (key(offence), offence.number)).collect();
    let there: BTreeMap<_, _> = found.iter().map(|offence| (key(offence), offence.number)).collect();
    let worse = |offence: &&Offence| listed.get(&key(offence)).is_none_or(|&number| number < offence.number);
    let better = |offence: &&Offence| there.get(&key(offence)).is_none_or(|&number| number < offence.number);
    Difference {
        new: found.iter().filter(worse).cloned().collect(),
        mended: allowed.iter().filter(better).cloned().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long(number: usize, what: &str) -> Offence {
        Offence::new("function", number, what.to_owned())
    }

    #[test]
    fn a_list_is_read_as_it_was_written() {
        let list = named(vec![long(90, "b.rs f"), Offence::new("file", 500, "a.rs".to_owned()), long(99, "b.rs f")]);
        let text = write("Heading\nof two lines", &list);
        assert!(text.starts_with("# Heading\n# of two lines\n\nfile "), "{text}");
        assert_eq!(read(&text), list);
        assert_eq!(list[1], long(99, "b.rs f"));
        assert_eq!(list[2], long(90, "b.rs f #2"));
    }

    #[test]
    fn the_list_may_neither_lack_nor_exceed_what_is_there() {
        let allowed = [long(100, "a.rs f"), long(90, "a.rs g"), long(85, "a.rs gone")];
        let found = [long(101, "a.rs f"), long(89, "a.rs g"), long(81, "a.rs new")];
        let difference = compare(&found, &allowed);
        assert_eq!(difference.new, [long(101, "a.rs f"), long(81, "a.rs new")]);
        assert_eq!(difference.mended, [long(90, "a.rs g"), long(85, "a.rs gone")]);
        assert_eq!(compare(&found, &found), Difference::default());
    }
}
