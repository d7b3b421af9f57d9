//! What the tests share: batches from rows, parameters by path, and the smallest possible training step.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{DType, Device, Gradients, Int, Tensor, TensorData};
use kiln_kernels::optim::{
    AdamWHyper, AdamWState, Coefficients, Counters, Flat, Place, Progress, StepPolicy, adamw_step, gather, prepare,
};
use kiln_model::{
    Activation, Architecture, FeedForwardActivation, NormKind, NormPlacement, PairBatch, Positions, TextBatch,
    TieEmbeddings, TransformerConfig,
};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

pub(crate) const PAD: i32 = 0;
pub(crate) const START: i32 = 1;
pub(crate) const END: i32 = 2;

/// Source and target tokens, without start, end and padding.
pub(crate) type Pair = (Vec<i32>, Vec<i32>);

/// Flat values by parameter path.
pub(crate) type ByPath = BTreeMap<String, Vec<f32>>;

pub(crate) fn train_device() -> Device {
    Device::flex().autodiff()
}

/// The first CUDA device; without one, says why the test is skipped.
pub(crate) fn cuda() -> Option<Device> {
    #[cfg(feature = "cuda")]
    let found = Device::enumerate(burn::tensor::DeviceType::Cuda).into_iter().next();
    #[cfg(not(feature = "cuda"))]
    let found = None;
    if found.is_none() {
        eprintln!("skipped: built without the feature `cuda`, or on a machine without a CUDA device");
    }
    found
}

/// `‖found - wanted‖ / ‖wanted‖` over all parameters of `wanted`.
pub(crate) fn distance(found: &ByPath, wanted: &ByPath) -> f64 {
    let (mut difference, mut total) = (0.0, 0.0);
    for (path, wanted) in wanted {
        for (found, wanted) in found[path].iter().zip(wanted) {
            difference += f64::from(found - wanted).powi(2);
            total += f64::from(*wanted).powi(2);
        }
    }
    (difference / total).sqrt()
}

/// 16 features, 2 heads, 2 + 2 layers, 12 tokens, no dropout.
pub(crate) fn small_config() -> TransformerConfig {
    TransformerConfig {
        d_model: 16,
        n_heads: 2,
        d_ff: 32,
        n_encoder_layers: 2,
        n_decoder_layers: 2,
        source_vocab_size: 12,
        target_vocab_size: 12,
        max_positions: 64,
        dropout: 0.0,
        ..TransformerConfig::default()
    }
}

/// The decoder-only model of GPT-2's kind.
pub(crate) fn gpt2_config() -> TransformerConfig {
    TransformerConfig {
        architecture: Architecture::DecoderOnly,
        positions: Positions::Learned,
        activation: Activation::GeluTanh.into(),
        scale_embedding: false,
        ..small_config()
    }
}

/// The decoder-only model of Llama's kind, two heads of queries to one of keys and values.
pub(crate) fn llama_config() -> TransformerConfig {
    TransformerConfig {
        architecture: Architecture::DecoderOnly,
        n_heads: 4,
        n_kv_heads: 2,
        norm_kind: NormKind::RmsNorm,
        positions: Positions::Rotary,
        activation: FeedForwardActivation::SWIGLU,
        bias: false,
        scale_embedding: false,
        tie_embeddings: TieEmbeddings::None,
        ..small_config()
    }
}

/// The encoder-only model of BERT's kind.
pub(crate) fn bert_config() -> TransformerConfig {
    TransformerConfig {
        architecture: Architecture::EncoderOnly,
        norm: NormPlacement::Post,
        embedding_norm: true,
        positions: Positions::Learned,
        activation: Activation::Gelu.into(),
        scale_embedding: false,
        n_token_types: 2,
        tie_embeddings: TieEmbeddings::Output,
        ..small_config()
    }
}

/// The encoder-decoder of BART's kind.
pub(crate) fn bart_config() -> TransformerConfig {
    TransformerConfig {
        norm: NormPlacement::Post,
        embedding_norm: true,
        positions: Positions::Learned,
        activation: Activation::Gelu.into(),
        scale_embedding: false,
        final_logits_bias: true,
        ..small_config()
    }
}

/// The encoder-decoder of Marian's kind.
pub(crate) fn marian_config() -> TransformerConfig {
    TransformerConfig {
        norm: NormPlacement::Post,
        positions: Positions::SinusoidalHalves,
        activation: Activation::Silu.into(),
        final_logits_bias: true,
        ..small_config()
    }
}

/// A pre-norm encoder-decoder of T5's kind: RMS norms, no biases, a gated activation; with rotary positions.
pub(crate) fn t5_like_config() -> TransformerConfig {
    TransformerConfig {
        architecture: Architecture::EncoderDecoder,
        tie_embeddings: TieEmbeddings::Output,
        ..llama_config()
    }
}

/// Rows of text with the labels of a language model: the next token.
pub(crate) fn text_batch(rows: &[Vec<i32>], min_len: usize, device: &Device) -> TextBatch {
    let len = rows.iter().map(Vec::len).max().expect("a batch has rows").max(min_len);
    let (mut input, mut labels) = (vec![], vec![]);
    for row in rows {
        let padding = len - row.len();
        input.extend(row.iter().copied().chain(std::iter::repeat_n(PAD, padding)));
        labels.extend(row[1..].iter().copied().chain(std::iter::repeat_n(TextBatch::NOT_COUNTED, padding + 1)));
    }
    let lengths: Vec<i32> = rows.iter().map(|row| row.len() as i32).collect();
    TextBatch {
        input: ids(&input, device),
        labels: ids(&labels, device),
        positions: None,
        documents: None,
        token_types: None,
        preference: None,
        max_labels: None,
        lengths: ids(&lengths, device),
        batch_size: rows.len(),
        seq_len: len,
        tokens: lengths.iter().map(|&len| len as u64).sum(),
    }
}

pub(crate) fn ids(values: &[i32], device: &Device) -> Tensor<1, Int> {
    Tensor::from_data(TensorData::new(values.to_vec(), [values.len()]), (device, DType::I32))
}

/// Pairs as a batch of at least the given padded lengths, through the layout that the trainer uploads.
pub(crate) fn batch(pairs: &[Pair], min_lens: [usize; 2], device: &Device) -> PairBatch {
    let longest = |len: fn(&Pair) -> usize| pairs.iter().map(len).max().expect("a batch has rows");
    let s = longest(|pair| pair.0.len() + 1).max(min_lens[0]);
    let t = longest(|pair| pair.1.len() + 1).max(min_lens[1]);
    let padded = |row: Vec<i32>, len: usize| {
        let padding = vec![PAD; len - row.len()];
        [row, padding].concat()
    };
    let column = |row: &dyn Fn(&Pair) -> Vec<i32>| pairs.iter().flat_map(row).collect::<Vec<_>>();
    let flat = [
        column(&|(source, _)| padded([source.as_slice(), &[END]].concat(), s)),
        column(&|(_, target)| padded([&[START], target.as_slice()].concat(), t)),
        column(&|(_, target)| padded([target.as_slice(), &[END]].concat(), t)),
        column(&|(source, _)| vec![source.len() as i32 + 1]),
        column(&|(_, target)| vec![target.len() as i32 + 1]),
    ]
    .concat();
    let tokens = |len: fn(&Pair) -> usize| pairs.iter().map(|pair| len(pair) as u64 + 1).sum();
    let (source_tokens, target_tokens) = (tokens(|pair| pair.0.len()), tokens(|pair| pair.1.len()));
    PairBatch::from_contiguous(ids(&flat, device), [pairs.len(), s, t], source_tokens, target_tokens)
}

/// Sequences of real tokens (3..12), with lengths in the given range.
pub(crate) fn random_rows(n: usize, lens: std::ops::RangeInclusive<usize>, seed: u64) -> Vec<Vec<i32>> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut below = |n: usize| random.next_u32() as usize % n;
    (0..n)
        .map(|_| {
            let len = lens.start() + below(lens.end() - lens.start() + 1);
            (0..len).map(|_| 3 + below(9) as i32).collect()
        })
        .collect()
}

pub(crate) fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().convert::<f32>().try_to_vec().expect("converted to f32")
}

pub(crate) fn scalar(tensor: Tensor<1>) -> f64 {
    f64::from(values(tensor)[0])
}

pub(crate) fn assert_close(found: &[f32], wanted: &[f32], relative: f32, floor: f32, what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}: lengths");
    let largest = wanted.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
    let difference = found.iter().zip(wanted).fold(0.0_f32, |largest, (a, b)| {
        let difference = (a - b).abs();
        if difference.is_nan() { f32::INFINITY } else { largest.max(difference) }
    });
    let allowed = (relative * largest).max(floor);
    assert!(difference <= allowed, "{what}: off by {difference:e}, allowed {allowed:e}, largest value {largest:e}");
}

/// Runs a function over every parameter with its path.
struct Visit<F> {
    path: Vec<String>,
    see: F,
}

trait See {
    fn see<const D: usize>(&mut self, path: String, param: &Param<Tensor<D>>);
}

impl<S: See> ModuleVisitor for Visit<S> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }
    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.see.see(self.path.join("."), param);
    }
}

fn visit<M: Module, S: See>(model: &M, see: S) -> S {
    let mut visitor = Visit { path: vec![], see };
    model.visit(&mut visitor);
    visitor.see
}

/// Paths and shapes in visiting order.
pub(crate) fn shapes<M: Module>(model: &M) -> Vec<(String, Vec<usize>)> {
    struct Shapes(Vec<(String, Vec<usize>)>);
    impl See for Shapes {
        fn see<const D: usize>(&mut self, path: String, param: &Param<Tensor<D>>) {
            self.0.push((path, param.val().dims().to_vec()));
        }
    }
    visit(model, Shapes(vec![])).0
}

pub(crate) fn weights<M: Module>(model: &M) -> ByPath {
    struct Weights(ByPath);
    impl See for Weights {
        fn see<const D: usize>(&mut self, path: String, param: &Param<Tensor<D>>) {
            self.0.insert(path, values(param.val()));
        }
    }
    visit(model, Weights(ByPath::new())).0
}

pub(crate) fn gradients<M: Module>(model: &M, gradients: &Gradients) -> ByPath {
    struct Of<'a>(&'a Gradients, ByPath);
    impl See for Of<'_> {
        fn see<const D: usize>(&mut self, path: String, param: &Param<Tensor<D>>) {
            if !param.is_require_grad() {
                return;
            }
            let gradient = param.val().grad(self.0).unwrap_or_else(|| panic!("{path} has no gradient"));
            assert_eq!(gradient.dims(), param.val().dims(), "{path}");
            self.1.insert(path, values(gradient));
        }
    }
    visit(model, Of(gradients, ByPath::new())).1
}

/// The model with other weights; every path must be there.
pub(crate) fn with_weights<M: Module>(model: M, weights: &ByPath) -> M {
    struct Put<'a> {
        path: Vec<String>,
        weights: &'a ByPath,
    }
    impl ModuleMapper for Put<'_> {
        fn enter_module(&mut self, name: &str, _container_type: &str) {
            self.path.push(name.to_owned());
        }
        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.path.pop();
        }
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let path = self.path.join(".");
            let values = self.weights.get(&path).unwrap_or_else(|| panic!("no weights for {path}"));
            param.map(|old| {
                let data = TensorData::new(values.clone(), old.dims());
                Tensor::from_data(data, (&old.device(), old.dtype())).set_require_grad(old.is_require_grad())
            })
        }
    }
    model.map(&mut Put { path: vec![], weights })
}

/// AdamW over all parameters, matrices first: they are decayed, vectors are not.
pub(crate) struct Optimizer {
    pub(crate) lr: f64,
    hyper: AdamWHyper,
    policy: StepPolicy,
    progress: Progress,
    n_steps: u64,
    places: Vec<(String, Place)>,
    state: AdamWState,
}

impl Optimizer {
    pub(crate) fn new<M: Module>(model: &M, lr: f64, hyper: AdamWHyper, max_grad_norm: f64) -> Self {
        let (shapes, mut places, mut len) = (shapes(model), Vec::new(), 0);
        let mut hyper = hyper;
        for matrices in [true, false] {
            for (path, dims) in shapes.iter().filter(|(_, dims)| (dims.len() > 1) == matrices) {
                let place = Place { offset: len, len: dims.iter().product() };
                len += place.padded_len();
                places.push((path.clone(), place));
            }
            if matrices {
                hyper.n_decayed = len;
            }
        }
        let state = AdamWState::new(flatten(&places, &weights(model)).values, DType::F32);
        let policy = StepPolicy { max_norm: max_grad_norm, scaling: None, stops: false };
        let counters = Counters { updates: 0, loss_scale: 1.0, good_steps: 0 };
        Self { lr, hyper, policy, progress: Progress::new(counters, &Device::flex()), n_steps: 0, places, state }
    }

    /// One step; returns the model and the gradient norm before clipping.
    pub(crate) fn step<M: Module>(&mut self, model: M, gradients: &ByPath) -> (M, f64) {
        let device = Device::flex();
        let zeros = |dims: Vec<usize>| vec![0.0; dims.iter().product()];
        let mut all: ByPath = shapes(&model).into_iter().map(|(path, dims)| (path, zeros(dims))).collect();
        all.extend(gradients.clone());
        let gradient = flatten(&self.places, &all);
        let coefficients = Coefficients::new(&self.hyper, |_| self.lr, self.n_steps, self.n_steps, &device);
        self.n_steps += 1;
        let [divisor, loss] = [1.0, 0.0].map(|value| Tensor::full([1], value, &device));
        let (numbers, progress) = prepare(&gradient, divisor, loss, self.progress.clone(), &coefficients, &self.policy);
        self.progress = progress;
        self.state = adamw_step(self.state.clone(), gradient, &numbers, &self.hyper);
        let master = values(self.state.master.clone());
        let mut after = weights(&model);
        // PyTorch leaves a parameter without a gradient alone, weight decay included.
        for (path, place) in self.places.iter().filter(|(path, _)| gradients.contains_key(path)) {
            after.insert(path.clone(), master[place.offset..][..place.len].to_vec());
        }
        (with_weights(model, &after), scalar(numbers.norm()))
    }
}

fn flatten(places: &[(String, Place)], by_path: &ByPath) -> Flat {
    let device = Device::flex();
    let part = |path: &String| Tensor::<1>::from_data(by_path[path].as_slice(), &device).into();
    let (parts, places): (Vec<_>, Vec<_>) = places.iter().map(|(path, place)| (part(path), *place)).unzip();
    let len = places.iter().map(|place| place.offset + place.padded_len()).max().expect("a model has parameters");
    gather(parts, &places, len, DType::F32, &device, None)
}
