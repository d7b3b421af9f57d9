//! The best validation of a run.

use crate::checkpoint::{Best, Score};
use crate::config::BestMetric;
use crate::metrics::ValidationMetrics;

/// Returns the best validation after the one with these `metrics`, if that is the best so far. One without the score of
/// `by` does not compete, and a best one by another metric counts no longer.
pub(super) fn new_best(metrics: &ValidationMetrics, by: &BestMetric, best: Option<&Best>) -> Option<Best> {
    let measured = value(metrics, by)?;
    let value = (*by != BestMetric::Loss).then_some(measured);
    let score = value.map(|value| Score { metric: by.clone(), value });
    let new = Best { step: metrics.step, loss: metrics.loss, score };

    let is_finite = new.loss.is_finite() && value.is_none_or(f64::is_finite);
    let by_same = |best: &&Best| best.score.as_ref().map_or(&BestMetric::Loss, |score| &score.metric) == by;
    let is_best = best.filter(by_same).is_none_or(|best| new.beats(best));
    (is_finite && is_best).then_some(new)
}

/// Returns the metric of a validation, if it was measured.
pub(super) fn value(metrics: &ValidationMetrics, by: &BestMetric) -> Option<f64> {
    match by {
        BestMetric::Loss => Some(metrics.loss),
        BestMetric::Bleu => metrics.bleu,
        BestMetric::Chrf => metrics.chrf,
        BestMetric::ExactMatch => metrics.exact_match,
        BestMetric::Accuracy => metrics.accuracy,
        BestMetric::MacroF1 => metrics.macro_f1,
        BestMetric::MicroF1 => metrics.micro_f1,
        BestMetric::EntityF1 => metrics.entity_f1,
        BestMetric::MaskedAccuracy => metrics.masked_accuracy,
        BestMetric::RewardAccuracy => metrics.reward_accuracy,
        BestMetric::Figure { name, .. } => metrics.figures.get(name).copied(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn validation(step: u64, loss: f64, scores: Option<f64>) -> ValidationMetrics {
        let exact_match = scores.map(|value| value / 100.0);
        ValidationMetrics { step, loss, bleu: scores, chrf: scores, exact_match, ..ValidationMetrics::default() }
    }

    /// The steps that are the best so far, one after the other.
    fn steps(by: BestMetric, validations: &[(f64, Option<f64>)]) -> Vec<u64> {
        let mut best = None;
        let mut steps = Vec::new();
        for (step, (loss, scores)) in (1..).zip(validations) {
            if let Some(new) = new_best(&validation(step, *loss, *scores), &by, best.as_ref()) {
                best = Some(new);
                steps.push(step);
            }
        }
        steps
    }

    #[test]
    fn a_loss_falls_and_a_score_rises() {
        let validations = [(3.0, Some(10.0)), (2.0, Some(9.0)), (2.5, Some(20.0)), (2.0, None), (1.0, Some(15.0))];
        assert_eq!(steps(BestMetric::Loss, &validations), [1, 2, 5]);
        for by in [BestMetric::Bleu, BestMetric::Chrf, BestMetric::ExactMatch] {
            assert_eq!(steps(by.clone(), &validations), [1, 3], "{by:?}");
        }
    }

    #[test]
    fn classes_hidden_tokens_and_rewards_are_scores_too() {
        let some = |value| Some(value);
        let first = ValidationMetrics {
            step: 1,
            loss: 1.0,
            accuracy: some(0.5),
            macro_f1: some(0.5),
            micro_f1: some(0.5),
            entity_f1: some(0.5),
            masked_accuracy: some(0.5),
            reward_accuracy: some(0.5),
            ..ValidationMetrics::default()
        };

        for (by, second) in [
            (BestMetric::Accuracy, ValidationMetrics { accuracy: some(0.6), ..first.clone() }),
            (BestMetric::MacroF1, ValidationMetrics { macro_f1: some(0.6), ..first.clone() }),
            (BestMetric::MicroF1, ValidationMetrics { micro_f1: some(0.6), ..first.clone() }),
            (BestMetric::EntityF1, ValidationMetrics { entity_f1: some(0.6), ..first.clone() }),
            (BestMetric::MaskedAccuracy, ValidationMetrics { masked_accuracy: some(0.6), ..first.clone() }),
            (BestMetric::RewardAccuracy, ValidationMetrics { reward_accuracy: some(0.6), ..first.clone() }),
        ] {
            let best = new_best(&first, &by, None).expect("the first");
            let second = ValidationMetrics { step: 2, loss: 2.0, ..second };
            assert_eq!(new_best(&second, &by, Some(&best)).map(|best| best.step), Some(2), "{by:?}");
            let third = ValidationMetrics { step: 3, ..first.clone() };
            assert!(new_best(&third, &by, Some(&best)).is_none(), "{by:?}");
        }
    }

    #[test]
    fn the_lower_loss_wins_among_equal_scores_and_nan_never() {
        let validations = [(3.0, Some(50.0)), (3.0, Some(50.0)), (2.0, Some(50.0)), (f64::NAN, Some(99.0))];
        assert_eq!(steps(BestMetric::Bleu, &validations), [1, 3]);
        assert_eq!(steps(BestMetric::Loss, &[(f64::NAN, None), (2.0, None), (f64::NAN, None)]), [2]);
    }

    #[test]
    fn another_metric_starts_anew() {
        let by_loss = new_best(&validation(1, 0.1, None), &BestMetric::Loss, None);
        let second = validation(2, 3.0, Some(7.0));
        let by_bleu = new_best(&second, &BestMetric::Bleu, by_loss.as_ref()).expect("the first with a score");
        assert_eq!((by_bleu.step, by_bleu.loss), (2, 3.0));
        let third = new_best(&validation(3, 2.0, None), &BestMetric::Loss, Some(&by_bleu));
        assert_eq!(third.map(|best| best.step), Some(3));
    }

    #[test]
    fn a_figure_of_ones_own_rises_or_falls_as_the_run_says() {
        let figure = |is_highest| BestMetric::Figure { name: "own".into(), is_highest };
        let steps = |by: BestMetric| {
            let (mut best, mut steps) = (None, Vec::new());
            for (step, value) in (1..).zip([0.5, 0.7, 0.6, f64::NAN, 0.2]) {
                let figures = [("own".to_owned(), value), ("other".to_owned(), 9.0 - value)].into();
                let metrics = ValidationMetrics { step, loss: 1.0, figures, ..ValidationMetrics::default() };
                if let Some(new) = new_best(&metrics, &by, best.as_ref()) {
                    best = Some(new);
                    steps.push(step);
                }
            }
            steps
        };
        assert_eq!((steps(figure(true)), steps(figure(false))), (vec![1, 2], vec![1, 5]));
        assert!(steps(BestMetric::Figure { name: "none".into(), is_highest: true }).is_empty());
    }
}
