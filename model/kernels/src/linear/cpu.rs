//! Products on the CPU: the backend's own, followed by loops for bias and activation.

use burn::backend::Flex;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{FloatDType, Shape};
use burn_flex::FlexTensor;

use super::ops::{Layout, LinearOps};
use crate::activation::{self, Activation};
use crate::dropout::Mask;
use crate::maybe::Maybe;
use crate::reduce;

impl LinearOps for Flex {
    fn product(a: FlexTensor, b: FlexTensor, layout: Layout) -> FlexTensor {
        match layout {
            Layout::NN => Self::float_matmul(a, b),
            Layout::NT => Self::float_matmul(a, Self::float_swap_dims(b, 0, 1)),
            Layout::TN => Self::float_matmul(Self::float_swap_dims(a, 0, 1), b),
        }
    }

    fn accumulate_product(a: FlexTensor, b: FlexTensor, sum: FlexTensor, layout: Layout) -> FlexTensor {
        let dtype: FloatDType = sum.dtype().into();
        Self::float_add(sum, Self::float_cast(Self::product(a, b, layout), dtype))
    }

    fn fused_linear(
        x: FlexTensor,
        weight: FlexTensor,
        bias: Maybe<Self>,
        layout: Layout,
        activation: Option<Activation>,
        mask: Mask<Self>,
    ) -> FlexTensor {
        let mut y = Self::product(x, weight, layout);
        if let Maybe::Some(bias) = bias {
            let n = bias.layout().shape()[0];
            y = Self::float_add(y, Self::float_reshape(bias, Shape::new([1, n])));
        }
        match activation {
            Some(activation) => Self::activate(y, activation, mask),
            None => y,
        }
    }

    fn fused_linear_both(
        x: FlexTensor,
        weight: FlexTensor,
        bias: Maybe<Self>,
        layout: Layout,
        activation: Activation,
        mask: Mask<Self>,
    ) -> (FlexTensor, FlexTensor) {
        let before = Self::fused_linear(x, weight, bias, layout, None, Mask::None);
        (before.clone(), Self::activate(before, activation, mask))
    }

    fn linear_residual(x: FlexTensor, weight: FlexTensor, bias: Maybe<Self>, residual: FlexTensor) -> FlexTensor {
        Self::float_add(residual, Self::fused_linear(x, weight, bias, Layout::NN, None, Mask::None))
    }

    fn activate(x: FlexTensor, activation: Activation, mask: Mask<Self>) -> FlexTensor {
        mask.apply(activation::cpu::activate(x, activation))
    }

    fn activate_backward(
        kept: FlexTensor,
        dy: FlexTensor,
        activation: Activation,
        mask: Mask<Self>,
    ) -> (FlexTensor, FlexTensor) {
        let dx = activation::cpu::gradient(kept, mask.apply(dy), activation);
        (dx.clone(), Self::column_sum(dx))
    }

    fn column_sum(x: FlexTensor) -> FlexTensor {
        reduce::cpu::column_sum(x)
    }

    fn batched_product(a: FlexTensor, b: FlexTensor) -> FlexTensor {
        Self::float_matmul(a, b)
    }
}
