//! What a test has found.

use std::fmt;
use std::str::FromStr;

use kiln_train::metrics::GpuUse;
use serde::Serialize;

/// A test, in the order in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// The stopwatch on a known sleep and known work.
    Harness,
    /// The first step against later ones. It runs before other steps compile their kernels.
    First,
    /// Forward without gradients.
    Inference,
    /// Forward as training computes it.
    Forward,
    /// Forward and backward.
    Backward,
    /// Forward, backward and the update.
    Step,
    /// Forward, backward and optimizer, each by itself.
    Phases,
    /// f32 against 16 bits.
    Precision,
    /// Steps replayed as CUDA graphs against eager ones.
    Graphs,
    /// Fused operators against their references.
    Fused,
    /// The batch of the run against one of four times as many rows.
    Batch,
    /// A model of one's own: batches of a quarter of the size, which shows what its operations cost whatever their size.
    Calls,
    /// Metrics read after each step, and after every tenth.
    Deferred,
    /// Batches without training.
    Loader,
    /// 1, 2, 4 and 8 loader threads.
    Workers,
    /// The loader's time by stage.
    Stages,
    /// Tokens in memory against the memory map.
    Map,
    /// Copies to the device.
    Upload,
    /// Synthetic tokens on the device against loaded ones.
    Real,
    /// Padding of an epoch.
    Padding,
    /// Live bytes after few and after many steps.
    Live,
    /// Peak of the memory on the largest batch.
    Peak,
    /// Several devices: the bandwidth between them.
    Link,
    /// Several devices: each alone against all together.
    Together,
}

impl Test {
    /// All tests, in order.
    pub const ALL: [Self; 24] = [
        Self::Harness,
        Self::First,
        Self::Inference,
        Self::Forward,
        Self::Backward,
        Self::Step,
        Self::Phases,
        Self::Precision,
        Self::Graphs,
        Self::Fused,
        Self::Batch,
        Self::Calls,
        Self::Deferred,
        Self::Loader,
        Self::Workers,
        Self::Stages,
        Self::Map,
        Self::Upload,
        Self::Real,
        Self::Padding,
        Self::Live,
        Self::Peak,
        Self::Link,
        Self::Together,
    ];

    /// Returns the tests whose figures [`Check`](super::Check)s compare with thresholds.
    pub const CHECKED: [Self; 6] = [Self::Harness, Self::Graphs, Self::Fused, Self::Real, Self::Live, Self::Peak];

    /// Returns its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Harness => "harness",
            Self::First => "first",
            Self::Inference => "inference",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Step => "step",
            Self::Phases => "phases",
            Self::Precision => "precision",
            Self::Graphs => "graphs",
            Self::Fused => "fused",
            Self::Batch => "batch",
            Self::Calls => "calls",
            Self::Deferred => "deferred",

            Self::Loader => "loader",
            Self::Workers => "workers",
            Self::Stages => "stages",
            Self::Map => "map",
            Self::Upload => "upload",
            Self::Real => "real",
            Self::Padding => "padding",
            Self::Live => "live",
            Self::Peak => "peak",
            Self::Link => "link",
            Self::Together => "together",
        }
    }

    /// Returns whether the test needs several devices.
    pub fn needs_ranks(self) -> bool {
        matches!(self, Self::Link | Self::Together)
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Test {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|test| test.name() == text.trim());
        found.ok_or_else(|| format!("no test {text:?}; choose from {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// A figure that a test has measured, and what it means.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// What was measured.
    pub what: String,
    /// The median.
    pub figure: f64,
    /// Its unit.
    pub unit: &'static str,
    /// The smallest and the largest repeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<[f64; 2]>,
    /// The figure that it is compared with, in the same unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against: Option<f64>,
    /// The least and the most that the figure can be; without them its unit decides.
    #[serde(skip)]
    pub(crate) bounds: Option<[f64; 2]>,
    /// What the figure means.
    pub words: String,
}

impl Verdict {
    /// Returns a figure without a comparison.
    pub fn new(what: impl Into<String>, figure: f64, unit: &'static str, words: impl Into<String>) -> Self {
        Self { what: what.into(), figure, unit, spread: None, against: None, bounds: None, words: words.into() }
    }

    /// Adds the smallest and the largest repeat.
    #[must_use]
    pub fn within(self, spread: [f64; 2]) -> Self {
        Self { spread: Some(spread), ..self }
    }

    /// Adds the least and the most that the figure can be. Beyond them it counts as not measured.
    #[must_use]
    pub fn between(self, bounds: [f64; 2]) -> Self {
        Self { bounds: Some(bounds), ..self }
    }

    /// Adds the figure that this one is compared with.
    #[must_use]
    pub fn against(self, other: f64) -> Self {
        Self { against: Some(other), ..self }
    }
}

/// What became of a test.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Which test.
    pub test: Test,
    /// Its verdicts; none if it did not run.
    pub verdicts: Vec<Verdict>,
    /// Why figures are missing: what was measured cannot be.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_measured: Vec<String>,
    /// Why the test did not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_run: Option<String>,
    /// What the driver said about the GPU while the test ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuUse>,
}

/// What a test returns: its verdicts, or why it cannot run here.
pub type Found = Result<Vec<Verdict>, String>;

/// `12 %`, or `0.4 %` of little.
pub(super) fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    if percent.abs() < 9.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_is_found_by_its_name() {
        for test in Test::ALL {
            assert_eq!(test.name().parse(), Ok(test));
        }
        let error = "lodaer".parse::<Test>().expect_err("no such test");
        assert!(error.contains("choose from harness, first"), "{error}");
    }
}
