//! Beam search compared with its definition on tables of scores, and with greedy search.

use burn::tensor::{Int, Tensor, TensorData};

use super::*;

const END: u32 = 0;

/// A language model that is a function: from the source and the tokens so far to the logits of the next token.
struct Table<F> {
    logits: F,
    /// Source and tokens of every row.
    rows: Vec<(usize, Vec<u32>)>,
}

impl<F: Fn(usize, &[u32]) -> Vec<f32>> Table<F> {
    fn begin(logits: F, limits: &[usize]) -> Begun<Self> {
        let table = Self { logits, rows: (0..limits.len()).map(|source| (source, Vec::new())).collect() };
        Begun { logits: table.next(), sequences: table, limits: limits.to_vec() }
    }

    fn next(&self) -> Tensor<2> {
        let rows: Vec<Vec<f32>> = self.rows.iter().map(|(source, tokens)| (self.logits)(*source, tokens)).collect();
        let shape = [rows.len(), rows[0].len()];
        Tensor::from_data(TensorData::new(rows.concat(), shape), &Device::flex())
    }
}

impl<F: Fn(usize, &[u32]) -> Vec<f32>> Sequences for Table<F> {
    fn step(&mut self, ids: Tensor<1, Int>) -> Tensor<2> {
        let ids = ids.into_data();
        for ((_, tokens), id) in self.rows.iter_mut().zip(ids.iter::<i64>()) {
            tokens.push(id as u32);
        }
        self.next()
    }

    fn select(&mut self, rows: &[usize]) {
        self.rows = rows.iter().map(|&row| self.rows[row].clone()).collect();
    }

    fn reorder_beams(&mut self, rows: &[usize]) {
        let sources: Vec<usize> = self.rows.iter().map(|(source, _)| *source).collect();
        assert!(rows.iter().zip(&sources).all(|(&origin, source)| sources[origin] == *source), "another source");
        self.select(rows);
    }
}

/// A number in [0, 1) that depends on all of `parts`.
fn uniform(parts: &[u64]) -> f64 {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for part in parts {
        state = (state ^ part).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ (state >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb);
        state ^= state >> 32;
    }
    (state >> 11) as f64 / (1_u64 << 53) as f64
}

/// Random logits for every source and prefix, sharper for some seeds than for others.
fn random_logits(seed: u64, vocab_size: usize) -> impl Fn(usize, &[u32]) -> Vec<f32> {
    move |source, tokens| {
        let sharpness = [2.0, 5.0, 10.0][seed as usize % 3];
        let mut parts: Vec<u64> = [seed, source as u64].into_iter().chain(tokens.iter().map(|&id| id.into())).collect();
        parts.push(0);
        (0..vocab_size as u64)
            .map(|token| {
                *parts.last_mut().expect("not empty") = token;
                (sharpness * uniform(&parts)) as f32
            })
            .collect()
    }
}

fn log_probs(logits: &[f32]) -> Vec<f64> {
    let sum = logits.iter().map(|logit| f64::from(*logit).exp()).sum::<f64>();
    logits.iter().map(|logit| f64::from(*logit) - sum.ln()).collect()
}

fn rules() -> TokenRules {
    TokenRules { ends: vec![END], never: Vec::new(), bans: Bans::default() }
}

fn score(log_prob: f64, length: usize, config: &BeamConfig) -> f64 {
    let length = length as f64;
    let base = match config.normalization {
        LengthNormalization::Wu => (5.0 + length) / 6.0,
        LengthNormalization::Power => length,
    };
    log_prob / base.powf(config.length_penalty)
}

/// Score of a target of `source`, with the end token unless it has `limit` tokens.
fn score_of(
    logits: &impl Fn(usize, &[u32]) -> Vec<f32>,
    source: usize,
    target: &[u32],
    limit: usize,
    config: &BeamConfig,
) -> f64 {
    let mut tokens = target.to_vec();
    if tokens.len() < limit {
        tokens.push(END);
    }
    let log_prob = (0..tokens.len()).map(|at| log_probs(&logits(source, &tokens[..at]))[tokens[at] as usize]).sum();
    score(log_prob, tokens.len(), config)
}

/// Beam search as it is defined, which never stops before the limit: all finished targets, best first.
fn searched_to_the_limit(
    logits: &impl Fn(usize, &[u32]) -> Vec<f32>,
    source: usize,
    limit: usize,
    config: &BeamConfig,
) -> Vec<Scored> {
    let mut finished = Vec::new();
    let mut beams = vec![(Vec::new(), 0.0)];
    for length in 1..=limit {
        let mut candidates: Vec<(Vec<u32>, f64)> = Vec::new();
        for (tokens, log_prob) in &beams {
            for (token, next) in (0..).zip(log_probs(&logits(source, tokens))) {
                candidates.push(([tokens.as_slice(), &[token]].concat(), log_prob + next));
            }
        }
        candidates.sort_by(|a, b| b.1.total_cmp(&a.1));

        for (tokens, log_prob) in candidates.iter().take(config.beam_size) {
            if tokens.last() == Some(&END) || length == limit {
                let tokens = tokens.iter().copied().filter(|token| *token != END).collect();
                let score = score(*log_prob, length, config);
                finished.push(Scored { tokens, log_prob: *log_prob, score });
            }
        }
        candidates.retain(|(tokens, _)| tokens.last() != Some(&END));
        candidates.truncate(config.beam_size);
        beams = candidates;
    }
    finished.sort_by(|a, b| b.score.total_cmp(&a.score));
    finished
}

/// Every penalty's sign, every number of beams, both formulas: what stops early finds what does not, and greedy search's
/// target where that is better.
#[test]
fn stopping_early_changes_no_result_and_greedy_search_is_never_better() {
    const LIMITS: [usize; 4] = [9, 1, 5, 7];
    let (mut ended, mut greedy_was_better) = (0, 0);
    for seed in 0..240 {
        let logits = random_logits(seed, 6);
        let greedy = greedy(Table::begin(&logits, &LIMITS), &rules(), 1).expect("the CPU answers");
        let of_seed = |n: u64, choices: u64| (uniform(&[seed, n]) * choices as f64) as usize;
        for length_penalty in [-1.0, -0.3, 0.0, 0.6, 1.0, 2.0] {
            let beam_size = 2 + of_seed(1, 4);
            let n_best = 1 + of_seed(2, beam_size as u64);
            let normalization = [LengthNormalization::Wu, LengthNormalization::Power][of_seed(3, 2)];
            let config = BeamConfig { normalization, ..beams(beam_size, length_penalty, n_best) };
            let found = beam_search(Table::begin(&logits, &LIMITS), &rules(), &config).expect("the CPU answers");
            for (source, (found, limit)) in found.iter().zip(LIMITS).enumerate() {
                let case = format!("seed {seed}, source {source}, {config:?}");
                let of_greedy = score_of(&logits, source, &greedy[source], limit, &config);
                assert!(found[0].score >= of_greedy - 1e-6, "{case}: {} below greedy's {of_greedy}", found[0].score);

                let mut wanted = searched_to_the_limit(&logits, source, limit, &config);
                ended += usize::from(wanted[0].tokens.len() < limit);
                if of_greedy > wanted[0].score + 1e-6 {
                    greedy_was_better += 1;
                    wanted.insert(0, Scored { tokens: greedy[source].clone(), log_prob: 0.0, score: of_greedy });
                }
                wanted.truncate(n_best);
                assert_eq!(found.len(), wanted.len(), "{case}");
                for (found, wanted) in found.iter().zip(&wanted) {
                    assert_eq!(found.tokens, wanted.tokens, "{case}");
                    assert!((found.score - wanted.score).abs() < 1e-4, "{case}: {found:?}, wanted {wanted:?}");
                }
            }
        }
    }
    assert!(ended > 1000, "targets must end before their limit for this test to mean something: {ended}");
    assert!(greedy_was_better > 10, "beams must lose greedy search's prefix for this test to mean something");
}

#[test]
fn one_beam_is_greedy_search_on_any_table() {
    for seed in 0..60 {
        let logits = random_logits(seed, 5);
        let greedy = greedy(Table::begin(&logits, &[8, 3]), &rules(), 3).expect("the CPU answers");
        let config = beams(1, 0.6, 1);
        let found = beam_search(Table::begin(&logits, &[8, 3]), &rules(), &config).expect("the CPU answers");
        assert!(found.iter().map(|found| &found[0].tokens).eq(&greedy), "seed {seed}");
    }
}

/// Two short targets end before the right one, which is far likelier.
#[test]
fn short_targets_that_end_first_do_not_stop_the_search() {
    let logits = |_: usize, tokens: &[u32]| -> Vec<f32> {
        let probabilities: [f32; 4] = match tokens {
            [] => [0.20, 0.70, 0.06, 0.04],
            [1] => [0.13, 0.01, 0.85, 0.01],
            [1, 2] => [0.03, 0.01, 0.01, 0.95],
            [1, 2, 3] => [0.97, 0.01, 0.01, 0.01],
            _ => [0.25; 4],
        };
        probabilities.map(f32::ln).to_vec()
    };
    for (length_penalty, beam_size) in [(-0.5, 2), (0.0, 2), (0.6, 2), (1.0, 2), (2.0, 2), (0.6, 3)] {
        let config = beams(beam_size, length_penalty, 2);
        let found = beam_search(Table::begin(logits, &[12]), &rules(), &config).expect("the CPU answers");
        assert_eq!(found[0][0].tokens, [1, 2, 3], "{config:?}: {found:?}");
        let log_prob = [0.70_f64, 0.85, 0.95, 0.97].map(f64::ln).iter().sum::<f64>();
        assert!((found[0][0].log_prob - log_prob).abs() < 1e-5, "{found:?}");
    }
}

#[test]
fn beams_of_a_model_never_score_below_its_greedy_target() {
    let vocab_size = 7;
    for seed in 0..6 {
        let model = model(vocab_size, seed);
        let batch = sources(&[4, 7, 2], &[10, 6, 12], vocab_size);
        let begin = || Targets::begin(&model, &batch, SPECIAL);
        for length_penalty in [-1.0, 0.0, 0.6, 2.0] {
            let one = beams(1, length_penalty, 1);
            let greedy = beam_search(begin(), &TokenRules::of(SPECIAL), &one).expect("the CPU answers");
            for beam_size in [2, 3, 5] {
                let config = BeamConfig { beam_size, ..one };
                let found = beam_search(begin(), &TokenRules::of(SPECIAL), &config).expect("the CPU answers");
                for (found, greedy) in found.iter().zip(&greedy) {
                    let (found, greedy) = (&found[0], &greedy[0]);
                    assert!(found.score >= greedy.score - 1e-5, "seed {seed}, {config:?}: {found:?} below {greedy:?}");
                }
            }
        }
    }
}
