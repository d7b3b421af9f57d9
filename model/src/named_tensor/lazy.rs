//! Parameters whose elements are read when they are needed, so that a model need not fit into memory to be converted.

use std::fmt;
use std::sync::Arc;

use half::{bf16, f16};

use super::NamedTensor;

/// A type of elements that an f32 holds without loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloatType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    Bf16,
}

/// Elements in their own type, last dimension fastest.
#[derive(Debug, Clone, PartialEq)]
pub enum Elements {
    /// As [`FloatType::F32`].
    F32(Vec<f32>),
    /// As [`FloatType::F16`].
    F16(Vec<f16>),
    /// As [`FloatType::Bf16`].
    Bf16(Vec<bf16>),
}

impl Elements {
    /// Rounds `values` to the nearest numbers of the type `of`.
    pub fn rounded(values: &[f32], of: FloatType) -> Self {
        match of {
            FloatType::F32 => Self::F32(values.to_vec()),
            FloatType::F16 => Self::F16(values.iter().copied().map(f16::from_f32).collect()),
            FloatType::Bf16 => Self::Bf16(values.iter().copied().map(bf16::from_f32).collect()),
        }
    }

    /// Their type.
    pub fn float_type(&self) -> FloatType {
        match self {
            Self::F32(_) => FloatType::F32,
            Self::F16(_) => FloatType::F16,
            Self::Bf16(_) => FloatType::Bf16,
        }
    }

    /// The same numbers as f32.
    pub fn into_f32(self) -> Vec<f32> {
        match self {
            Self::F32(values) => values,
            Self::F16(values) => values.into_iter().map(f16::to_f32).collect(),
            Self::Bf16(values) => values.into_iter().map(bf16::to_f32).collect(),
        }
    }
}

/// The bytes in memory, which are little-endian on every machine that Kiln runs on.
impl AsRef<[u8]> for Elements {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::F32(values) => bytemuck::cast_slice(values),
            Self::F16(values) => bytemuck::cast_slice(values),
            Self::Bf16(values) => bytemuck::cast_slice(values),
        }
    }
}

/// A parameter that is read when it is needed.
#[derive(Clone)]
pub struct LazyTensor<'a> {
    /// Path of the parameter; in an exported model, its Hugging Face name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Type of its elements.
    pub float_type: FloatType,
    read: Arc<dyn Fn() -> Elements + Send + Sync + 'a>,
}

impl fmt::Debug for LazyTensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {:?}", self.name, self.float_type, self.shape)
    }
}

impl<'a> LazyTensor<'a> {
    /// Makes a parameter whose elements `read` returns, in type and number as described.
    pub fn new(
        name: impl Into<String>,
        shape: Vec<usize>,
        float_type: FloatType,
        read: impl Fn() -> Elements + Send + Sync + 'a,
    ) -> Self {
        Self { name: name.into(), shape, float_type, read: Arc::new(read) }
    }

    /// A parameter in memory.
    pub fn borrowed(tensor: &'a NamedTensor) -> Self {
        let read = || Elements::F32(tensor.values.clone());
        Self::new(&tensor.name, tensor.shape.clone(), FloatType::F32, read)
    }

    /// Number of elements.
    pub fn n_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Reads the elements.
    pub fn elements(&self) -> Elements {
        let elements = (self.read)();
        debug_assert_eq!(elements.float_type(), self.float_type, "{}", self.name);
        elements
    }

    /// Reads the parameter as f32.
    pub fn read(&self) -> NamedTensor {
        NamedTensor { name: self.name.clone(), shape: self.shape.clone(), values: self.elements().into_f32() }
    }
}

impl From<NamedTensor> for LazyTensor<'_> {
    fn from(tensor: NamedTensor) -> Self {
        let NamedTensor { name, shape, values } = tensor;
        Self::new(name, shape, FloatType::F32, move || Elements::F32(values.clone()))
    }
}
