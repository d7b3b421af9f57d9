//! Tensors as Hugging Face files hold them.

use half::{bf16, f16};

use crate::named_tensor::{Elements, FloatType, LazyTensor};

/// How a file stores the elements of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ElementType {
    /// IEEE double precision. It is rounded to single precision.
    F64,
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    Bf16,
    /// Any other type, by its name in the file. Only buffers that are skipped may have it.
    Other(String),
}

impl ElementType {
    /// Bytes per element, for supported types.
    fn size_bytes(&self) -> Option<usize> {
        match self {
            Self::F64 => Some(8),
            Self::F32 => Some(4),
            Self::F16 | Self::Bf16 => Some(2),
            Self::Other(_) => None,
        }
    }

    /// The type in which elements are read.
    pub(super) fn float_type(&self) -> FloatType {
        match self {
            Self::F16 => FloatType::F16,
            Self::Bf16 => FloatType::Bf16,
            Self::F64 | Self::F32 | Self::Other(_) => FloatType::F32,
        }
    }
}

/// A tensor of a Hugging Face file, with its bytes still in the mapped file.
#[derive(Debug, Clone, PartialEq)]
pub struct FileTensor<'a> {
    /// Name in the file.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Type of its elements.
    pub element_type: ElementType,
    /// Little-endian elements, last dimension fastest.
    pub bytes: &'a [u8],
}

impl<'a> FileTensor<'a> {
    /// Returns the tensor as a parameter that is read when it is needed. Then `after` is called each time, which may give memory of
    /// the mapped file back.
    pub fn lazy(self, after: impl Fn() + Send + Sync + 'a) -> LazyTensor<'a> {
        LazyTensor::new(self.name.clone(), self.shape.clone(), self.element_type.float_type(), move || {
            let elements = self.elements();
            after();
            elements
        })
    }

    /// Reports why the elements cannot be taken, if so.
    pub(super) fn problem(&self) -> Option<String> {
        let n: usize = self.shape.iter().product();
        match self.element_type.size_bytes() {
            None => Some(format!("{} is {}; supported: F64, F32, F16 and BF16", self.name, self.type_name())),
            Some(size) if self.bytes.len() != n * size => {
                Some(format!("{} has {} bytes, but its shape needs {}", self.name, self.bytes.len(), n * size))
            }
            Some(_) => self.not_finite(),
        }
    }

    /// Names the first element that is not finite in f32. A model with such a weight computes nothing.
    fn not_finite(&self) -> Option<String> {
        // Most tensors are sound. Blocks without an early exit are compared many elements at once.
        let may_be_wrong = match &self.element_type {
            ElementType::F16 => self.has_exponent(0x7c00),
            ElementType::Bf16 => self.has_exponent(0x7f80),
            _ => true,
        };
        if !may_be_wrong {
            return None;
        }

        let wrong = match &self.element_type {
            ElementType::F64 => self.doubles().find(|x| !(*x as f32).is_finite()),
            ElementType::F32 => self.singles().find(|x| !x.is_finite()).map(f64::from),
            ElementType::F16 => self.pairs().map(f16::from_le_bytes).find(|x| !x.is_finite()).map(f64::from),
            ElementType::Bf16 => self.pairs().map(bf16::from_le_bytes).find(|x| !x.is_finite()).map(f64::from),
            ElementType::Other(_) => None,
        }?;
        let name = &self.name;
        Some(if wrong.is_finite() {
            format!("{name} has the element {wrong:e}, which is beyond f32; Kiln computes with f32 at most")
        } else {
            format!(
                "{name} has the element {wrong}, so the model cannot compute; take weights from before training diverged"
            )
        })
    }

    /// Returns whether a 16-bit element has all bits of `exponent`, as infinite numbers and NaN have.
    fn has_exponent(&self, exponent: u16) -> bool {
        self.bytes.chunks(8192).any(|block| {
            let has = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]) & exponent == exponent;
            block.chunks_exact(2).fold(false, |found, b| found | has(b))
        })
    }

    fn doubles(&self) -> impl Iterator<Item = f64> {
        self.bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().expect("eight bytes")))
    }

    fn singles(&self) -> impl Iterator<Item = f32> {
        self.bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    fn pairs(&self) -> impl Iterator<Item = [u8; 2]> {
        self.bytes.chunks_exact(2).map(|b| [b[0], b[1]])
    }

    fn type_name(&self) -> &str {
        match &self.element_type {
            ElementType::Other(name) => name,
            _ => "a float",
        }
    }

    /// The elements in their own type; of F64, rounded to f32.
    ///
    /// # Panics
    /// If the elements are of another type.
    pub fn elements(&self) -> Elements {
        match &self.element_type {
            ElementType::F16 => Elements::F16(self.pairs().map(f16::from_le_bytes).collect()),
            ElementType::Bf16 => Elements::Bf16(self.pairs().map(bf16::from_le_bytes).collect()),
            _ => Elements::F32(self.values()),
        }
    }

    /// The elements as f32. The conversion is exact for all supported types but F64, which is rounded to nearest.
    ///
    /// # Panics
    /// If the elements are of another type.
    pub fn values(&self) -> Vec<f32> {
        match &self.element_type {
            ElementType::F64 => self.doubles().map(|x| x as f32).collect(),
            ElementType::F32 => self.singles().collect(),
            ElementType::F16 => self.pairs().map(|b| f16::from_le_bytes(b).to_f32()).collect(),
            ElementType::Bf16 => self.pairs().map(|b| bf16::from_le_bytes(b).to_f32()).collect(),
            ElementType::Other(name) => unreachable!("{name} was refused before"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(element_type: ElementType, bytes: &[u8]) -> FileTensor<'_> {
        FileTensor { name: "w".into(), shape: vec![2], element_type, bytes }
    }

    #[test]
    fn all_float_types_are_read() {
        let f32s: Vec<u8> = [1.5_f32, -0.1].iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(tensor(ElementType::F32, &f32s).values(), [1.5, -0.1]);
        let f64s: Vec<u8> = [1.5_f64, -0.1].iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(tensor(ElementType::F64, &f64s).values(), [1.5, -0.1]);
        // 1.5 and -2 in half precision and in bfloat16.
        assert_eq!(tensor(ElementType::F16, &[0x00, 0x3e, 0x00, 0xc0]).values(), [1.5, -2.0]);
        assert_eq!(tensor(ElementType::Bf16, &[0xc0, 0x3f, 0x00, 0xc0]).values(), [1.5, -2.0]);
    }

    #[test]
    fn other_types_and_wrong_sizes_are_named() {
        let problem = tensor(ElementType::Other("I64".into()), &[0; 16]).problem().expect("refused");
        assert_eq!(problem, "w is I64; supported: F64, F32, F16 and BF16");
        let problem = tensor(ElementType::F32, &[0; 7]).problem().expect("refused");
        assert_eq!(problem, "w has 7 bytes, but its shape needs 8");
        assert_eq!(tensor(ElementType::Bf16, &[0; 4]).problem(), None);
    }
}
