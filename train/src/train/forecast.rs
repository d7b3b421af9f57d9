//! Says once, after the first steps, how long the training will take.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kiln_data::BatchSource;
use kiln_metrics::units::{duration, thousands};
use kiln_model::TransformerConfig;
use kiln_model::flops::n_params;

use crate::config::Config;
use crate::config::task::traits_of;

/// Steps are observed for so long, or until the first line of metrics.
const OBSERVED: Duration = Duration::from_secs(2);
/// A shorter training is over before a forecast has been read.
const WORTH_SAYING: Duration = Duration::from_secs(10);
/// From here on a smaller preset is named.
const LONG: Duration = Duration::from_secs(3600);

/// The steps of this process so far.
pub(super) struct Forecast {
    started: Instant,
    padded_tokens: u64,
    is_over: bool,
    /// Mean padded tokens of a step; `None` if they are not known in advance.
    tokens_per_step: Option<f64>,
}

impl Forecast {
    /// Prepares to observe a training on `train`.
    pub(super) fn new(config: &Config, train: &Arc<dyn BatchSource>, n_ranks: usize) -> Self {
        let tokens_per_step = train.shapes().map(|shapes| {
            let batches: usize = shapes.values().sum();
            let tokens: usize = shapes.iter().map(|(shape, n)| shape.padded_tokens() * n).sum();
            (config.train.grad_accum_steps * n_ranks) as f64 * tokens as f64 / batches.max(1) as f64
        });
        Self { started: Instant::now(), padded_tokens: 0, is_over: false, tokens_per_step }
    }

    /// Starts the clock: the first step follows.
    pub(super) fn start(&mut self) {
        self.started = Instant::now();
    }

    /// Counts steps that the device has completed since the last call. Returns a sentence as soon as enough was seen to
    /// tell the time of the `left` steps, at the latest with the first line of metrics.
    pub(super) fn observe(
        &mut self,
        padded_tokens: u64,
        is_logged: bool,
        left: u64,
        config: &Config,
    ) -> Option<String> {
        self.padded_tokens += padded_tokens;
        if self.is_over {
            return None;
        }
        let elapsed = self.started.elapsed();
        if !is_logged && elapsed < OBSERVED {
            return None;
        }
        self.is_over = true;
        self.sentence(elapsed, left, config)
    }

    fn sentence(&self, elapsed: Duration, left: u64, config: &Config) -> Option<String> {
        let per_token = elapsed.as_secs_f64() / self.padded_tokens.max(1) as f64;
        let per_step = per_token * self.tokens_per_step?;
        let whole = Duration::try_from_secs_f64(per_step * left as f64).ok()?;
        if whole < WORTH_SAYING {
            return None;
        }

        let each =
            if per_step < 10.0 { format!("{per_step:.2}s") } else { duration(Duration::from_secs_f64(per_step)) };
        let mut text = format!("about {} for {} steps ({each} each)", duration(whole), thousands(left as f64));
        let limit = Duration::from_secs_f64(config.train.max_minutes * 60.0);
        if !limit.is_zero() && limit < whole {
            text += &format!("; train.max_minutes ends it after {}", duration(limit));
        } else if whole >= LONG
            && let Some(smaller) = smaller_preset(config)
        {
            text += &format!("; --preset {smaller} is smaller");
        }
        Some(text)
    }
}

/// Says how long a training on `train` will take if `padded_tokens` take `elapsed`.
pub(crate) fn time_ahead(
    config: &Config,
    train: &Arc<dyn BatchSource>,
    elapsed: Duration,
    padded_tokens: u64,
) -> Option<String> {
    let forecast = Forecast { padded_tokens, ..Forecast::new(config, train, 1) };
    forecast.sentence(elapsed, config.train.steps, config)
}

/// Returns the task's smallest preset for text of one's own, if it is smaller than the model.
fn smaller_preset(config: &Config) -> Option<String> {
    let (_, smallest) = traits_of(config.task).on_cpu.first()?;
    // The text may have set the number of positions.
    let size = |of: &Config| {
        let model = TransformerConfig { max_positions: config.model.max_positions, ..of.model.clone() };
        n_params(&model.with_vocab_size(1)).total()
    };
    (10 * size(&smallest.config()) < 9 * size(config)).then(|| smallest.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::presets;

    fn forecast(tokens_per_step: Option<f64>) -> Forecast {
        Forecast { started: Instant::now(), padded_tokens: 500, is_over: false, tokens_per_step }
    }

    #[test]
    fn the_time_is_that_of_mean_steps_and_long_trainings_name_a_smaller_preset() {
        let slow = forecast(Some(1000.0)).sentence(Duration::from_secs(20), 2000, &presets::gpt2_mini());
        assert_eq!(slow.as_deref(), Some("about 22h13m for 2,000 steps (40s each); --preset few-words is smaller"));
        let smallest = forecast(Some(1000.0)).sentence(Duration::from_secs(20), 2000, &presets::few_words());
        assert_eq!(smallest.as_deref(), Some("about 22h13m for 2,000 steps (40s each)"));
        let mut limited = presets::gpt2_mini();
        limited.train.max_minutes = 5.0;
        let limited = forecast(Some(500.0)).sentence(Duration::from_secs(1), 1000, &limited);
        assert_eq!(
            limited.as_deref(),
            Some("about 16m40s for 1,000 steps (1.00s each); train.max_minutes ends it after 5m00s")
        );
        assert_eq!(forecast(Some(500.0)).sentence(Duration::from_millis(1), 1000, &presets::numbers()), None);
        assert_eq!(forecast(None).sentence(Duration::from_secs(1), 1000, &presets::numbers()), None);
    }

    #[test]
    fn one_sentence_is_said_once() {
        let mut forecast = forecast(Some(1e9));
        let config = presets::numbers();
        assert_eq!(forecast.observe(1, false, 1000, &config), None, "too early");
        assert!(forecast.observe(1, true, 1000, &config).is_some());
        assert_eq!(forecast.observe(1, true, 1000, &config), None);
    }
}
