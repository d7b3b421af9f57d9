//! Models are read, written and checked tensor by tensor: a command needs memory for the largest tensors, not for the model.

#![cfg(target_os = "linux")]

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use half::bf16;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Value, json};

use crate::kiln::{Workplace, copy_folder};

const N_LAYERS: usize = 13;
const WIDTH: usize = 512;
const INNER: usize = 2048;
/// A short command may end before its peak is read: the largest of several runs is the peak.
const SMALL: [&str; 4] = ["small-1", "small-2", "small-3", "small-4"];

/// Makes the folder of a Llama in bf16: the committed one if it is small, else one with as large a vocabulary and 55 M parameters.
/// Returns the bytes of its weights.
fn make_llama(place: &Workplace, name: &str, is_small: bool) -> u64 {
    let dir = place.path(name);
    copy_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("model/fixtures/hf/llama"), &dir);
    let (config, weights) = (dir.join("config.json"), dir.join("model.safetensors"));
    if !is_small {
        let text = fs::read_to_string(&config).expect("committed");
        let mut json: Value = serde_json::from_str(&text).expect("JSON");
        let sizes = [
            ("hidden_size", WIDTH),
            ("intermediate_size", INNER),
            ("num_hidden_layers", N_LAYERS),
            ("num_attention_heads", 8),
            ("num_key_value_heads", 8),
            ("head_dim", WIDTH / 8),
        ];
        sizes.into_iter().for_each(|(key, size)| json[key] = json!(size));
        json["tie_word_embeddings"] = json!(true);
        fs::write(&config, json.to_string()).expect("writable");

        let tensors = llama_tensors(json["vocab_size"].as_u64().expect("a size") as usize);
        let views = tensors.iter().map(|(name, shape, bytes)| {
            (name.as_str(), TensorView::new(Dtype::BF16, shape.clone(), bytes).expect("as long as its shape"))
        });
        fs::write(&weights, safetensors::serialize(views, None).expect("plain tensors")).expect("writable");
    }
    fs::metadata(&weights).expect("there").len()
}

/// Names, shapes and small numbers of all sizes.
fn llama_tensors(vocabulary: usize) -> Vec<(String, Vec<usize>, Vec<u8>)> {
    let mut shapes = vec![
        ("model.embed_tokens.weight".to_owned(), vec![vocabulary, WIDTH]),
        ("model.norm.weight".to_owned(), vec![WIDTH]),
    ];
    for layer in 0..N_LAYERS {
        let in_layer = [
            ("input_layernorm", vec![WIDTH]),
            ("post_attention_layernorm", vec![WIDTH]),
            ("self_attn.q_proj", vec![WIDTH, WIDTH]),
            ("self_attn.k_proj", vec![WIDTH, WIDTH]),
            ("self_attn.v_proj", vec![WIDTH, WIDTH]),
            ("self_attn.o_proj", vec![WIDTH, WIDTH]),
            ("mlp.gate_proj", vec![INNER, WIDTH]),
            ("mlp.up_proj", vec![INNER, WIDTH]),
            ("mlp.down_proj", vec![WIDTH, INNER]),
        ];
        shapes.extend(in_layer.map(|(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape)));
    }

    let mut state = 1_u32;
    let mut number = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bf16::from_f32((state >> 8) as f32 / (1 << 24) as f32 * 0.1 - 0.05)
    };
    let tensor = |(name, shape): (String, Vec<usize>)| {
        let bytes = (0..shape.iter().product()).flat_map(|_| number().to_le_bytes()).collect();
        (name, shape, bytes)
    };
    shapes.into_iter().map(tensor).collect()
}

/// Runs a command that succeeds. Returns the most memory that it had, in bytes.
#[track_caller]
fn peak(place: &Workplace, arguments: &[&str]) -> u64 {
    let mut command = place.command(arguments);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("the binary starts");
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    let ended = loop {
        // The kernel keeps the maximum, so that only the last moments can be missed.
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        peak = peak.max(kilobytes.unwrap_or(0) << 10);
        if let Some(ended) = child.try_wait().expect("a child") {
            break ended;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    assert!(ended.success(), "kiln {arguments:?}");
    assert!(peak > 0, "no measurement of kiln {arguments:?}");
    peak
}

#[test]
fn commands_need_memory_for_the_largest_tensors_and_not_for_the_model() {
    let place = Workplace::new();
    let bytes = make_llama(&place, "large", false);
    for name in SMALL {
        make_llama(&place, name, true);
    }
    assert!(bytes > 100 << 20, "{bytes}");

    let generate = ["generate", "runs/MODEL", "--device", "cpu", "--prompt", "a", "--max-new-tokens", "4"];
    // Besides what the command needs for a small model: the model in f32 where it is computed with, and less than the file elsewhere.
    for (arguments, limit) in [
        (&["import", "MODEL", "--out", "runs/MODEL"][..], bytes),
        (&["check", "runs/MODEL"], bytes),
        (&["export", "runs/MODEL", "out/MODEL", "--dtype", "bf16"], bytes),
        (&["export", "runs/MODEL", "out/MODEL-f32", "--dtype", "f32"], bytes),
        (&["export", "runs/MODEL", "out/MODEL.gguf", "--dtype", "f16"], bytes),
        (&generate, 2 * bytes + bytes / 2),
    ] {
        let of = |model: &str| {
            let arguments: Vec<_> = arguments.iter().map(|argument| argument.replace("MODEL", model)).collect();
            peak(&place, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
        };
        let small = SMALL.iter().map(|name| of(name)).max().expect("several");
        let large = of("large");
        let more = large.saturating_sub(small);
        println!("{arguments:?}: {} MB and {} MB more", small >> 20, more >> 20);
        assert!(more < limit, "{arguments:?} took {more} bytes more for a model of {bytes} bytes, and {small} without");
    }
}

/// What was published in 16 bits is stored and exported in 16 bits, unchanged.
#[test]
fn weights_of_16_bits_stay_so_on_the_disk() {
    let place = Workplace::new();
    let bytes = make_llama(&place, "large", false);
    place.run(&["import", "large", "--out", "runs/large"]).ok();
    let checkpoint = place.path("runs/large/checkpoints/step-00000000");
    let stored = fs::metadata(checkpoint.join("model.safetensors")).expect("imported").len();
    assert!(stored < bytes + bytes / 50, "{stored} bytes of {bytes}");
    let manifest: Value =
        serde_json::from_str(&fs::read_to_string(checkpoint.join("manifest.json")).expect("written")).expect("JSON");
    assert_eq!(manifest["format"], 2);
    place.run(&["check", "runs/large"]).ok();

    place.run(&["export", "runs/large", "again", "--dtype", "bf16"]).ok();
    let read = |name: &str| fs::read(place.path(name).join("model.safetensors")).expect("written");
    let (first, again) = (read("large"), read("again"));
    let [first, again] = [&first, &again].map(|bytes| SafeTensors::deserialize(bytes).expect("a safetensors file"));
    assert_eq!(first.len(), again.len());
    for (name, tensor) in first.tensors() {
        let found = again.tensor(&name).expect("exported");
        assert_eq!((found.dtype(), found.shape()), (Dtype::BF16, tensor.shape()), "{name}");
        assert!(found.data() == tensor.data(), "{name} has other numbers");
    }
}
