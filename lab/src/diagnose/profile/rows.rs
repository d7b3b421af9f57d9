//! The rows of the tables: how long calls took, how much work they did, and what bounds them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::roofs::Roofs;

/// A higher part of a roof is none.
const ABOVE: f64 = 1.05;
/// A device that reaches so much of a roof is as fast as one can hope for.
const CLOSE: f64 = 0.6;
/// Below this part of a roof something else bounds the call.
const FAR: f64 = 0.2;
/// Seconds below which starting a call counts: a few times what a launch takes.
const SHORT: f64 = 8e-6;

/// What was measured of one call.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Measured {
    /// What it is counted under.
    pub(super) name: String,
    /// Sizes as `16384 x 768 x 2304`; empty if they are not known.
    pub(super) sizes: String,
    pub(super) secs: f64,
    /// Operations of products, and bytes; `None` if they are not known.
    pub(super) work: Option<[f64; 2]>,
}

/// Calls of one operator or kernel at one shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The operator and its pass, or the kernel.
    pub name: String,
    /// The sizes that the work depends on; empty if they are not known.
    pub sizes: String,
    /// Calls in all steps of the profile.
    pub calls: u64,
    /// Milliseconds of all calls.
    pub total_ms: f64,
    /// Microseconds of a call, on average.
    pub mean_us: f64,
    /// Fraction of the time of the steps, 0 to 1.
    pub share: f64,
    /// Operations of the products of all calls, and bytes that they must move at least; `None` if they are not known.
    pub work: Option<RowWork>,
}

/// The work of a row, and how it compares with the roofs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RowWork {
    /// Operations of matrix products.
    pub flops: f64,
    /// Bytes if every operand is read once and every result written once.
    pub bytes: f64,
    /// Operations per byte.
    pub flops_per_byte: f64,
    /// Operations per second.
    pub flops_per_sec: f64,
    /// Bytes per second.
    pub bytes_per_sec: f64,
    /// The least time that the roofs allow, divided by the time; above 1 if operands came from a cache.
    pub of_roof: f64,
    /// The roof that is lower for this work.
    pub(crate) roof: Roof,
    /// What bounds the calls.
    pub bound: Bound,
}

/// A roof.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Roof {
    /// The device's arithmetic.
    Compute,
    /// The device's memory.
    Memory,
}

impl Roof {
    /// One word for a sentence.
    pub fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Memory => "memory",
        }
    }
}

/// What bounds calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The device's arithmetic.
    Compute,
    /// The device's memory.
    Memory,
    /// Calls are so short that starting them counts.
    Launch,
    /// Neither roof is near: the code itself.
    Code,
}

impl Bound {
    /// One word for a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Memory => "memory",
            Self::Launch => "launch",
            Self::Code => "code",
        }
    }

    /// Returns what bounds calls that take `secs` and reach the part `of_roof` of the roof that is lower for their work.
    fn of(secs: f64, of_roof: f64, roof: Roof) -> Self {
        match (of_roof >= FAR, roof) {
            (true, Roof::Compute) => Self::Compute,
            (true, Roof::Memory) => Self::Memory,
            (false, _) if secs < SHORT => Self::Launch,
            (false, _) => Self::Code,
        }
    }
}

impl Row {
    /// Says in a sentence what the row's speed means; `None` without work.
    pub fn verdict(&self) -> Option<String> {
        let work = self.work.as_ref()?;
        let percent = 100.0 * work.of_roof;
        let roof = work.roof.name();
        Some(match work.bound {
            _ if work.is_above_roof() => match work.roof {
                Roof::Memory => {
                    format!("not measured: faster than the {roof} roof, because operands come from a cache")
                }
                Roof::Compute => {
                    format!("not measured: faster than the {roof} roof, which is too low or the time too short")
                }
            },
            Bound::Compute | Bound::Memory if work.of_roof >= CLOSE => {
                format!("{percent:.0} % of the {roof} roof: only less work makes it faster")
            }
            Bound::Compute | Bound::Memory => {
                format!("{percent:.0} % of the {roof} roof: there is room below the roof")
            }
            Bound::Launch => {
                format!("{percent:.0} % of the {roof} roof, in {:.1} us: too short to fill the device", self.mean_us)
            }
            Bound::Code => format!("{percent:.0} % of the {roof} roof: neither roof is near, so the code bounds it"),
        })
    }
}

impl RowWork {
    /// Returns whether the part of the roof is impossible: nothing is faster than its roof but for the error of a measurement.
    pub fn is_above_roof(&self) -> bool {
        // NaN is impossible, too.
        !(0.0..=ABOVE).contains(&self.of_roof)
    }

    /// Returns the part of the roof in percent, or a dash where there is none.
    pub fn percent_of_roof(&self) -> String {
        if self.is_above_roof() { "-".into() } else { format!("{:.0} %", 100.0 * self.of_roof) }
    }

    fn new([flops, bytes]: [f64; 2], total: f64, calls: u64, roofs: &Roofs) -> Self {
        let [computing, moving] = [flops / roofs.flops_per_sec, bytes / roofs.bytes_per_sec];
        let of_roof = computing.max(moving) / total.max(1e-12);
        let roof = if computing > moving { Roof::Compute } else { Roof::Memory };
        Self {
            flops,
            bytes,
            flops_per_byte: flops / bytes.max(1.0),
            flops_per_sec: flops / total.max(1e-12),
            bytes_per_sec: bytes / total.max(1e-12),
            of_roof,
            roof,
            bound: Bound::of(total / calls.max(1) as f64, of_roof, roof),
        }
    }
}

/// Sums up calls by name and sizes, longest first. `steps` is the time of the steps in seconds.
pub(super) fn rows(measured: impl IntoIterator<Item = Measured>, steps: f64, roofs: &Roofs) -> Vec<Row> {
    struct Sum {
        calls: u64,
        secs: f64,
        work: Option<[f64; 2]>,
    }
    let mut sums: BTreeMap<(String, String), Sum> = BTreeMap::new();
    for Measured { name, sizes, secs, work } in measured {
        let sum = sums.entry((name, sizes)).or_insert(Sum { calls: 0, secs: 0.0, work: Some([0.0; 2]) });
        sum.calls += 1;
        sum.secs += secs;
        sum.work = sum.work.zip(work).map(|(sum, work)| [sum[0] + work[0], sum[1] + work[1]]);
    }

    let mut rows: Vec<Row> = sums
        .into_iter()
        .map(|((name, sizes), Sum { calls, secs, work })| Row {
            name,
            sizes,
            calls,
            total_ms: secs * 1e3,
            mean_us: secs * 1e6 / calls as f64,
            share: secs / steps.max(1e-12),
            work: work.filter(|work| work[1] > 0.0).map(|work| RowWork::new(work, secs, calls, roofs)),
        })
        .collect();
    rows.sort_by(|a, b| b.total_ms.total_cmp(&a.total_ms));
    rows
}

#[cfg(test)]
mod tests {
    use super::super::roofs::RoofSource;
    use super::*;

    const ROOFS: Roofs = Roofs { flops_per_sec: 1e12, bytes_per_sec: 1e11, source: RoofSource::Measured };

    fn call(name: &str, secs: f64, work: Option<[f64; 2]>) -> Measured {
        Measured { name: name.into(), sizes: "8 x 8".into(), secs, work }
    }

    #[test]
    fn calls_are_summed_and_compared_with_the_roof_that_is_lower() {
        let calls = vec![
            // 10^9 operations need 1 ms, and 10^7 bytes 0.1 ms.
            call("product", 2e-3, Some([1e9, 1e7])),
            call("product", 2e-3, Some([1e9, 1e7])),
            call("norm", 1e-3, Some([0.0, 8e7])),
            call("tiny", 1e-6, Some([0.0, 1e3])),
            call("slow", 1e-2, Some([0.0, 1e7])),
            call("cached", 1e-4, Some([0.0, 2e7])),
            call("unknown", 3e-3, None),
        ];
        let rows = rows(calls, 0.02, &ROOFS);
        assert_eq!(rows.iter().map(|row| row.name.as_str()).collect::<Vec<_>>()[..2], ["slow", "product"]);
        let of = |name: &str| rows.iter().find(|row| row.name == name).expect("a row");
        let work = |name: &str| of(name).work.clone().expect("work");

        let product = of("product");
        assert_eq!((product.calls, product.total_ms, product.mean_us, product.share), (2, 4.0, 2000.0, 0.2));
        let found = work("product");
        assert_eq!((found.flops_per_byte, found.bound), (100.0, Bound::Compute));
        assert!((found.of_roof - 0.5).abs() < 1e-9 && (found.flops_per_sec - 5e11).abs() < 1.0, "{found:?}");
        assert!((work("norm").of_roof - 0.8).abs() < 1e-9 && work("norm").bound == Bound::Memory);
        assert_eq!((work("tiny").bound, work("slow").bound), (Bound::Launch, Bound::Code));
        assert_eq!(of("unknown").work, None);

        let verdict = |name: &str| of(name).verdict();
        assert_eq!(verdict("norm").as_deref(), Some("80 % of the memory roof: only less work makes it faster"));
        assert_eq!(verdict("product").as_deref(), Some("50 % of the compute roof: there is room below the roof"));
        assert!(verdict("cached").expect("work").contains("cache"));
        assert!(verdict("slow").expect("work").contains("the code bounds it"));
        assert_eq!(verdict("unknown"), None);
    }

    #[test]
    fn a_part_of_a_roof_that_cannot_be_is_not_measured() {
        let measured = |of_roof: f64, work: [f64; 2]| {
            let secs = (work[0] / ROOFS.flops_per_sec).max(work[1] / ROOFS.bytes_per_sec) / of_roof;
            rows([call("a", secs, Some(work))], 1.0, &ROOFS).remove(0)
        };
        let (memory, compute) = ([1.0, 1e9], [1e12, 1.0]);
        for (of_roof, work, part) in [(1.32, memory, "cache"), (1.32, compute, "too low"), (1e9, compute, "too low")] {
            let row = measured(of_roof, work);
            let verdict = row.verdict().expect("work");
            assert!(verdict.starts_with("not measured: faster than the ") && verdict.contains(part), "{verdict}");
            assert_eq!(row.work.expect("work").percent_of_roof(), "-");
        }
        for (of_roof, shown) in [(0.0001, "0 %"), (0.8, "80 %"), (1.04, "104 %")] {
            let row = measured(of_roof, memory);
            assert!(!row.verdict().expect("work").contains("not measured"));
            assert_eq!(row.work.expect("work").percent_of_roof(), shown);
        }
    }

    #[test]
    fn a_call_of_unknown_work_makes_the_sum_unknown() {
        let calls = [call("a", 1.0, Some([1.0, 1.0])), call("a", 1.0, None)];
        let rows = rows(calls, 2.0, &ROOFS);
        assert_eq!((rows.len(), rows[0].calls, rows[0].work.clone()), (1, 2, None));
    }
}
