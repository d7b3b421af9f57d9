use std::fs;
use std::path::Path;

use kiln_data::Position;
use kiln_model::TransformerConfig;

use super::*;
use crate::config::MasterWeights;
use crate::metrics::SourceMetrics;

mod limits;
mod pointers;

fn tensor(name: &str, shape: &[usize], seed: f32) -> NamedTensor {
    let n: usize = shape.iter().product();
    // Values without an exact decimal representation.
    let values = (0..n).map(|i| (i as f32 + seed).sin() / 3.0).collect();
    NamedTensor { name: name.to_string(), shape: shape.to_vec(), values }
}

fn snapshot(step: u64) -> Snapshot {
    let named =
        |seed: f32| vec![tensor("decoder.norm.gamma", &[5], seed), tensor("encoder.weight", &[3, 4], seed + 9.0)];

    Snapshot {
        weights: named(step as f32),
        optimizer: vec![NamedState::new("m", named(0.5)), NamedState::new("v", named(0.25))],
        state: TrainerState {
            format: FORMAT,
            run: None,
            step,
            micro_steps: 2 * step,
            position: Position { epoch: 3, batch: 17 },
            epoch_batches: Some(40),
            data_fingerprint: "data".to_string(),
            validation_fingerprint: Some("validation".to_string()),
            tokenizer_fingerprint: "tokenizer".to_string(),
            source_tokens: 1 << 40,
            sources: SourceMetrics::default(),
            target_tokens: 12,
            train_secs: 1.5,
            skipped_steps: 1,
            loss_scale: Some(LossScale { scale: 0.1, good_steps: 7 }),
            non_finite_steps: 0,
            group_size: None,
            replicas: Vec::new(),
            best: Some(Best { step: 1, loss: 2.25, score: None }),
            patience: Some(Patience { metric: crate::config::BestMetric::Loss, value: Some(0.1), validations: 2 }),
            frozen: Vec::new(),
            master_weights: MasterWeights::F32,
        },
        model: TransformerConfig { source_vocab_size: 10, target_vocab_size: 10, ..TransformerConfig::tiny() },
        files: vec![
            StoredFile { name: "config.toml".to_string(), bytes: b"seed = 1\n".to_vec() },
            StoredFile { name: "tokenizer.json".to_string(), bytes: vec![0, 255, 3] },
        ],
        ema: None,
        replicas: None,
    }
}

fn run() -> (tempfile::TempDir, Checkpoints) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let checkpoints = Checkpoints::of_run(dir.path());
    (dir, checkpoints)
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .expect("the folder is there")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("plain names"))
        .collect();
    names.sort();
    names
}

#[test]
fn replicas_are_read_back_and_each_gets_its_own_moments() {
    let (_dir, checkpoints) = run();
    let mut saved = snapshot(20);
    let counters = |skipped_steps| ReplicaCounters { skipped_steps, loss_scale: None };
    saved.state.replicas = vec![counters(1), counters(2), counters(0)];
    let of = |seed: f32| {
        let tensors =
            |seed| [tensor("decoder.norm.gamma", &[5], seed), tensor("encoder.weight", &[3, 4], seed)].to_vec();
        vec![NamedState::new("m", tensors(seed)), NamedState::new("v", tensors(seed + 0.5))]
    };
    let momentum = of(7.0).remove(0).tensors;
    saved.replicas = Some(Replicas { momentum, other_states: vec![of(1.0), of(2.0)] });

    let path = checkpoints.save(&saved, false).expect("a writable folder");
    let found = read(&path).expect("a sound checkpoint");
    assert_eq!(found, saved);
    assert_eq!(read_weights(&path).expect("a sound checkpoint").files, saved.files, "moments are no stored files");
    for (rank, moments) in [(0, saved.optimizer), (1, of(1.0)), (2, of(2.0))] {
        let own = found.clone().as_replica(rank);
        assert_eq!(own.optimizer, moments, "device {rank}");
        assert_eq!(own.state.skipped_steps, found.state.replicas[rank].skipped_steps);
    }
}

#[test]
fn a_snapshot_is_read_back_bit_for_bit() {
    let (_dir, checkpoints) = run();
    let saved = snapshot(20);
    let path = checkpoints.save(&saved, true).expect("a writable folder");
    assert_eq!(read(&path).expect("a sound checkpoint"), saved);
    let weights = read_weights(&path).expect("a sound checkpoint");
    assert_eq!((weights.step, weights.weights, weights.model), (20, saved.weights, saved.model));
    assert_eq!(verify(&path).expect("a sound checkpoint").files.len(), 6);
    assert_eq!(names(checkpoints.dir()), ["best", "last", "step-00000020"], "nothing temporary is left");
}

#[test]
fn states_that_travel_arrive_bit_for_bit() {
    let states = snapshot(3).optimizer;
    let bytes = states_to_bytes(&states).expect("f32 tensors");
    assert_eq!(states_from_bytes(&bytes).expect("as sent"), states);
    assert!(states_from_bytes(&bytes[..bytes.len() / 2]).is_err());
}

#[test]
fn pointers_names_and_numbers_find_their_folder() {
    let (_dir, checkpoints) = run();
    for (step, is_best) in [(10, false), (20, true), (30, false)] {
        checkpoints.save(&snapshot(step), is_best).expect("a writable folder");
    }
    let step = |wanted: &str| read(&checkpoints.resolve(wanted).expect(wanted)).expect("sound").state.step;
    assert_eq!(["last", "best", "step-00000010", "30", "10"].map(step), [30, 20, 10, 30, 10]);
    for wanted in ["40", "newest", "../best", ""] {
        let error = checkpoints.resolve(wanted).expect_err(wanted).to_string();
        assert!(error.contains("step-00000010, step-00000020, step-00000030"), "{error}");
    }
    fs::remove_file(checkpoints.dir().join("last")).expect("the pointer is there");
    assert_eq!(step("last"), 30, "without a pointer the newest counts");
    let (_dir, empty) = run();
    assert!(empty.resolve("last").expect_err("nothing there").to_string().contains("train first"));
}

#[test]
fn any_flipped_bit_or_truncation_is_reported_and_the_previous_checkpoint_used() {
    let (_dir, checkpoints) = run();
    checkpoints.save(&snapshot(10), false).expect("a writable folder");
    let path = checkpoints.save(&snapshot(20), false).expect("a writable folder");
    for name in names(&path) {
        let file = path.join(&name);
        let good = fs::read(&file).expect("a file of the checkpoint");
        let check = |bad: Option<Vec<u8>>, what: &str| {
            match &bad {
                Some(bytes) => fs::write(&file, bytes).expect("writable"),
                None => fs::remove_file(&file).expect("removable"),
            }
            let error = read(&path).expect_err(what).to_string();
            assert!(error.contains(if bad.is_none() && name == MANIFEST_FILE { "manifest" } else { &name }), "{error}");
            assert!(verify(&path).is_err(), "{what}");
            let NewestSound { found, damaged } = checkpoints.newest_sound().expect("a readable folder");
            assert_eq!(found.expect("the older one is sound").1.state.step, 10);
            assert_eq!(damaged.len(), 1);
            fs::write(&file, &good).expect("writable");
        };

        for at in [0, good.len() / 3, good.len() - 2] {
            for bit in 0..8 {
                let mut flipped = good.clone();
                flipped[at] ^= 1 << bit;
                check(Some(flipped), &format!("{name} with bit {bit} of byte {at} flipped"));
            }
        }
        for len in [0, 1, good.len() / 2, good.len() - 1] {
            check(Some(good[..len].to_vec()), &format!("{name} cut to {len} bytes"));
        }

        let longer = [good.as_slice(), b"x"].concat();
        check(Some(longer), &format!("{name} with a byte more"));
        check(None, &format!("{name} deleted"));
    }
    assert_eq!(read(&path).expect("restored").state.step, 20);
}

#[test]
fn every_bit_of_the_manifest_counts() {
    let (_dir, checkpoints) = run();
    let path = checkpoints.save(&snapshot(20), false).expect("a writable folder");
    let file = path.join(MANIFEST_FILE);
    let good = fs::read(&file).expect("a manifest");
    let wanted = read(&path).expect("sound");
    for at in 0..good.len() {
        let mut flipped = good.clone();
        flipped[at] ^= 1 << (at % 8);
        fs::write(&file, &flipped).expect("writable");
        // Only a change of white space may go unnoticed.
        if let Ok(found) = read(&path) {
            assert!(good[at].is_ascii_whitespace() && found == wanted, "byte {at} changed unnoticed");
        }
    }
}

#[test]
fn the_last_checkpoints_and_the_best_one_are_kept() {
    let (_dir, checkpoints) = run();
    for step in 1..=6 {
        checkpoints.save(&snapshot(step), step == 2).expect("a writable folder");
        checkpoints.retain(2).expect("removable");
    }
    let steps: Vec<_> = checkpoints.list().expect("readable").into_iter().map(|(step, _)| step).collect();
    assert_eq!(steps, [2, 5, 6]);
    checkpoints.retain(0).expect("removable");
    let steps: Vec<_> = checkpoints.list().expect("readable").into_iter().map(|(step, _)| step).collect();
    assert_eq!(steps, [2, 6], "even 0 keeps the last sound one");
    assert_eq!(names(checkpoints.dir()), ["best", "last", "step-00000002", "step-00000006"]);
}

#[test]
fn other_formats_and_other_folders_are_reported() {
    let (dir, checkpoints) = run();
    let path = checkpoints.save(&snapshot(1), false).expect("a writable folder");
    let error = read(dir.path()).expect_err("a run folder is not a checkpoint").to_string();
    assert!(error.contains("no manifest.json"), "{error}");
    assert!(read(&dir.path().join("nowhere")).expect_err("nothing there").to_string().contains("cannot read"));
    let manifest = path.join(MANIFEST_FILE);
    let text = fs::read_to_string(&manifest).expect("text").replace("\"format\": 2", "\"format\": 7");
    fs::write(&manifest, text).expect("writable");
    let error = read(&path).expect_err("a later format").to_string();
    assert!(error.contains("format 7; this version reads format 1"), "{error}");
}

#[test]
fn a_manifest_cannot_reach_outside_its_folder() {
    let (dir, checkpoints) = run();
    let path = checkpoints.save(&snapshot(1), false).expect("a writable folder");
    fs::write(dir.path().join("secret"), b"seed = 1\n").expect("writable");
    let manifest = path.join(MANIFEST_FILE);
    let mut parsed: Manifest = serde_json::from_slice(&fs::read(&manifest).expect("text")).expect("JSON");
    let file = parsed.files.iter_mut().find(|file| file.name == "config.toml").expect("listed");
    file.name = "../../secret".to_string();
    parsed.digest = parsed.computed_digest();
    fs::write(&manifest, serde_json::to_vec(&parsed).expect("JSON")).expect("writable");
    assert!(read(&path).expect_err("a path outside").to_string().contains("not a plain file name"));
}

fn weights_only(step: u64) -> Weights {
    let Snapshot { weights, model, files, .. } = snapshot(step);
    Weights { step, weights, model, files }
}

#[test]
fn weights_that_are_no_numbers_are_not_used() {
    let (_dir, checkpoints) = run();
    let mut saved = weights_only(7);
    saved.weights[1].values[1] = f32::NAN;
    let path = checkpoints.save_weights(&saved).expect("a writable folder");
    let error = read_weights(&path).expect_err("nothing can be computed").to_string();
    assert!(error.contains(&saved.weights[1].name) && error.contains("the weight NaN"), "{error}");
}

#[test]
fn weights_alone_can_be_used_but_not_resumed() {
    let (_dir, checkpoints) = run();
    let saved = weights_only(7);
    let path = checkpoints.save_weights(&saved).expect("a writable folder");
    assert_eq!(read_weights(&path).expect("sound"), saved);
    assert_eq!(checkpoints.resolve("last").expect("there"), path);
    let error = read(&path).expect_err("nothing to resume").to_string();
    assert!(error.contains("holds weights only") && error.contains("--from"), "{error}");
}

#[test]
fn an_average_is_the_mean_of_every_element() {
    let (_dir, checkpoints) = run();
    let all: Vec<_> = [10, 20, 40].map(snapshot).into_iter().collect();
    let paths: Vec<_> = all.iter().map(|one| checkpoints.save(one, false).expect("writable")).collect();
    let averaged = average(&paths).expect("three of one model");
    assert_eq!((averaged.step, &averaged.model, &averaged.files), (40, &all[2].model, &all[2].files));
    for (i, tensor) in averaged.weights.iter().enumerate() {
        let of = |snapshot: &Snapshot, k: usize| {
            let theirs = snapshot.weights.iter().find(|theirs| theirs.name == tensor.name).expect("the same names");
            f64::from(theirs.values[k])
        };
        for (k, found) in tensor.values.iter().enumerate() {
            let wanted = (of(&all[0], k) + of(&all[1], k) + of(&all[2], k)) / 3.0;
            assert_eq!(*found, wanted as f32, "tensor {i}, element {k}");
        }
    }
    assert_eq!(average(&paths[..1]).expect("one").weights, read_weights(&paths[0]).expect("sound").weights);
}

#[test]
fn an_average_of_two_models_is_refused() {
    let (_dir, checkpoints) = run();
    let mut other = snapshot(2);
    other.weights[0].shape = vec![1, 5];
    let paths = [snapshot(1), other].map(|one| checkpoints.save(&one, false).expect("writable"));
    let error = average(&paths).expect_err("two models").to_string();
    assert!(error.contains("step-00000002 belongs to another model than step 1"), "{error}");
}

#[test]
fn a_kill_while_a_checkpoint_is_replaced_loses_neither() {
    let (_dir, checkpoints) = run();
    let saved = snapshot(20);
    let path = checkpoints.save(&saved, true).expect("a writable folder");
    let stale = checkpoints.dir().join("step-00000020.stale");
    // Between the two renames: the old checkpoint has lost its name, and the new one does not have it yet.
    fs::rename(&path, &stale).expect("renamed");
    fs::create_dir(checkpoints.dir().join("step-00000020.tmp")).expect("writable");
    checkpoints.clean().expect("removable");
    assert_eq!(read(&path).expect("it has its name again"), saved);
    assert_eq!(names(checkpoints.dir()), ["best", "last", "step-00000020"]);
    // During a deletion: half a checkpoint must go.
    fs::rename(&path, &stale).expect("renamed");
    fs::remove_file(stale.join(MODEL_FILE)).expect("there");
    checkpoints.clean().expect("removable");
    assert_eq!(names(checkpoints.dir()), ["best", "last"]);
}

#[test]
fn the_last_sound_checkpoint_is_kept_if_all_newer_ones_are_damaged() {
    let (_dir, checkpoints) = run();
    for step in [10, 20, 30] {
        checkpoints.save(&snapshot(step), false).expect("a writable folder");
    }
    for step in [20, 30] {
        let model = checkpoints.dir().join(folder_name(step)).join(MODEL_FILE);
        let mut bytes = fs::read(&model).expect("there");
        *bytes.last_mut().expect("not empty") ^= 1;
        fs::write(&model, bytes).expect("writable");
    }

    let error = checkpoints.retain(2).expect_err("both newer ones are damaged").to_string();
    assert!(error.contains("step-00000020") && error.contains("step-00000030"), "{error}");
    let NewestSound { found, damaged } = checkpoints.newest_sound().expect("readable");
    let (path, found) = found.expect("the oldest");
    assert_eq!((found.state.step, damaged.len()), (10, 2));
    // A run that resumes from it makes it the last one, and its best one the best.
    let best = checkpoints.dir().join(folder_name(1));
    assert_eq!(found.state.best.as_ref().map(|best| best.step), Some(1));
    checkpoints.point_to(&path, &found).expect("writable");
    assert_eq!(checkpoints.resolve("last").expect("there"), path);
    assert!(!best.exists() && checkpoints.resolve("best").is_err(), "the pointer skips a best checkpoint that is gone");

    checkpoints.save(&snapshot(11), false).expect("a writable folder");
    checkpoints.retain(1).expect("step 11 is sound");
    let steps: Vec<_> = checkpoints.list().expect("readable").into_iter().map(|(step, _)| step).collect();
    assert_eq!(steps, [11, 30], "the newest by number and the last by pointer");
}

#[test]
fn saves_run_in_the_background_one_after_another() {
    let (_dir, checkpoints) = run();
    let mut saver = Saver::new(checkpoints.clone(), 2);
    assert_eq!(saver.wait().expect("nothing to wait for"), None);
    for step in [10, 20, 30] {
        let before = saver.begin(step == 10, move || snapshot(step)).expect("a writable folder");
        assert_eq!(before.map(|saved| saved.path), (step > 10).then(|| checkpoints.dir().join(folder_name(step - 10))));
    }
    let last = saver.wait().expect("a writable folder").expect("the third");
    assert_eq!(read(&last.path).expect("sound"), snapshot(30));
    assert_eq!(names(checkpoints.dir()), ["best", "last", "step-00000010", "step-00000020", "step-00000030"]);
    saver.begin(false, || snapshot(40)).expect("a writable folder");
    drop(saver);
    assert_eq!(read(&checkpoints.resolve("last").expect("waited for")).expect("sound").state.step, 40);
}

#[test]
fn the_next_call_returns_the_error_of_a_failed_save() {
    let (dir, _) = run();
    fs::write(dir.path().join("checkpoints"), "a file in the way").expect("writable");
    let mut saver = Saver::new(Checkpoints::of_run(dir.path()), 2);
    saver.begin(false, || snapshot(10)).expect("it has only begun");
    let error = saver.begin(false, || snapshot(20)).expect_err("the first has failed").to_string();
    assert!(error.contains("no further without its checkpoint") && error.contains("--resume"), "{error}");
    saver.begin(false, || panic!("a broken invariant")).expect("it has only begun");
    let error = saver.wait().expect_err("it panicked").to_string();
    assert!(error.contains("a broken invariant"), "{error}");
    assert_eq!(saver.poll().expect("reported once"), None);
}

#[test]
fn the_newest_verified_checkpoint_is_named_instead_of_a_damaged_one() {
    let (_dir, checkpoints) = run();
    let older = checkpoints.save(&snapshot(10), true).expect("a writable folder");
    let newer = checkpoints.save(&snapshot(20), false).expect("a writable folder");
    assert_eq!(checkpoints.newest_verified().expect("readable"), Some(newer.clone()));

    fs::write(newer.join(MODEL_FILE), "damaged").expect("writable");
    assert_eq!(checkpoints.newest_verified().expect("readable"), Some(older.clone()));
    let text = checkpoints.instead_of(verify(&newer).expect_err("damaged")).to_string();
    let advice = "the newest sound checkpoint of this run is step-00000010: take that one";
    assert!(text.contains("model.safetensors is damaged: found 7 bytes") && text.ends_with(advice), "{text}");

    fs::remove_dir_all(older).expect("there");
    let text = checkpoints.instead_of(verify(&newer).expect_err("damaged")).to_string();
    assert!(text.ends_with("no checkpoint of this run is sound: restore a copy, or train again"), "{text}");
}
