//! Weights that an element type cannot hold, and weights with which nothing can be computed.

use std::fs;
use std::path::Path;

use safetensors::tensor::SafeTensors;

use crate::kiln::{Workplace, copy_folder};

const TENSOR: &str = "transformer.h.1.mlp.c_fc.weight";

/// A model folder whose weight number 7 of [`TENSOR`] is `value`.
fn with_weight(place: &Workplace, value: f32) -> String {
    let name = format!("model-{value}");
    let dir = place.path(&name);
    copy_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("model/fixtures/hf/gpt2"), &dir);
    let file = dir.join("model.safetensors");
    let mut bytes = fs::read(&file).expect("committed");
    let tensors = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let at = tensors.tensor(TENSOR).expect("in every GPT-2").data().as_ptr() as usize - bytes.as_ptr() as usize;
    bytes[at + 28..at + 32].copy_from_slice(&value.to_le_bytes());
    fs::write(&file, bytes).expect("writable");
    name
}

#[test]
fn an_export_refuses_what_its_type_cannot_hold() {
    let place = Workplace::new();
    // The factor of a block of q8_0 is the largest weight divided by 127, in f16.
    for (value, refused, taken) in [
        (70_000.0, &["f16"][..], &["f32", "bf16", "q8_0"][..]),
        (-9e6, &["f16", "q8_0"], &["f32", "bf16"]),
        (f32::MAX, &["f16", "bf16", "q8_0"], &["f32"]),
    ] {
        let folder = with_weight(&place, value);
        place.run(&["import", &folder]).ok();

        let run = format!("runs/{folder}");
        for (dtype, is_taken) in refused.iter().map(|x| (*x, false)).chain(taken.iter().map(|x| (*x, true))) {
            let targets = [format!("out/{folder}-{dtype}"), format!("out/{folder}-{dtype}.gguf")];
            for target in targets.iter().skip(usize::from(dtype == "q8_0")) {
                let exported = place.run(&["export", &run, target, "--dtype", dtype]);
                if is_taken {
                    exported.ok();
                    continue;
                }

                let error = exported.refused(2, &[]).stderr;
                assert!(error.contains(&format!("the weight {value}, which")), "{error}");
                assert!(error.contains("export with --dtype"), "{error}");
                assert!(
                    error.contains(if target.ends_with("gguf") { "blk.1.ffn_up.weight" } else { TENSOR }),
                    "{error}"
                );
                assert!(!place.path(target).exists(), "half an export is left");
            }
        }
    }
    let out = fs::read_dir(place.path("out")).expect("exports").flatten();
    assert!(
        out.into_iter().all(|entry| !entry.file_name().to_string_lossy().contains(".tmp")),
        "temporary files are left"
    );
}

#[test]
fn an_import_names_weights_that_are_no_numbers() {
    let place = Workplace::new();
    for (value, word) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        let folder = with_weight(&place, value);
        let error = place.run(&["import", &folder]).refused(3, &[]).stderr;
        assert!(error.contains("h.1.mlp.c_fc.weight has the element") && error.contains(word), "{error}");
        assert!(!place.path(&format!("runs/{folder}")).exists());
    }
}
