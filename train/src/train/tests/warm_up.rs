//! Shapes that are run before the clock starts.

use super::super::preflight::warm_up;
use super::*;

#[test]
fn a_warm_up_runs_every_shape_and_changes_nothing() {
    let corpora = Corpora::new(300);
    let config = corpora.config();
    let (train, valid) = (corpora.source("train", &config.loader), corpora.source("valid", &config.loader));
    let provenance = Provenance::new(
        &config,
        train.as_ref(),
        None,
        &Vocabulary::Pairs(corpora.tokenizers.clone()),
        Some(corpora.dir.path()),
    )
    .expect("readable");
    let state = || TrainState::new(&config, &config.model, FloatDType::F32, &Device::flex()).expect("a state");
    let (mut fresh, mut warmed) = (state(), state());
    let before = warmed.snapshot(&provenance).expect("readable");
    let mut shown = Vec::new();
    let done = warm_up(&warmed, [Some(&train), Some(&valid)], [2, 1], std::time::Instant::now(), |done, of| {
        shown.push((done, of));
        Ok(())
    })
    .expect("a device that works");
    let distinct = |source: &Arc<dyn BatchSource>| {
        let plan = source.plan(kiln_data::Order::Sequential);
        let shapes: std::collections::HashSet<String> =
            (0..plan.len()).map(|index| plan.batch(index).1.to_string()).collect();
        shapes.len()
    };
    let shapes = distinct(&train) + distinct(&valid);
    assert!(distinct(&train) > 1, "more than one shape");
    assert_eq!(shown, (0..=shapes).map(|done| (done, shapes)).collect::<Vec<_>>());
    assert!(done.to_string().starts_with(&format!("warmed {shapes} shapes in ")), "{done}");

    assert_eq!(warmed.snapshot(&provenance).expect("readable"), before, "weights, moments and counters stay");
    // Random streams too: the next step drops the same elements.
    let step = |state: &mut TrainState| {
        let batch = upload(&host_batch(&toy_rows(6)), &state.device);
        train_step(state, &[batch]);
        state.snapshot(&provenance).expect("readable")
    };
    assert_eq!(step(&mut fresh), step(&mut warmed));
}
