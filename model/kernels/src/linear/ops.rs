//! Products with their epilogues, as a backend extension.

#[cfg(feature = "cuda")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata, backend_extension};
#[cfg(feature = "cuda")]
use burn::tensor::Shape;

use crate::activation::Activation;
use crate::calls::{self, Running, Work};
use crate::dropout::Mask;
#[cfg(feature = "cuda")]
use crate::dropout::MaskMetadata;
use crate::fp8::Fp8;
use crate::kernel_set::F32Products;
use crate::maybe::Maybe;
#[cfg(feature = "cuda")]
use crate::maybe::MaybeMetadata;
use crate::settings::Settings;

/// Which operand is transposed. Training a linear layer takes these three products.
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
    /// Returns M, N and K of a product of `a` and `b`.
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

    /// Returns the layout of `dy · weight`, the gradient of the input of a forward product in this layout.
    pub(crate) fn of_input_gradient(self) -> Self {
        match self {
            Layout::NN => Layout::NT,
            Layout::NT => Layout::NN,
            Layout::TN => unreachable!("only backward uses TN"),
        }
    }

    /// Returns the operands, in order, of the TN product that is the gradient of the weight.
    pub(crate) fn for_weight_gradient<T>(self, x: T, dy: T) -> (T, T) {
        match self {
            Layout::NN => (x, dy),
            Layout::NT => (dy, x),
            Layout::TN => unreachable!("only backward uses TN"),
        }
    }
}

/// What a product computes. Backward multiplies as forward did, whatever the settings are by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ProductKind {
    pub(crate) layout: Layout,
    /// How a GPU multiplies if the operands are f32.
    pub(crate) f32_products: F32Products,
    /// The formats of the operands of a product in FP8, where it fits, see [`Self::fp8`].
    pub(crate) formats: Option<[Fp8; 2]>,
    /// Whether a row has the same bits however many others there are, see [`Settings::independent_rows`].
    pub(crate) independent_rows: bool,
}

/// Fewest rows of tokens for FP8. Products of fewer rows wait for the weights.
const FP8_ROWS: usize = 16;
/// Widths of a product in FP8 are multiples of this: rows of eight bits begin at multiples of 16 bytes.
const FP8_WIDTH: usize = 16;

impl ProductKind {
    /// Returns a product as the calling thread's settings want it.
    pub(crate) fn new(layout: Layout) -> Self {
        let Settings { f32_products, fp8_products, independent_rows, .. } = Settings::current();
        Self { layout, f32_products, formats: fp8_products.then_some([Fp8::E4M3; 2]), independent_rows }
    }

    /// Returns the same product without FP8.
    pub(crate) fn without_fp8(self) -> Self {
        Self { formats: None, ..self }
    }

    /// Returns the formats of the operands of a product of M x N x K, if it is one in FP8: enough tokens, and widths of whole
    /// vectors. The tokens are M, or K in the gradient of a weight.
    pub(crate) fn fp8(self, (m, n, k): (usize, usize, usize)) -> Option<[Fp8; 2]> {
        let (tokens, widths) = match self.layout {
            Layout::NN | Layout::NT => (m, [n, k]),
            Layout::TN => (k, [m, n]),
        };
        let fits = tokens >= FP8_ROWS && widths.iter().all(|width| width.is_multiple_of(FP8_WIDTH));
        self.formats.filter(|_| fits)
    }

    /// Returns a product in another layout that multiplies like this one.
    pub(crate) fn with(self, layout: Layout) -> Self {
        Self { layout, ..self }
    }

    /// Returns the product that is the gradient of the input of this forward product.
    pub(crate) fn of_input_gradient(self) -> Self {
        let formats = self.formats.map(|_| [Fp8::E5M2, Fp8::E4M3]);
        Self { formats, ..self.with(self.layout.of_input_gradient()) }
    }

    /// Returns the product that is the gradient of the weight of this forward product, of [`Layout::for_weight_gradient`]'s operands.
    pub(crate) fn of_weight_gradient(self) -> Self {
        let [x, dy] = [Fp8::E4M3, Fp8::E5M2];
        let formats = self.formats.map(|_| <[Fp8; 2]>::from(self.layout.for_weight_gradient(x, dy)));
        Self { formats, ..self.with(Layout::TN) }
    }

    #[cfg(feature = "cuda")]
    fn output(self, a: &Shape, b: &Shape) -> Shape {
        let (m, n, _) = self.layout.sizes(&[a[0], a[1]], &[b[0], b[1]]);
        Shape::new([m, n])
    }
}

#[cfg(feature = "cuda")]
fn of_gradients(
    _dy: &TensorSpec,
    x: &TensorSpec,
    weight: &TensorSpec,
    _kind: &ProductKind,
) -> (TensorSpec, TensorSpec) {
    (x.clone(), weight.clone())
}

/// Records a product of `a` and `b`, whose result has the dtype of `a`. Its epilogue moves `more` bytes.
pub(crate) fn record_product(
    a: &impl TensorMetadata,
    b: &impl TensorMetadata,
    kind: ProductKind,
    more: f64,
) -> Option<Running> {
    let sizes = || kind.layout.sizes(&calls::sizes(a), &calls::sizes(b));
    record_sizes(a, b, kind, sizes, more)
}

/// Records a product, or a batch of them, of which `sizes` returns M, N and K.
pub(crate) fn record_sizes(
    a: &impl TensorMetadata,
    b: &impl TensorMetadata,
    kind: ProductKind,
    sizes: impl FnOnce() -> (usize, usize, usize),
    more: f64,
) -> Option<Running> {
    calls::begin(|| {
        let (m, n, k) = sizes();
        let written = (m * n * a.dtype().size()) as f64;
        let bytes = calls::bytes(a) + calls::bytes(b) + written + more;
        let operator = match kind.layout {
            Layout::NN => "linear NN",
            Layout::NT => "linear NT",
            Layout::TN => "linear TN",
        };
        (operator, vec![m, k, n], Work { flops: 2.0 * (m * k * n) as f64, bytes })
    })
}

#[cfg(feature = "cuda")]
fn batched_output(a: &Shape, b: &Shape, kind: &ProductKind) -> Shape {
    let (m, n, _) = kind.layout.sizes(&a[1..], &b[1..]);
    Shape::new([a[0], m, n])
}

#[cfg(feature = "cuda")]
fn of_linear(
    x: &TensorSpec,
    weight: &TensorSpec,
    _bias: &MaybeMetadata,
    kind: &ProductKind,
    _activation: &Option<Activation>,
    _mask: &MaskMetadata,
) -> TensorSpec {
    TensorSpec::new(kind.output(&x.shape, &weight.shape), x.dtype)
}

#[cfg(feature = "cuda")]
fn of_both(
    x: &TensorSpec,
    weight: &TensorSpec,
    bias: &MaybeMetadata,
    kind: &ProductKind,
    activation: &Activation,
    mask: &MaskMetadata,
) -> (TensorSpec, TensorSpec) {
    let spec = of_linear(x, weight, bias, kind, &Some(*activation), mask);
    (spec.clone(), spec)
}

#[cfg(feature = "cuda")]
fn of_residual(
    _x: &TensorSpec,
    _weight: &TensorSpec,
    _bias: &MaybeMetadata,
    residual: &TensorSpec,
    _kind: &ProductKind,
) -> TensorSpec {
    residual.clone()
}

#[cfg(feature = "cuda")]
fn activated(x: &TensorSpec, _activation: &Activation, _mask: &MaskMetadata) -> TensorSpec {
    x.clone()
}

#[cfg(feature = "cuda")]
fn with_columns(
    kept: &TensorSpec,
    dy: &TensorSpec,
    _activation: &Activation,
    _mask: &MaskMetadata,
) -> (TensorSpec, TensorSpec) {
    (kept.clone(), TensorSpec::new(Shape::new([dy.shape[1]]), dy.dtype))
}

#[backend_extension(Flex, Cube: cfg(feature = "cuda"), Fusion: cfg(feature = "cuda"), Autodiff)]
pub(crate) trait LinearOps: Backend {
    /// Returns `[M, N]` in the dtype of `a`, accumulated in f32.
    #[fusion(dtype = a, shape = kind.output(a, b))]
    fn product(a: FloatTensor<Self>, b: FloatTensor<Self>, kind: ProductKind) -> FloatTensor<Self>;

    /// Returns `sum + product` in the dtype of `sum` (`[M, N]`), in place if there is no other reference to `sum`.
    #[fusion(dtype = sum, shape = sum)]
    fn accumulate_product(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        sum: FloatTensor<Self>,
        kind: ProductKind,
    ) -> FloatTensor<Self>;

    /// Returns the gradients of both operands of a forward product of `kind`, given the gradient `dy` of its result.
    #[fusion(meta = of_gradients)]
    fn product_gradients(
        dy: FloatTensor<Self>,
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        kind: ProductKind,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Returns `drop(activation(product + bias))`. Without an activation nothing is dropped.
    #[fusion(meta = of_linear)]
    fn fused_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] bias: Maybe<Self>,
        kind: ProductKind,
        activation: Option<Activation>,
        #[extension_type] mask: Mask<Self>,
    ) -> FloatTensor<Self>;

    /// Returns `product + bias`, which backward needs, and `drop(activation(product + bias))`.
    #[fusion(meta = of_both)]
    fn fused_linear_both(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] bias: Maybe<Self>,
        kind: ProductKind,
        activation: Activation,
        #[extension_type] mask: Mask<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Returns [`Self::fused_linear`] given what it keeps for backward: its result or, with an activation, what
    /// [`Activation::keeps_result`] says. Nothing is multiplied.
    #[fusion(default)]
    fn known_linear(
        _x: FloatTensor<Self>,
        _weight: FloatTensor<Self>,
        #[extension_type] _bias: Maybe<Self>,
        known: FloatTensor<Self>,
        _kind: ProductKind,
        activation: Option<Activation>,
        #[extension_type] mask: Mask<Self>,
    ) -> FloatTensor<Self> {
        match activation {
            Some(activation) if !activation.keeps_result() => Self::activate(known, activation, mask),
            _ => known,
        }
    }

    /// Returns `residual + x · weight + bias`.
    #[fusion(meta = of_residual)]
    fn linear_residual(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] bias: Maybe<Self>,
        residual: FloatTensor<Self>,
        kind: ProductKind,
    ) -> FloatTensor<Self>;

    /// Returns `drop(activation(x))`.
    #[fusion(meta = activated)]
    fn activate(x: FloatTensor<Self>, activation: Activation, #[extension_type] mask: Mask<Self>) -> FloatTensor<Self>;

    /// Returns `(dx, sum of the rows of dx)`. `kept` is the activation's argument or result, see [`Activation::keeps_result`].
    #[fusion(meta = with_columns)]
    fn activate_backward(
        kept: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        activation: Activation,
        #[extension_type] mask: Mask<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Returns the sum of the rows of `x` (`[M, N]`), `[N]`, added in f32 and in a fixed order.
    #[fusion(dtype = x, shape = Shape::new([x[1]]))]
    fn column_sum(x: FloatTensor<Self>) -> FloatTensor<Self>;

    /// Returns a product of `kind` per leading index, `[G, M, N]`.
    #[fusion(dtype = a, shape = batched_output(a, b, kind))]
    fn batched_product(a: FloatTensor<Self>, b: FloatTensor<Self>, kind: ProductKind) -> FloatTensor<Self>;
}
