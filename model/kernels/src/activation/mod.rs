//! Activations, applied element by element to the result of a product.

pub(crate) mod cpu;
#[cfg(feature = "cuda")]
pub(crate) mod gpu;

use burn::tensor::{DType, Tensor, activation};
#[cfg(all(test, feature = "cuda"))]
pub(crate) use gpu::tests::offline_kernels;

/// A function of each number of a matrix, after a product. The guide `docs/guides/add-an-activation.md` lists the files that a new
/// one changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `max(x, 0)`.
    Relu,
    /// `x * Phi(x)` with the exact normal distribution function (Hendrycks and Gimpel 2016), PyTorch's default GELU.
    Gelu,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`, the GELU of GPT-2.
    GeluTanh,
    /// `x * sigmoid(x)`, also called swish.
    Silu,
    /// `max(x, 0)^2` (So et al. 2021, "Primer").
    ReluSquared,
}

impl Activation {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Relu, Self::Gelu, Self::GeluTanh, Self::Silu, Self::ReluSquared];

    /// The name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Relu => "relu",
            Self::Gelu => "gelu",
            Self::GeluTanh => "gelu_tanh",
            Self::Silu => "silu",
            Self::ReluSquared => "relu_squared",
        }
    }

    /// The names in configurations of the Python package `transformers`. Kiln reads all of them and writes the first.
    pub fn names_in_transformers(self) -> &'static [&'static str] {
        match self {
            Self::Relu => &["relu"],
            Self::Gelu => &["gelu", "gelu_python"],
            Self::GeluTanh => &["gelu_new", "gelu_pytorch_tanh", "gelu_fast"],
            Self::Silu => &["silu", "swish"],
            Self::ReluSquared => &["relu2"],
        }
    }

    /// Whether backward reads the result, after dropout, instead of the argument. Then the argument need not be kept:
    /// where ReLU's result is positive, the argument was, and it was not dropped.
    pub fn keeps_result(self) -> bool {
        self == Activation::Relu
    }

    /// Computes the activation by Burn's operations, in the dtype of `x`: the reference of the kernels.
    ///
    /// # Shapes
    /// - `x`: `[M, N]`; result the same
    pub fn reference(self, x: Tensor<2>) -> Tensor<2> {
        match self {
            Self::Relu => activation::relu(x),
            Self::Gelu => activation::gelu(x),
            Self::GeluTanh => activation::gelu_approximate(x),
            Self::Silu => activation::silu(x),
            Self::ReluSquared => activation::relu(x).square(),
        }
    }

    /// [`Self::reference`] in f32 arithmetic, with the dtype of `x`.
    pub(crate) fn reference_in_f32(self, x: Tensor<2>) -> Tensor<2> {
        let dtype = x.dtype();
        self.reference(x.cast(DType::F32)).cast(dtype)
    }
}
