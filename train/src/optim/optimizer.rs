//! The interface of an optimizer.
//!
//! An [`Optimizer`] is a rule: it names the tensors that it keeps, and steps a slice of the parameters. Everything else
//! ([`FlatOptimizer`](super::FlatOptimizer), ranks, checkpoints, memory) sees these names only. `docs/guides/add-an-optimizer.md`
//! leads through a new one.

use std::fmt::Debug;
use std::ops::Range;

use burn::tensor::{FloatDType, Tensor};
use kiln_kernels::collective::Communicator;
use kiln_kernels::optim::{Flat, Place, StepNumbers, is_updated_in_place, overwrite};

/// Where the parameters of an optimizer may be cut, if several ranks share them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Between any two elements: the step of an element needs no other one.
    Elements,
    /// Between the rows of a matrix.
    Rows,
    /// Between parameters only. Matrices of equal shape lie side by side, so that products can be batched.
    Matrices,
}

/// The rule that updates parameters from their gradients.
pub trait Optimizer: Debug + Send + Sync {
    /// Names of the tensors that it keeps, without dots. Each has a number for each parameter and begins with zeros.
    fn state(&self) -> &'static [&'static str];

    /// Dtype of the tensors that it keeps and of its master weights: f32, or bf16 if its step rounds them stochastically.
    fn state_dtype(&self) -> FloatDType {
        FloatDType::F32
    }

    /// Where its parameters may be cut.
    fn cut(&self) -> Cut;

    /// Three numbers for update number `update` (from 1) at the learning rate `rate`. [`Self::step`] gets them from
    /// [`StepNumbers::coefficient`]: only the device knows how many updates were made.
    fn coefficients(&self, rate: f64, update: u64) -> [f32; 3];

    /// Makes a step of the parameters of `section`.
    ///
    /// `gradient` is neither divided nor clipped: multiply it by [`StepNumbers::gradient_factor`]. A step that is not taken
    /// ([`StepNumbers::taken`]) must change nothing, also if the gradient is NaN. [`SectionState::replaced`] sees to both the
    /// skipped step and the buffers.
    ///
    /// # Shapes
    /// - `gradient` and all of `state`: `[section.len()]`
    fn step(&self, section: &Section, state: SectionState, gradient: Flat, numbers: &StepNumbers) -> SectionState;

    /// The same step for an optimizer that sends weights to other GPUs while it computes; most have none.
    fn overlapped(&self) -> Option<&dyn Overlapped> {
        None
    }
}

/// A step of one rank's slice that brings in the weights of the other ranks while it lasts.
pub trait Overlapped {
    /// Makes the step of [`Optimizer::step`] for a slice that is one section. Returns all weights, too; `bounds` are the slices'.
    ///
    /// # Shapes
    /// - `all`: `[n]`, the weights of all ranks, of which the state's are a view
    fn step_and_gather(
        &self,
        section: &Section,
        state: SectionState,
        all: Tensor<1>,
        gradient: Flat,
        numbers: &StepNumbers,
        link: (&Communicator, &[usize]),
    ) -> (SectionState, Tensor<1>);
}

/// Consecutive parameters, or parts of them, that one optimizer steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Number of the group, in the order of [`Groups`](super::Groups).
    pub(crate) group: usize,
    /// Its elements, counted from the start of the rank's slice.
    pub(crate) range: Range<usize>,
    /// Its first element, counted from the start of the flat tensor of all ranks.
    pub(crate) first: usize,
    /// Elements of the section before this one have weight decay.
    pub(crate) n_decayed: usize,
    /// The whole matrices in it, by offset in the section.
    pub(crate) matrices: Vec<Matrix>,
}

/// A matrix in a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Matrix {
    /// Its first element.
    pub(crate) offset: usize,
    /// Rows and columns.
    pub(crate) shape: [usize; 2],
}

impl Matrix {
    /// Where it lies in the section.
    pub(crate) fn place(&self) -> Place {
        Place { offset: self.offset, len: self.shape[0] * self.shape[1] }
    }
}

impl Section {
    /// Number of elements, including gaps between parameters.
    pub(crate) fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether the section is empty.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }
}

/// What a step changes.
#[derive(Debug, Clone)]
pub struct SectionState {
    /// Master weights, in [`Optimizer::state_dtype`].
    pub(crate) master: Tensor<1>,
    /// The master weights in the dtype that the model computes in; `None` if it computes with the masters.
    pub(crate) weights: Option<Tensor<1>>,
    /// The tensors of [`Optimizer::state`], in its order and in [`Optimizer::state_dtype`].
    pub(crate) named: Vec<Tensor<1>>,
}

impl SectionState {
    /// Replaces master weights and state by new ones, unless the step is not taken; the weights follow. On a GPU this overwrites
    /// the buffers.
    pub fn replaced(self, master: Tensor<1>, named: Vec<Tensor<1>>, numbers: &StepNumbers) -> Self {
        let skipped = numbers.taken().equal_elem(0.0).expand(self.master.dims());
        let put = |before: Tensor<1>, after: Tensor<1>| {
            let in_place = is_updated_in_place(&before.device());
            let after = after.mask_where(skipped.clone(), before.clone());
            if in_place { overwrite(before, after) } else { after }
        };
        let master = put(self.master, master);
        let weights = self.weights.map(|weights| match is_updated_in_place(&weights.device()) {
            true => overwrite(weights, master.clone()),
            false => master.clone().cast(weights.dtype()),
        });
        Self { master, weights, named: self.named.into_iter().zip(named).map(|(old, new)| put(old, new)).collect() }
    }
}
