//! Normalization of features, and the residual sums around it.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use kiln_kernels::{Branch, DropoutStream};

use crate::config::{NormKind, NormPlacement, TransformerConfig};
use crate::init::Init;

/// Layer normalization (Ba et al. 2016), or, without `beta`, root mean square normalization (Zhang and Sennrich 2019).
#[derive(Module, Debug)]
pub struct Norm {
    /// Scale, `[D]` (of a head: `[K]`).
    pub gamma: Param<Tensor<1>>,
    /// Shift, `[D]`; layer normalization only.
    pub beta: Option<Param<Tensor<1>>>,
    eps: f64,
}

impl Norm {
    pub(crate) fn init(init: &Init) -> Self {
        let d = init.config.d_model;
        let beta = (init.config.norm_kind == NormKind::LayerNorm).then(|| init.constant(d, 0.0));
        Self { gamma: init.constant(d, 1.0), beta, eps: init.config.norm_eps }
    }

    /// A root mean square norm of `n` features.
    pub(crate) fn init_rms(init: &Init, n: usize) -> Self {
        Self { gamma: init.constant(n, 1.0), beta: None, eps: init.config.norm_eps }
    }

    /// Normalizes each row.
    ///
    /// # Shapes
    /// - `x`: `[M, D]`; result the same
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        kiln_kernels::add_norm(x, None, None, self.weights()).1
    }

    /// What is added to the variance or mean square.
    pub(crate) fn eps(&self) -> f64 {
        self.eps
    }

    fn weights(&self) -> kiln_kernels::NormWeights {
        let beta = self.beta.as_ref().map(Param::val);
        kiln_kernels::NormWeights { gamma: self.gamma.val(), beta, eps: self.eps }
    }
}

/// Applies `norm` to `x`, if there is one.
///
/// # Shapes
/// - `x`: `[M, D]`; result the same
pub(crate) fn normalized(norm: &Option<Norm>, x: Tensor<2>) -> Tensor<2> {
    match norm {
        Some(norm) => norm.forward(x),
        None => x,
    }
}

/// The norms of a residual branch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BranchNorms<'a> {
    /// Of the branch's input, or of the sum in post-norm models.
    pub(crate) norm: &'a Norm,
    /// Of the branch's result; sandwich norms only.
    pub(crate) result: &'a Option<Norm>,
}

impl BranchNorms<'_> {
    /// Normalizes the result of a branch, if the model does.
    fn of_result(&self, branch: Branch) -> Branch {
        let Some(norm) = self.result else { return branch };
        let Branch { x, weight, bias } = branch;
        let result = match (weight, bias) {
            (Some(weight), bias) => kiln_kernels::linear(x, weight, bias),
            (None, Some(bias)) => x + bias.unsqueeze(),
            (None, None) => x,
        };
        norm.forward(result).into()
    }
}

/// The residual stream between two sublayers. The last sublayer's result is still pending: the next norm adds it, so that
/// sum, dropout and norm take one pass over memory.
#[derive(Debug)]
pub(crate) struct ResidualStream {
    sum: Tensor<2>,
    /// The pending result, and the probability of its dropout.
    branch: Option<(Branch, f64)>,
    /// Whether the sum includes the branch already, so that it only has a gradient.
    is_added: bool,
}

/// The residual stream at a sublayer.
#[derive(Debug)]
pub(crate) struct Entered {
    /// The residual sum, `[M, D]`.
    pub(crate) sum: Tensor<2>,
    /// What the sublayer reads, `[M, D]`: the norm of the sum, or the sum itself in post-norm models.
    input: Tensor<2>,
}

impl ResidualStream {
    /// Starts the stream with `x`, `[M, D]`.
    pub(crate) fn new(x: Tensor<2>) -> Self {
        Self { sum: x, branch: None, is_added: false }
    }

    /// Starts the stream with a `sum` that was computed before, see [`kiln_kernels::add_norm_again`]. It includes a branch, if there is
    /// one, that a tensor stands for; with its bias, and the way it was added.
    pub(crate) fn again(sum: Tensor<2>, branch: Option<(Tensor<2>, Option<Tensor<1>>, Residual)>) -> Self {
        let branch = branch.map(|(x, bias, residual)| (Branch { x, weight: None, bias }, residual.dropout));
        Self { sum, branch, is_added: true }
    }

    /// M.
    pub(crate) fn n_rows(&self) -> usize {
        self.sum.dims()[0]
    }

    /// Returns the sum, and the branch that is to be added to it.
    pub(crate) fn into_parts(self) -> (Tensor<2>, Option<Branch>) {
        (self.sum, self.branch.map(|(branch, _)| branch))
    }

    /// Adds the pending branch. Returns the sum and its norm.
    fn normed(self, norm: &Norm, stream: Option<&DropoutStream>) -> (Tensor<2>, Tensor<2>) {
        let Self { sum, branch, is_added } = self;
        let (branch, p) = branch.unzip();
        let dropout = stream.zip(p).filter(|(_, p)| *p > 0.0).map(|(stream, p)| (p, stream));
        match branch {
            Some(Branch { x, bias, .. }) if is_added => {
                kiln_kernels::add_norm_again(sum, x, bias, dropout, norm.weights())
            }
            branch => kiln_kernels::add_norm(sum, branch, dropout, norm.weights()),
        }
    }

    /// Ends a stack: the norm of the sum, or the sum itself after post-norm layers, which leave no branch pending.
    pub(crate) fn end(self, norm: &Option<Norm>, stream: Option<&DropoutStream>) -> Tensor<2> {
        self.finish(norm, stream).1
    }

    /// Returns the sum, and [`Self::end`].
    pub(crate) fn finish(self, norm: &Option<Norm>, stream: Option<&DropoutStream>) -> (Tensor<2>, Tensor<2>) {
        match norm {
            Some(norm) => self.normed(norm, stream),
            None => {
                assert!(self.branch.is_none(), "a pre-norm stack ends in a norm");
                (self.sum.clone(), self.sum)
            }
        }
    }
}

/// How a layer adds its sublayers `F` to the residual stream `x`:
///
/// ```text
/// pre-norm    x <- x + Dropout(F(Norm(x)))
/// post-norm   x <- Norm(x + Dropout(F(x)))
/// sandwich    x <- x + Dropout(Norm'(F(Norm(x))))
/// ```
#[derive(Debug, Clone, Copy)]
pub(crate) struct Residual {
    placement: NormPlacement,
    dropout: f64,
}

impl Residual {
    pub(crate) fn new(config: &TransformerConfig) -> Self {
        Self { placement: config.norm, dropout: config.dropout }
    }

    /// Whether the last branch of a layer stays pending.
    pub(crate) fn leaves_branch(&self) -> bool {
        self.placement != NormPlacement::Post
    }

    /// The norm of a branch's result, if the model has it.
    pub(crate) fn result_norm(init: &Init) -> Option<Norm> {
        (init.config.norm == NormPlacement::Sandwich).then(|| Norm::init(init))
    }

    /// The norm at the end of a stack, if the model has it.
    pub(crate) fn final_norm(init: &Init) -> Option<Norm> {
        (init.config.norm != NormPlacement::Post).then(|| Norm::init(init))
    }

    /// Adds a sublayer: [`Self::enter`], the sublayer, [`Self::leave`].
    pub(crate) fn around(
        &self,
        norms: BranchNorms<'_>,
        x: ResidualStream,
        stream: Option<&DropoutStream>,
        sublayer: impl FnOnce(Tensor<2>) -> Branch,
    ) -> ResidualStream {
        self.leave(norms, self.enter(norms, x, stream), stream, sublayer)
    }

    /// Computes the input of the sublayer: `Norm(x)`, or `x` with post-norm. Adds the pending sublayer first.
    pub(crate) fn enter(&self, norms: BranchNorms<'_>, x: ResidualStream, stream: Option<&DropoutStream>) -> Entered {
        match self.placement {
            NormPlacement::Pre | NormPlacement::Sandwich => {
                let (sum, input) = x.normed(norms.norm, stream);
                Entered { sum, input }
            }
            NormPlacement::Post => Entered { input: x.sum.clone(), sum: x.sum },
        }
    }

    /// Computes `F` and its sum with `x`. With pre-norm the sum stays pending for the next norm, which computes both in one pass.
    pub(crate) fn leave(
        &self,
        norms: BranchNorms<'_>,
        Entered { sum, input }: Entered,
        stream: Option<&DropoutStream>,
        sublayer: impl FnOnce(Tensor<2>) -> Branch,
    ) -> ResidualStream {
        let pending =
            ResidualStream { sum, branch: Some((norms.of_result(sublayer(input)), self.dropout)), is_added: false };
        match self.placement {
            NormPlacement::Pre | NormPlacement::Sandwich => pending,
            NormPlacement::Post => ResidualStream::new(pending.normed(norms.norm, stream).1),
        }
    }
}

/// Applies dropout if there is a stream (training), and returns `x` without one (evaluation).
///
/// # Shapes
/// - `x`: `[M, N]`; result the same
pub(crate) fn dropout(x: Tensor<2>, p: f64, stream: Option<&DropoutStream>) -> Tensor<2> {
    match stream {
        Some(stream) if p > 0.0 => kiln_kernels::dropout(x, p, stream),
        _ => x,
    }
}
