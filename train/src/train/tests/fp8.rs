//! Layers that multiply in FP8: what they learn, which of them do, checkpointing, resuming, and ranks.

use super::ranks::{run_on, snapshot};
use super::*;
use crate::config::{Fp8Layers, Precision};

fn config_of(layers: u64) -> Config {
    let mut config = toy_config(0.0);
    (config.model.n_encoder_layers, config.model.n_decoder_layers) = (layers as usize, layers as usize);
    config.train.precision = Precision::Fp8;
    config
}

/// Returns the losses and the weights of some steps.
fn trained(config: &Config, checkpointing: ActivationCheckpointing) -> (Vec<f32>, Vec<f32>) {
    let device = Device::flex();
    let batches = toy_rows(48).chunks(16).map(|rows| upload(&host_batch(rows), &device)).collect::<Vec<_>>();
    let state = TrainState::new(config, &config.model, FloatDType::F32, &device).expect("a state");
    let mut state = state.with_checkpointing(checkpointing).expect("Kiln's model has the choice");
    let losses = (0..30).map(|_| train_step(&mut state, &batches).loss_sum.into_scalar()).collect();
    (losses, weights(&state))
}

#[test]
fn fp8_follows_f32_and_inner_layers_alone_follow_it_closer() {
    let in_fp8 = config_of(3);
    let mut inner = in_fp8.clone();
    inner.train.fp8_layers = Fp8Layers::Inner;
    let mut in_f32 = in_fp8.clone();
    in_f32.train.precision = Precision::F32;
    let [all, inner, exact] = [in_fp8, inner, in_f32].map(|config| trained(&config, ActivationCheckpointing::Off).0);

    assert!(exact[29] < 0.7 * exact[0], "{exact:?}");
    let distance = |losses: &[f32]| -> f32 {
        losses.iter().zip(&exact).map(|(loss, exact)| (loss / exact - 1.0).abs()).sum::<f32>() / losses.len() as f32
    };
    assert!(distance(&all) < 0.05 && distance(&inner) < distance(&all), "{} and {}", distance(&all), distance(&inner));
    assert!(all[0] != exact[0] && inner[0] != exact[0] && inner[0] != all[0], "they multiply in other ways");
}

/// A stack of two layers has none between its ends.
#[test]
fn without_inner_layers_nothing_is_in_fp8() {
    let mut config = config_of(2);
    config.train.fp8_layers = Fp8Layers::Inner;
    let found = trained(&config, ActivationCheckpointing::Off);
    config.train.precision = Precision::F32;
    config.train.fp8_layers = Fp8Layers::All;
    assert!(found == trained(&config, ActivationCheckpointing::Off));
}

#[test]
fn activation_checkpointing_changes_no_bit_in_fp8() {
    for layers in [Fp8Layers::All, Fp8Layers::Inner] {
        let mut config = config_of(3);
        config.train.fp8_layers = layers;
        let all = trained(&config, ActivationCheckpointing::Off);
        assert!(trained(&config, ActivationCheckpointing::Selective) == all, "{layers:?}");
        assert!(trained(&config, ActivationCheckpointing::Layer) == all, "{layers:?}");
    }
}

#[test]
fn a_run_in_fp8_resumes_bit_for_bit_and_ranks_take_its_steps() {
    let corpora = Corpora::new(200);
    let mut config = corpora.config();
    config.train.precision = Precision::Fp8;
    config.train.grad_accum_steps = 2;
    let place = |name: &str| corpora.dir.path().join(name);
    let (_, records) = corpora.run(&config, &place("whole"), None, u64::MAX);

    corpora.run(&config, &place("resumed"), None, 3);
    let resume = corpora.find(&config, &place("resumed"), &[]).expect("the same run");
    corpora.run(&config, &place("resumed"), Some(resume), u64::MAX);
    assert_eq!(last_snapshot(&place("resumed")).1, last_snapshot(&place("whole")).1);

    let mut in_f32 = config.clone();
    in_f32.train.precision = Precision::F32;
    let (_, others) = corpora.run(&in_f32, &place("f32"), None, u64::MAX);
    assert_ne!(others, records, "the run is in FP8");

    config.train.grad_accum_steps = 1;
    for (_, found) in run_on(2, &corpora, &config, &place("ranks"), None) {
        assert_eq!(found, records, "losses, norms, tokens and scores");
    }
    assert_eq!(snapshot(&place("ranks")), snapshot(&place("whole")));
}
