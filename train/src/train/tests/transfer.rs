//! Rates of a smaller model: the matrices of layers take smaller steps, everything else the steps that it would have taken.

use super::optimizers::assert_exact;
use super::ranks::snapshot;
use super::*;

/// The config, with a rate that was found on a model of half the width.
fn of_half_the_width(mut config: Config) -> Config {
    config.optim.tuned_width = config.model.d_model / 2;
    config
}

#[test]
fn rates_of_a_smaller_model_are_exact_on_resume_and_over_ranks() {
    let corpora = Corpora::new(200);
    let last = assert_exact(&corpora, &of_half_the_width(corpora.config()));
    let named = |state: &str| last.optimizer_state(state).len();
    assert_eq!([named("m"), named("v")], [last.weights.len(); 2], "one optimizer, whatever its rates");
}

#[test]
fn only_matrices_of_layers_take_the_rate_of_the_width() {
    let corpora = Corpora::new(200);
    // Warm-up would begin with a small rate, and the first step from the same weights is compared.
    let config = |lr: f64, optimizer: OptimizerChoice| {
        let mut config = corpora.config();
        (config.optim.lr, config.optim.warmup_steps, config.train.steps) = (lr, 0, 1);
        (config.optim.weight_decay, config.optim.schedule) = (0.0, Schedule::Constant);
        (config.train.optimizer, config.train.validate_every) = (optimizer, 0);
        config
    };
    let weights = |name: &str, config: &Config| {
        let folder = corpora.dir.path().join(name);
        corpora.run(config, &folder, None, u64::MAX);
        snapshot(&folder).weights
    };
    for (optimizer, factor) in [(OptimizerChoice::Adamw, 0.5), (OptimizerChoice::Muon, 0.5f64.sqrt())] {
        let at = |what: &str| format!("{what}-{optimizer:?}");
        let start = weights(&at("start"), &config(1e-30, optimizer));
        let whole = weights(&at("whole"), &config(1e-2, optimizer));
        let scaled = weights(&at("scaled"), &of_half_the_width(config(1e-2, optimizer)));

        for ((start, whole), scaled) in start.iter().zip(&whole).zip(&scaled) {
            let name = &start.name;
            let moved = |to: &[f32]| -> f64 {
                let squares = to.iter().zip(&start.values).map(|(to, from)| f64::from(to - from).powi(2));
                squares.sum::<f64>().sqrt()
            };
            let (whole, found) = (moved(&whole.values), moved(&scaled.values));
            assert!(whole > 0.0, "{optimizer:?}: {name} was not trained");
            let is_matrix = start.shape.len() == 2 && name.contains("layers.") && name.ends_with(".weight");
            let wanted = if is_matrix { factor } else { 1.0 };
            assert!(
                (found / whole - wanted).abs() < 1e-3,
                "{optimizer:?}: {name} moved {} times as far",
                found / whole
            );
        }
    }
}
