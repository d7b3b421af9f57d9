//! Runs of earlier checkpoint formats can still be resumed, and end with the same bits. The runs are fixtures:
//! `tests/fixtures/run-format-1/README.md` describes them and explains how a later format adds its own.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::kiln::{Workplace, copy_folder};

/// Relative difference allowed on a machine whose last digits may differ from the machine that made the fixture.
const TOLERANCE: f64 = 1e-5;

/// Counts the changes of Kiln's own loops on the CPU that changed last digits. The first version has none in its fixtures.
const ARITHMETIC: u32 = 3;

/// Folder of the last checkpoint of every fixture.
const LAST: &str = "run/checkpoints/step-00000012";

/// The folders `run-format-N/TASK`, each with a run and its expected end.
fn fixtures() -> Vec<PathBuf> {
    let folders = |dir: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(dir).expect("there").map(|entry| entry.expect("readable").path());
        entries.filter(|path| path.is_dir()).collect()
    };

    let all = folders(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures"));
    let formats = all.iter().filter(|path| name_of(path).starts_with("run-format-"));
    let mut runs: Vec<_> = formats.flat_map(|format| folders(format)).collect();
    runs.sort();
    runs
}

fn name_of(path: &Path) -> String {
    path.file_name().expect("a name").to_string_lossy().into_owned()
}

/// Copies the run of `fixture` to another folder and resumes it.
fn resumed(fixture: &Path, prepare: impl FnOnce(&Workplace)) -> Workplace {
    let place = Workplace::new();
    copy_folder(fixture, &place.path("."));
    prepare(&place);
    let ran = place.run(&["train", "--device", "cpu", "--run", "run", "--resume"]).ok();
    assert!(ran.stderr.contains("resuming from run/checkpoints/step-00000006"), "{ran:#?}");
    place
}

/// Properties of this machine that determine the last digits of a computation: the CPU's vector instructions, and the
/// results of the system's mathematical functions.
fn machine() -> Value {
    let mut hash = blake3::Hasher::new();
    for i in 1..4000 {
        let x = i as f32 / 97.0;
        let values = [x.exp(), (-x).exp(), x.ln(), x.tanh(), x.sin(), x.cos(), x.powf(0.7), x.sqrt()];
        for value in values {
            hash.update(&value.to_le_bytes());
        }
        let x = f64::from(x);
        let values = [x.exp(), (-x).exp(), x.ln(), x.tanh(), x.sin(), x.cos(), x.powf(0.7), x.sqrt()];
        for value in values {
            hash.update(&value.to_le_bytes());
        }
    }
    json!({
        "architecture": std::env::consts::ARCH,
        "arithmetic": ARITHMETIC,
        "features": features(),
        "functions": hash.finalize().to_hex().as_str(),
    })
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<&'static str> {
    let found = [
        ("avx", is_x86_feature_detected!("avx")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
    ];
    found.into_iter().filter(|(_, found)| *found).map(|(name, _)| name).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn features() -> Vec<&'static str> {
    Vec::new()
}

fn json_at(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Whether this machine must compute the same bits as the machine that made the fixture. Prints both machines if not.
fn expects_the_same_bits(fixture: &Path) -> bool {
    let (path, here) = (fixture.join("expected/machine.json"), machine());
    assert!(path.exists(), "{} is missing; on the machine that made the fixture it is\n{here:#}", path.display());

    let there = json_at(&path);
    let same = there == here;
    if !same {
        println!("{}: made on {there}, this is {here}: compared to within {TOLERANCE}", fixture.display());
    }
    same
}

/// Tensors by name.
fn tensors(path: &Path) -> BTreeMap<String, Vec<f32>> {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let values = |data: &[u8]| data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    file.iter().map(|(name, view)| (name.to_owned(), values(view.data()))).collect()
}

/// Loss and gradient norm of every step.
fn losses(path: &Path) -> Vec<[f64; 3]> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let number = |line: &Value, key: &str| line[key].as_f64().expect("a number");
    let steps = lines.filter(|line| line["kind"] == "step");
    steps.map(|line| ["step", "loss", "grad_norm"].map(|key| number(&line, key))).collect()
}

fn assert_close(found: f64, wanted: f64, scale: f64, what: &str) {
    assert!((found - wanted).abs() <= TOLERANCE * scale, "{what}: {found} instead of {wanted}");
}

/// Compares weights and moments: hashes with the expected manifest, or numbers with a tolerance.
fn compare_tensors(fixture: &Path, place: &Workplace, same_bits: bool) {
    for file in ["model.safetensors", "optimizer.safetensors"] {
        let found = place.path(LAST).join(file);
        if same_bits {
            let entries = json_at(&fixture.join("expected/manifest.json"))["files"].clone();
            let entry = entries.as_array().expect("a list").iter().find(|entry| entry["name"] == file).cloned();
            let wanted = entry.expect("listed")["blake3"].clone();
            let hash = blake3::hash(&fs::read(&found).expect("written")).to_hex();
            assert_eq!(hash.as_str(), wanted, "{file} of {}", fixture.display());
            continue;
        }

        let (found, wanted) = (tensors(&found), tensors(&fixture.join("expected").join(file)));
        assert!(found.keys().eq(wanted.keys()), "{file} of {}", fixture.display());
        for (name, wanted) in wanted {
            // A bias of keys shifts all scores of a query equally, so its exact gradient is zero. The computed gradient is a
            // rounding error, which AdamW scales to a full step.
            if name.ends_with("qkv.bias") || name.ends_with("key_value.bias") {
                continue;
            }
            let scale = wanted.iter().fold(0f32, |largest, value| largest.max(value.abs()));
            for (found, wanted) in found[&name].iter().zip(&wanted) {
                assert_close(
                    (*found).into(),
                    (*wanted).into(),
                    scale.into(),
                    &format!("{name} of {}", fixture.display()),
                );
            }
        }
    }
}

#[test]
fn runs_of_every_format_are_resumed_to_the_same_bits() {
    let fixtures = fixtures();
    assert!(fixtures.len() >= 2, "{fixtures:?}");
    for fixture in fixtures {
        let place = resumed(&fixture, |_| {});
        let same_bits = expects_the_same_bits(&fixture);
        compare_tensors(&fixture, &place, same_bits);

        let mut state = json_at(&place.path(LAST).join("trainer_state.json"));
        let mut wanted = json_at(&fixture.join("expected/trainer_state.json"));
        for state in [&mut state, &mut wanted] {
            state["train_secs"].take();
            // A resumed run goes on in the format of this version.
            state["format"].take();
            for new in ["epoch_batches", "validation_fingerprint"] {
                state.as_object_mut().expect("an object").remove(new);
            }
            if !same_bits {
                state["best"]["loss"].take();
            }
        }
        assert_eq!(state, wanted, "{}", fixture.display());

        let (found, wanted) =
            (losses(&place.path("run/metrics.jsonl")), losses(&fixture.join("expected/metrics.jsonl")));
        assert_eq!(found.len(), wanted.len());
        for (found, wanted) in found.iter().zip(&wanted) {
            if same_bits {
                assert_eq!(found, wanted, "{}", fixture.display());
            }
            found.iter().zip(wanted).for_each(|(found, wanted)| assert_close(*found, *wanted, *wanted, "a step"));
        }
    }
}

/// A cache depends on the text only, not on the paths of text and cache.
#[test]
fn caches_of_every_format_are_used_elsewhere_and_can_be_built_again() {
    for fixture in fixtures() {
        let place = resumed(&fixture, |_| {});
        for cache in ["run/cache/train.tokens", "run/cache/valid.tokens"] {
            let [found, wanted] = [place.path(cache), fixture.join(cache)].map(|path| fs::read(path).expect("there"));
            assert!(found == wanted, "{cache} of {} was not used as it is", fixture.display());
        }

        let rebuilt = resumed(&fixture, |place| fs::remove_dir_all(place.path("run/cache")).expect("there"));
        let weights = |place: &Workplace| fs::read(place.path(LAST).join("model.safetensors")).expect("written");
        assert!(weights(&place) == weights(&rebuilt), "{}", fixture.display());
    }
}
