//! Checkpoints with right hashes and impossible content: refused by the code that checks what a user writes.

use serde_json::{Value, json};

use super::*;

/// Saves a checkpoint, sets `key` of `file` to `value`, and makes the manifest right again.
fn with(file: &str, key: &str, value: &Value) -> (tempfile::TempDir, PathBuf) {
    let (dir, checkpoints) = run();
    let path = checkpoints.save(&snapshot(10), false).expect("a writable folder");
    let mut content: Value = serde_json::from_slice(&fs::read(path.join(file)).expect("there")).expect("JSON");
    *content.pointer_mut(key).unwrap_or_else(|| panic!("{key} is in {file}")) = value.clone();
    let bytes = serde_json::to_vec_pretty(&content).expect("plain");
    fs::write(path.join(file), &bytes).expect("writable");

    let manifest = path.join(MANIFEST_FILE);
    let mut written: Manifest = serde_json::from_slice(&fs::read(&manifest).expect("there")).expect("a manifest");
    let entry = written.files.iter_mut().find(|entry| entry.name == file).expect("listed");
    (entry.bytes, entry.blake3) = (bytes.len() as u64, blake3::hash(&bytes).to_hex().to_string());
    written.digest = written.computed_digest();
    fs::write(&manifest, serde_json::to_vec(&written).expect("plain")).expect("writable");
    (dir, path)
}

#[test]
fn a_model_outside_its_limits_is_refused_with_its_key() {
    let sizes = ["d_model", "n_heads", "d_ff", "n_encoder_layers", "n_decoder_layers"];
    let none = sizes.map(|key| (key, json!(0)));
    let huge = sizes.map(|key| (key, json!(u32::MAX)));
    let others = [
        ("n_heads", json!(7)),
        ("max_positions", json!(0)),
        ("max_positions", json!(1u64 << 40)),
        ("dropout", json!(-1.0)),
    ];
    for (key, value) in none.into_iter().chain(huge).chain(others) {
        let (_dir, path) = with(MODEL_CONFIG_FILE, &format!("/{key}"), &value);
        for error in [read(&path).map(drop), read_weights(&path).map(drop)] {
            let error = error.expect_err(key).to_string();
            assert!(error.contains("config.json") && error.contains(key), "{key} = {value}: {error}");
        }
    }
    let (_dir, path) = with(MODEL_CONFIG_FILE, "/dropout", &json!(0.25));
    assert!(read(&path).expect("within the limits").model.dropout > 0.2);
}

#[test]
fn a_state_that_no_training_has_is_refused_with_its_key() {
    for (key, value) in [
        ("train_secs", json!(-1.0)),
        ("train_secs", json!(1e300)),
        ("step", json!(u64::MAX)),
        ("skipped_steps", json!(u64::MAX)),
        ("micro_steps", json!(u64::MAX)),
        ("position/epoch", json!(u64::MAX)),
        ("position/batch", json!(u64::MAX)),
        ("source_tokens", json!(u64::MAX)),
        ("target_tokens", json!(u64::MAX)),
        ("non_finite_steps", json!(u64::MAX)),
        ("best/step", json!(u64::MAX)),
        ("loss_scale/scale", json!(0.0)),
        ("loss_scale/scale", json!(-2.0)),
        ("format", json!(9)),
    ] {
        let (_dir, path) = with(STATE_FILE, &format!("/{key}"), &value);
        let error = read(&path).expect_err(key).to_string();
        let said = key.split('/').next().expect("a key");
        assert!(error.contains("trainer_state.json") && error.contains(said), "{key} = {value}: {error}");
    }
    let (_dir, path) = with(STATE_FILE, "/train_secs", &json!(86_400.0));
    assert!(read(&path).is_ok());
}

#[test]
fn a_configuration_outside_its_limits_is_refused_when_it_is_read() {
    use crate::config::Config;
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join(RUN_CONFIG_FILE);
    type Change = (&'static str, fn(&mut Config));
    let changes: [Change; 3] = [
        ("model.n_heads", |config| config.model.n_heads = 0),
        ("optim.lr", |config| config.optim.lr = -1.0),
        ("loader.batch_tokens", |config| config.loader.batch_tokens = 0),
    ];
    for (key, change) in changes {
        let mut config = Config::default();
        fs::write(&path, config.to_toml()).expect("writable");
        Config::read(&path).expect("sound");
        change(&mut config);
        fs::write(&path, config.to_toml()).expect("writable");
        let error = Config::read(&path).expect_err(key).to_string();
        assert!(error.contains("config.toml: ") && error.contains(key), "{error}");
    }
}
