//! The watching thread of a rank. It sends a sign of life each second, expects the same of the other side, and ends the run
//! when a rank is silent, gone, or does not advance. The training thread may hang meanwhile.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::channel::{Beat, Channel, Message};
use super::error::LinkError;
use super::shared::{Shared, locked};
use crate::limits::Limits;
use crate::world::World;

/// How often the thread looks.
const TICK: Duration = Duration::from_millis(100);
const BETWEEN_BEATS: Duration = Duration::from_secs(1);
/// A rank that says nothing for so long is gone.
const SILENCE: Duration = Duration::from_secs(7);
/// Beyond a phase's limit, because the other ranks are heard only once per second.
const SLACK: Duration = Duration::from_secs(2);
/// A tick that took so long: this process was stopped itself, and perhaps all of them were.
const STOPPED: Duration = Duration::from_secs(3);

/// Starts the thread. It ends with the link.
pub(super) fn start(shared: Arc<Shared>, world: World) -> std::io::Result<()> {
    std::thread::Builder::new().name("kiln-watch".into()).spawn(move || watch(&shared, &world)).map(drop)
}

fn watch(shared: &Shared, world: &World) {
    let mut own = Own { beat: shared.beat(), advanced_at: Instant::now() };
    let mut last_tick = Instant::now();
    let mut last_beat: Option<Instant> = None;

    while !shared.is_ended() {
        let now = Instant::now();
        forgive(shared, &mut own, now - last_tick, now);
        last_tick = now;

        if let Some(error) = shared.failure() {
            let handler = locked(&shared.handler).take();
            if let Some(handler) = handler {
                handler(error);
                return;
            }
        } else if !shared.is_finished() {
            if last_beat.is_none_or(|last| now - last >= BETWEEN_BEATS) {
                last_beat = Some(now);
                let beat = Message::Beat(shared.beat());
                locked(&shared.channels).iter_mut().for_each(|channel| channel.send(&beat));
            }
            if let Some(error) = look(shared, world, &mut own, now) {
                shared.fail(error);
                continue;
            }
        }
        shared.sleep(TICK);
    }
}

/// What this rank's own training thread does.
struct Own {
    beat: Beat,
    advanced_at: Instant,
}

/// Restarts all clocks if this process was stopped for `elapsed`, as by Ctrl-Z.
fn forgive(shared: &Shared, own: &mut Own, elapsed: Duration, now: Instant) {
    if elapsed < STOPPED {
        return;
    }
    own.advanced_at += elapsed;
    for channel in locked(&shared.channels).iter_mut() {
        channel.heard_at = now;
        channel.advanced_at += elapsed;
    }
}

/// Looks at all connections, and returns why the run has to end.
fn look(shared: &Shared, world: &World, own: &mut Own, now: Instant) -> Option<LinkError> {
    let beat = shared.beat();
    if beat != own.beat {
        *own = Own { beat, advanced_at: now };
    }
    if world.launcher_is_gone() {
        return Some(LinkError::aborted(shared.rank, &shared.peers[shared.rank], "its launcher has ended"));
    }

    let mut channels = locked(&shared.channels);
    for channel in channels.iter_mut() {
        let peer = &shared.peers[channel.rank];
        let phase = channel.beat.map(|beat| beat.phase);
        match channel.hear(now) {
            Ok(Some(error)) => return Some(error),
            Err(how) => return Some(LinkError::gone(channel.rank, peer, phase, how)),
            Ok(None) => {}
        }
        let silence = now - channel.heard_at;
        if silence >= SILENCE && !channel.has_left {
            let how = format!("silent for {} s: its process is stopped, or the network is lost", silence.as_secs());
            return Some(LinkError::gone(channel.rank, peer, phase, how));
        }
    }
    if shared.rank == 0 { stalled(shared, &world.limits, own, &channels, now) } else { None }
}

/// Finds the rank that has not advanced within the limit of its phase. Ranks that wait for others are not to blame, unless
/// all of them wait.
fn stalled(shared: &Shared, limits: &Limits, own: &Own, channels: &[Channel], now: Instant) -> Option<LinkError> {
    let others = channels.iter().filter(|channel| !channel.has_left);
    let others = others.filter_map(|channel| Some((channel.rank, channel.beat?, channel.advanced_at)));
    let all: Vec<(usize, Beat, Instant)> = std::iter::once((0, own.beat, own.advanced_at)).chain(others).collect();

    let everyone_waits = all.len() > channels.len() && all.iter().all(|(_, beat, _)| beat.is_waiting);
    let is_over = |beat: &Beat, since: Instant| now - since >= limits.of(beat.phase) + SLACK;
    if everyone_waits && !all.iter().all(|(_, beat, since)| is_over(beat, *since)) {
        return None;
    }

    let blamed = all.iter().filter(|(_, beat, since)| (everyone_waits || !beat.is_waiting) && is_over(beat, *since));
    let (rank, beat, _) = blamed.min_by_key(|(_, _, since)| *since)?;
    let peer = &shared.peers[*rank];
    Some(LinkError::Stalled {
        rank: *rank,
        host: peer.host.clone(),
        pid: peer.pid,
        phase: beat.phase,
        limit_secs: limits.of(beat.phase).as_secs(),
    })
}
