//! Lion (Chen et al. 2023), an optimizer with one tensor of state: the example of `docs/guides/add-an-optimizer.md`. No file of the loop,
//! the checkpoints or the ranks knows of it.

use burn::tensor::FloatDType::F32;
use kiln_kernels::optim::{Flat, StepNumbers};

use super::optimizers::assert_exact;
use super::*;
use crate::optim::optimizer::{Section, SectionState};
use crate::optim::{Cut, Optimizer};

#[derive(Debug)]
struct Lion {
    /// Shares of the state in the update and in the new state.
    betas: [f32; 2],
    weight_decay: f64,
}

impl Optimizer for Lion {
    fn state(&self) -> &'static [&'static str] {
        &["average"]
    }

    fn cut(&self) -> Cut {
        Cut::Elements
    }

    fn coefficients(&self, rate: f64, _update: u64) -> [f32; 3] {
        [rate as f32, (rate * self.weight_decay) as f32, 0.0]
    }

    fn step(&self, section: &Section, state: SectionState, gradient: Flat, numbers: &StepNumbers) -> SectionState {
        let [rate, decay] = [0, 1].map(|i| numbers.coefficient(i));
        let gradient = gradient.values.cast(F32) * numbers.gradient_factor();
        let mix = |share: f32| state.named[0].clone() * share + gradient.clone() * (1.0 - share);
        let (update, average) = (mix(self.betas[0]).sign() * rate, mix(self.betas[1]));

        let mut kept = state.master.ones_like();
        if section.n_decayed > 0 {
            let decayed = (-decay + 1.0).expand([section.n_decayed]);
            kept = kept.slice_assign(0..section.n_decayed, decayed);
        }
        let master = state.master.clone() * kept - update;
        state.replaced(master, vec![average], numbers)
    }
}

#[test]
fn an_optimizer_with_one_state_is_exact_on_resume_and_over_ranks() {
    let mut corpora = Corpora::new(200);
    corpora.optimizers =
        |config, _dtype| Groups::one(Lion { betas: [0.9, 0.99], weight_decay: config.optim.weight_decay });
    let mut config = corpora.config();
    config.optim.lr = 1e-3;
    let last = assert_exact(&corpora, &config);
    let names: Vec<_> = last.optimizer.iter().map(|state| state.name.as_str()).collect();
    assert_eq!(names, ["average"]);
    assert_eq!(last.optimizer[0].tensors.len(), last.weights.len());
    assert!(last.optimizer[0].tensors.iter().flat_map(|tensor| &tensor.values).any(|value| *value != 0.0));
}

#[test]
fn a_step_equals_the_published_one() {
    let lion = Lion { betas: [0.9, 0.99], weight_decay: 0.1 };
    let setup = |groups| crate::optim::Setup {
        groups,
        learning_rate: crate::optim::LearningRate::new(&toy_config(0.0).optim, 8, 64),
        max_grad_norm: 0.0,
        scaling: None,
        stops: false,
        counters: kiln_kernels::optim::Counters { updates: 0, loss_scale: 1.0, good_steps: 0 },
    };

    let device = Device::flex();
    let tensor = |values: [[f32; 3]; 1]| burn::tensor::Tensor::<2>::from_data(values, &device);
    let module = burn::module::Param::from_tensor(tensor([[0.5, -1.0, 2.0]]));
    let mut optimizer = crate::optim::FlatOptimizer::new(&module, setup(Groups::one(lion)), F32);
    let (mut weights, mut average) = ([0.5f32, -1.0, 2.0], [0f32; 3]);
    for gradient in [[0.1f32, -0.2, 0.3], [-3.0, 0.1, -0.1]] {
        let place = optimizer.table().entries()[0].place();
        let n = optimizer.table().flat_len();
        let parts = vec![tensor([gradient]).into()];
        let flat = kiln_kernels::optim::gather(parts, &[place], n, burn::tensor::DType::F32, &device, None);
        let one = burn::tensor::Tensor::<1>::ones([1], &device);
        optimizer.step(crate::optim::FlatGradients(flat), one.clone(), one);
        // The rate of this schedule is 0.01.
        for i in 0..3 {
            let update = (0.9 * average[i] + 0.1 * gradient[i]).signum();
            weights[i] = weights[i] * (1.0 - 0.01 * 0.1) - 0.01 * update;
            average[i] = 0.99 * average[i] + 0.01 * gradient[i];
        }
        let found = optimizer.state().master.clone().into_data().try_into_vec::<f32>().expect("f32");
        for (found, wanted) in found.iter().zip(&weights) {
            assert!((found - wanted).abs() < 1e-6, "{found} instead of {wanted}");
        }
    }
}
