//! Every operator of `kiln-kernels` next to its reference, forward and with backward.
//!
//! ```text
//! cargo bench --bench operators                                        # CPU, small shapes in f32
//! KILN_BENCH_DEVICE=cuda cargo bench --features cuda --bench operators # shapes of GPT-2 124M, 16 x 1024, in bf16
//! ```
//!
//! `kernel` is the operator as training calls it, `reference` the same function in Burn's operations and their autodiff.
//! Results are kept until the device is done, because a lazy backend never computes a result that is dropped before.
//! `kiln bench gpt --operators` shows the operators' shares of a real step, their rates and floors.

use std::time::{Duration, Instant};

use burn::tensor::{DType, Device, Distribution, Gradients, Int, Tensor, TensorData};
use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime,
};
use kiln::config::Precision;
use kiln::device::{DeviceChoice, compute_dtype, device_name, is_cpu};
use kiln_kernels::{
    Activation, AttentionConfig, AttentionMask, Branch, CrossEntropyConfig, DropoutStream, NormWeights, Projected,
    Settings, add_norm, attention, cross_entropy, dropout, embed, linear, linear_activated, rotary, swiglu,
};

/// Results in memory at once.
const KEPT: u64 = 4;

/// A device, and the shapes of the operators on it.
#[derive(Clone)]
struct Place {
    device: Device,
    /// Whether gradients are computed.
    tracked: bool,
    dtype: DType,
    name: String,
    batch: usize,
    len: usize,
    heads: usize,
    d: usize,
    vocabulary: usize,
}

impl Place {
    fn new() -> Self {
        let choice = std::env::var("KILN_BENCH_DEVICE").unwrap_or_else(|_| "cpu".to_string());
        let choice: DeviceChoice = choice.parse().unwrap_or_else(|error| panic!("KILN_BENCH_DEVICE: {error}"));
        let device = choice.open().unwrap_or_else(|error| panic!("KILN_BENCH_DEVICE: {error}"));
        let dtype = DType::from(compute_dtype(Precision::Auto, &device).expect("a precision of this device"));
        let name = format!("{dtype:?} {}", device_name(&device));
        let [batch, len, heads, d, vocabulary] =
            if is_cpu(&device) { [2, 64, 2, 64, 1000] } else { [16, 1024, 12, 768, 50_304] };
        Self { device: device.autodiff(), tracked: true, dtype, name, batch, len, heads, d, vocabulary }
    }

    /// Returns the same without autodiff, for forward passes alone: otherwise the tensors that forward saves would stay in memory,
    /// since no backward pass follows.
    fn untracked(&self) -> Self {
        Self { device: self.device.clone().inner(), tracked: false, ..self.clone() }
    }

    fn rows(&self) -> usize {
        self.batch * self.len
    }

    fn bytes(&self, elements: usize) -> usize {
        elements * self.dtype.size()
    }

    fn leaf<const D: usize>(&self, shape: [usize; D]) -> Tensor<D> {
        let sampled: Tensor<D> = Tensor::random(shape, Distribution::Normal(0.0, 1.0), (&self.device, DType::F32));
        let leaf = sampled.cast(self.dtype).detach();
        if self.tracked { leaf.require_grad() } else { leaf }
    }

    fn ids(&self, below: usize) -> Tensor<1, Int> {
        let ids: Vec<i32> = (0..self.rows()).map(|i| (i * 7919 % below) as i32).collect();
        Tensor::from_data(TensorData::new(ids, [self.rows()]), (&self.device, DType::I32))
    }

    fn stream(&self) -> DropoutStream {
        DropoutStream::new(1, 0, &self.device)
    }

    /// Times an operator's kernel and its reference, forward alone and with backward. `build` makes its input and the call;
    /// `bytes` counts operands and results.
    fn operator<const D: usize, R: Fn() -> Tensor<D>>(
        &self,
        criterion: &mut Criterion,
        name: &str,
        bytes: usize,
        build: impl Fn(&Place) -> (Tensor<2>, R),
    ) {
        let mut group = criterion.benchmark_group(name);
        group.sample_size(10).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
        group.throughput(Throughput::Bytes(bytes as u64));
        let (_, forward) = build(&self.untracked());
        let (input, run) = build(self);
        for (reference, how) in [(false, "kernel"), (true, "reference")] {
            let _installed = Settings { reference_operators: reference, ..Settings::current() }.install();
            self.bench(&mut group, format!("{how} forward"), &forward, |y| first(y.clone()));
            let with_backward = || {
                let y = run();
                let gradients: Gradients = y.backward();
                (y, gradients)
            };
            self.bench(&mut group, format!("{how} forward + backward"), with_backward, |(y, gradients)| {
                first(y.clone()) + first(input.grad(gradients).expect("a gradient of the input"))
            });
        }
        group.finish();
    }

    /// `read` reads a number of the last result: a launch that failed is fast, and only its result shows the failure.
    fn bench<T>(
        &self,
        group: &mut BenchmarkGroup<'_, WallTime>,
        how: String,
        run: impl Fn() -> T,
        read: impl Fn(&T) -> f32,
    ) {
        group.bench_function(BenchmarkId::new(how, &self.name), |bencher| {
            bencher.iter_custom(|iterations| {
                let mut spent = Duration::ZERO;
                for first in (0..iterations).step_by(KEPT as usize) {
                    let started = Instant::now();
                    let kept: Vec<T> = (first..iterations.min(first + KEPT)).map(|_| run()).collect();
                    self.device.sync().expect("a device that works");
                    spent += started.elapsed();
                    if first + KEPT >= iterations {
                        let number = read(kept.last().expect("a result"));
                        assert!(number.is_finite(), "a result of {number}");
                    }
                }
                spent
            });
        });
    }
}

/// Reads the first number of a tensor.
fn first<const D: usize>(x: Tensor<D>) -> f32 {
    let n = x.shape().num_elements();
    x.detach().reshape([n]).slice(0..1).cast(DType::F32).into_scalar()
}

fn operators(criterion: &mut Criterion) {
    let place = Place::new();
    let (m, d, f, v) = (place.rows(), place.d, 4 * place.d, place.vocabulary);

    let product = place.bytes(m * d + d * f + m * f);
    place.operator(criterion, "linear", product, |place| {
        let (x, w, b) = (place.leaf([m, d]), place.leaf([d, f]), place.leaf([f]));
        (x.clone(), move || linear(x.clone(), w.clone(), Some(b.clone())))
    });
    for by in Activation::ALL {
        place.operator(criterion, &format!("linear_{by:?}_dropout"), product, |place| {
            let (x, w, b, stream) = (place.leaf([m, d]), place.leaf([d, f]), place.leaf([f]), place.stream());
            (x.clone(), move || linear_activated(x.clone(), w.clone(), Some(b.clone()), by, Some((0.1, &stream))))
        });
    }

    for (name, causal) in [("attention_causal", true), ("attention_padded", false)] {
        place.operator(criterion, name, place.bytes(4 * m * d), |place| {
            let qkv = place.leaf([m, 3 * d]);
            let lengths: Vec<i32> = (0..place.batch).map(|row| (place.len - row % (place.len / 4)) as i32).collect();
            let lengths = Tensor::from_data(TensorData::new(lengths, [place.batch]), (&place.device, DType::I32));
            let mask = if causal { AttentionMask::default() } else { AttentionMask::key_lengths(lengths) };
            let (batch_size, n_heads) = (place.batch, place.heads);
            let config = AttentionConfig {
                batch_size,
                n_heads,
                n_kv_heads: n_heads,
                causal,
                window: None,
                scale: None,
                softcap: None,
            };
            (qkv.clone(), move || attention(Projected::SelfAttention { qkv: qkv.clone() }, &mask, None, &config))
        });
    }
    place.operator(criterion, "rotary", place.bytes(6 * m * d), |place| {
        let (qkv, positions, heads) = (place.leaf([m, 3 * d]), place.ids(place.len), place.heads);
        (qkv.clone(), move || rotary(qkv.clone(), positions.clone(), 2 * heads, d / heads, 1e4))
    });

    for (name, centered) in [("residual_layer_norm", true), ("residual_rms_norm", false)] {
        place.operator(criterion, name, place.bytes(4 * m * d), |place| {
            let (x, branch, stream) = (place.leaf([m, d]), place.leaf([m, d]), place.stream());
            let (gamma, [beta, bias]) = (place.leaf([d]), [(); 2].map(|()| centered.then(|| place.leaf([d]))));
            let input = x.clone();
            let run = move || {
                let branch = Branch { bias: bias.clone(), ..branch.clone().into() };
                let norm = NormWeights { gamma: gamma.clone(), beta: beta.clone(), eps: 1e-5 };
                add_norm(x.clone(), Some(branch), Some((0.1, &stream)), norm).1
            };
            (input, run)
        });
    }
    place.operator(criterion, "dropout", place.bytes(2 * m * d), |place| {
        let (x, stream) = (place.leaf([m, d]), place.stream());
        (x.clone(), move || dropout(x.clone(), 0.1, &stream))
    });
    place.operator(criterion, "swiglu", place.bytes(3 * m * f), |place| {
        let gate_up = place.leaf([m, 2 * f]);
        (gate_up.clone(), move || swiglu(gate_up.clone()))
    });

    place.operator(criterion, "embedding", place.bytes(2 * m * d), |place| {
        let (table, places, ids) = (place.leaf([v, d]), place.leaf([m / 2, d]), place.ids(v));
        let (input, stream) = (table.clone(), place.stream());
        let run = move || embed(ids.clone(), table.clone(), 2.0, Some(places.clone()), Some((0.1, &stream)));
        (input, run)
    });
    place.operator(criterion, "cross_entropy", place.bytes(m * v), |place| {
        let (logits, labels) = (place.leaf([m, v]), place.ids(v));
        let config = CrossEntropyConfig { label_smoothing: 0.1, ignore_index: 0 };
        (logits.clone(), move || cross_entropy(logits.clone(), labels.clone(), &config).loss_sum)
    });
}

criterion_group!(benches, operators);
criterion_main!(benches);
