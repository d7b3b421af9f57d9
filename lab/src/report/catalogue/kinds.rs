//! What a figure is: its measures, axis and section.

/// The heading under which a figure stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// Losses, scores, learning rate, gradients.
    Learning,
    /// Tokens per second and where the time goes.
    Speed,
    /// Memory, power and clocks of the device, and the load of the machine.
    Device,
}

impl Section {
    /// All sections, in the order of the page.
    pub const ALL: [Self; 3] = [Self::Learning, Self::Speed, Self::Device];

    /// Returns the heading.
    pub fn heading(self) -> &'static str {
        match self {
            Self::Learning => "Learning",
            Self::Speed => "Speed",
            Self::Device => "Device",
        }
    }
}

/// How a measure is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// A line.
    Line,
    /// Single values as a faint line, and their mean over neighbouring steps as a line.
    Noisy,
    /// A line with a mark at each value: few values, far apart.
    Marked,
    /// Marks only.
    Dots,
    /// An area on top of the measures before it; the areas are parts of a whole.
    Part,
}

/// A number that `metrics.jsonl` has per step.
#[derive(Debug, Clone, Copy)]
pub struct Measure {
    /// The kind of the lines.
    pub(crate) kind: &'static str,
    /// The field; `a.b` is field `b` of object `a`.
    pub(crate) field: &'static str,
    /// What the field was called before.
    pub(crate) older: Option<&'static str>,
    /// A field that the value is divided by.
    pub(crate) per: Option<&'static str>,
    /// Its name in the legend.
    pub(crate) label: &'static str,
    /// What a value is multiplied by.
    pub(crate) scale: f64,
    /// How it is drawn.
    pub(crate) style: Style,
}

/// The vertical axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// From the smallest to the largest value.
    Range,
    /// From 0.
    FromZero,
    /// Powers of ten, if the values need it: positive, and far apart.
    Wide,
}

/// A picture with one vertical axis.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// Its name on the command line and in links.
    pub id: &'static str,
    /// Its heading.
    pub(crate) title: &'static str,
    /// The unit of its vertical axis.
    pub(crate) unit: &'static str,
    /// Its vertical axis.
    pub(crate) axis: Axis,
    /// Where it stands.
    pub section: Section,
    /// What it shows; of [`OWN`], nothing that is known before.
    pub(crate) measures: &'static [Measure],
}

/// The figures of a model of one's own, which have a picture each.
pub const OWN: &str = "own";

pub(super) const fn step(field: &'static str, label: &'static str, style: Style) -> Measure {
    Measure { kind: "step", field, older: None, per: None, label, scale: 1.0, style }
}

pub(super) const fn window(field: &'static str, label: &'static str, scale: f64) -> Measure {
    Measure { kind: "window", field, older: None, per: None, label, scale, style: Style::Line }
}

/// A part of the time between two lines.
pub(super) const fn phase(field: &'static str, label: &'static str) -> Measure {
    Measure { per: Some("host.elapsed_ms"), style: Style::Part, ..window(field, label, PERCENT) }
}

pub(super) const fn validation(field: &'static str, label: &'static str, scale: f64) -> Measure {
    Measure { kind: "validation", field, older: None, per: None, label, scale, style: Style::Marked }
}

/// From bytes.
pub(super) const GIB: f64 = 1.0 / (1u64 << 30) as f64;
/// From bytes per second to 10^6 bytes per second.
pub(super) const MB: f64 = 1e-6;
/// From a fraction.
pub(super) const PERCENT: f64 = 100.0;

pub(super) const fn kind(
    id: &'static str,
    title: &'static str,
    unit: &'static str,
    axis: Axis,
    section: Section,
    measures: &'static [Measure],
) -> Kind {
    Kind { id, title, unit, axis, section, measures }
}
