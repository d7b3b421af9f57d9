//! The chunks on the CPU, composed of the crate's other operators.

use burn::backend::ops::{FloatTensorOps, IntTensorOps};
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{DType, FloatDType, Slice};
use burn_flex::FlexTensor;

use super::ops::{Head, LinearCrossEntropyOps, Wanted, gradient_scale, record};
use crate::cross_entropy::{self, CrossEntropyOps};
use crate::dropout::Mask;
use crate::host::tensor;
use crate::linear::{Layout, LinearOps};
use crate::maybe::Maybe;

/// Returns input, labels and logits of the `len` rows from `first` on.
fn chunk(
    (x, weight, bias, labels): (&FlexTensor, &FlexTensor, &Maybe<Flex>, &FlexTensor),
    head: Head,
    (first, len): (usize, usize),
) -> (FlexTensor, FlexTensor, FlexTensor) {
    let rows = Slice::from(first..first + len);
    let x = Flex::float_slice(x.clone(), &[rows, Slice::full()]);
    let labels = Flex::int_slice(labels.clone(), &[rows]);
    let logits = Flex::fused_linear(x.clone(), weight.clone(), bias.clone(), head.product, None, Mask::None);
    (x, labels, logits)
}

impl LinearCrossEntropyOps for Flex {
    fn linear_cross_entropy(
        x: FlexTensor,
        weight: FlexTensor,
        bias: Maybe<Self>,
        labels: FlexTensor,
        head: Head,
    ) -> FlexTensor {
        let _call = record(&x, &weight, head);
        let losses = head.chunks(x.shape()[0]).map(|at| {
            let (_, labels, logits) = chunk((&x, &weight, &bias, &labels), head, at);
            Self::cross_entropy_rows(logits, labels, head.loss)
        });
        Self::float_cat(losses.collect(), 1)
    }

    fn linear_cross_entropy_with_gradients(
        x: FlexTensor,
        weight: FlexTensor,
        bias: Maybe<Self>,
        labels: FlexTensor,
        head: Head,
        wanted: Wanted,
    ) -> (FlexTensor, FlexTensor, FlexTensor, FlexTensor) {
        let _call = record(&x, &weight, head);
        let in_f32 = |x: FlexTensor| Self::float_cast(x, FloatDType::F32);
        let scale = gradient_scale(x.dtype());
        let (mut losses, mut dx): (Vec<_>, Vec<_>) = (Vec::new(), Vec::new());
        let (mut dweight, mut dbias): (Option<FlexTensor>, Option<FlexTensor>) = (None, None);
        let add = |sum: Option<FlexTensor>, part: FlexTensor| match sum {
            Some(sum) => Self::float_add(sum, part),
            None => part,
        };

        for at in head.chunks(x.shape()[0]) {
            let (x, labels, logits) = chunk((&x, &weight, &bias, &labels), head, at);
            let (rows, dlogits) = cross_entropy::cpu::rows_and_gradient(logits, labels, scale, head.loss);
            losses.push(rows);

            if wanted.bias {
                dbias = Some(add(dbias, Self::column_sum(in_f32(dlogits.clone()))));
            }
            if wanted.x {
                dx.push(Self::product(dlogits.clone(), weight.clone(), head.product.of_input_gradient()));
            }
            if wanted.weight {
                let (a, b) = head.product.layout.for_weight_gradient(x, dlogits);
                dweight = Some(add(dweight, Self::product(in_f32(a), in_f32(b), head.product.with(Layout::TN))));
            }
        }

        let nothing = || tensor(vec![0.0], [1], DType::F32);
        let dx = if wanted.x { Self::float_cat(dx, 0) } else { nothing() };
        (Self::float_cat(losses, 1), dx, dweight.unwrap_or_else(nothing), dbias.unwrap_or_else(nothing))
    }
}
