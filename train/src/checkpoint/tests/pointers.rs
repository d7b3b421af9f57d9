//! `last`, `best` and `run`: damaged, missing, or naming something else.

use super::*;

/// A run with checkpoints of steps 10, 20 (the best one) and 30.
fn trained() -> (tempfile::TempDir, Checkpoints) {
    let (dir, checkpoints) = run();
    for step in [10, 20, 30] {
        let mut saved = snapshot(step);
        saved.state.run = Some("one".into());
        saved.state.best = Some(Best { step: step.min(20), loss: 2.0, score: None });
        checkpoints.save(&saved, step <= 20).expect("a writable folder");
    }
    (dir, checkpoints)
}

#[test]
fn every_flipped_bit_of_a_pointer_is_an_error_that_names_it() {
    let (_dir, checkpoints) = trained();
    for (name, pointer) in [("best", Pointer::Best), ("last", Pointer::Last)] {
        let path = checkpoints.dir().join(name);
        let whole = fs::read(&path).expect("there");
        for bit in 0..8 * whole.len() {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &flipped).expect("writable");
            for found in [checkpoints.agreed(pointer), checkpoints.resolve(name)] {
                let error = found.expect_err("damaged").to_string();
                assert!(error.contains(&format!("checkpoints/{name}: ")) && error.contains("--checkpoint"), "{error}");
            }
            if pointer == Pointer::Best {
                assert!(checkpoints.usual().is_err(), "bit {bit}: nobody gets the last one instead");
            }
        }
        for cut in 0..whole.len() - 1 {
            fs::write(&path, &whole[..cut]).expect("writable");
            assert!(checkpoints.resolve(name).is_err(), "{cut} bytes of {name}");
        }
        fs::write(&path, whole).expect("writable");
    }
    assert!(checkpoints.usual().expect("whole again").ends_with("step-00000020"));
}

#[test]
fn a_pointer_to_another_checkpoint_is_an_error_and_so_is_a_missing_best_one() {
    let (_dir, checkpoints) = trained();
    let best = checkpoints.dir().join("best");
    for (content, part) in [
        (Some("step-00000010\n"), "names step-00000010, but step-00000020 had the best validation"),
        (Some("step-00000030\n"), "names step-00000030, but step-00000020"),
        (Some("step-00000040\n"), "which does not exist"),
        (Some("../../other\n"), "not the name of a checkpoint"),
        (Some(""), "not the name of a checkpoint"),
        (None, "it is missing, but step-00000020 had the best validation"),
    ] {
        match content {
            Some(content) => fs::write(&best, content).expect("writable"),
            None => fs::remove_file(&best).expect("there"),
        }
        let error = checkpoints.usual().expect_err("another one").to_string();
        assert!(error.contains("checkpoints/best") && error.contains(part), "{part}: {error}");
    }

    fs::write(checkpoints.dir().join("last"), "step-00000020\n").expect("writable");
    let error = checkpoints.resolve("last").expect_err("older").to_string();
    assert!(error.contains("checkpoints/last") && error.contains("step-00000030 is newer"), "{error}");

    // Saving sets them right, and deletes nothing that it should not.
    fs::write(&best, "step-0000\n").expect("writable");
    let mut next = snapshot(40);
    next.state.best = Some(Best { step: 20, loss: 2.0, score: None });
    checkpoints.save(&next, false).expect("a writable folder");
    checkpoints.retain(1).expect("sound");
    assert_eq!(names(checkpoints.dir()), ["best", "last", "run", "step-00000020", "step-00000040"]);
    assert!(checkpoints.usual().expect("set again").ends_with("step-00000020"));
}

#[test]
fn a_run_without_validation_has_no_best_one_and_a_damaged_last_one_is_left_out() {
    let (_dir, checkpoints) = run();
    for step in [10, 20] {
        let mut saved = snapshot(step);
        saved.state.best = None;
        checkpoints.save(&saved, false).expect("a writable folder");
    }
    assert!(checkpoints.usual().expect("the last one").ends_with("step-00000020"));
    fs::write(checkpoints.dir().join("step-00000020/model.safetensors"), "damaged").expect("writable");
    let (path, older) = checkpoints.newest_sound().expect("readable").found.expect("the older one");
    checkpoints.point_to(&path, &older).expect("a writable folder");
    assert!(checkpoints.usual().expect("older, but sound").ends_with("step-00000010"));
}

#[test]
fn a_checkpoint_of_another_run_is_refused_by_every_way_to_it() {
    let (_dir, checkpoints) = trained();
    let (_other_dir, other) = run();
    let mut foreign = snapshot(30);
    foreign.state.run = Some("another".into());
    foreign.state.best = Some(Best { step: 20, loss: 2.0, score: None });
    let path = other.save(&foreign, false).expect("a writable folder");
    let put = checkpoints.dir().join("step-00000030");
    for file in names(&put) {
        fs::copy(path.join(&file), put.join(&file)).expect("writable");
    }

    for name in ["last", "30", "step-00000030"] {
        let error = checkpoints.resolve(name).expect_err("of another run").to_string();
        assert!(
            error.contains("step-00000030: it belongs to another run") && error.contains("checkpoints/run"),
            "{error}"
        );
    }

    let sound = checkpoints.newest_sound().expect("readable");
    assert!(sound.found.expect("its own").0.ends_with("step-00000020"));
    assert!(matches!(sound.damaged.as_slice(), [CheckpointError::OfAnotherRun { .. }]), "{:?}", sound.damaged);
    let weights = read_weights(&path).expect("sound");
    fs::remove_dir_all(&put).expect("ours");
    checkpoints.save_weights(&weights).expect("a writable folder");
    assert!(checkpoints.resolve("30").is_err(), "an averaged one is not of this run either");
}

#[test]
fn a_checkpoint_is_invisible_until_it_is_renamed() {
    let (_dir, checkpoints) = run();
    checkpoints.save(&snapshot(10), true).expect("a writable folder");
    let path = checkpoints.save(&snapshot(20), false).expect("a writable folder");
    // A kill just before the rename leaves all files under the temporary name, and the pointer where it was.
    fs::rename(&path, checkpoints.dir().join("step-00000020.tmp")).expect("renamed");
    fs::write(checkpoints.dir().join("last"), "step-00000010\n").expect("writable");
    assert_eq!(checkpoints.list().expect("readable").len(), 1);
    assert_eq!(read(&checkpoints.resolve("last").expect("the older one")).expect("sound").state.step, 10);
    assert_eq!(checkpoints.newest_sound().expect("readable").found.expect("the older one").1.state.step, 10);
    fs::write(checkpoints.dir().join("notes.tmp"), "mine").expect("writable");
    checkpoints.clean().expect("removable");
    assert_eq!(
        names(checkpoints.dir()),
        ["best", "last", "notes.tmp", "step-00000010"],
        "only our own leftovers are deleted"
    );
    // And the same step can be saved again.
    checkpoints.save(&snapshot(20), false).expect("a writable folder");
    checkpoints.save(&snapshot(20), true).expect("replaced");
    assert_eq!(read(&checkpoints.resolve("best").expect("there")).expect("sound").state.step, 20);
}
