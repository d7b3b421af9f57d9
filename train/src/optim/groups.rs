//! Groups of parameters, each with an optimizer and a learning rate of its own.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::FloatDType;

use super::{Optimizer, ParamEntry, ParamTable};

/// Parameters with an optimizer and a learning rate of their own.
#[derive(Debug, Clone)]
pub struct Group {
    /// The optimizer.
    pub(crate) optimizer: Arc<dyn Optimizer>,
    /// Factor of the run's learning rate.
    pub(crate) rate: f64,
    /// Whether the group takes a parameter that no earlier group has taken.
    pub(crate) takes: fn(&ParamEntry) -> bool,
}

/// The groups of a run. A parameter belongs to the first group that takes it.
#[derive(Debug, Clone)]
pub struct Groups(Arc<[Group]>);

/// One tensor of state: of all parameters of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateSlot {
    /// Name of the state.
    pub name: &'static str,
    /// Number of the group.
    pub(crate) group: usize,
    /// The group's elements in the flat tensor.
    pub range: Range<usize>,
}

impl Groups {
    /// Makes groups of a list, the last of which must take everything that is left.
    ///
    /// # Panics
    /// If their optimizers keep master weights of different dtypes.
    pub(crate) fn new(groups: Vec<Group>) -> Self {
        let mut dtypes = groups.iter().map(|group| group.optimizer.state_dtype());
        let first = dtypes.next().expect("a group");
        assert!(dtypes.all(|dtype| dtype == first), "optimizers with master weights of one dtype");
        Self(groups.into())
    }

    /// Dtype of the master weights and of the state.
    pub(crate) fn state_dtype(&self) -> FloatDType {
        self.0[0].optimizer.state_dtype()
    }

    /// One optimizer for all parameters.
    pub(crate) fn one(optimizer: impl Optimizer + 'static) -> Self {
        Self::new(vec![Group { optimizer: Arc::new(optimizer), rate: 1.0, takes: |_| true }])
    }

    /// The groups, in order.
    pub(crate) fn list(&self) -> &[Group] {
        &self.0
    }

    /// Lays the parameters of `table` out by group.
    ///
    /// # Panics
    /// If no group takes a parameter.
    pub(crate) fn lay_out(&self, table: ParamTable) -> ParamTable {
        let group_of = |entry: &ParamEntry| {
            let found = self.0.iter().position(|group| (group.takes)(entry));
            found.unwrap_or_else(|| panic!("{} belongs to no group of parameters", entry.path))
        };
        table.grouped(group_of, &self.0.iter().map(|group| group.optimizer.cut()).collect::<Vec<_>>())
    }

    /// The tensors of state for a `table` that these groups have laid out, by group and in the order of [`Optimizer::state`].
    pub fn slots(&self, table: &ParamTable) -> Vec<StateSlot> {
        let of_group = |(group, range): (usize, Range<usize>)| {
            let names = self.0[group].optimizer.state().iter();
            names.map(move |name| StateSlot { name, group, range: range.clone() })
        };
        table.groups().flat_map(of_group).collect()
    }
}
