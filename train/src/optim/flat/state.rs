//! The flat tensors of a [`FlatOptimizer`](super::FlatOptimizer).

use burn::tensor::{FloatDType, Tensor};

use crate::optim::optimizer::SectionState;

/// Master weights and state, all of them or one rank's slice.
#[derive(Debug, Clone)]
pub struct FlatState {
    /// Master weights, `[n]`, in the dtype of [`Optimizer::state_dtype`](crate::optim::Optimizer::state_dtype).
    pub master: Tensor<1>,
    /// The master weights in the dtype that the model computes in; `None` if it computes with the masters.
    pub(crate) weights: Option<Tensor<1>>,
    /// The tensors of [`Groups::slots`](crate::optim::Groups::slots), in the same dtype; `None` where a slice has nothing of the group.
    pub named: Vec<Option<Tensor<1>>>,
}

impl FlatState {
    pub(super) fn new(master: Tensor<1>, named: Vec<Tensor<1>>, dtype: FloatDType) -> Self {
        let weights = (master.dtype() != dtype.into()).then(|| master.clone().cast(dtype));
        Self { master, weights, named: named.into_iter().map(Some).collect() }
    }

    /// Returns the weights that the model computes with: its parameters are views of them.
    pub fn compute_weights(&self) -> &Tensor<1> {
        self.weights.as_ref().unwrap_or(&self.master)
    }

    /// Returns the state of the only section, and which of the named tensors the slice has.
    pub(super) fn into_section(self) -> (SectionState, Vec<bool>) {
        let Self { master, weights, named } = self;
        let present = named.iter().map(Option::is_some).collect();
        (SectionState { master, weights, named: named.into_iter().flatten().collect() }, present)
    }

    /// Does the opposite.
    pub(super) fn of_section(SectionState { master, weights, named }: SectionState, present: &[bool]) -> Self {
        let mut named = named.into_iter();
        let named = present.iter().map(|is_present| if *is_present { named.next() } else { None });
        Self { master, weights, named: named.collect() }
    }
}
