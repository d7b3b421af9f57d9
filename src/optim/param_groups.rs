//! Where each parameter of a module lies in the optimizer's flat tensors.
//!
//! All parameters of a group stand end to end in one f32 tensor, in the order in which the module is visited. So an
//! optimizer step is a handful of operations whatever the number of layers, and a checkpoint can name every slice.

use std::ops::Add;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{FloatDType, Gradients, Tensor};

/// Which parameters are decayed. As in nanoGPT and Hugging Face's trainer, the rank decides: matrices, embeddings among
/// them, are; biases and the gains of norms are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Parameters of rank 2 and more.
    Decay,
    /// Parameters of rank 1.
    NoDecay,
}

impl Group {
    /// Both groups, in the order of the flat tensors.
    pub const ALL: [Group; 2] = [Group::Decay, Group::NoDecay];

    fn of_rank(rank: usize) -> Self {
        if rank >= 2 { Self::Decay } else { Self::NoDecay }
    }
}

/// One parameter's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamEntry {
    /// Path in the module: `encoder.layers.0.self_attention.qkv.weight`.
    pub path: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The flat tensor it lies in.
    pub group: Group,
    /// First element in that tensor.
    pub offset: usize,
}

impl ParamEntry {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether the parameter has no element at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Gradients of both groups, flat and f32, indexed as [`Group::ALL`]; `None` for a group without parameters.
#[derive(Debug, Clone)]
pub struct FlatGradients(pub [Option<Tensor<1>>; 2]);

impl Add for FlatGradients {
    type Output = Self;

    /// Sums the gradients of two micro-batches.
    fn add(self, other: Self) -> Self {
        let Self([decay, no_decay]) = self;
        let Self([other_decay, other_no_decay]) = other;
        let add = |a: Option<Tensor<1>>, b: Option<Tensor<1>>| a.zip(b).map(|(a, b)| a + b);
        Self([add(decay, other_decay), add(no_decay, other_no_decay)])
    }
}

/// Every parameter of a module, in visiting order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamTable {
    entries: Vec<ParamEntry>,
}

impl ParamTable {
    /// The table of `module`.
    ///
    /// # Panics
    /// If the module shows one parameter twice: a shared weight must be one field.
    pub fn of<M: Module>(module: &M) -> Self {
        let mut visitor = TableVisitor::default();
        module.visit(&mut visitor);
        Self { entries: visitor.entries }
    }

    /// The entries, in visiting order.
    pub fn entries(&self) -> &[ParamEntry] {
        &self.entries
    }

    /// Elements of `group`.
    pub fn group_len(&self, group: Group) -> usize {
        self.entries.iter().filter(|entry| entry.group == group).map(ParamEntry::len).sum()
    }

    /// All trainable parameters.
    pub fn n_params(&self) -> usize {
        self.entries.iter().map(ParamEntry::len).sum()
    }

    /// Copies the weights of `module` end to end, as f32. `None` for a group without parameters.
    pub fn flatten_weights<M: Module>(&self, module: &M) -> [Option<Tensor<1>>; 2] {
        let mut visitor = CollectWeights::default();
        module.visit(&mut visitor);
        flatten(visitor.parts)
    }

    /// Takes the gradients of `module`'s parameters out of `gradients`, end to end, as f32. A parameter that took no part
    /// in the loss has a gradient of zeros.
    pub fn flatten_gradients<M: Module>(&self, module: &M, gradients: &mut Gradients) -> FlatGradients {
        let mut visitor = CollectGradients { parts: Default::default(), gradients };
        module.visit(&mut visitor);
        FlatGradients(flatten(visitor.parts))
    }

    /// Gives `module` the weights of the flat tensors `masters`, cast to `dtype`. Each stays a leaf of the autodiff graph
    /// if it was one.
    ///
    /// # Panics
    /// If `module` is not the one the table was made of.
    pub fn write_back<M: Module>(&self, module: M, masters: [Option<Tensor<1>>; 2], dtype: FloatDType) -> M {
        let mut mapper = WriteBack { entries: self.entries.iter(), masters, dtype };
        let module = module.map(&mut mapper);
        assert!(mapper.entries.next().is_none(), "the module has fewer parameters than the table");
        module
    }
}

/// One f32 tensor per group. The parts are joined before they are cast: half the bytes to copy in bf16.
fn flatten(parts: [Vec<Tensor<1>>; 2]) -> [Option<Tensor<1>>; 2] {
    parts.map(|parts| (!parts.is_empty()).then(|| Tensor::cat(parts, 0).cast(FloatDType::F32)))
}

#[derive(Default)]
struct TableVisitor {
    path: Vec<String>,
    entries: Vec<ParamEntry>,
    seen: std::collections::HashMap<ParamId, String>,
    next: [usize; 2],
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
            panic!("{path} and {first} are one parameter; a shared weight must be one field of the module");
        }
        let group = Group::of_rank(D);
        let offset = self.next[group as usize];
        let entry = ParamEntry { path, shape: param.dims().to_vec(), group, offset };
        self.next[group as usize] += entry.len();
        self.entries.push(entry);
    }
}

#[derive(Default)]
struct CollectWeights {
    parts: [Vec<Tensor<1>>; 2],
}

impl ModuleVisitor for CollectWeights {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.parts[Group::of_rank(D) as usize].push(param.val().inner().reshape([-1]));
    }
}

struct CollectGradients<'a> {
    parts: [Vec<Tensor<1>>; 2],
    gradients: &'a mut Gradients,
}

impl ModuleVisitor for CollectGradients<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        let gradient = value.grad_remove(self.gradients).unwrap_or_else(|| value.inner().zeros_like());
        self.parts[Group::of_rank(D) as usize].push(gradient.reshape([-1]));
    }
}

struct WriteBack<'a> {
    entries: std::slice::Iter<'a, ParamEntry>,
    masters: [Option<Tensor<1>>; 2],
    dtype: FloatDType,
}

impl ModuleMapper for WriteBack<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let entry = self.entries.next().expect("the module has no more parameters than the table");
        let (autodiff, require_grad) = (param.is_autodiff(), param.is_require_grad());
        let dims = param.dims();
        assert_eq!(dims.as_slice(), entry.shape.as_slice(), "the shape of {} is not the table's", entry.path);
        let master = self.masters[entry.group as usize].clone().expect("a group with entries has a flat tensor");
        param.map(|_| {
            let weight = master.slice(entry.offset..entry.offset + entry.len()).reshape(dims).cast(self.dtype);
            if autodiff { weight.autodiff().set_require_grad(require_grad) } else { weight }
        })
    }
}
