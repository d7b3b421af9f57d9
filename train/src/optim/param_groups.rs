//! The layout of a module's parameters in the optimizer's flat tensors.
//!
//! All parameters are end to end in one tensor, first those with weight decay. An optimizer step then takes a few operations
//! for any number of layers, and a checkpoint can name each slice.

use std::ops::Range;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{DType, Device, FloatDType, Gradients, Tensor};
use kiln_kernels::optim::{Flat, Part, Place, gather, view};

use super::optimizer::{Cut, Matrix, Section};

/// A parameter and its slice of the flat tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamEntry {
    /// Path in the module, such as `encoder.layers.0.self_attention.qkv.weight`.
    pub(crate) path: String,
    /// Its shape.
    pub(crate) shape: Vec<usize>,
    /// Whether weight decay applies. As in nanoGPT and Hugging Face's trainer, the rank decides: matrices, including
    /// embeddings, are decayed; biases and scales of norms are not.
    pub(crate) decayed: bool,
    /// Whether training leaves the parameter alone. It then has no slice.
    pub(crate) frozen: bool,
    /// First element in the flat tensor.
    pub(crate) offset: usize,
    /// Number of the group of parameters that it belongs to.
    pub(crate) group: usize,
    /// Where it may be cut.
    pub(crate) cut: Cut,
}

impl ParamEntry {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether the parameter has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An empty matrix, to ask what belongs to the path.
    pub(super) fn matrix(path: &str) -> Self {
        let (path, shape) = (path.to_owned(), vec![0, 0]);
        Self { path, shape, decayed: true, frozen: false, offset: 0, group: 0, cut: Cut::Rows }
    }

    /// Its slice of the flat tensor.
    pub fn place(&self) -> Place {
        Place { offset: self.offset, len: self.len() }
    }
}

/// The gradients of all parameters, in a flat tensor.
#[derive(Debug, Clone)]
pub struct FlatGradients(pub Flat);

/// Every parameter of a module, in visiting order: trained ones with their slices, and frozen ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamTable {
    entries: Vec<ParamEntry>,
    /// All parameters, without offsets.
    all: Vec<ParamEntry>,
    n_decayed: usize,
    len: usize,
    /// Where the groups begin in the flat tensor, and where the last one ends.
    group_bounds: Vec<usize>,
}

impl ParamTable {
    /// Makes the table of `module`, all of whose parameters are trained.
    ///
    /// # Panics
    /// If the module visits a parameter twice (a shared weight must be one field), or has none.
    pub fn of<M: Module>(module: &M) -> Self {
        let all_trained = |paths: &[&str]| Ok::<_, std::convert::Infallible>(vec![false; paths.len()]);
        Self::trained(module, all_trained).unwrap_or_else(|never| match never {})
    }

    /// Makes the table of `module`. `is_frozen` says which of the parameters at the given paths are not trained.
    ///
    /// # Errors
    /// The error of `is_frozen`.
    ///
    /// # Panics
    /// As [`Self::of`].
    pub(crate) fn trained<M: Module, E>(
        module: &M,
        is_frozen: impl FnOnce(&[&str]) -> Result<Vec<bool>, E>,
    ) -> Result<Self, E> {
        let mut visitor = TableVisitor::default();
        module.visit(&mut visitor);
        let mut all = visitor.entries;
        let frozen = is_frozen(&all.iter().map(|entry| entry.path.as_str()).collect::<Vec<_>>())?;
        all.iter_mut().zip(frozen).for_each(|(entry, frozen)| entry.frozen = frozen);
        let entries: Vec<ParamEntry> = all.iter().filter(|entry| !entry.frozen).cloned().collect();
        assert!(!entries.is_empty(), "a module without parameters");

        let table = Self { entries, all, n_decayed: 0, len: 0, group_bounds: Vec::new() };
        Ok(table.grouped(|_| 0, &[Cut::Rows]))
    }

    /// Lays the parameters out by group: `group_of` returns the number of a parameter's group, `cuts` says where the groups may be
    /// cut. In each group, decayed parameters come first. Where only whole matrices may be cut, matrices of equal shape lie side by side.
    pub(super) fn grouped(mut self, group_of: impl Fn(&ParamEntry) -> usize, cuts: &[Cut]) -> Self {
        for entry in &mut self.entries {
            entry.group = group_of(entry);
            entry.cut = cuts[entry.group];
        }

        let mut order: Vec<usize> = (0..self.entries.len()).collect();
        order.sort_by_key(|i| {
            let ParamEntry { group, decayed, cut, shape, .. } = &self.entries[*i];
            let shape = if *cut == Cut::Matrices { shape.as_slice() } else { &[] };
            (*group, !decayed, shape)
        });

        let ends_of = |group: usize, entries: &[ParamEntry]| {
            let of_group = entries.iter().filter(|entry| entry.group <= group);
            of_group.map(|entry| entry.offset + entry.place().padded_len()).max().unwrap_or(0)
        };
        let mut len = 0;
        for i in order {
            let entry = &mut self.entries[i];
            entry.offset = len;
            len += entry.place().padded_len();
        }
        self.group_bounds = [0].into_iter().chain((0..cuts.len()).map(|group| ends_of(group, &self.entries))).collect();
        self.len = len;
        self.n_decayed = self.n_decayed_in(0..self.group_bounds[1]);
        self
    }

    /// The end of the last decayed parameter in a range of the flat tensor of one group, counted from its start.
    fn n_decayed_in(&self, range: Range<usize>) -> usize {
        let ends = self.entries.iter().filter(|entry| entry.decayed && range.contains(&entry.offset));
        let end = ends.map(|entry| entry.offset + entry.place().padded_len()).max();
        end.map_or(0, |end| end - range.start)
    }

    /// The groups that have parameters: number, and range in the flat tensor.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let ranges = self.group_bounds.windows(2).map(|bounds| bounds[0]..bounds[1]);
        ranges.enumerate().filter(|(_, range)| !range.is_empty())
    }

    /// The sections of the groups in the slice `own` of the flat tensor, in order.
    pub(crate) fn sections(&self, own: &Range<usize>) -> Vec<Section> {
        let section = |(group, whole): (usize, Range<usize>)| {
            let range = whole.start.max(own.start)..whole.end.min(own.end);
            let decayed = whole.start + self.n_decayed_in(whole.clone());
            let matrix = |entry: &ParamEntry| {
                let shape = <[usize; 2]>::try_from(entry.shape.as_slice()).ok()?;
                let end = entry.offset + entry.len();
                (range.contains(&entry.offset) && end <= range.end)
                    .then(|| Matrix { offset: entry.offset - range.start, shape })
            };
            let mut matrices: Vec<_> = self.entries.iter().filter_map(matrix).collect();
            matrices.sort_by_key(|matrix| matrix.offset);
            (!range.is_empty()).then(|| Section {
                group,
                range: range.start - own.start..range.end - own.start,
                first: range.start,
                n_decayed: decayed.clamp(range.start, range.end) - range.start,
                matrices,
            })
        };
        self.groups().filter_map(section).collect()
    }

    /// All parameters, in visiting order, without offsets.
    pub(super) fn all(&self) -> &[ParamEntry] {
        &self.all
    }

    /// The parameters that training leaves alone.
    pub(crate) fn frozen(&self) -> impl Iterator<Item = &ParamEntry> {
        self.all.iter().filter(|entry| entry.frozen)
    }

    /// The paths of the frozen parameters, sorted.
    pub(crate) fn frozen_paths(&self) -> Vec<String> {
        let mut paths: Vec<String> = self.frozen().map(|entry| entry.path.clone()).collect();
        paths.sort();
        paths
    }

    /// Whether some parameters are frozen.
    pub(crate) fn has_frozen(&self) -> bool {
        self.entries.len() < self.all.len()
    }

    /// The trained parameters, in visiting order.
    pub fn entries(&self) -> &[ParamEntry] {
        &self.entries
    }

    /// Elements of a flat tensor, including gaps between parameters.
    pub fn flat_len(&self) -> usize {
        self.len
    }

    /// The first element of the first group without weight decay.
    pub fn n_decayed(&self) -> usize {
        self.n_decayed
    }

    /// Number of trained parameters.
    pub fn n_params(&self) -> usize {
        self.entries.iter().map(ParamEntry::len).sum()
    }

    /// Copies the weights of `module` to a flat f32 tensor.
    pub(crate) fn flatten_weights<M: Module>(&self, module: &M) -> Tensor<1> {
        let mut visitor = CollectWeights { all: self.all.iter(), parts: Vec::new(), device: None };
        module.visit(&mut visitor);
        let device = visitor.device.expect("a table has entries");
        self.flatten(visitor.parts, DType::F32, &device, None).values
    }

    /// Removes the gradients of `module`'s parameters from `gradients` and returns them in `dtype`, or added to `before` in its
    /// dtype. Parameters that did not affect the loss have zero gradients.
    pub fn flatten_gradients<M: Module>(
        &self,
        module: &M,
        gradients: &mut Gradients,
        dtype: FloatDType,
        before: Option<FlatGradients>,
    ) -> FlatGradients {
        let mut visitor = CollectGradients { all: self.all.iter(), parts: Vec::new(), device: None, gradients };
        module.visit(&mut visitor);
        let device = visitor.device.expect("a table has entries");
        let before = before.map(|FlatGradients(flat)| flat);
        FlatGradients(self.flatten(visitor.parts, dtype.into(), &device, before))
    }

    /// Returns `gradients` in `dtype`, or added to `before` in its dtype, with the same result as [`Self::flatten_gradients`].
    pub(crate) fn accumulate(
        &self,
        gradients: FlatGradients,
        dtype: FloatDType,
        before: Option<FlatGradients>,
    ) -> FlatGradients {
        let FlatGradients(Flat { values, .. }) = gradients;
        let part = |entry: &ParamEntry| view(&values, entry.place().offset, [entry.len()]).into();
        let before = before.map(|FlatGradients(flat)| flat);
        FlatGradients(self.flatten(self.entries.iter().map(part).collect(), dtype.into(), &values.device(), before))
    }

    fn flatten(&self, parts: Vec<Part>, dtype: DType, device: &Device, onto: Option<Flat>) -> Flat {
        let places: Vec<_> = self.entries.iter().map(ParamEntry::place).collect();
        gather(parts, &places, self.len, dtype, device, onto)
    }

    /// Replaces the weights of `module` by slices of the flat tensor `weights`: views where the backend supports them, see
    /// [`kiln_kernels::optim::view`]. Leaves of the autodiff graph remain
    /// leaves, and frozen parameters remain as they are.
    ///
    /// # Panics
    /// If the table was not made of this `module`.
    pub(crate) fn attach<M: Module>(&self, module: M, weights: &Tensor<1>) -> M {
        let mut mapper = Attach { all: self.all.iter(), entries: self.entries.iter(), weights };
        let module = module.map(&mut mapper);
        assert!(mapper.entries.next().is_none(), "the module has fewer parameters than the table");
        module
    }
}

#[derive(Default)]
struct TableVisitor {
    path: Vec<String>,
    entries: Vec<ParamEntry>,
    seen: std::collections::HashMap<ParamId, String>,
}

impl ModuleVisitor for TableVisitor {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let path = self.path.join(".");
        if let Some(first) = self.seen.insert(param.id, path.clone()) {
            panic!("{path} and {first} are the same parameter; a shared weight must be one field of the module");
        }
        self.entries.push(ParamEntry {
            path,
            shape: param.dims().to_vec(),
            decayed: D >= 2,
            frozen: false,
            offset: 0,
            group: 0,
            cut: Cut::Rows,
        });
    }
}

struct CollectWeights<'a> {
    all: std::slice::Iter<'a, ParamEntry>,
    parts: Vec<Part>,
    device: Option<Device>,
}

impl ModuleVisitor for CollectWeights<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.all.next().expect("a parameter of the table").frozen {
            return;
        }
        let value = param.val().inner();
        self.device.get_or_insert_with(|| value.device());
        self.parts.push(value.into());
    }
}

struct CollectGradients<'a> {
    all: std::slice::Iter<'a, ParamEntry>,
    parts: Vec<Part>,
    device: Option<Device>,
    gradients: &'a mut Gradients,
}

impl ModuleVisitor for CollectGradients<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.all.next().expect("a parameter of the table").frozen {
            return;
        }
        let value = param.val();
        let gradient = value.grad_remove(self.gradients).unwrap_or_else(|| value.inner().zeros_like());
        self.device.get_or_insert_with(|| gradient.device());
        self.parts.push(gradient.into());
    }
}

struct Attach<'a> {
    all: std::slice::Iter<'a, ParamEntry>,
    entries: std::slice::Iter<'a, ParamEntry>,
    weights: &'a Tensor<1>,
}

impl ModuleMapper for Attach<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.all.next().expect("the module has more parameters than the table").frozen {
            return param;
        }
        let entry = self.entries.next().expect("a trained parameter");
        let (autodiff, require_grad) = (param.is_autodiff(), param.is_require_grad());
        let dims = param.dims();
        assert_eq!(dims.as_slice(), entry.shape.as_slice(), "shape of {} differs from the table", entry.path);
        param.map(|_| {
            let weight = view(self.weights, entry.offset, dims);
            if autodiff { weight.autodiff().set_require_grad(require_grad) } else { weight }
        })
    }
}
