//! The curves of a figure: few enough points for a page, whatever the length of the run.

use std::collections::BTreeSet;

use super::catalogue::{FIGURES, Kind, Measure, OWN, Section, Style};
use super::history::{History, Points};

/// Positions along the horizontal axis at which a curve has points.
const POSITIONS: usize = 240;
/// A noisy curve is averaged over this fraction of the run.
const AVERAGED: usize = 40;

/// A curve.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Its name in the legend; empty if the legend does not list it.
    pub(crate) label: String,
    /// The number of its colour.
    pub(crate) colour: usize,
    /// How it is drawn: never as [`Style::Noisy`].
    pub(crate) style: Style,
    /// Whether it stands behind the others.
    pub(crate) is_faint: bool,
    /// Its points, from left to right.
    pub(crate) points: Points,
}

/// A picture with its numbers.
#[derive(Debug, Clone)]
pub struct Figure {
    /// Its name, unique on a page.
    pub(crate) id: String,
    /// Its heading.
    pub(crate) title: String,
    /// The kind that it belongs to.
    pub(crate) kind: &'static Kind,
    /// Its curves, the ones behind first.
    pub(crate) curves: Vec<Curve>,
    /// Steps that a point of a noisy curve is the mean of; 1 if there are none.
    pub averaged: usize,
    /// The first and the last step of the runs, so that all figures of a page have one horizontal axis.
    pub(crate) steps: [f64; 2],
    /// Runs of the page, with curves or without.
    pub(crate) n_runs: usize,
}

impl Figure {
    /// Returns the figures of a kind for `runs`; none if no run has its fields. Curves of several runs overlie each other in a
    /// figure per measure. A single run has all measures in one figure.
    pub fn of(kind: &'static Kind, runs: &[History]) -> Vec<Self> {
        let is_there = |measure: &&'static Measure| runs.iter().any(|run| run.has(measure));
        let present: Vec<&'static Measure> = kind.measures.iter().filter(is_there).collect();
        // Training and validation are one measure of two data sets, and belong together.
        let is_one = present.iter().any(|measure| measure.style == Style::Noisy);
        let whole = |id: String, title: String, measures: &[&Measure]| Self::whole(kind, id, title, runs, measures);

        if kind.id == OWN {
            return Self::own(kind, runs);
        }
        if present.is_empty() {
            return Vec::new();
        }
        if runs.len() > 1 && present.iter().all(|measure| measure.style == Style::Part) {
            // The parts of a whole lie on top of each other, so each run has a figure.
            let of_run = |(i, run): (usize, &History)| {
                let (id, title) = (format!("{}-{}", kind.id, i + 1), format!("{}: {}", kind.title, run.name));
                let whole = Self::whole(kind, id, title, std::slice::from_ref(run), &present);
                (!whole.curves.is_empty()).then_some(whole)
            };
            return runs.iter().enumerate().filter_map(of_run).collect();
        }
        if runs.len() == 1 || present.len() == 1 || is_one {
            return vec![whole(kind.id.into(), kind.title.into(), &present)];
        }
        let one = |measure: &'static Measure| {
            let id = format!("{}-{}", kind.id, measure.field.replace(['_', '.'], "-"));
            whole(id, format!("{}: {}", kind.title, measure.label), &[measure])
        };
        present.into_iter().map(one).collect()
    }

    /// Returns a picture for each figure of models of one's own, numbered in the order of their names.
    fn own(kind: &'static Kind, runs: &[History]) -> Vec<Self> {
        let names: BTreeSet<&String> = runs.iter().flat_map(|run| run.own_figures().keys()).collect();
        let of_name = |(number, name): (usize, &String)| {
            let of_run = |(colour, run): (usize, &History)| {
                let points = thinned(run.own_figures().get(name)?);
                let label = if runs.len() == 1 { name.clone() } else { run.name.clone() };
                Some(Curve { label, colour, style: Style::Marked, is_faint: false, points })
            };
            let curves = runs.iter().enumerate().filter_map(of_run).collect();
            Self::with_curves(kind, format!("{OWN}-{number}"), name.clone(), runs, (curves, 1))
        };
        (1..).zip(names).map(of_name).collect()
    }

    /// Returns every figure that the runs have values for.
    pub fn all(runs: &[History]) -> Vec<Self> {
        FIGURES.iter().flat_map(|kind| Self::of(kind, runs)).collect()
    }

    /// Returns the section that the figure stands in.
    pub fn section(&self) -> Section {
        self.kind.section
    }

    fn whole(kind: &'static Kind, id: String, title: String, runs: &[History], measures: &[&Measure]) -> Self {
        let (mut behind, mut curves, mut averaged) = (Vec::new(), Vec::new(), 1);
        for (i, run) in runs.iter().enumerate() {
            for (j, measure) in measures.iter().enumerate() {
                let points = run.points(measure);
                if points.is_empty() {
                    continue;
                }
                // One run: a colour per measure. Several: a colour per run.
                let colour = if runs.len() == 1 { j } else { i };
                let label = match (runs.len(), measures.len()) {
                    (1, _) => measure.label.to_owned(),
                    (_, 1) => run.name.clone(),
                    _ => format!("{}, {}", run.name, measure.label),
                };

                let curve = |style, label, points| Curve { label, colour, style, is_faint: false, points };
                match measure.style {
                    Style::Noisy => {
                        let n = (points.len() / AVERAGED).max(1);
                        averaged = averaged.max(n);
                        if n > 1 {
                            let faint = curve(Style::Line, String::new(), extremes(&points));
                            behind.push(Curve { is_faint: true, ..faint });
                        }
                        curves.push(curve(Style::Line, label, thinned(&running_mean(&points, n))));
                    }
                    Style::Dots => curves.push(curve(Style::Dots, label, points)),
                    style => curves.push(curve(style, label, thinned(&points))),
                }
            }
        }
        behind.extend(curves);
        Self::with_curves(kind, id, title, runs, (behind, averaged))
    }

    fn with_curves(
        kind: &'static Kind,
        id: String,
        title: String,
        runs: &[History],
        (curves, averaged): (Vec<Curve>, usize),
    ) -> Self {
        let last_step = runs.iter().map(|run| run.last_step).max().unwrap_or(1);
        Self { id, title, kind, curves, averaged, steps: [1.0, last_step as f64], n_runs: runs.len() }
    }

    /// Returns the curves that the legend lists.
    pub fn named(&self) -> impl Iterator<Item = &Curve> {
        self.curves.iter().filter(|curve| !curve.label.is_empty())
    }

    /// Says in a sentence what the figure shows, for those who do not see it.
    pub fn in_words(&self) -> String {
        let told = self.named().filter_map(|curve| {
            let ((from, first), (to, last)) = (*curve.points.first()?, *curve.points.last()?);
            let [first, last] = [first, last].map(short);
            Some(match from < to {
                true => format!("{}: {first} at step {from}, {last} at step {to}", curve.label),
                false => format!("{}: {last} at step {to}", curve.label),
            })
        });
        format!("{}, {}, by optimizer step. {}.", self.title, self.kind.unit, told.collect::<Vec<_>>().join("; "))
    }
}

/// The mean of up to `n` points around each point.
fn running_mean(points: &[(f64, f64)], n: usize) -> Points {
    if n <= 1 {
        return points.to_vec();
    }
    let mut sums = vec![0.0];
    for (_, value) in points {
        sums.push(sums[sums.len() - 1] + value);
    }
    let mean = |i: usize| {
        // As many on both sides, so that a slope is not shifted.
        let side = (n / 2).min(i).min(points.len() - 1 - i);
        (sums[i + side + 1] - sums[i - side]) / (2 * side + 1) as f64
    };
    points.iter().enumerate().map(|(i, (step, _))| (*step, mean(i))).collect()
}

/// At most [`POSITIONS`] of the points, the first and the last one among them.
fn thinned(points: &[(f64, f64)]) -> Points {
    let n = points.len();
    if n <= POSITIONS {
        return points.to_vec();
    }
    (0..POSITIONS).map(|i| points[i * (n - 1) / (POSITIONS - 1)]).collect()
}

/// The smallest and the largest point of each of [`POSITIONS`] stretches, so that no peak is lost.
fn extremes(points: &[(f64, f64)]) -> Points {
    if points.len() <= 2 * POSITIONS {
        return points.to_vec();
    }
    let stretches = points.chunks(points.len().div_ceil(POSITIONS));
    let ends = stretches.flat_map(|stretch| {
        let by_value = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let mut ends = [stretch.iter().min_by(by_value), stretch.iter().max_by(by_value)];
        ends.sort_by(|a, b| a.map(|point| point.0).partial_cmp(&b.map(|point| point.0)).expect("steps are finite"));
        ends.into_iter().flatten().copied()
    });
    ends.collect()
}

/// Formats a number with about three digits: `1.2M`, `34.5k`, `0.0123`, `3.0e-5`.
pub fn short(value: f64) -> String {
    let size = value.abs();
    let text = match size {
        _ if size == 0.0 => "0".into(),
        1e9.. => format!("{:.1}G", value / 1e9),
        1e6.. => format!("{:.1}M", value / 1e6),
        1e4.. => format!("{:.1}k", value / 1e3),
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        0.01.. => format!("{value:.3}"),
        _ => format!("{value:.1e}"),
    };
    // `1.50` and `2.0k` without their zeros; `1.0e-4` as `1e-4`.
    let (digits, rest) = match text.find(|c: char| "eGMk".contains(c)) {
        Some(at) => (text[..at].to_owned(), text[at..].to_owned()),
        None => (text, String::new()),
    };
    let digits = if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { &digits };
    format!("{digits}{rest}")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use kiln_metrics::logging::METRICS_FILE;
    use kiln_train::checkpoint::RUN_CONFIG_FILE;

    use super::super::catalogue::find;
    use super::super::draw::file;
    use super::*;

    fn run(metrics: &str) -> History {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join(RUN_CONFIG_FILE), "").expect("writable");
        fs::write(folder.path().join(METRICS_FILE), metrics).expect("writable");
        History::read(folder.path()).expect("a step")
    }

    #[test]
    fn figures_of_ones_own_are_drawn_whatever_their_names() {
        let line = |step: u64, figures: &str| {
            format!("{{\"kind\":\"validation\",\"step\":{step},\"loss\":1,\"figures\":{figures}}}\n")
        };
        let many: Vec<String> = (0..200).map(|i| format!("\"n{i}\":1")).collect();
        let lines = [
            line(1, "{\"f1\":0.25,\"a <b>\\u0001\":7}"),
            line(2, "{\"f1\":0.5,\"broken\":null,\"text\":\"x\"}"),
            line(3, "[1]"),
            line(4, &format!("{{{}}}", many.join(","))),
            "{\"kind\":\"step\",\"step\":4,\"loss\":1}\n".to_owned(),
        ];
        let history = run(&lines.concat());
        assert_eq!(history.own_figures().len(), 64);
        assert_eq!(history.own_figures()["f1"], [(1.0, 0.25), (2.0, 0.5)]);
        assert_eq!(history.own_figures()["a <b>\u{fffd}"], [(1.0, 7.0)]);

        let own = find("own").expect("known");
        let alone = Figure::of(own, std::slice::from_ref(&history));
        let f1 = alone.iter().find(|figure| figure.title == "f1").expect("a picture");
        assert_eq!((f1.curves.len(), f1.curves[0].label.as_str()), (1, "f1"));
        assert_eq!(f1.curves[0].points, [(1.0, 0.25), (2.0, 0.5)]);
        let drawing = file(&alone).expect("drawn");
        assert!(drawing.contains("a &lt;b&gt;\u{fffd}"), "names are escaped");

        // Two runs lie over each other; one has no figures.
        let other = run("{\"kind\":\"step\",\"step\":1,\"loss\":1}\n");
        assert!(Figure::of(own, std::slice::from_ref(&other)).is_empty());
        let labels = |figure: &Figure| figure.curves.iter().map(|curve| curve.label.clone()).collect::<Vec<_>>();
        let both = Figure::of(own, &[other, history.clone()]);
        assert_eq!((both.len(), labels(&both[0])), (64, vec![history.name]));
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (1_234_567.0, "1.2M"),
            (34_500.0, "34.5k"),
            (20_000.0, "20k"),
            (1234.0, "1234"),
            (12.0, "12"),
            (1.5, "1.5"),
            (0.0624, "0.062"),
            (0.0001, "1e-4"),
            (-0.00123, "-1.2e-3"),
            (7e9, "7G"),
        ] {
            assert_eq!(short(value), text);
        }
    }

    #[test]
    fn a_mean_keeps_a_slope_where_it_is() {
        let slope: Points = (0..100).map(|i| (f64::from(i), 2.0 * f64::from(i))).collect();
        assert_eq!(running_mean(&slope, 10), slope);
        let noisy: Points = (0..100).map(|i| (f64::from(i), f64::from(i % 2))).collect();
        assert!(running_mean(&noisy, 21)[10..90].iter().all(|(_, mean)| (mean - 0.5).abs() < 0.03));
    }

    #[test]
    fn long_curves_become_short_and_keep_their_ends_and_peaks() {
        let mut long: Points = (0..100_000).map(|i| (f64::from(i), 1.0)).collect();
        long[77_777].1 = 9.0;
        let few = thinned(&long);
        assert_eq!((few.len(), few[0].0, few[POSITIONS - 1].0), (POSITIONS, 0.0, 99_999.0));
        let few = extremes(&long);
        assert!(few.len() <= 2 * POSITIONS && few.contains(&(77_777.0, 9.0)), "{}", few.len());
        assert!(few.windows(2).all(|two| two[0].0 <= two[1].0), "from left to right");
    }
}
