//! AdamW (Loshchilov and Hutter 2019) as an [`Optimizer`]: the kernels are in `kiln_kernels::optim`.

use burn::tensor::{FloatDType, Tensor};
use kiln_kernels::collective::Communicator;
use kiln_kernels::optim::{AdamWHyper, AdamWState, Flat, Rounding, StepNumbers, adamw_step, adamw_step_rounded};

use super::optimizer::{Cut, Optimizer, Overlapped, Section, SectionState};
use crate::config::OptimConfig;

/// AdamW with the hyperparameters of a run.
#[derive(Debug, Clone, Copy)]
pub struct AdamW {
    hyper: AdamWHyper,
    /// Seed of the random bits that round master weights and moments to bf16; `None` if they are f32.
    rounding: Option<u64>,
}

impl AdamW {
    /// Takes the hyperparameters of `config`. Master weights and moments are f32.
    pub(crate) fn new(config: &OptimConfig) -> Self {
        let OptimConfig { beta1, beta2, eps, weight_decay, .. } = *config;
        Self { hyper: AdamWHyper { beta1, beta2, eps, weight_decay, n_decayed: 0 }, rounding: None }
    }

    /// Keeps master weights and moments in bf16. Random bits of `seed` round them.
    pub(crate) fn rounded(self, seed: u64) -> Self {
        Self { rounding: Some(seed), ..self }
    }

    fn hyper(&self, section: &Section) -> AdamWHyper {
        AdamWHyper { n_decayed: section.n_decayed, ..self.hyper }
    }
}

impl Optimizer for AdamW {
    fn state(&self) -> &'static [&'static str] {
        &["m", "v"]
    }

    fn state_dtype(&self) -> FloatDType {
        if self.rounding.is_some() { FloatDType::BF16 } else { FloatDType::F32 }
    }

    fn cut(&self) -> Cut {
        Cut::Elements
    }

    fn coefficients(&self, rate: f64, update: u64) -> [f32; 3] {
        self.hyper.coefficients(rate, update)
    }

    fn step(&self, section: &Section, state: SectionState, gradient: Flat, numbers: &StepNumbers) -> SectionState {
        let (state, hyper) = (for_kernels(state), self.hyper(section));
        from_kernels(match self.rounding {
            None => adamw_step(state, gradient, numbers, &hyper),
            Some(seed) => adamw_step_rounded(state, gradient, numbers, &hyper, Rounding { seed, first: section.first }),
        })
    }

    fn overlapped(&self) -> Option<&dyn Overlapped> {
        self.rounding.is_none().then_some(self as &dyn Overlapped)
    }
}

impl Overlapped for AdamW {
    fn step_and_gather(
        &self,
        section: &Section,
        state: SectionState,
        all: Tensor<1>,
        gradient: Flat,
        numbers: &StepNumbers,
        (communicator, bounds): (&Communicator, &[usize]),
    ) -> (SectionState, Tensor<1>) {
        let (state, hyper) = (for_kernels(state), self.hyper(section));
        let (state, all) = communicator.adamw_step(state, all, gradient, numbers, &hyper, bounds);
        (from_kernels(state), all)
    }
}

fn for_kernels(SectionState { master, weights, named }: SectionState) -> AdamWState {
    let [m, v] = named.try_into().expect("two tensors of state");
    AdamWState { master, m, v, weights }
}

fn from_kernels(AdamWState { master, m, v, weights }: AdamWState) -> SectionState {
    SectionState { master, weights, named: vec![m, v] }
}
