//! Parameters on the host.

mod lazy;

pub use lazy::{Elements, FloatType, LazyTensor};

/// A parameter of a model as plain numbers, without a device.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedTensor {
    /// Path of the parameter, such as `encoder.layers.0.self_attention.qkv.weight`. In an exported model: its Hugging Face
    /// name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its elements, last dimension fastest.
    pub values: Vec<f32>,
}

impl NamedTensor {
    /// Returns the first element that is NaN or infinite.
    pub fn not_finite(&self) -> Option<f32> {
        // A sum of zeros has no early exit, so that the compiler takes many elements at once.
        let is_broken = |values: &&[f32]| values.iter().fold(0.0, |sum, x| sum + x * 0.0) != 0.0_f32;
        let broken = self.values.chunks(4096).find(is_broken)?;
        broken.iter().copied().find(|x| !x.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_finite_is_found_wherever_it_is() {
        let mut tensor = NamedTensor { name: "w".into(), shape: vec![10_000], values: vec![-f32::MAX; 10_000] };
        assert_eq!(tensor.not_finite(), None);
        for at in [0, 1, 4095, 4096, 9_999] {
            tensor.values[at] = f32::NEG_INFINITY;
            assert_eq!(tensor.not_finite(), Some(f32::NEG_INFINITY));
            tensor.values[at] = f32::NAN;
            assert!(tensor.not_finite().expect("found").is_nan());
            tensor.values[at] = 0.0;
        }
    }
}
