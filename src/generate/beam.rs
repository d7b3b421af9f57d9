//! Beam search with the length penalty of Wu et al. 2016.

use std::cmp::Ordering;

use burn::tensor::activation::log_softmax;
use burn::tensor::{ExecutionError, Transaction};

use super::batching::int_tensor;
use super::sequences::{Begun, Sequences, TokenRules};

/// A finished target.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// Token ids without the end token.
    pub tokens: Vec<u32>,
    /// Sum of the log-probabilities of its tokens, the end token included.
    pub log_prob: f64,
    /// `log_prob / ((5 + length) / 6)^length_penalty`, with the end token in the length.
    pub score: f64,
}

/// How beams are searched.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BeamConfig {
    /// Unfinished targets kept per source.
    pub beam_size: usize,
    /// Exponent of the length penalty; 0 compares plain log-probabilities.
    pub length_penalty: f64,
    /// Targets returned per source.
    pub n_best: usize,
}

impl BeamConfig {
    fn score(&self, log_prob: f64, length: usize) -> f64 {
        log_prob / ((5.0 + length as f64) / 6.0).powf(self.length_penalty)
    }
}

/// An unfinished target.
struct Beam {
    source: usize,
    tokens: Vec<u32>,
    log_prob: f64,
}

/// One way to continue a beam.
struct Candidate {
    /// Row of the cache.
    row: usize,
    token: u32,
    log_prob: f64,
}

/// Finishes every row of `begun`, a source; each gets its best targets, best first: at least one, at most `n_best`.
///
/// Each step keeps the `beam_size` likeliest unfinished targets of a source. A target that ends counts when it is among the first
/// `beam_size` candidates. A source is done when `beam_size` targets have ended, when no unfinished one can still
/// win, or at its limit; what is unfinished then is returned only if fewer than `n_best` have ended.
pub fn beam_search<S: Sequences>(
    begun: Begun<S>,
    rules: &TokenRules,
    config: &BeamConfig,
) -> Result<Vec<Vec<Scored>>, ExecutionError> {
    let Begun { mut sequences, mut logits, limits } = begun;
    let device = logits.device();
    let vocab_size = logits.dims()[1];
    let never = rules.bias(vocab_size, &device);
    let mut finished: Vec<Vec<Scored>> = limits.iter().map(|_| Vec::new()).collect();
    // One beam per row of the cache, sources in order.
    let mut live: Vec<Beam> =
        (0..limits.len()).map(|source| Beam { source, tokens: Vec::new(), log_prob: 0.0 }).collect();
    // Each end token may take one place of the candidates, so this many are always enough.
    let width = (2 * config.beam_size).max(config.beam_size + rules.ends.len()).min(vocab_size);
    while !live.is_empty() {
        let masked = logits.cast(never.dtype()) + never.clone();
        let (log_probs, tokens) = log_softmax(masked, 1).topk_with_indices(width, 1);
        // Host sync: a few candidates per row.
        let read = Transaction::default().register(log_probs).register(tokens).try_execute()?;
        let [log_probs, tokens] = read.try_into().expect("two tensors were registered");
        let log_probs: Vec<f32> = log_probs.iter::<f32>().collect();
        let tokens: Vec<i64> = tokens.iter::<i64>().collect();

        let (mut next, mut origins) = (Vec::new(), Vec::new());
        let mut first = 0;
        while first < live.len() {
            let source = live[first].source;
            let n_rows = live[first..].iter().take_while(|beam| beam.source == source).count();
            let mut candidates = Vec::with_capacity(n_rows * width);
            for (row, beam) in live.iter().enumerate().skip(first).take(n_rows) {
                for place in row * width..(row + 1) * width {
                    let log_prob = beam.log_prob + f64::from(log_probs[place]);
                    candidates.push(Candidate { row, token: tokens[place] as u32, log_prob });
                }
            }
            first += n_rows;
            let limit = limits[source];
            for (beam, origin) in advance(&live, candidates, &mut finished[source], limit, rules, config) {
                next.push(beam);
                origins.push(origin);
            }
        }
        let same_sources = next.iter().map(|beam| beam.source).eq(live.iter().map(|beam| beam.source));
        let unmoved = same_sources && origins.iter().copied().eq(0..live.len());
        live = next;
        if live.is_empty() {
            break;
        }
        if !unmoved {
            if same_sources { sequences.reorder_beams(&origins) } else { sequences.select(&origins) }
        }
        logits = sequences.step(int_tensor(live.iter().map(|beam| last_token(beam).cast_signed()).collect(), &device));
    }
    for targets in &mut finished {
        targets.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| a.tokens.cmp(&b.tokens)));
        targets.truncate(config.n_best);
    }
    Ok(finished)
}

fn last_token(beam: &Beam) -> u32 {
    *beam.tokens.last().expect("a beam that has been advanced has a token")
}

/// One step of one source: moves ended candidates to `finished` and returns the beams that go on, each with the row it
/// came from; none when the source is done.
fn advance(
    live: &[Beam],
    mut candidates: Vec<Candidate>,
    finished: &mut Vec<Scored>,
    limit: usize,
    rules: &TokenRules,
    config: &BeamConfig,
) -> Vec<(Beam, usize)> {
    candidates.sort_by(better);
    let mut next: Vec<(Beam, usize)> = Vec::with_capacity(config.beam_size);
    for (rank, candidate) in candidates.into_iter().enumerate() {
        let Candidate { row, token, log_prob } = candidate;
        let beam = &live[row];
        let length = beam.tokens.len() + 1;
        // Forbidden tokens appear among the candidates when the vocabulary is smaller than the beam.
        if log_prob == f64::NEG_INFINITY {
            break;
        }
        if rules.is_end(token) {
            if rank < config.beam_size {
                let score = config.score(log_prob, length);
                finished.push(Scored { tokens: beam.tokens.clone(), log_prob, score });
            }
        } else if next.len() < config.beam_size {
            let mut tokens = Vec::with_capacity(length);
            tokens.extend_from_slice(&beam.tokens);
            tokens.push(token);
            next.push((Beam { source: beam.source, tokens, log_prob }, row));
        }
        if rank + 1 >= config.beam_size && next.len() == config.beam_size {
            break;
        }
    }
    let Some(length) = next.first().map(|(beam, _)| beam.tokens.len()) else { return next };
    if length >= limit {
        for (beam, _) in next.drain(..) {
            if finished.len() >= config.n_best {
                break;
            }
            let score = config.score(beam.log_prob, length);
            finished.push(Scored { tokens: beam.tokens, log_prob: beam.log_prob, score });
        }
        return Vec::new();
    }
    if finished.len() >= config.beam_size || cannot_improve(finished, next[0].0.log_prob, length, limit, config) {
        return Vec::new();
    }
    next
}

/// Likelier first; ties by row and token, so that equal scores do not depend on the device.
fn better(a: &Candidate, b: &Candidate) -> Ordering {
    b.log_prob.total_cmp(&a.log_prob).then_with(|| (a.row, a.token).cmp(&(b.row, b.token)))
}

/// Whether `n_best` finished targets score at least what the best unfinished one could still reach: log-probabilities only
/// fall, and the penalty is largest or smallest at one end of the lengths that are left.
fn cannot_improve(finished: &[Scored], log_prob: f64, length: usize, limit: usize, config: &BeamConfig) -> bool {
    let reachable = config.score(log_prob, length + 1).max(config.score(log_prob, limit));
    finished.iter().filter(|target| target.score >= reachable).count() >= config.n_best
}
