//! Products on the CPU: the backend's own, followed by loops for bias and activation.

use burn::backend::Flex;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::FloatDType;
use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::ops::{Layout, LinearOps};
use crate::activation::{self, Activation};
use crate::dropout::Mask;
use crate::host::vector::vectorized;
use crate::host::{floats, tensor, view, zip_map};
use crate::maybe::Maybe;
use crate::reduce;

/// Rows that a thread takes at a time.
const ROWS: usize = 64;

/// Adds a row to each row of `x`.
fn add_to_rows(x: FlexTensor, row: &FlexTensor) -> FlexTensor {
    let (shape, dtype, row) = (x.layout().shape().clone(), x.dtype(), view(row));
    let mut values = floats(x);
    values.par_chunks_mut((ROWS * row.len()).max(1)).for_each(|rows| {
        vectorized(|| {
            for values in rows.chunks_mut(row.len()) {
                values.iter_mut().zip(&*row).for_each(|(x, added)| *x += added);
            }
        });
    });
    tensor(values, shape, dtype)
}

fn add(x: FlexTensor, other: &FlexTensor) -> FlexTensor {
    let (shape, dtype) = (x.layout().shape().clone(), x.dtype());
    let mut values = floats(x);
    zip_map(&mut values, &view(other), |x, y| x + y);
    tensor(values, shape, dtype)
}

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
            y = add_to_rows(y, &bias);
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
        add(Self::fused_linear(x, weight, bias, Layout::NN, None, Mask::None), &residual)
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
