//! Which optimizer updates which parameters, from the configuration: the one place that names them.

use std::sync::Arc;

use burn::tensor::FloatDType;

use super::transfer::Transfer;
use super::{AdamW, Group, Groups, Muon, Optimizer, ParamEntry};
use crate::config::{Config, MasterWeights, OptimizerChoice};

impl Groups {
    /// The groups of a run that computes in `dtype`.
    pub fn of(config: &Config, dtype: FloatDType) -> Self {
        let exact = AdamW::new(&config.optim);
        let adamw = match config.train.master_weights {
            MasterWeights::F32 => exact,
            MasterWeights::Bf16 => exact.rounded(config.seed),
        };
        let transfer = Transfer::of(config);
        match config.train.optimizer {
            OptimizerChoice::Adamw => match transfer {
                None => Self::one(adamw),
                Some(transfer) => Self::with_matrices(adamw, transfer.adamw_rate(), adamw),
            },
            OptimizerChoice::Muon => {
                let [rate, decay] = transfer.map_or([1.0; 2], |found| [found.muon_rate(), found.muon_decay()]);
                Self::with_matrices(Muon::new(&config.optim, decay, dtype), rate, adamw)
            }
        }
    }

    /// An optimizer for the matrices of layers, with a factor of the learning rate, and one for all other parameters.
    fn with_matrices(of_matrices: impl Optimizer + 'static, rate: f64, others: impl Optimizer + 'static) -> Self {
        Self::new(vec![
            Group { optimizer: Arc::new(of_matrices), rate, takes: is_matrix_of_layer },
            Group { optimizer: Arc::new(others), rate: 1.0, takes: |_| true },
        ])
    }

    /// The numbers that are kept as state for each parameter of `entry`.
    fn state_of(&self, entry: &ParamEntry) -> u64 {
        let group = self.list().iter().find(|group| (group.takes)(entry));
        group.map_or(0, |group| group.optimizer.state().len() as u64)
    }

    /// The numbers of state that a run keeps for each weight of a matrix of a layer, and for each other parameter.
    pub(crate) fn state_sizes(config: &Config) -> [u64; 2] {
        let groups = Self::of(config, FloatDType::F32);
        ["layers.0.linear.weight", "embedding.table"].map(|path| groups.state_of(&ParamEntry::matrix(path)))
    }
}

/// Whether a parameter is a weight matrix of a layer. Tables, heads, vectors and adapters are not.
fn is_matrix_of_layer(entry: &ParamEntry) -> bool {
    let mut names = entry.path.split('.');
    entry.shape.len() == 2 && names.any(|name| name == "layers") && names.next_back() == Some("weight")
}
