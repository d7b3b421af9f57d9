//! The launcher's side of a run that goes on without the ranks that it loses, see [`crate::members`].

use std::io;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::members::{Group, Members};
use crate::ports::free_port;

/// A process that was started in the place of a lost one and is lost within this time has not come back.
const SHORT: Duration = Duration::from_secs(60);
/// A rank that is lost so often, each time within [`SHORT`], is not started again.
const SHORT_LIVES: u32 = 3;
/// A rank that another one misses may have ended, which the launcher sees by itself within this time.
const DOUBT: Duration = Duration::from_millis(1500);

/// Which ranks train together.
pub(super) struct Groups {
    folder: TempDir,
    members: Members,
    group: Group,
    ranks: Vec<Member>,
}

/// What is known of a rank.
#[derive(Debug, Default, Clone)]
struct Member {
    /// When its process was started; `None` for the first one.
    started: Option<Instant>,
    /// The group that lacked it when its process was started in the place of a lost one.
    waits_since: Option<u32>,
    short_lives: u32,
    missed: Option<Instant>,
}

impl Groups {
    /// Publishes the first group.
    pub(super) fn new(n_ranks: usize, port: u16) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("kiln-ranks-").tempdir()?;
        let members = Members::in_folder(folder.path().to_owned());
        let group = Group { number: 0, port, ranks: (0..n_ranks).collect() };
        members.publish(&group)?;
        Ok(Self { folder, members, group, ranks: vec![Member::default(); n_ranks] })
    }

    /// The folder that the ranks share with the launcher.
    pub(super) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Whether the ranks have said that they go on without those that are lost.
    pub(super) fn go_on(&self) -> bool {
        self.members.goes_on()
    }

    pub(super) fn has(&self, rank: usize) -> bool {
        self.group.ranks.contains(&rank)
    }

    /// Takes a lost rank out of the group. Returns whether its process may be started again.
    pub(super) fn lose(&mut self, rank: usize) -> io::Result<bool> {
        if self.has(rank) {
            let ranks = self.group.ranks.iter().copied().filter(|other| *other != rank).collect();
            self.publish(ranks)?;
        }
        let member = &mut self.ranks[rank];
        member.waits_since = None; // it waits no longer
        let was_short = member.started.is_some_and(|started| started.elapsed() < SHORT);
        member.short_lives = if was_short { member.short_lives + 1 } else { 1 };
        Ok(member.short_lives < SHORT_LIVES)
    }

    /// Notes that a process is started in the place of a lost one. Returns the number of the group that lacks it.
    pub(super) fn replace(&mut self, rank: usize) -> u32 {
        self.members.forget(rank, self.group.number);
        let member = &mut self.ranks[rank];
        member.started = Some(Instant::now());
        member.waits_since = Some(self.group.number);
        self.group.number
    }

    /// Takes ranks into the group whose new processes have come, and returns them.
    pub(super) fn welcome(&mut self) -> io::Result<Vec<usize>> {
        let members = self.members.clone();
        let has_come = |(rank, member): &(usize, &Member)| {
            member.waits_since.is_some_and(|group| members.has_arrived(*rank, group))
        };
        let come: Vec<usize> = self.ranks.iter().enumerate().filter(has_come).map(|(rank, _)| rank).collect();
        if !come.is_empty() {
            let mut all = [self.group.ranks.as_slice(), &come].concat();
            all.sort_unstable();
            self.publish(all)?;
            come.iter().for_each(|rank| self.ranks[*rank].waits_since = None);
        }
        Ok(come)
    }

    /// Returns the ranks of the group that others have missed for a while.
    pub(super) fn missed(&mut self) -> Vec<usize> {
        let number = self.group.number;
        let mut missed = Vec::new();
        for rank in self.group.ranks.clone() {
            let member = &mut self.ranks[rank];
            if self.members.is_missed(rank, number) && member.missed.get_or_insert_with(Instant::now).elapsed() >= DOUBT
            {
                missed.push(rank);
            }
        }
        missed
    }

    /// The ranks of the group, in words.
    pub(super) fn in_words(&self) -> String {
        crate::link::ranks_in_words(&self.group.ranks)
    }

    fn publish(&mut self, ranks: Vec<usize>) -> io::Result<()> {
        self.group = Group { number: self.group.number + 1, port: free_port()?, ranks };
        self.ranks.iter_mut().for_each(|member| member.missed = None); // by ranks of the group before
        self.members.publish(&self.group)
    }
}
