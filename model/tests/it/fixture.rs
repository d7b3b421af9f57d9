//! Reads numbers computed by PyTorch from `model/fixtures`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use crate::support::ByPath;

#[derive(Deserialize)]
pub(crate) struct Hyper {
    pub(crate) lr: f64,
    pub(crate) beta1: f64,
    pub(crate) beta2: f64,
    pub(crate) eps: f64,
    pub(crate) weight_decay: f64,
    pub(crate) max_grad_norm: f64,
    pub(crate) steps: usize,
}

/// The tensors of one file.
pub(crate) struct Fixture {
    pub(crate) floats: ByPath,
    pub(crate) ints: HashMap<String, Vec<i32>>,
}

impl Fixture {
    pub(crate) fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).expect("fixtures are committed");
        let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
        let (mut floats, mut ints) = (ByPath::new(), HashMap::new());
        for (key, view) in file.tensors() {
            let words = view.data().chunks_exact(4).map(|word| <[u8; 4]>::try_from(word).expect("four bytes"));
            match view.dtype() {
                Dtype::F32 => drop(floats.insert(key, words.map(f32::from_le_bytes).collect())),
                Dtype::I32 => drop(ints.insert(key, words.map(i32::from_le_bytes).collect())),
                other => panic!("{key} is {other:?}"),
            }
        }
        Self { floats, ints }
    }

    /// The tensors under `prefix`.
    pub(crate) fn group(&self, prefix: &str) -> ByPath {
        let inside = |(key, values): (&String, &Vec<f32>)| Some((key.strip_prefix(prefix)?.to_owned(), values.clone()));
        self.floats.iter().filter_map(inside).collect()
    }
}

pub(crate) fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

/// Leaves out key biases and compares all other elements. Softmax ignores a constant, so the gradients of key biases are
/// rounding errors, and AdamW scales them to full steps. After a step, key biases are noise on both sides and have no effect.
pub(crate) fn without_key_bias(path: &str, d: usize) -> impl Fn(&[f32]) -> Vec<f32> {
    let keys = match path {
        _ if path.ends_with("qkv.bias") => d..2 * d,
        _ if path.ends_with("key_value.bias") => 0..d,
        _ => 0..0,
    };
    move |values| values.iter().enumerate().filter(|(i, _)| !keys.contains(i)).map(|(_, &x)| x).collect()
}
