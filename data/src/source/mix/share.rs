//! How many rows of each source an epoch of a mixture has.

use std::collections::HashSet;
use std::sync::Arc;

use crate::error::{Error, Result};

/// What decides the shares of the sources.
#[derive(Debug, Clone, PartialEq)]
pub enum MixShares {
    /// One weight per source, above 0. A source's share is its weight divided by their sum.
    Weights(Vec<f64>),
    /// Weights that change with the optimizer steps, in the order of the steps; the first ones from step 0 on.
    Changing(Vec<SharesFrom>),
    /// Proportional to the rows of a source to the power of one divided by this temperature. 1 keeps the sizes; a high
    /// temperature makes the shares equal.
    Temperature(f64),
}

/// Weights from an optimizer step on.
#[derive(Debug, Clone, PartialEq)]
pub struct SharesFrom {
    /// Optimizer steps before them.
    pub step: u64,
    /// One weight per source. A source of weight 0 has no rows.
    pub weights: Vec<f64>,
}

/// What a mixture has of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MixedPart {
    /// Name of the source.
    pub name: Arc<str>,
    /// Rows of the source.
    pub rows: u64,
    /// Its rows in each epoch of the mixture.
    pub rows_per_epoch: u64,
}

impl MixedPart {
    /// Returns the passes over the source in each epoch of the mixture.
    pub fn passes_per_epoch(&self) -> f64 {
        self.rows_per_epoch as f64 / self.rows.max(1) as f64
    }
}

/// Returns how many rows an epoch has of each source, from each step on at which the shares change.
pub(super) fn of_steps(names: &[Arc<str>], sizes: &[u64], shares: &MixShares) -> Result<Vec<(u64, Vec<u64>)>> {
    let MixShares::Changing(changes) = shares else { return Ok(vec![(0, of_sources(names, sizes, shares)?)]) };
    let ascend = changes.windows(2).all(|two| two[0].step < two[1].step);
    if !ascend || changes.first().is_none_or(|first| first.step != 0) {
        return Err(Error::Invalid("shares of data.mix that change need steps that ascend from 0".into()));
    }
    of_sources(names, sizes, &MixShares::Temperature(1.0))?;

    let of_change = |SharesFrom { step, weights }: &SharesFrom| {
        let are_valid = weights.len() == names.len() && weights.iter().all(|weight| *weight >= 0.0);
        let sum: f64 = weights.iter().sum();
        if !(are_valid && sum > 0.0 && sum.is_finite()) {
            return Err(Error::Invalid(format!(
                "the weights of data.mix from step {step} on are not one finite number from 0 per source, with a sum above 0"
            )));
        }
        let rows = apportion(sizes.iter().sum(), weights).into_iter().zip(weights);
        Ok((*step, rows.map(|(rows, weight)| if *weight > 0.0 { rows.max(1) } else { 0 }).collect()))
    };
    changes.iter().map(of_change).collect()
}

/// Divides as many rows as all sources have by their shares; each source gets at least one.
pub(super) fn of_sources(names: &[Arc<str>], sizes: &[u64], shares: &MixShares) -> Result<Vec<u64>> {
    let mut seen = HashSet::new();
    if let Some(name) = names.iter().find(|name| !seen.insert(*name)) {
        return Err(Error::Invalid(format!("data.mix has two sources with the name \"{name}\": give each its own")));
    }
    if let Some((name, _)) = names.iter().zip(sizes).find(|(_, size)| **size == 0) {
        return Err(Error::Invalid(format!(
            "source \"{name}\" of data.mix has no rows: name other files, or remove it"
        )));
    }

    let is_valid = |value: &f64| *value > 0.0 && value.is_finite();
    let weights = match shares {
        MixShares::Weights(weights) => {
            if weights.len() != names.len() {
                return Err(Error::Invalid(format!("{} weights for {} sources", weights.len(), names.len())));
            }
            if let Some((name, weight)) = names.iter().zip(weights).find(|(_, weight)| !is_valid(weight)) {
                return Err(Error::Invalid(format!(
                    "weight = {weight} of source \"{name}\" (data.mix) is not a finite number above 0"
                )));
            }
            weights.clone()
        }
        MixShares::Changing(_) => unreachable!("divided for each step"),
        MixShares::Temperature(temperature) if is_valid(temperature) => {
            sizes.iter().map(|size| (*size as f64).powf(1.0 / temperature)).collect()
        }
        MixShares::Temperature(temperature) => {
            return Err(Error::Invalid(format!(
                "data.mix_temperature = {temperature} is not a finite number above 0; 1 keeps the sizes, 5 is usual for \
                 many languages"
            )));
        }
    };

    let rows = apportion(sizes.iter().sum(), &weights);
    Ok(rows.into_iter().map(|rows| rows.max(1)).collect())
}

/// Divides the rows that an epoch has of a source among its length buckets, of the sizes `cells`; each gets at least one,
/// so that no row is left out for ever. A source without rows has none in any bucket.
pub(super) fn of_cells(total: u64, cells: &[u64]) -> Vec<u64> {
    if total == 0 {
        return vec![0; cells.len()];
    }
    let weights: Vec<f64> = cells.iter().map(|size| *size as f64).collect();
    let mut rows = apportion(total, &weights);
    for cell in 0..rows.len() {
        if rows[cell] == 0 {
            rows[cell] = 1;
            let largest = (0..rows.len()).max_by_key(|at| (rows[*at], std::cmp::Reverse(*at))).expect("a cell");
            if rows[largest] > 1 {
                rows[largest] -= 1;
            }
        }
    }
    rows
}

/// Divides `total` by `weights` into whole numbers (largest remainders; the first of equal ones).
fn apportion(total: u64, weights: &[f64]) -> Vec<u64> {
    let sum: f64 = weights.iter().sum();
    let exact: Vec<f64> = weights.iter().map(|weight| total as f64 * (weight / sum)).collect();
    let mut parts: Vec<u64> = exact.iter().map(|part| part.floor() as u64).collect();
    let mut by_remainder: Vec<usize> = (0..parts.len()).collect();
    by_remainder.sort_by(|a, b| (exact[*b].fract()).total_cmp(&exact[*a].fract()).then(a.cmp(b)));
    let missing = total.saturating_sub(parts.iter().sum()) as usize;
    by_remainder.iter().take(missing).for_each(|part| parts[*part] += 1);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(n: usize) -> Vec<Arc<str>> {
        (0..n).map(|i| format!("s{i}").into()).collect()
    }

    #[test]
    fn rows_are_divided_without_a_rest() {
        assert_eq!(apportion(10, &[1.0, 1.0, 1.0]), [4, 3, 3]);
        assert_eq!(apportion(7, &[0.7, 0.2, 0.1]), [5, 1, 1]);
        // Sizes as weights give the sizes back, whatever floating point makes of the quotients.
        for sizes in [vec![3, 7, 11], vec![1, 1_000_003, 77], vec![49, 1, 50]] {
            assert_eq!(of_cells(sizes.iter().sum(), &sizes), sizes);
        }
    }

    #[test]
    fn shares_are_divided_anew_at_each_change() {
        let from = |step, weights: [f64; 2]| SharesFrom { step, weights: weights.into() };
        let of = |changes: Vec<SharesFrom>| of_steps(&names(2), &[100, 300], &MixShares::Changing(changes));
        let found = of(vec![from(0, [1.0, 0.0]), from(10, [1.0, 3.0]), from(20, [1e-9, 1.0])]).expect("valid");
        assert_eq!(found, [(0, vec![400, 0]), (10, vec![100, 300]), (20, vec![1, 400])]);
        assert_eq!(of_cells(0, &[5, 5]), [0, 0]);
        for (changes, wanted) in [
            (vec![from(1, [1.0, 1.0])], "ascend from 0"),
            (vec![from(0, [1.0, 1.0]), from(5, [1.0, 2.0]), from(5, [2.0, 1.0])], "ascend from 0"),
            (vec![from(0, [0.0, 0.0])], "from step 0 on are not"),
            (vec![from(0, [1.0, 1.0]), from(9, [f64::INFINITY, 1.0])], "from step 9 on are not"),
            (vec![from(0, [1.0, f64::NAN])], "from step 0 on are not"),
            (vec![from(0, [1.0, -1.0])], "from step 0 on are not"),
            (Vec::new(), "ascend from 0"),
        ] {
            let error = of(changes).expect_err(wanted).to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn no_bucket_is_left_out() {
        assert_eq!(of_cells(10, &[1, 1, 1000]), [1, 1, 8]);
        assert_eq!(of_cells(2, &[5, 5, 5, 5]), [1, 1, 1, 1], "more than the share, but every row is seen");
    }

    #[test]
    fn a_temperature_flattens_the_sizes() {
        let sizes = [100, 10_000];
        let of = |temperature| of_sources(&names(2), &sizes, &MixShares::Temperature(temperature)).expect("valid");
        assert_eq!(of(1.0), sizes);
        // sqrt(100) : sqrt(10000) = 10 : 100
        assert_eq!(of(2.0), [918, 9182]);
        assert_eq!(of(1e9), [5050, 5050]);
    }

    #[test]
    fn impossible_shares_are_refused() {
        let error = |names: &[Arc<str>], sizes: &[u64], shares| {
            of_sources(names, sizes, &shares).expect_err("refused").to_string()
        };
        let two = names(2);
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let of_weight = error(&two, &[1, 1], MixShares::Weights(vec![1.0, bad]));
            assert!(of_weight.contains("of source \"s1\" (data.mix) is not a finite number above 0"), "{of_weight}");
            let of_all = error(&two, &[1, 1], MixShares::Temperature(bad));
            assert!(of_all.contains("data.mix_temperature = "), "{of_all}");
        }
        let empty = error(&two, &[1, 0], MixShares::Temperature(1.0));
        assert!(empty.contains("source \"s1\" of data.mix has no rows"), "{empty}");
        let doubled = error(&["a".into(), "a".into()], &[1, 1], MixShares::Temperature(1.0));
        assert!(doubled.contains("two sources with the name \"a\""), "{doubled}");
    }
}
