//! A language model as `burn-train` wants it: steps of training and of validation, around Kiln's Transformer.

use std::sync::{Arc, Mutex};

use burn::module::Module;
use burn::tensor::Tensor;
use burn_optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn_optim::{GradientsParams, ModuleOptimizer};
use burn_train::metric::{Adaptor, LossInput};
use burn_train::{InferenceStep, ItemLazy, TrainOutput, TrainStep};
use kiln_model::{Batch, Transformer};
use kiln_train::burn_traits::clip_gradients;

#[derive(Module, Debug)]
pub struct Language {
    pub transformer: Transformer,
    #[module(skip)]
    pub max_grad_norm: f64,
    /// The losses of all steps of training.
    #[module(skip)]
    pub losses: Arc<Mutex<Vec<f32>>>,
}

impl Language {
    /// Kiln's loss is a sum, Burn's metric wants a mean.
    fn mean_loss(&self, batch: &Batch) -> Tensor<1> {
        let sums = self.transformer.loss(batch, 0.0, None);
        sums.loss_sum / sums.n_labels
    }
}

impl TrainStep for Language {
    type Input = Batch;
    type Output = MeanLoss;

    fn step(&self, batch: Batch) -> TrainOutput<MeanLoss> {
        let loss = self.mean_loss(&batch);
        let gradients = loss.backward();
        self.losses.lock().expect("this is the only thread").push(loss.clone().into_scalar::<f32>());
        TrainOutput::new(self, gradients, MeanLoss(loss))
    }

    /// Clips by the norm of all gradients. Burn's optimizer then has the clipped ones.
    fn optimize(self, optimizer: &mut ModuleOptimizer, rate: ModuleLearningRate, gradients: GradientsParams) -> Self {
        let gradients = clip_gradients(&self, gradients, self.max_grad_norm);
        optimizer.step(rate, self, gradients)
    }
}

impl InferenceStep for Language {
    type Input = Batch;
    type Output = MeanLoss;

    fn step(&self, batch: Batch) -> MeanLoss {
        MeanLoss(self.mean_loss(&batch))
    }
}

/// The loss of a batch, for the metrics.
pub struct MeanLoss(Tensor<1>);

impl ItemLazy for MeanLoss {
    fn sync(self) -> Result<Self, burn::tensor::ExecutionError> {
        self.0.device().flush()?;
        Ok(Self(self.0.without_autodiff()))
    }
}

impl Adaptor<LossInput> for MeanLoss {
    fn adapt(&self) -> LossInput {
        LossInput::new(self.0.clone())
    }
}
