//! Five smoke tests with thresholds.

use kiln_metrics::units::gib;
use serde::Serialize;

use super::figures::Figures;
use super::verdict::percent;

/// The thresholds that a user sets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Largest fraction of the time that training may wait for the loader.
    pub data_share: f64,
    /// The most memory that the largest batch may need, in bytes; `None` for the device's memory.
    pub memory_bytes: Option<u64>,
}

/// A check and its result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Check {
    /// Its name.
    pub name: &'static str,
    /// `None` if its tests did not run here.
    pub passed: Option<bool>,
    /// What was measured, and the threshold.
    pub words: String,
}

/// Compares figures with their thresholds.
pub fn checks(figures: &Figures, limits: &Limits) -> Vec<Check> {
    vec![timing(figures), numerics(figures), metrics(figures), data(figures, limits), memory(figures, limits)]
}

fn check(name: &'static str, passed: Option<bool>, words: String) -> Check {
    let words = if passed.is_none() { "not measured here".into() } else { words };
    Check { name, passed, words }
}

fn timing(figures: &Figures) -> Check {
    let words = "a known sleep and known work, see the test harness";
    check("timing", figures.harness_is_right, words.into())
}

fn numerics(figures: &Figures) -> Check {
    let fused = figures.fused_differ;
    let graphs = figures.graphs_differ;
    // NaN must not pass.
    let passed = fused.map(|differ| differ <= figures.tolerance && graphs.is_none_or(|differ| differ == 0.0));
    let of_graphs = match graphs {
        Some(differ) => format!("replayed steps differ by {differ:.1e} of at most 0"),
        None => "no graphs on this device".into(),
    };
    let words = format!(
        "losses of fused operators differ by {:.1e} of at most {:.1e}; {of_graphs}",
        fused.unwrap_or_default(),
        figures.tolerance
    );
    check("numerics", passed, words)
}

fn metrics(figures: &Figures) -> Check {
    let both = figures.pending_bytes.zip(figures.left_bytes);
    let passed = both.map(|(pending, left)| pending <= figures.pending_limit && left <= figures.left_limit);
    let (pending, left) = both.unwrap_or_default();
    let words = format!(
        "deferred metrics take {pending:.0} of at most {:.0} bytes per step, and a step leaves {left:.1} of at most {:.0} bytes",
        figures.pending_limit, figures.left_limit
    );
    check("metrics", passed, words)
}

fn data(figures: &Figures, limits: &Limits) -> Check {
    let share = figures.data_wait_share;
    let words = format!(
        "training waits for the loader for {} of at most {} of the time",
        percent(share.unwrap_or_default()),
        percent(limits.data_share)
    );
    check("data", share.map(|share| share <= limits.data_share), words)
}

fn memory(figures: &Figures, limits: &Limits) -> Check {
    let budget = limits.memory_bytes.or(figures.memory_bytes);
    let both = figures.peak_bytes.zip(budget);
    let (peak, budget) = both.unwrap_or_default();
    let words = format!("the largest batch needs {:.3} of at most {:.3} GiB", gib(peak), gib(budget));
    check("memory", both.map(|(peak, budget)| peak <= budget), words)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { data_share: 0.05, memory_bytes: Some(1 << 30) };

    fn sound() -> Figures {
        Figures {
            harness_is_right: Some(true),
            fused_differ: Some(1e-5),
            graphs_differ: Some(0.0),
            tolerance: 1e-3,
            pending_bytes: Some(64.0),
            pending_limit: 16384.0,
            left_bytes: Some(0.0),
            left_limit: 2.0,
            data_wait_share: Some(0.01),
            peak_bytes: Some(1 << 29),
            ..Figures::default()
        }
    }

    fn failed(figures: &Figures) -> Vec<&'static str> {
        let failed = checks(figures, &LIMITS).into_iter().filter(|check| check.passed == Some(false));
        failed.map(|check| check.name).collect()
    }

    #[test]
    fn each_check_fails_by_its_own_figure() {
        assert_eq!(failed(&sound()), [""; 0]);
        assert_eq!(failed(&Figures { harness_is_right: Some(false), ..sound() }), ["timing"]);
        for differ in [1e-2, f64::NAN] {
            assert_eq!(failed(&Figures { fused_differ: Some(differ), ..sound() }), ["numerics"]);
        }
        assert_eq!(failed(&Figures { graphs_differ: Some(1e-9), ..sound() }), ["numerics"]);
        assert_eq!(failed(&Figures { pending_bytes: Some(1e6), ..sound() }), ["metrics"], "a graph is kept");
        assert_eq!(failed(&Figures { left_bytes: Some(4.0), ..sound() }), ["metrics"], "a number is kept");
        assert_eq!(failed(&Figures { data_wait_share: Some(0.06), ..sound() }), ["data"]);
        assert_eq!(failed(&Figures { peak_bytes: Some(1 << 31), ..sound() }), ["memory"]);
    }

    #[test]
    fn what_was_not_measured_neither_passes_nor_fails() {
        let checks = checks(&Figures::default(), &Limits { memory_bytes: None, ..LIMITS });
        assert!(checks.iter().all(|check| check.passed.is_none() && check.words == "not measured here"), "{checks:?}");
    }
}
