//! GGUF files for llama.cpp: read again by a reader of this test, and by the packages `gguf` and `llama-cpp-python` where they are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use safetensors::tensor::SafeTensors;
use serde_json::Value;

use crate::kiln::{Workplace, copy_folder};

const PROMPT: &str = "a model";

fn model(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("model/fixtures/hf").join(name);
    path.to_str().expect("plain names").to_owned()
}

/// Reads little-endian numbers and texts.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (bytes, rest) = self.0.split_first_chunk().expect("more bytes");
        self.0 = rest;
        *bytes
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn text(&mut self) -> String {
        let len = self.u64() as usize;
        let (text, rest) = self.0.split_at(len);
        self.0 = rest;
        String::from_utf8(text.to_vec()).expect("UTF-8")
    }

    /// A value in words; of a list its length.
    fn value(&mut self) -> String {
        match self.u32() {
            4 => self.u32().to_string(),
            6 => f32::from_le_bytes(self.take()).to_string(),
            7 => (self.take::<1>()[0] == 1).to_string(),
            8 => self.text(),
            9 => {
                let (of, n) = (self.u32(), self.u64());
                for _ in 0..n {
                    match of {
                        8 => drop(self.text()),
                        5 | 6 => drop(self.u32()),
                        other => panic!("a list of type {other}"),
                    }
                }
                format!("{n} items")
            }
            other => panic!("a value of type {other}"),
        }
    }
}

/// Keys with their values, and tensors with their sizes, their type and their bytes.
type Content = (BTreeMap<String, String>, BTreeMap<String, (Vec<u64>, u32, Vec<u8>)>);

fn read(path: &Path) -> Content {
    let bytes = std::fs::read(path).expect("written");
    let mut reader = Reader(&bytes);
    assert_eq!((&reader.take::<4>(), reader.u32()), (b"GGUF", 3));
    let (n_tensors, n_keys) = (reader.u64(), reader.u64());
    let keys = (0..n_keys).map(|_| (reader.text(), reader.value())).collect();
    let infos: Vec<_> = (0..n_tensors)
        .map(|_| {
            let name = reader.text();
            let sizes: Vec<u64> = (0..reader.u32()).map(|_| reader.u64()).collect();
            (name, sizes, reader.u32(), reader.u64() as usize)
        })
        .collect();

    let start = (bytes.len() - reader.0.len()).next_multiple_of(32);
    let tensor = |(name, sizes, kind, offset): (String, Vec<u64>, u32, usize)| {
        assert!(offset.is_multiple_of(32), "{name} begins at {offset}");
        let n = sizes.iter().product::<u64>() as usize;
        let len = match kind {
            0 => 4 * n,
            1 | 30 => 2 * n,
            8 => n / 32 * 34,
            other => panic!("{name} has type {other}"),
        };
        (name, (sizes, kind, bytes[start + offset..start + offset + len].to_vec()))
    };
    (keys, infos.into_iter().map(tensor).collect())
}

fn export(place: &Workplace, name: &str, dtype: &str) -> PathBuf {
    let file = format!("out/{name}-{dtype}.gguf");
    place.run(&["export", &format!("runs/{name}"), &file, "--dtype", dtype]).ok();
    place.path(&file)
}

#[test]
fn files_hold_the_shape_the_vocabulary_and_the_weights() {
    let place = Workplace::new();
    for (name, architecture, words) in [
        ("llama", "llama", "default"),
        ("llama-3", "llama", "default"),
        ("qwen3", "qwen3", "gpt-2"),
        ("gpt2", "gpt2", "gpt-2"),
    ] {
        place.run(&["import", &model(name), "--out", &format!("runs/{name}")]).ok();
        let (keys, tensors) = read(&export(&place, name, "f32"));
        let key = |key: &str| keys.get(key).unwrap_or_else(|| panic!("{name} has no {key}: {keys:?}")).as_str();
        let own = |rest: &str| key(&format!("{architecture}.{rest}"));
        assert_eq!((key("general.architecture"), key("tokenizer.ggml.pre")), (architecture, words));
        assert_eq!((own("context_length"), own("embedding_length"), own("block_count")), ("24", "32", "2"));
        let rows = tensors["token_embd.weight"].0[1];
        assert_eq!(key("tokenizer.ggml.tokens"), format!("{rows} items"));

        // The file of `transformers` has the same numbers.
        let folder = std::fs::read(Path::new(&model(name)).join("model.safetensors")).expect("a model");
        let theirs = SafeTensors::deserialize(&folder).expect("a safetensors file");
        let up = if name == "gpt2" { "transformer.wte.weight" } else { "model.layers.1.mlp.up_proj.weight" };
        let found = &tensors[if name == "gpt2" { "token_embd.weight" } else { "blk.1.ffn_up.weight" }];
        assert!(found.2 == theirs.tensor(up).expect(up).data(), "{name}: {up}");
        assert_eq!(tensors.contains_key("rope_freqs.weight"), name == "llama-3");
        assert_eq!(tensors.contains_key("blk.0.attn_q_norm.weight"), name == "qwen3");

        // Rows of 32 in blocks of eight bits, vectors as they are.
        let (keys, small) = read(&export(&place, name, "q8_0"));
        assert_eq!(keys["general.file_type"], "7");
        assert_eq!((small["token_embd.weight"].1, small["output_norm.weight"].1), (8, 0), "{name}");
        assert_eq!(small["blk.0.ffn_down.weight"].1, 1, "rows of 48 are no blocks");
    }
}

/// Imports the fixture of Mistral with another window.
fn mistral_with_window(place: &Workplace, window: u64) -> String {
    let name = format!("mistral-{window}");
    let dir = place.path(&format!("models/{name}"));
    copy_folder(Path::new(&model("mistral")), &dir);
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(dir.join("config.json")).expect("there")).expect("JSON");
    config["sliding_window"] = window.into();
    std::fs::write(dir.join("config.json"), config.to_string()).expect("writable");
    place.run(&["import", dir.to_str().expect("plain names"), "--out", &format!("runs/{name}")]).ok();
    name
}

/// llama.cpp computes the same for texts up to the window, so longer ones are ruled out.
#[test]
fn a_sliding_window_that_llama_cpp_does_not_have_limits_the_context() {
    let place = Workplace::new();
    for (window, context, is_noted) in [(4, "4", true), (23, "23", true), (24, "24", false), (4096, "24", false)] {
        let name = mistral_with_window(&place, window);
        let file = format!("out/{name}.gguf");
        let ran = place.run(&["export", &format!("runs/{name}"), &file]).ok();
        let (keys, _) = read(&place.path(&file));
        assert_eq!(keys["general.architecture"], "llama");
        assert_eq!(keys["llama.context_length"], context, "window {window}");
        assert_eq!(keys["llama.attention.sliding_window"], window.to_string());
        let note = format!("texts up to {window} tokens");
        assert_eq!(ran.stderr.contains(&note), is_noted, "{ran:#?}");
    }
}

#[test]
fn what_llama_cpp_does_not_compute_is_refused() {
    let place = Workplace::new();
    for name in ["bert", "marian", "llama"] {
        place.run(&["import", &model(name), "--out", &format!("runs/{name}")]).ok();
    }
    let export =
        |name: &str, file: &str, more: &[&str]| place.run(&[&["export", &format!("runs/{name}"), file], more].concat());
    export("bert", "out/x.gguf", &[]).refused(2, &["for models that continue text"]);
    export("marian", "out/x.gguf", &[]).refused(2, &["for models that continue text"]);
    let text = place.write("text.txt", "one two three\n\nfour five six\n");
    let data = format!("data.train={}", text.display());
    let small = crate::kiln::SMALL.into_iter().flat_map(|set| ["--set", set]);
    let preset = ["train", "--preset", "gpt2-tiny", "--run", "runs/relu", "--device", "cpu", "--set", &data];
    let more = ["--set", "model.activation=relu", "--set", "train.steps=2", "--set", "optim.warmup_steps=1"];
    place.run(&preset.into_iter().chain(small).chain(more).collect::<Vec<_>>()).ok();
    export("relu", "out/x.gguf", &[]).refused(2, &["its GPT-2 has GELU, and this model relu (model.activation)"]);
    export("llama", "out/x", &["--dtype", "q8_0"]).refused(2, &["--dtype q8_0 is for GGUF files"]);
    export("llama", "out/x.gguf", &["--adapter"]).refused(2, &["the adapters are merged into the GGUF file"]);
    place.write("out/x.gguf", "mine");
    export("llama", "out/x.gguf", &[]).refused(2, &["out/x.gguf exists already"]);
    assert_eq!(place.read("out/x.gguf"), "mine");
    assert!(!place.path("out/x.gguf.tmp").exists());
}

#[test]
fn llama_cpp_continues_with_the_same_text() {
    let Some(python) = std::env::var_os("KILN_GGUF_PYTHON") else {
        eprintln!("skipped: KILN_GGUF_PYTHON is not set; name a Python that has gguf and llama-cpp-python");
        return;
    };
    let place = Workplace::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/gguf_check.py");
    let families = ["gpt2", "llama", "llama-3", "qwen2", "qwen3", "gemma2", "gemma3"];
    for name in families {
        place.run(&["import", &model(name), "--out", &format!("runs/{name}")]).ok();
    }
    // As long as the text.
    let mistral = mistral_with_window(&place, 14);

    for name in families.into_iter().chain([mistral.as_str()]) {
        let run = format!("runs/{name}");
        let generate = ["generate", &run, "--prompt", PROMPT, "--greedy", "--max-new-tokens", "8", "--device", "cpu"];
        let text = place.run(&generate).ok().stdout;
        let first = export(&place, name, "f32");
        for dtype in ["f16", "bf16", "q8_0"] {
            let other = export(&place, name, dtype);
            let mut command = Command::new(&python);
            command.arg(&script).args([&first, &other]).args([PROMPT, text.trim_end_matches('\n')]);
            let output = command.output().expect("the interpreter starts");
            let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success(), "{name} {dtype}: {stdout}\n{stderr}");
        }
    }
}
