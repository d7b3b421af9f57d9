//! Which optimizer updates which parameters, from the configuration: the one place that names them.

use burn::tensor::FloatDType;

use super::{AdamW, Groups, ParamEntry};
use crate::config::Config;

impl Groups {
    /// The groups of a run that computes in `dtype`.
    pub fn of(config: &Config, _dtype: FloatDType) -> Self {
        Self::one(AdamW::new(&config.optim))
    }

    /// The numbers that are kept as state for each parameter of `entry`.
    fn state_of(&self, entry: &ParamEntry) -> u64 {
        let group = self.list().iter().find(|group| (group.takes)(entry));
        group.map_or(0, |group| group.optimizer.state().len() as u64)
    }

    /// The numbers of state that a run keeps for each weight of a matrix of a layer, and for each other parameter.
    pub fn state_sizes(config: &Config) -> [u64; 2] {
        let groups = Self::of(config, FloatDType::F32);
        ["layers.0.linear.weight", "embedding.table"].map(|path| groups.state_of(&ParamEntry::matrix(path)))
    }
}
