//! Activations, applied element by element to the result of a product.

pub(crate) mod cpu;
#[cfg(feature = "cuda")]
pub(crate) mod gpu;
pub(crate) mod reference;

#[cfg(all(test, feature = "cuda"))]
pub(crate) use gpu::tests::offline_kernels;

/// What follows a product, element by element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `max(x, 0)`.
    Relu,
    /// `x * Phi(x)` with the exact normal distribution function (Hendrycks and Gimpel 2016).
    Gelu,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`, the GELU of GPT-2.
    GeluTanh,
    /// `x * sigmoid(x)`.
    Silu,
}

impl Activation {
    /// Whether backward looks at the result, dropout included, instead of the argument. Then the argument need not be kept:
    /// where ReLU's result is positive, the argument was, and it was not dropped.
    pub(crate) fn keeps_result(self) -> bool {
        self == Activation::Relu
    }
}
