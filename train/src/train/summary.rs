//! The sentence at the end of a run: where its time went, and what a setting would give back.

use std::sync::Arc;

use kiln_data::{BatchSource, LoaderConfig};

use crate::metrics::RunMetrics;

/// Padding that is worth a setting, as a share of the positions.
const WORTH: f64 = 0.02;
/// A setting that gives back this share of what the best one does is preferred if it changes less.
const ALMOST: f64 = 0.8;

/// Describes a process that trained on `source` with the settings `loader`.
pub(super) fn sentence(
    run: &RunMetrics,
    device: Device,
    source: &Arc<dyn BatchSource>,
    loader: &LoaderConfig,
) -> String {
    let host = &run.host;
    let share = |ms: f64| ms / host.elapsed_ms.max(1e-3);
    let mut parts = vec![match device {
        Device::Cpu => format!("CPU computed steps for {} of the time", percent(share(host.enqueue_ms))),
        Device::Gpu(Some(busy)) => format!("GPU busy {}", percent(busy)),
        Device::Gpu(None) => format!("the host waited for the GPU for {} of the time", percent(share(host.drain_ms))),
    }];
    parts.push(format!("the loader cost {}", percent(share(host.data_wait_ms))));
    for (what, ms) in [("validation", host.validate_ms), ("saving", host.save_ms)] {
        if share(ms) >= 0.005 {
            parts.push(format!("{what} {}", percent(share(ms))));
        }
    }

    let mut sentence = parts.join(", ");
    if run.padding_ratio >= WORTH {
        sentence += &format!("; padding {}", percent(run.padding_ratio));
        if let Some((setting, saved)) = less_padding(source, loader) {
            sentence += &format!(", {} with {setting}", percent((run.padding_ratio - saved).max(0.0)));
        }
    }
    sentence
}

/// What the sentence is about.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Device {
    Cpu,
    /// With the share of the time in which it ran kernels, if that is known.
    Gpu(Option<f64>),
}

/// Returns the setting of the loader that gives back most padding, and how much of all positions that is. It sorts the
/// rows' real lengths into buckets as the loader would.
fn less_padding(source: &Arc<dyn BatchSource>, loader: &LoaderConfig) -> Option<(String, f64)> {
    let now = source.padding_with(loader)?;
    let (multiple, buckets) = (loader.bucket_multiple, loader.max_buckets);
    // The smallest change first.
    let candidates = [(4, buckets), (multiple, 2 * buckets), (4, 2 * buckets), (4, 4 * buckets), (1, 4 * buckets)];
    let tried: Vec<_> = candidates
        .into_iter()
        .filter(|&(new, max)| new <= multiple && max <= 128)
        .filter_map(|(bucket_multiple, max_buckets)| {
            let candidate = LoaderConfig { bucket_multiple, max_buckets, ..loader.clone() };
            Some((bucket_multiple, max_buckets, now - source.padding_with(&candidate)?))
        })
        .collect();

    let best = tried.iter().map(|(.., saved)| *saved).fold(0.0, f64::max);
    let (new, max, saved) = tried.into_iter().find(|(.., saved)| *saved >= ALMOST * best && *saved >= WORTH)?;
    let changed = [("loader.bucket_multiple", new, multiple), ("loader.max_buckets", max, buckets)];
    let changed = changed.iter().filter(|(_, new, old)| new != old).map(|(key, new, _)| format!("{key} = {new}"));
    Some((changed.collect::<Vec<_>>().join(" and "), saved))
}

/// `12 %`; `0.4 %` of little, and `99.6 %` of nearly all: `100 %` would leave nothing for the other parts.
fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    if (9.95..99.0).contains(&percent) || percent >= 99.95 {
        format!("{percent:.0} %")
    } else {
        format!("{percent:.1} %")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kiln_data::{BatchWorker, Buckets, EpochPlan, Order, Shape};

    use super::*;
    use crate::metrics::HostTimes;

    /// Rows of given lengths.
    struct Rows(Vec<(usize, usize)>);

    impl Rows {
        fn buckets(&self, config: &LoaderConfig) -> Buckets {
            Buckets::new(self.0.iter().copied(), (64, 64), config).expect("rows that fit")
        }
    }

    impl BatchSource for Rows {
        fn plan(&self, _order: Order) -> EpochPlan {
            unreachable!("nobody trains")
        }

        fn batches_per_epoch(&self) -> u64 {
            0
        }

        fn shapes(&self) -> Option<BTreeMap<Shape, usize>> {
            None
        }

        fn fingerprint(&self) -> String {
            String::new()
        }

        fn worker(self: Arc<Self>) -> Box<dyn BatchWorker> {
            unreachable!("nobody trains")
        }

        fn padding_with(&self, config: &LoaderConfig) -> Option<f64> {
            Some(self.buckets(config).padding_ratio())
        }
    }

    fn run(padding_ratio: f64) -> RunMetrics {
        let host = HostTimes {
            elapsed_ms: 1000.0,
            data_wait_ms: 4.0,
            enqueue_ms: 900.0,
            validate_ms: 42.0,
            save_ms: 1.0,
            ..HostTimes::default()
        };
        RunMetrics { padding_ratio, host, ..RunMetrics::default() }
    }

    #[test]
    fn little_and_nearly_all_have_a_digit_more() {
        let found = [0.004, 0.123, 0.998, 1.0].map(percent);
        assert_eq!(found, ["0.4 %", "12 %", "99.8 %", "100 %"]);
    }

    #[test]
    fn padding_that_a_setting_gives_back_is_computed_from_the_lengths() {
        // Rows of 4 tokens and of 12: multiples of 8 pad them to 8 and 16.
        let rows = Rows((0..4096).map(|row| if row % 2 == 0 { (4, 4) } else { (12, 12) }).collect());
        let loader = LoaderConfig { batch_tokens: 1024, bucket_multiple: 8, ..LoaderConfig::default() };
        let now = rows.buckets(&loader).padding_ratio();
        let then = rows.buckets(&LoaderConfig { bucket_multiple: 4, ..loader.clone() }).padding_ratio();
        assert!(now > 0.3 && then < 0.05, "{now} {then}");
        let rows: Arc<dyn BatchSource> = Arc::new(rows);

        let found = sentence(&run(now), Device::Cpu, &rows, &loader);
        let wanted = format!(
            "CPU computed steps for 90 % of the time, the loader cost 0.4 %, validation 4.2 %; padding {}, {} with \
             loader.bucket_multiple = 4",
            percent(now),
            percent(then)
        );
        assert_eq!(found, wanted);

        // With that setting nothing is left to say.
        let loader = LoaderConfig { bucket_multiple: 4, ..loader };
        let found = sentence(&run(then), Device::Gpu(Some(0.97)), &rows, &loader);
        assert!(found.starts_with("GPU busy 97 %, the loader cost 0.4 %") && !found.contains("bucket"), "{found}");
    }
}
