//! Losses of the rows, each with a gradient of its own. Forward keeps nothing but its input: backward computes each chunk's logits
//! again, with the gradients of its losses, which are known by then.

use burn::tensor::{DType, Int, Tensor};

use super::Projection;
use crate::cross_entropy::cross_entropy_of_rows;
use crate::custom_gradient::{CustomGradients, has_custom_gradients, with_gradient};

/// Returns the negative log-likelihood of each row's label under `projection`'s logits of `x`, and 0 where the label is `ignored`.
/// Unlike [`linear_cross_entropy`](super::linear_cross_entropy), it serves losses that weigh rows differently. The logits of
/// `chunk_rows` rows exist at once; 0 means all, and so does a device without [custom gradients](crate::has_custom_gradients).
///
/// # Shapes
/// - `x`: `[M, D]`
/// - `labels`: `[M]`, each in `0..V` or `ignored`
/// - result: `[M]`, f32
///
/// # Panics
/// If shapes or dtypes do not fit, if `x` has no rows, or if the projection has a bias.
pub fn row_losses(
    x: Tensor<2>,
    projection: Projection,
    labels: Tensor<1, Int>,
    ignored: i64,
    chunk_rows: usize,
) -> Tensor<1> {
    let ([rows, _], [n_labels]) = (x.dims(), labels.dims());
    assert!(rows == n_labels && rows > 0, "{rows} rows of hidden states, but {n_labels} labels");
    let Projection { weight, transposed, bias, softcap } = projection;
    assert!(bias.is_none(), "losses of rows are for projections without a bias");
    let is_autodiff = x.is_autodiff();
    let plain = |tensor: &Tensor<2>| if is_autodiff { tensor.clone().inner() } else { tensor.clone() };

    if is_autodiff && !has_custom_gradients(&x.device()) {
        let projection = Projection { weight, transposed, bias, softcap };
        return cross_entropy_of_rows(projection.logits(x), labels, ignored);
    }

    let is_trained = is_autodiff && weight.is_tracked();
    let chunks = Chunks {
        x: plain(&x),
        weight: plain(&weight),
        transposed,
        softcap,
        labels: if labels.is_autodiff() { labels.inner() } else { labels },
        ignored,
        size: if chunk_rows == 0 { rows } else { chunk_rows },
    };
    let losses = Tensor::cat(chunks.at().map(|at| chunks.losses(at)).collect(), 0);
    if !is_autodiff {
        return losses;
    }

    let value = losses.reshape([1, rows]);
    let result = match is_trained {
        true => with_gradient(value, [x, weight], move |by| {
            let (d_x, d_weight) = chunks.gradients(&by, true);
            CustomGradients { inputs: [d_x, d_weight.expect("a trained weight")], leaves: Vec::new() }
        }),
        false => with_gradient(value, [x], move |by| CustomGradients {
            inputs: [chunks.gradients(&by, false).0],
            leaves: Vec::new(),
        }),
    };
    result.reshape([rows])
}

/// What both passes read, outside of the graph.
struct Chunks {
    x: Tensor<2>,
    weight: Tensor<2>,
    transposed: bool,
    softcap: Option<f64>,
    labels: Tensor<1, Int>,
    ignored: i64,
    /// Rows of a chunk.
    size: usize,
}

impl Chunks {
    /// Returns the first row and the number of rows of each chunk.
    fn at(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (rows, size) = (self.x.dims()[0], self.size);
        (0..rows).step_by(size).map(move |first| (first, size.min(rows - first)))
    }

    fn losses(&self, (first, len): (usize, usize)) -> Tensor<1> {
        self.losses_of(self.x.clone().narrow(0, first, len), self.weight.clone(), (first, len))
    }

    fn losses_of(&self, x: Tensor<2>, weight: Tensor<2>, (first, len): (usize, usize)) -> Tensor<1> {
        let projection = Projection { weight, transposed: self.transposed, bias: None, softcap: self.softcap };
        cross_entropy_of_rows(projection.logits(x), self.labels.clone().narrow(0, first, len), self.ignored)
    }

    /// Returns the gradients of `x` and of the weight, if it `is_trained`, for losses with the gradients `by`, `[1, M]`.
    fn gradients(&self, by: &Tensor<2>, is_trained: bool) -> (Tensor<2>, Option<Tensor<2>>) {
        let (mut d_x, mut d_weight): (Vec<Tensor<2>>, Option<Tensor<2>>) = (Vec::new(), None);
        for (first, len) in self.at() {
            let x = Tensor::from_inner(self.x.clone().narrow(0, first, len)).require_grad();
            let weight = Tensor::from_inner(self.weight.clone()).set_require_grad(is_trained);
            let losses = self.losses_of(x.clone(), weight.clone(), (first, len));
            let by = Tensor::from_inner(by.clone().narrow(1, first, len).reshape([len]).cast(DType::F32));

            let mut gradients = (losses * by).sum().backward();
            d_x.push(x.grad_remove(&mut gradients).expect("a gradient of the hidden states"));
            let of_chunk = weight.grad_remove(&mut gradients).map(|gradient| gradient.cast(DType::F32));
            d_weight = match (d_weight, of_chunk) {
                (Some(before), Some(more)) => Some(before + more),
                (before, more) => before.or(more),
            };
        }
        (Tensor::cat(d_x, 0), d_weight.map(|gradient| gradient.cast(self.x.dtype())))
    }
}
