//! Steps that take longer at regular intervals.

use super::figures::Rhythm;

/// A step counts as long from so many times the median of its group on.
const LONG: f64 = 1.5;
/// The least number of intervals in which the long step must come back: other processes disturb single steps, but not at intervals.
const LEAST_INTERVALS: usize = 8;
/// Fraction of these intervals whose step must be long.
const LEAST_LONG: f64 = 0.85;

/// Finds the shortest interval at which steps are long. `secs` are the times of successive steps over `n_groups` groups of batches in
/// turn, which may take different times by themselves.
pub(super) fn find(secs: &[f64], n_groups: usize) -> Option<Rhythm> {
    let n_groups = n_groups.max(1);
    let usual: Vec<f64> = (0..n_groups).map(|group| median(secs.iter().skip(group).step_by(n_groups))).collect();
    let usual_of = |step: usize| usual[step % n_groups];
    let is_long: Vec<bool> = secs.iter().enumerate().map(|(step, secs)| *secs > LONG * usual_of(step)).collect();
    // Most steps are long, or none: without an interval.
    let n_long = is_long.iter().filter(|long| **long).count();
    if n_long < LEAST_INTERVALS || 2 * n_long > secs.len() {
        return None;
    }

    for every in 2..=secs.len() / LEAST_INTERVALS {
        for first in 0..every {
            let of_interval = || (first..secs.len()).step_by(every);
            let (n, long) = (of_interval().count(), of_interval().filter(|step| is_long[*step]).count());
            if (long as f64) < LEAST_LONG * n as f64 {
                continue;
            }
            let sum = |value: &dyn Fn(usize) -> f64| of_interval().map(value).sum::<f64>();
            let (taken, expected) = (sum(&|step| secs[step]), sum(&usual_of));
            let share = (taken - expected) / secs.iter().sum::<f64>();
            return Some(Rhythm { every, times: taken / expected, share });
        }
    }
    None
}

fn median<'a>(values: impl Iterator<Item = &'a f64>) -> f64 {
    let mut values: Vec<f64> = values.copied().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
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
        for disturbed in [0, 30] {
            let mut secs = steps(1000, disturbed);
            (7..1000).step_by(50).for_each(|step| secs[step] = 3.0 * 9.0);
            let Rhythm { every, times, share } = find(&secs, 5).expect("a rhythm");
            assert_eq!(every, 50, "{disturbed}");
            assert!((7.0..10.0).contains(&times) && (0.1..0.2).contains(&share), "{times} {share}");
        }
    }

    #[test]
    fn groups_of_different_lengths_and_disturbances_have_no_rhythm() {
        for disturbed in [0, 10, 50, 100, 200] {
            assert_eq!(find(&steps(1000, disturbed), 5), None, "{disturbed}");
        }
        assert_eq!((find(&[], 5), find(&[1.0; 40], 0)), (None, None));
    }

    #[test]
    fn few_intervals_are_not_enough() {
        let mut secs = steps(300, 0);
        (0..300).step_by(50).for_each(|step| secs[step] = 50.0);
        assert_eq!(find(&secs, 5), None, "six");
    }
}
