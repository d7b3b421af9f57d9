//! The loss of bounded logits, chunk by chunk. A chunk's gradients are computed right after its losses, as in the fused operator,
//! but by the graph of the operators.

use burn::tensor::{DType, Int, Tensor};

use super::Projection;
use super::ops::gradient_scale;
use crate::cross_entropy::{CrossEntropy, CrossEntropyConfig, cross_entropy};
use crate::custom_gradient::{CustomGradients, with_gradient};

/// See [`super::linear_cross_entropy`]; there must be no bias.
pub(super) fn linear_cross_entropy(
    x: Tensor<2>,
    projection: Projection,
    labels: Tensor<1, Int>,
    config: &CrossEntropyConfig,
    chunk_rows: usize,
) -> CrossEntropy {
    let ([rows, _], [n_labels]) = (x.dims(), labels.dims());
    assert!(rows == n_labels && rows > 0, "{rows} rows of hidden states, but {n_labels} labels");
    let chunks = (0..rows).step_by(chunk_rows).map(|first| (first, chunk_rows.min(rows - first)));
    let labels = |first: usize, len: usize| labels.clone().narrow(0, first, len);
    if !x.is_autodiff() {
        let losses = chunks.map(|(first, len)| {
            let logits = projection.logits(x.clone().narrow(0, first, len));
            cross_entropy(logits, labels(first, len), config)
        });
        return losses.reduce(sum).expect("at least one row");
    }

    let Projection { weight, transposed, bias, softcap } = projection;
    assert!(bias.is_none(), "bounded logits have no bias");
    let (plain, weights, is_trained) = (x.clone().inner(), weight.clone().inner(), weight.is_tracked());
    let (dtype, scale) = (x.dtype(), f64::from(gradient_scale(x.dtype())));
    let (mut losses, mut d_x, mut d_weight): (Option<CrossEntropy>, Vec<Tensor<2>>, Option<Tensor<2>>) =
        (None, Vec::new(), None);
    for (first, len) in chunks {
        let x = Tensor::from_inner(plain.clone().narrow(0, first, len)).require_grad();
        let weight = Tensor::from_inner(weights.clone()).set_require_grad(is_trained);
        let projection = Projection { weight: weight.clone(), transposed, bias: None, softcap };
        let of_chunk = cross_entropy(projection.logits(x.clone()), labels(first, len), config);

        let mut gradients = (of_chunk.loss_sum.clone() * scale).backward();
        d_x.push(x.grad_remove(&mut gradients).expect("a gradient of the hidden states"));
        let of_weight = weight.grad_remove(&mut gradients).map(|gradient| gradient.cast(DType::F32));
        d_weight = match (d_weight, of_weight) {
            (Some(before), Some(more)) => Some(before + more),
            (before, more) => before.or(more),
        };
        let of_chunk = CrossEntropy { loss_sum: of_chunk.loss_sum.inner(), ..of_chunk };
        losses = Some(losses.map_or_else(|| of_chunk.clone(), |before| sum(before, of_chunk.clone())));
    }

    let CrossEntropy { loss_sum, nll_sum, nll } = losses.expect("at least one row");
    let loss_sum = loss_sum.reshape([1, 1]);
    let d_x = Tensor::cat(d_x, 0);
    let times = move |gradient: Tensor<2>, by: &Tensor<2>| {
        (gradient.cast(DType::F32) * (by.clone().cast(DType::F32) / scale)).cast(dtype)
    };
    let loss_sum = match d_weight {
        Some(d_weight) => with_gradient(loss_sum, [x, weight], move |by| CustomGradients {
            inputs: [times(d_x, &by), times(d_weight, &by)],
            leaves: Vec::new(),
        }),
        None => {
            with_gradient(loss_sum, [x], move |by| CustomGradients { inputs: [times(d_x, &by)], leaves: Vec::new() })
        }
    };
    CrossEntropy { loss_sum: loss_sum.reshape([1]), nll_sum, nll }
}

fn sum(a: CrossEntropy, b: CrossEntropy) -> CrossEntropy {
    let nll = [a.nll, b.nll].concat();
    CrossEntropy { loss_sum: a.loss_sum + b.loss_sum, nll_sum: a.nll_sum + b.nll_sum, nll }
}
