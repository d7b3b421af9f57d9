//! Muon in the loop: whole matrices on each rank, AdamW beside it, and learning.

use super::optimizers::{assert_exact, sections_of_ranks};
use super::ranks::{run_on, snapshot};
use super::*;

fn with_muon(mut config: Config) -> Config {
    config.train.optimizer = OptimizerChoice::Muon;
    config
}

#[test]
fn muon_is_exact_on_resume_and_over_ranks() {
    let corpora = Corpora::new(200);
    let config = with_muon(corpora.config());
    let last = assert_exact(&corpora, &config);

    // Matrices of layers have a momentum, everything else both moments.
    let is_matrix = |name: &str| name.contains("layers.") && name.ends_with(".weight");
    let names = |state: &str| last.optimizer_state(state).iter().map(|tensor| tensor.name.clone()).collect::<Vec<_>>();
    assert!(names("momentum").len() == 11 && names("momentum").iter().all(|name| is_matrix(name)));
    assert!(names("m") == names("v") && names("m").iter().all(|name| !is_matrix(name)));
    assert_eq!(names("momentum").len() + names("m").len(), last.weights.len());

    // The slices of four ranks hold whole matrices, and several of one shape.
    let sections = sections_of_ranks(&config, &Groups::of(&config, FloatDType::F32));
    let of_muon: Vec<_> = sections.iter().flatten().filter(|section| section.group == 0).collect();
    assert!(of_muon.len() >= 2, "{sections:?}");
    assert_eq!(of_muon.iter().map(|section| section.matrices.len()).sum::<usize>(), 11);
}

#[test]
fn replicas_with_muon_that_were_stopped_end_the_same() {
    let corpora = Corpora::new(200);
    let mut config = with_muon(corpora.config());
    config.train.sync_every = 5;
    let (whole, parts) = (corpora.dir.path().join("whole"), corpora.dir.path().join("parts"));
    run_on(2, &corpora, &config, &whole, None);
    run_on(2, &corpora, &config, &parts, Some((1, 6)));
    run_on(2, &corpora, &config, &parts, None);
    let wanted = snapshot(&whole);
    assert_ne!(wanted.replicas.as_ref().expect("replicas").other_states[0], wanted.optimizer);
    assert_eq!(snapshot(&parts), wanted);
}

#[test]
fn muon_learns_in_every_precision() {
    let rows = toy_rows(32);
    for dtype in [FloatDType::F32, FloatDType::BF16, FloatDType::F16] {
        let config = with_muon(toy_config(0.0));
        let mut state = TrainState::new(&config, &config.model, dtype, &Device::flex()).expect("a state");
        let batch = [upload(&host_batch(&rows), &Device::flex())];
        let mut losses = Vec::new();
        for _ in 0..30 {
            losses.push(
                train_step(&mut state, &batch)
                    .loss_sum
                    .into_data()
                    .convert::<f32>()
                    .try_into_vec::<f32>()
                    .expect("f32")[0],
            );
        }
        assert!(losses[29] < 0.5 * losses[0], "{dtype:?}: {losses:?}");
    }
}
