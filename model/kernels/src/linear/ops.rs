//! The products as a backend extension.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};
#[cfg(feature = "cuda")]
use burn::tensor::Shape;

/// Which operand is transposed: the three products of a linear layer's training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Layout {
    /// `a [M, K] · b [K, N]`: forward.
    NN,
    /// `a [M, K] · b [N, K]ᵀ`: gradient of the input, and forward through a tied embedding.
    NT,
    /// `a [K, M]ᵀ · b [K, N]`: gradient of the weight.
    TN,
}

impl Layout {
    /// M, N and K of a product of `a` and `b`.
    pub(crate) fn sizes(self, a: &[usize], b: &[usize]) -> (usize, usize, usize) {
        match self {
            Layout::NN => (a[0], b[1], a[1]),
            Layout::NT => (a[0], b[0], a[1]),
            Layout::TN => (a[1], b[1], a[0]),
        }
    }

    /// Panics with the shapes if the inner dimensions differ.
    pub(crate) fn check(self, a: &[usize], b: &[usize]) {
        let inner = match self {
            Layout::NN | Layout::TN => b[0],
            Layout::NT => b[1],
        };
        let (_, _, k) = self.sizes(a, b);
        assert_eq!(k, inner, "{self:?} product of {a:?} and {b:?}: inner dimensions differ");
    }

    #[cfg(feature = "cuda")]
    fn output(self, a: &Shape, b: &Shape) -> Shape {
        let (m, n, _) = self.sizes(&[a[0], a[1]], &[b[0], b[1]]);
        Shape::new([m, n])
    }
}

#[cfg(feature = "cuda")]
fn batched_output(a: &Shape, b: &Shape) -> Shape {
    Shape::new([a[0], a[1], b[2]])
}

#[backend_extension(Flex, Cube: cfg(feature = "cuda"), Fusion: cfg(feature = "cuda"), Autodiff)]
pub(crate) trait LinearOps: Backend {
    /// `[M, N]`, accumulated in f32, in the dtype of `a`.
    #[fusion(dtype = a, shape = layout.output(a, b))]
    fn product(a: FloatTensor<Self>, b: FloatTensor<Self>, layout: Layout) -> FloatTensor<Self>;

    /// `[G, M, K] · [G, K, N]`.
    #[fusion(dtype = a, shape = batched_output(a, b))]
    fn batched_product(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl LinearOps for burn::backend::Flex {
    fn product(a: FloatTensor<Self>, b: FloatTensor<Self>, layout: Layout) -> FloatTensor<Self> {
        use burn::backend::ops::FloatTensorOps;
        match layout {
            Layout::NN => Self::float_matmul(a, b),
            Layout::NT => Self::float_matmul(a, Self::float_swap_dims(b, 0, 1)),
            Layout::TN => Self::float_matmul(Self::float_swap_dims(a, 0, 1), b),
        }
    }

    fn batched_product(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self> {
        use burn::backend::ops::FloatTensorOps;
        Self::float_matmul(a, b)
    }
}
