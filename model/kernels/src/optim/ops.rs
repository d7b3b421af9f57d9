//! The optimizer's operators as a backend extension. None of them has a gradient.

#[cfg(feature = "cuda")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, ExtensionType, TensorMetadata, backend_extension};
#[cfg(feature = "cuda")]
use burn::tensor::{DType, Shape};

#[cfg(feature = "cuda")]
use super::slots::step;
use super::{AdamWHyper, Rounding, StepPolicy};
use crate::calls::{self, Running, Work};

/// Tensors gathered by one launch. Each is an argument of the kernel, so their number is compiled into it.
pub(crate) const PARTS: usize = 16;

/// [`PARTS`] tensors of any shape; backend extensions take no lists.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "cuda"))]
pub(crate) struct Parts<B: Backend> {
    p0: FloatTensor<B>,
    p1: FloatTensor<B>,
    p2: FloatTensor<B>,
    p3: FloatTensor<B>,
    p4: FloatTensor<B>,
    p5: FloatTensor<B>,
    p6: FloatTensor<B>,
    p7: FloatTensor<B>,
    p8: FloatTensor<B>,
    p9: FloatTensor<B>,
    p10: FloatTensor<B>,
    p11: FloatTensor<B>,
    p12: FloatTensor<B>,
    p13: FloatTensor<B>,
    p14: FloatTensor<B>,
    p15: FloatTensor<B>,
}

impl<B: Backend> Parts<B> {
    /// Fills up with the last part. No segment names it twice.
    pub(crate) fn new(mut parts: Vec<FloatTensor<B>>) -> Self {
        let last = parts.last().expect("at least one part").clone();
        parts.resize(PARTS, last);
        let [p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15] =
            parts.try_into().unwrap_or_else(|_| panic!("more than {PARTS} parts"));
        Self { p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15 }
    }

    pub(crate) fn into_vec(self) -> Vec<FloatTensor<B>> {
        let Self { p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15 } = self;
        vec![p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15]
    }
}

/// Destination of one part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    /// First element of the flat tensor.
    pub(crate) offset: usize,
    /// Elements of the part.
    pub(crate) len: usize,
    /// Slot of the first chunk's sum of squares.
    pub(crate) first_chunk: usize,
}

/// [`AdamWHyper`] in the precision of the arithmetic.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Factors {
    pub(crate) beta1: f32,
    pub(crate) beta2: f32,
    /// `1 - beta1` and `1 - beta2`, subtracted in f64.
    pub(crate) rest1: f32,
    pub(crate) rest2: f32,
    pub(crate) eps: f32,
    pub(crate) n_decayed: usize,
}

impl From<AdamWHyper> for Factors {
    fn from(hyper: AdamWHyper) -> Self {
        let AdamWHyper { beta1, beta2, eps, n_decayed, .. } = hyper;
        Self {
            beta1: beta1 as f32,
            beta2: beta2 as f32,
            rest1: (1.0 - beta1) as f32,
            rest2: (1.0 - beta2) as f32,
            eps: eps as f32,
            n_decayed,
        }
    }
}

/// Records the gathering of `segments` in `values`.
pub(crate) fn record_gather(values: &impl TensorMetadata, segments: &[Segment], accumulate: bool) -> Option<Running> {
    calls::begin(|| {
        let len: usize = segments.iter().map(|segment| segment.len).sum();
        let passes = if accumulate { 3 } else { 2 };
        ("flat gradients", vec![len], Work::moved((passes * len * values.dtype().size()) as f64))
    })
}

/// Records an update: it reads the gradient and reads and writes master weights and moments. `weights` are written, if there are any.
pub(crate) fn record_update<T: TensorMetadata>(master: &T, gradient: &T, weights: Option<&T>) -> Option<Running> {
    calls::begin(|| {
        let moved = 6.0 * calls::bytes(master) + calls::bytes(gradient) + weights.map_or(0.0, calls::bytes);
        ("AdamW", calls::sizes(master), Work::moved(moved))
    })
}

#[cfg(feature = "cuda")]
fn gathered(
    _parts: &PartsMetadata,
    values: &TensorSpec,
    squares: &TensorSpec,
    _segments: &Vec<Segment>,
    _accumulate: &bool,
) -> (TensorSpec, TensorSpec) {
    (values.clone(), squares.clone())
}

#[backend_extension(Flex, Cube: cfg(feature = "cuda"), Fusion: cfg(feature = "cuda"))]
pub(crate) trait AdamWOps: Backend {
    /// Writes `parts` to their segments of `values` or adds them, in place where the backend can. Then writes each
    /// chunk's sum of squares to `squares`.
    #[fusion(meta = gathered)]
    fn flat_gather(
        #[extension_type] parts: Parts<Self>,
        values: FloatTensor<Self>,
        squares: FloatTensor<Self>,
        segments: Vec<Segment>,
        accumulate: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Returns the numbers of `flat` from `offset` on, in `shape`.
    #[fusion(dtype = flat, shape = Shape::from(shape.clone()))]
    fn flat_view(flat: FloatTensor<Self>, offset: usize, shape: Vec<usize>) -> FloatTensor<Self>;

    /// Returns `(numbers, progress)`, see [`super::prepare`]; updates `progress` in place where the backend can.
    #[fusion(meta = |_squares, _divisor, _loss, _coefficients, progress, _policy| {
        (TensorSpec::new(Shape::new([step::LEN]), DType::F32), progress.clone())
    })]
    fn adamw_prepare(
        squares: FloatTensor<Self>,
        divisor: FloatTensor<Self>,
        loss: FloatTensor<Self>,
        coefficients: FloatTensor<Self>,
        progress: FloatTensor<Self>,
        policy: StepPolicy,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Returns `(master, m, v)`.
    #[fusion(meta = |master, m, v, _gradient, _numbers, _factors| (master.clone(), m.clone(), v.clone()))]
    fn adamw(
        master: FloatTensor<Self>,
        m: FloatTensor<Self>,
        v: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        numbers: FloatTensor<Self>,
        factors: Factors,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// Returns `(master, m, v, weights)`.
    #[fusion(meta = |master, m, v, weights, _gradient, _numbers, _factors| {
        (master.clone(), m.clone(), v.clone(), weights.clone())
    })]
    #[allow(clippy::too_many_arguments, reason = "an operator takes its tensors one by one")]
    fn adamw_mixed(
        master: FloatTensor<Self>,
        m: FloatTensor<Self>,
        v: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        numbers: FloatTensor<Self>,
        factors: Factors,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// Returns `(master, m, v)`, see [`super::adamw_step_rounded`].
    #[fusion(meta = |master, m, v, _gradient, _numbers, _rule| (master.clone(), m.clone(), v.clone()))]
    fn adamw_rounded(
        master: FloatTensor<Self>,
        m: FloatTensor<Self>,
        v: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        numbers: FloatTensor<Self>,
        rule: (Factors, Rounding),
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}
