//! Beam search, exact within its beams: it stops when no beam can reach a better target than those it has kept.
//!
//! # What is searched
//! Each step keeps the `beam_size` likeliest unfinished targets of a source: its beams. A target counts as finished when it
//! ends within the first `beam_size` candidates of its step, or when it is among them at the source's limit. The `n_best`
//! finished targets with the highest scores are kept and returned.
//!
//! # When the search stops
//! By default ([`EarlyStopping::Never`]), a beam is dropped as soon as it cannot beat the worst kept target at any length that
//! is left. Log-probabilities only fall, so the bound is the beam's log-probability at the length that favours it most: the
//! limit if `length_penalty` is positive, the next length if it is negative. A source is done when it has no beam left. This is
//! the rule of `transformers` under `early_stopping="never"`. Its default, `early_stopping=False`, uses the beam's current length
//! ([`EarlyStopping::Heuristic`]): the result is the same for penalties up to 0, but a positive penalty can stop it before the
//! best target is found. Models imported from there use that rule, so that they find the same targets.
//!
//! # Greedy search as a lower bound
//! Beams can lose the prefix that greedy search follows and end with a target that scores worse. So that more beams never
//! give less than one, greedy search's prefix is followed in a row of its own after the beams have lost it. Its target is
//! returned only if it scores higher than all others. The other rules leave this out, as `transformers` does.

use std::cmp::Ordering;
use std::ops::Range;

use burn::tensor::{Device, Tensor, TensorReadError};
use kiln_kernels::{ColumnSet, likeliest};

use super::bans::Banned;
use super::batching::int_tensor;
use super::sequences::{Begun, Sequences, TokenRules};
use crate::config::{EarlyStopping, GenerateConfig, LengthNormalization};
use crate::device::is_cpu;
use crate::metrics::host_sync::waiting;

/// A finished target.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// Token ids without the end token.
    pub tokens: Vec<u32>,
    /// Sum of the log-probabilities of its tokens. It includes the end token unless the target stops at its limit.
    pub log_prob: f64,
    /// `log_prob` divided by the length penalty; the length counts the same tokens as `log_prob`.
    pub score: f64,
}

impl Scored {
    /// Better first; ties by tokens.
    fn order(&self, other: &Self) -> Ordering {
        other.score.total_cmp(&self.score).then_with(|| self.tokens.cmp(&other.tokens))
    }
}

/// Returns what a log-probability is divided by, so that targets of different lengths can be compared.
fn divisor(normalization: LengthNormalization, length: usize, length_penalty: f64) -> f64 {
    let base = match normalization {
        LengthNormalization::Wu => (5.0 + length as f64) / 6.0,
        LengthNormalization::Power => length as f64,
    };
    base.powf(length_penalty)
}

/// Settings of a beam search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BeamConfig {
    /// Unfinished targets kept per source; 1 is greedy search.
    pub beam_size: usize,
    /// Exponent of the length penalty; 0 compares plain log-probabilities.
    pub length_penalty: f64,
    /// Formula of the length penalty.
    pub normalization: LengthNormalization,
    /// When the search of a source stops.
    pub early_stopping: EarlyStopping,
    /// Whether a target that reaches its limit gets the first end token there, which then costs nothing.
    pub force_end: bool,
    /// Given tokens in front of every target, which count in its length.
    pub n_first: usize,
    /// Targets returned per source, at most `beam_size`.
    pub n_best: usize,
}

impl BeamConfig {
    /// Takes the settings of a run, for a search that returns `n_best` targets.
    pub fn new(config: &GenerateConfig, n_best: usize) -> Self {
        Self {
            beam_size: config.beam_size,
            length_penalty: config.length_penalty,
            normalization: config.length_normalization,
            early_stopping: config.early_stopping,
            force_end: config.force_end,
            n_first: 0,
            n_best,
        }
    }

    fn score(&self, log_prob: f64, length: usize) -> f64 {
        log_prob / divisor(self.normalization, self.n_first + length, self.length_penalty)
    }

    /// Returns the number of finished targets that are kept while a source is searched.
    fn n_kept(&self) -> usize {
        if self.early_stopping == EarlyStopping::Never { self.n_best } else { self.beam_size }
    }

    /// Returns the highest score that a target of `length` tokens can still reach if it goes on, to `limit` at most. The
    /// penalty is monotonic in the length, so its extremes lie at the ends.
    fn reachable(&self, log_prob: f64, length: usize, limit: usize) -> f64 {
        self.score(log_prob, length + 1).max(self.score(log_prob, limit))
    }
}

/// An unfinished target: a row of the cache.
struct Live {
    source: usize,
    tokens: Vec<u32>,
    log_prob: f64,
    /// Whether it is one of the beams. A row that is not is followed only because it is greedy search's prefix.
    beam: bool,
    /// Whether it is the prefix that greedy search follows.
    greedy: bool,
}

/// One way to continue a row of the cache.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Candidate {
    row: usize,
    token: u32,
    /// Of the row and the token.
    log_prob: f64,
}

impl Candidate {
    fn same_place(&self, other: &Self) -> bool {
        (self.row, self.token) == (other.row, other.token)
    }

    /// Likelier first; ties by row and token, so that equal scores do not depend on the device.
    fn order(&self, other: &Self) -> Ordering {
        other.log_prob.total_cmp(&self.log_prob).then_with(|| (self.row, self.token).cmp(&(other.row, other.token)))
    }
}

/// The likeliest tokens of every row of the cache.
struct Likeliest {
    /// Tokens per row.
    width: usize,
    /// `[rows * width]`, the likeliest of each row first, and the lower token of equally likely ones, as in greedy search.
    tokens: Vec<f32>,
    /// As `tokens`.
    log_probs: Vec<f32>,
}

impl Likeliest {
    fn read(logits: Tensor<2>, never: &ColumnSet, width: usize) -> Result<Self, TensorReadError> {
        let found = likeliest(logits, never, width);
        // Host sync: a few candidates per row.
        let mut log_probs: Vec<f32> = waiting(|| found.try_into_vec_as::<f32>())?;
        let tokens = log_probs.split_off(log_probs.len() / 2);
        Ok(Self { width, tokens, log_probs })
    }

    /// Does the same without the tokens that `rules` ban in each of the `live` rows. The others keep their probabilities.
    fn read_allowed(
        logits: Tensor<2>,
        never: &ColumnSet,
        width: usize,
        (live, rules): (&[Live], &TokenRules),
    ) -> Result<Self, TensorReadError> {
        let banned = rules.bans.after_rows(live.iter().map(|row| (row.source, row.tokens.as_slice())));
        let Some(banned) = Banned::of(&banned) else { return Self::read(logits, never, width) };
        let mut found = Self::read(banned.mask(logits.clone()), never, width)?;
        let first = |row: usize| (found.tokens[row * width] as u32, found.log_probs[row * width]);
        let best: Vec<(u32, f32)> = (0..live.len()).map(first).collect();
        let log_allowed = banned.log_allowed(logits, &best, &rules.never)?;
        for (log_probs, log_allowed) in found.log_probs.chunks_mut(width).zip(log_allowed) {
            log_probs.iter_mut().for_each(|log_prob| *log_prob += log_allowed as f32);
        }
        Ok(found)
    }

    /// Returns the continuations of one row of the cache, the likeliest first.
    fn candidates(&self, row: usize, log_prob: f64) -> impl Iterator<Item = Candidate> {
        let places = row * self.width..(row + 1) * self.width;
        places.map(move |place| Candidate {
            row,
            token: self.tokens[place] as u32,
            log_prob: log_prob + f64::from(self.log_probs[place]),
        })
    }

    /// Returns the continuation of one row that greedy search would choose.
    fn greedy(&self, row: usize, log_prob: f64) -> Candidate {
        let log_prob = log_prob + f64::from(self.log_probs[row * self.width]);
        Candidate { row, token: self.tokens[row * self.width] as u32, log_prob }
    }
}

/// What has been found for one source.
struct Found {
    /// Tokens that a target may have, an end token included.
    limit: usize,
    /// The best finished targets, best first, at most [`BeamConfig::n_kept`].
    kept: Vec<Scored>,
    /// Greedy search's target, once it has finished.
    greedy: Option<Scored>,
}

/// Finishes every row of `begun`, a source; each gets its best targets, best first: at least one, at most `n_best`. The
/// best never scores below greedy search's target.
///
/// # Errors
/// If the device fails.
///
/// # Panics
/// If `config.beam_size` or `config.n_best` is 0.
pub fn beam_search<S: Sequences>(
    begun: Begun<S>,
    rules: &TokenRules,
    config: &BeamConfig,
) -> Result<Vec<Vec<Scored>>, TensorReadError> {
    assert!(config.beam_size > 0 && config.n_best > 0, "beam search needs at least one beam and one result");
    let Begun { mut sequences, mut logits, limits } = begun;
    let device = logits.device();
    let vocab_size = logits.dims()[1];
    let never = rules.excluded(vocab_size, &device);
    // Each end token may take one place of the candidates, so this many are always enough.
    let width = (2 * config.beam_size).max(config.beam_size + rules.ends.len()).min(vocab_size);

    let mut found: Vec<Found> =
        limits.into_iter().map(|limit| Found { limit, kept: Vec::new(), greedy: None }).collect();
    // Rows of the cache: the sources in order, the beams of each before the row that only greedy search follows.
    let mut live: Vec<Live> = (0..found.len())
        .map(|source| Live { source, tokens: Vec::new(), log_prob: 0.0, beam: true, greedy: true })
        .collect();

    let mut n_rows = live.len();
    while !live.is_empty() {
        let likeliest = Likeliest::read_allowed(logits, &never, width, (&live, rules))?;

        let (mut next, mut origins) = (Vec::new(), Vec::new());
        let mut first = 0;
        for of_source in live.chunk_by(|a, b| a.source == b.source) {
            let rows = first..first + of_source.len();
            first = rows.end;
            for (row, origin) in found[of_source[0].source].advance(&live, rows, &likeliest, rules, config) {
                next.push(row);
                origins.push(origin);
            }
        }

        let same_sources = next.iter().map(|row: &Live| row.source).eq(live.iter().map(|row| row.source));
        let is_same = origins.iter().copied().eq(0..live.len());
        live = next;
        if live.is_empty() {
            break;
        }

        // Rows beyond the live ones continue the first one and are ignored.
        let former = std::mem::replace(&mut n_rows, padded_rows(live.len(), &device));
        let same_sources = same_sources && former == n_rows;
        if !(same_sources && is_same) {
            origins.resize(n_rows, 0);
            if same_sources { sequences.reorder_beams(&origins) } else { sequences.select(&origins) }
        }
        let mut tokens: Vec<i32> = live.iter().map(last_token).collect();
        tokens.resize(n_rows, 0);
        logits = sequences.step(int_tensor(tokens, &device));
    }
    Ok(found.into_iter().map(|found| found.best(config)).collect())
}

/// Returns the rows of a batch that has `n` unfinished ones. A GPU computes a few more, which are ignored: its kernels and its memory
/// are chosen by shape, so that shapes should recur.
fn padded_rows(n: usize, device: &Device) -> usize {
    if is_cpu(device) { n } else { n.next_multiple_of((n.next_power_of_two() / 16).max(8)) }
}

fn last_token(row: &Live) -> i32 {
    row.tokens.last().expect("a row that has been advanced has a token").cast_signed()
}

impl Found {
    /// Takes one step with the source's `rows` of the cache: keeps the targets that finish, and returns the rows that go
    /// on, each with the row it continues. It returns none when the source is done.
    fn advance(
        &mut self,
        live: &[Live],
        rows: Range<usize>,
        likeliest: &Likeliest,
        rules: &TokenRules,
        config: &BeamConfig,
    ) -> Vec<(Live, usize)> {
        let length = live[rows.start].tokens.len() + 1;
        let limit = self.limit;
        let finishes = |candidate: &Candidate| rules.is_end(candidate.token) || length >= limit;
        let finished = |candidate: &Candidate| {
            let mut tokens = live[candidate.row].tokens.clone();
            tokens.extend(Some(candidate.token).filter(|token| !rules.is_end(*token)));
            Scored { tokens, log_prob: candidate.log_prob, score: config.score(candidate.log_prob, length) }
        };

        // Tokens that are never written appear here when the vocabulary is small; they are impossible.
        let possible = |candidate: &Candidate| candidate.log_prob != f64::NEG_INFINITY;
        let greedy_row = rows.clone().find(|&row| live[row].greedy);
        let forced_end = rules.ends.first().filter(|_| config.force_end && length >= limit);
        let forced = |row: usize, end: &u32| Candidate { row, token: *end, log_prob: live[row].log_prob };
        let greedy = greedy_row
            .map(|row| match forced_end {
                Some(end) => forced(row, end),
                None => likeliest.greedy(row, live[row].log_prob),
            })
            .filter(possible);
        let mut candidates: Vec<Candidate> = if config.beam_size == 1 {
            greedy.into_iter().collect() // one beam is greedy search
        } else if let Some(end) = forced_end {
            rows.filter(|&row| live[row].beam).map(|row| forced(row, end)).collect()
        } else {
            let beams = rows.filter(|&row| live[row].beam);
            beams.flat_map(|row| likeliest.candidates(row, live[row].log_prob)).filter(possible).collect()
        };
        candidates.sort_by(Candidate::order);

        let mut next: Vec<(Candidate, bool)> = Vec::with_capacity(config.beam_size + 1);
        for (rank, candidate) in candidates.into_iter().enumerate() {
            let among_first = rank < config.beam_size;
            if finishes(&candidate) {
                if among_first {
                    self.keep(finished(&candidate), config.n_kept());
                }
            } else if next.len() < config.beam_size {
                next.push((candidate, true));
            } else if !among_first {
                break;
            }
        }
        match greedy {
            _ if config.early_stopping != EarlyStopping::Never => {}
            Some(greedy) if finishes(&greedy) => self.greedy = Some(finished(&greedy)),
            Some(greedy) if next.iter().all(|(beam, _)| !beam.same_place(&greedy)) => next.push((greedy, false)),
            _ => {}
        }

        self.drop_decided(&mut next, length, config);
        let go_on = |(candidate, beam): (Candidate, bool)| {
            let Live { source, tokens, .. } = &live[candidate.row];
            let tokens = [tokens.as_slice(), &[candidate.token]].concat();
            let greedy = greedy.is_some_and(|greedy| greedy.same_place(&candidate));
            (Live { source: *source, tokens, log_prob: candidate.log_prob, beam, greedy }, candidate.row)
        };
        next.into_iter().map(go_on).collect()
    }

    /// Drops the rows of `length` tokens that cannot change the result: by the default rule each on its own, by the others all
    /// at once. `next` has candidates, the likeliest first, and whether each is one of the beams.
    fn drop_decided(&self, next: &mut Vec<(Candidate, bool)>, length: usize, config: &BeamConfig) {
        if config.early_stopping == EarlyStopping::Never {
            next.retain(|(candidate, beam)| {
                let rival = if *beam { self.kept.get(config.n_best - 1) } else { self.kept.first() };
                rival.is_none_or(|rival| config.reachable(candidate.log_prob, length, self.limit) > rival.score)
            });
            return;
        }

        let worst = self.kept.get(config.n_kept() - 1);
        let is_decided = |best: &Candidate, worst: &Scored| {
            config.early_stopping == EarlyStopping::First || config.score(best.log_prob, length) <= worst.score
        };
        if let (Some((best, _)), Some(worst)) = (next.first(), worst)
            && is_decided(best, worst)
        {
            next.clear();
        }
    }

    /// Keeps `target` if it is one of the `n_kept` best.
    fn keep(&mut self, target: Scored, n_kept: usize) {
        let place = self.kept.partition_point(|kept| kept.order(&target).is_le());
        self.kept.insert(place, target);
        self.kept.truncate(n_kept);
    }

    /// Returns the targets of a source that is done, best first.
    fn best(mut self, config: &BeamConfig) -> Vec<Scored> {
        let greedy_wins = |greedy: &Scored| self.kept.first().is_none_or(|best| greedy.score > best.score);
        if let Some(greedy) = self.greedy.take().filter(greedy_wins) {
            self.keep(greedy, config.n_best);
        }
        self.kept.truncate(config.n_best);
        self.kept
    }
}
