//! Parameters on the host.

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
