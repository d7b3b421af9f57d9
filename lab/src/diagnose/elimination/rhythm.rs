//! Steps that take longer at regular intervals.

use super::figures::Rhythm;

/// A step counts as long from so many times the usual time of its group on.
const LONG: f64 = 1.5;
/// The least number of intervals in which the long step must come back.
const LEAST_INTERVALS: usize = 8;
/// Fraction of these intervals whose step must be long.
const LEAST_LONG: f64 = 0.85;
/// The highest probability that other processes, which disturb single steps, make as regular a pattern by chance.
const BY_CHANCE: f64 = 0.01;

/// Finds the shortest interval at which steps are long. `secs` are the times of successive steps over `n_groups` groups of batches in
/// turn, which may take different times by themselves.
pub(super) fn find(secs: &[f64], n_groups: usize) -> Option<Rhythm> {
    // A quarter of the steps is disturbed by nobody.
    let n_groups = n_groups.max(1);
    let usual: Vec<f64> =
        (0..n_groups).map(|group| quantile(secs.iter().skip(group).step_by(n_groups), 0.25)).collect();
    let times: Vec<f64> =
        secs.iter().enumerate().map(|(step, secs)| secs / usual[step % n_groups].max(1e-12)).collect();
    let n_long = times.iter().filter(|times| **times > LONG).count();
    let share_of_long = n_long as f64 / times.len().max(1) as f64;

    let mut tried = 0.0;
    for every in 2..=secs.len() / LEAST_INTERVALS {
        for first in 0..every {
            tried += 1.0;
            let of_interval = || times.iter().skip(first).step_by(every);
            let (n, long) = (of_interval().count(), of_interval().filter(|times| **times > LONG).count());
            if (long as f64) < LEAST_LONG * n as f64 || tried * at_least(long, n, share_of_long) > BY_CHANCE {
                continue;
            }

            let others = times.iter().enumerate().filter(|(step, _)| step % every != first).map(|(_, times)| times);
            let (others, theirs) = (quantile(others, 0.5), quantile(of_interval(), 0.5));
            let usual = usual.iter().sum::<f64>() / n_groups as f64;
            let share = n as f64 * usual * (theirs - others) / secs.iter().sum::<f64>();
            return Some(Rhythm { every, times: theirs / others, share });
        }
    }
    None
}

/// The probability that at least `k` of `n` steps are long, if each is with probability `p`.
fn at_least(k: usize, n: usize, p: f64) -> f64 {
    let choose = |k: usize| (0..k).map(|i| (n - i) as f64 / (i + 1) as f64).product::<f64>();
    (k..=n).map(|k| choose(k) * p.powi(k as i32) * (1.0 - p).powi((n - k) as i32)).sum()
}

/// The value below which the fraction `q` of the values lies; 0 if there are none.
fn quantile<'a>(values: impl Iterator<Item = &'a f64>, q: f64) -> f64 {
    let mut values: Vec<f64> = values.copied().collect();
    values.sort_by(f64::total_cmp);
    values.get((values.len() as f64 * q) as usize).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of steps over five groups, with noise, and with so many random disturbances in a thousand steps.
    fn steps(n: usize, disturbed: u32) -> Vec<f64> {
        let mut random = 0x2545_f491_u32;
        let mut next = move || {
            random ^= random << 13;
            random ^= random >> 17;
            random ^= random << 5;
            random % 1000
        };
        (0..n)
            .map(|step| {
                let disturbance = if next() < disturbed { 5.0 } else { 1.0 };
                (1.0 + (step % 5) as f64) * (1.0 + f64::from(next()) / 1e4) * disturbance
            })
            .collect()
    }

    #[test]
    fn a_long_step_in_fifty_is_found_with_its_share() {
        for disturbed in [0, 30, 200] {
            let mut secs = steps(1000, disturbed);
            (7..1000).step_by(50).for_each(|step| secs[step] = 3.0 * 9.0);
            let Rhythm { every, times, share } = find(&secs, 5).expect("a rhythm");
            assert_eq!(every, 50, "{disturbed}");
            assert!((7.0..10.0).contains(&times) && (0.05..0.2).contains(&share), "{disturbed}: {times} {share}");
        }
    }

    #[test]
    fn groups_of_different_lengths_and_disturbances_have_no_rhythm() {
        for disturbed in [0, 10, 50, 100, 200, 400, 600] {
            assert_eq!(find(&steps(1000, disturbed), 5), None, "{disturbed}");
        }
        assert_eq!((find(&[], 5), find(&[1.0; 40], 0)), (None, None));
    }

    #[test]
    fn chances_are_as_with_coins() {
        assert!((at_least(2, 3, 0.5) - 0.5).abs() < 1e-12 && (at_least(0, 5, 0.3) - 1.0).abs() < 1e-12);
        assert_eq!(at_least(4, 4, 1.0), 1.0);
    }

    #[test]
    fn few_intervals_are_not_enough() {
        let mut secs = steps(300, 0);
        (0..300).step_by(50).for_each(|step| secs[step] = 50.0);
        assert_eq!(find(&secs, 5), None, "six");
    }
}
