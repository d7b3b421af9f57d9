//! The rows of an operator at all its sizes, as one.

use super::rows::Row;

/// All rows of an operator.
#[derive(Debug, Clone, PartialEq)]
pub struct Sum<'a> {
    /// The operator and its pass.
    pub name: &'a str,
    /// Calls in all steps of the profile.
    pub calls: u64,
    /// Milliseconds of all calls.
    pub total_ms: f64,
    /// Fraction of the time of the steps, 0 to 1.
    pub share: f64,
    /// The least milliseconds that the roofs allow; `None` if the work of a row is not known.
    pub least_ms: Option<f64>,
}

/// Returns the sums of rows with the same name, the longest first.
pub fn sums(rows: &[Row]) -> Vec<Sum<'_>> {
    let mut sums: Vec<Sum<'_>> = Vec::new();
    for row in rows {
        let measured = row.work.as_ref().filter(|work| !work.is_above_roof());
        let least_ms = measured.map(|work| work.of_roof * row.total_ms);
        match sums.iter_mut().find(|sum| sum.name == row.name) {
            Some(sum) => {
                sum.calls += row.calls;
                sum.total_ms += row.total_ms;
                sum.share += row.share;
                sum.least_ms = sum.least_ms.zip(least_ms).map(|(a, b)| a + b);
            }
            None => {
                let Row { name, calls, total_ms, share, .. } = row;
                sums.push(Sum { name, calls: *calls, total_ms: *total_ms, share: *share, least_ms });
            }
        }
    }
    sums.sort_by(|a, b| b.total_ms.total_cmp(&a.total_ms));
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_an_operator_add_up_and_an_unknown_work_stays_unknown() {
        let row = |name: &str, total_ms: f64| Row {
            name: name.into(),
            sizes: String::new(),
            calls: 2,
            total_ms,
            mean_us: 0.0,
            share: total_ms / 10.0,
            work: None,
        };
        let rows = [row("b", 3.0), row("a", 2.0), row("a", 2.5)];
        let found = sums(&rows);
        assert_eq!(
            found.iter().map(|sum| (sum.name, sum.calls, sum.total_ms)).collect::<Vec<_>>(),
            [("a", 4, 4.5), ("b", 2, 3.0)]
        );
        assert!(found[0].least_ms.is_none() && (found[0].share - 0.45).abs() < 1e-12);
    }
}
