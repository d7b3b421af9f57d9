//! When a run ends early: after validations without an improvement.

use super::best::value;
use crate::checkpoint::Patience;
use crate::config::TrainConfig;
use crate::metrics::ValidationMetrics;

/// Returns how long the run has waited after the validation with these `metrics`. A validation without the metric does not count.
///
/// An improvement is a change by more than `train.min_improvement` since the last improvement, so that many small changes add up
/// to one.
pub(super) fn after(metrics: &ValidationMetrics, train: &TrainConfig, before: Option<&Patience>) -> Option<Patience> {
    if train.patience == 0 {
        return None;
    }
    let by = &train.best_metric;
    let before = before.filter(|before| before.metric == *by).cloned();
    let Some(now) = value(metrics, by) else { return before };
    let before = before.unwrap_or(Patience { metric: by.clone(), value: None, validations: 0 });

    let gained = |reference: f64| if by.falls() { reference - now } else { now - reference };
    let is_better = now.is_finite() && before.value.is_none_or(|reference| gained(reference) > train.min_improvement);
    Some(match is_better {
        true => Patience { value: Some(now), validations: 0, ..before },
        false => Patience { validations: before.validations + 1, ..before },
    })
}

/// Returns whether the run has waited long enough.
pub(super) fn is_exhausted(waited: Option<&Patience>, train: &TrainConfig) -> bool {
    train.patience > 0 && waited.is_some_and(|it| it.metric == train.best_metric && it.validations >= train.patience)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::BestMetric;

    fn waits(train: &TrainConfig, values: &[Option<f64>]) -> Vec<u64> {
        let mut waited: Option<Patience> = None;
        let waits = values.iter().map(|value| {
            let metrics = match train.best_metric {
                BestMetric::Loss => ValidationMetrics { loss: value.unwrap_or(f64::NAN), ..Default::default() },
                _ => ValidationMetrics { bleu: *value, ..Default::default() },
            };
            waited = after(&metrics, train, waited.as_ref());
            waited.as_ref().map_or(0, |waited| waited.validations)
        });
        waits.collect()
    }

    #[test]
    fn small_gains_add_up_and_nan_is_never_one() {
        let train = TrainConfig { patience: 3, min_improvement: 0.1, ..TrainConfig::default() };
        let losses = [3.0, 2.95, 2.92, 2.85, 2.80, 4.0, 2.7];
        assert_eq!(waits(&train, &losses.map(Some)), [0, 1, 2, 0, 1, 2, 0]);
        assert_eq!(waits(&train, &[None, None, Some(3.0), None]), [1, 2, 0, 1], "a loss that is not finite");
        assert_eq!(waits(&TrainConfig::default(), &losses.map(Some)), [0; 7], "patience 0 never waits");
    }

    #[test]
    fn scores_rise_and_validations_without_one_do_not_count() {
        let train = TrainConfig { patience: 2, best_metric: BestMetric::Bleu, ..TrainConfig::default() };
        assert_eq!(waits(&train, &[None, Some(5.0), None, Some(5.0), Some(6.0), Some(1.0)]), [0, 0, 0, 1, 0, 1]);
    }

    #[test]
    fn another_metric_starts_anew() {
        let loss = TrainConfig { patience: 2, ..TrainConfig::default() };
        let waited = Patience { metric: BestMetric::Loss, value: Some(1.0), validations: 5 };
        let waited = Some(&waited);
        assert!(is_exhausted(waited, &loss));
        let bleu = TrainConfig { best_metric: BestMetric::Bleu, ..loss.clone() };
        assert!(!is_exhausted(waited, &bleu));
        let metrics = ValidationMetrics { bleu: Some(3.0), loss: 2.0, ..Default::default() };
        let anew = Some(Patience { metric: BestMetric::Bleu, value: Some(3.0), validations: 0 });
        assert_eq!(after(&metrics, &bleu, waited), anew);
        assert!(!is_exhausted(waited, &TrainConfig { patience: 6, ..loss }), "more patience goes on");
    }
}
