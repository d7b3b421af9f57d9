//! Which ranks train together in a run that goes on without those that it loses (`train.lost_replicas`).
//!
//! Kiln's launcher publishes the ranks that take part: a group with a number. When a process dies, the next group lacks it; when the process
//! that replaces it has come, another one has it again. Launcher and ranks share a folder:
//!
//! ```text
//! group      number, port and ranks of the newest group
//! go-on      a rank says: this run goes on without those that it loses
//! here-R-N   the process that replaces rank R waits for a group after N
//! lost-R-N   a rank of group N hears nothing from rank R
//! ```

use std::io;
use std::path::PathBuf;

use kiln_data::files::{open_own, read_at_most, write_fresh};

/// Longest description of a group, in bytes: more than [`crate::MAX_RANKS`] need.
const MAX_GROUP: u64 = 1 << 20;

/// The ranks that train together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    /// Counts the groups of a run from 0.
    pub(crate) number: u32,
    /// Where its first rank listens.
    pub(crate) port: u16,
    /// The numbers that the launcher gave to the processes, in ascending order.
    pub(crate) ranks: Vec<usize>,
}

/// The folder that launcher and ranks share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Members {
    dir: PathBuf,
}

impl Members {
    pub(crate) fn in_folder(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Publishes a group.
    pub(crate) fn publish(&self, group: &Group) -> io::Result<()> {
        let ranks: Vec<String> = group.ranks.iter().map(usize::to_string).collect();
        let unfinished = self.dir.join("group.tmp");
        write_fresh(&unfinished, format!("{} {} {}\n", group.number, group.port, ranks.join(" ")).as_bytes())?;
        std::fs::rename(unfinished, self.dir.join("group"))
    }

    /// Returns the newest group.
    pub(crate) fn newest(&self) -> Option<Group> {
        let text = String::from_utf8(read_at_most(&self.dir.join("group"), MAX_GROUP).ok()?).ok()?;
        let mut words = text.split_whitespace();
        let (number, port) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let ranks = words.map(|word| word.parse().ok()).collect::<Option<Vec<usize>>>()?;
        Some(Group { number, port, ranks })
    }

    /// Says that the run goes on without the ranks that it loses.
    pub(crate) fn go_on(&self) -> io::Result<()> {
        self.say(GO_ON)
    }

    pub(crate) fn goes_on(&self) -> bool {
        self.has(GO_ON)
    }

    /// Says that the process which replaces `rank` waits for a group after `number`.
    pub(crate) fn arrive(&self, rank: usize, number: u32) -> io::Result<()> {
        self.say(&here(rank, number))
    }

    pub(crate) fn has_arrived(&self, rank: usize, number: u32) -> bool {
        self.has(&here(rank, number))
    }

    /// Takes back what a process has said that was lost before the next group.
    pub(crate) fn forget(&self, rank: usize, number: u32) {
        // A missing file means that nothing was said.
        let _ = std::fs::remove_file(self.dir.join(here(rank, number)));
    }

    /// Says that group `number` hears nothing from `rank`.
    pub(crate) fn miss(&self, rank: usize, number: u32) -> io::Result<()> {
        self.say(&lost(rank, number))
    }

    pub(crate) fn is_missed(&self, rank: usize, number: u32) -> bool {
        self.has(&lost(rank, number))
    }

    /// Several ranks may say the same.
    fn say(&self, name: &str) -> io::Result<()> {
        open_own(&self.dir.join(name)).map(drop)
    }

    fn has(&self, name: &str) -> bool {
        self.dir.join(name).exists()
    }
}

const GO_ON: &str = "go-on";

fn here(rank: usize, number: u32) -> String {
    format!("here-{rank}-{number}")
}

fn lost(rank: usize, number: u32) -> String {
    format!("lost-{rank}-{number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_side_says_the_other_reads() {
        let dir = tempfile::tempdir().expect("a folder");
        let members = Members::in_folder(dir.path().to_owned());
        assert_eq!((members.newest(), members.goes_on()), (None, false));
        for group in [
            Group { number: 0, port: 4000, ranks: vec![0, 1, 2] },
            Group { number: 1, port: 4001, ranks: vec![0, 2] },
            Group { number: 2, port: 4001, ranks: Vec::new() },
        ] {
            members.publish(&group).expect("writable");
            assert_eq!(members.newest(), Some(group));
        }
        members.go_on().expect("writable");
        members.arrive(1, 2).expect("writable");
        members.miss(0, 1).expect("writable");
        assert!(members.goes_on() && members.has_arrived(1, 2) && members.is_missed(0, 1));
        members.forget(1, 2);
        members.forget(5, 5);
        assert!(
            !members.has_arrived(1, 2)
                && !members.has_arrived(1, 3)
                && !members.is_missed(0, 2)
                && !members.is_missed(1, 1)
        );
    }
}
