//! Every operator of `kiln-kernels` beside its plain definition, forward and with backward.
//!
//! ```text
//! cargo bench --bench operators                                        # CPU, small shapes in f32
//! KILN_BENCH_DEVICE=cuda cargo bench --features cuda --bench operators # shapes of GPT-2 124M, 16 x 1024, in bf16
//! ```
//!
//! `fused` is the operator as training calls it, `plain` the same function in plain Burn operations and their autodiff.
//! Results are kept until the device is done: what is dropped before is never computed on a lazy backend. Shares of a real
//! step, rates and floors: `kiln bench gpt --operators`.

use std::time::{Duration, Instant};

use burn::tensor::{DType, Device, Distribution, Gradients, Int, Tensor, TensorData};
use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime,
};
use kiln::config::Precision;
use kiln::device::{DeviceChoice, compute_dtype, device_name, is_cpu};
use kiln_kernels::{
    Activation, AttentionConfig, AttentionMask, Branch, CrossEntropyConfig, DropoutStream, Norm, Projected, add_norm,
    attention, cross_entropy, dropout, embed, linear, linear_activated, rotary, set_plain_operators, swiglu,
};

/// Results in memory at once.
const KEPT: u64 = 4;

/// Where and how large.
struct Place {
    device: Device,
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
        Self { device: device.autodiff(), dtype, name, batch, len, heads, d, vocabulary }
    }

    fn rows(&self) -> usize {
        self.batch * self.len
    }

    fn leaf<const D: usize>(&self, shape: [usize; D]) -> Tensor<D> {
        let drawn: Tensor<D> = Tensor::random(shape, Distribution::Normal(0.0, 1.0), (&self.device, DType::F32));
        drawn.cast(self.dtype).detach().require_grad()
    }

    fn ids(&self, below: usize) -> Tensor<1, Int> {
        let ids: Vec<i32> = (0..self.rows()).map(|i| (i * 7919 % below) as i32).collect();
        Tensor::from_data(TensorData::new(ids, [self.rows()]), (&self.device, DType::I32))
    }

    /// Times `run` fused and plain, forward alone and with backward. `bytes` are those of operands and results.
    fn operator<const D: usize>(
        &self,
        criterion: &mut Criterion,
        name: &str,
        bytes: usize,
        run: impl Fn() -> Tensor<D>,
    ) {
        let mut group = criterion.benchmark_group(name);
        group.sample_size(10).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
        group.throughput(Throughput::Bytes(bytes as u64));
        for (plain, how) in [(false, "fused"), (true, "plain")] {
            set_plain_operators(plain);
            self.bench(&mut group, format!("{how} forward"), &run);
            let with_backward = || {
                let y = run();
                let gradients: Gradients = y.backward();
                (y, gradients)
            };
            self.bench(&mut group, format!("{how} forward + backward"), with_backward);
        }
        set_plain_operators(false);
        group.finish();
    }

    fn bench<T>(&self, group: &mut BenchmarkGroup<'_, WallTime>, how: String, run: impl Fn() -> T) {
        group.bench_function(BenchmarkId::new(how, &self.name), |bencher| {
            bencher.iter_custom(|iterations| {
                let started = Instant::now();
                for first in (0..iterations).step_by(KEPT as usize) {
                    let kept: Vec<T> = (first..iterations.min(first + KEPT)).map(|_| run()).collect();
                    self.device.sync().expect("a device that works");
                    drop(kept);
                }
                started.elapsed()
            });
        });
    }
}

fn operators(criterion: &mut Criterion) {
    let place = Place::new();
    let (m, d, f, v) = (place.rows(), place.d, 4 * place.d, place.vocabulary);
    let bytes = |elements: usize| elements * place.dtype.size();
    let stream = DropoutStream::new(1, 0, &place.device);

    let (x, w, b) = (place.leaf([m, d]), place.leaf([d, f]), place.leaf([f]));
    let product = bytes(m * d + d * f + m * f);
    place.operator(criterion, "linear", product, || linear(x.clone(), w.clone(), Some(b.clone())));
    for by in [Activation::Relu, Activation::Gelu, Activation::GeluTanh, Activation::Silu] {
        let run = || linear_activated(x.clone(), w.clone(), Some(b.clone()), by, Some((0.1, &stream)));
        place.operator(criterion, &format!("linear_{by:?}_dropout"), product, run);
    }

    let qkv = place.leaf([m, 3 * d]);
    let lengths: Vec<i32> = (0..place.batch).map(|row| (place.len - row % (place.len / 4)) as i32).collect();
    let lengths = Tensor::from_data(TensorData::new(lengths, [place.batch]), (&place.device, DType::I32));
    let of = |causal: bool| AttentionConfig {
        batch_size: place.batch,
        n_heads: place.heads,
        n_kv_heads: place.heads,
        causal,
    };
    for (name, mask, config) in [
        ("attention_causal", AttentionMask::default(), of(true)),
        ("attention_padded", AttentionMask::key_lengths(lengths), of(false)),
    ] {
        let run = || attention(Projected::SelfAttention { qkv: qkv.clone() }, &mask, None, &config);
        place.operator(criterion, name, bytes(4 * m * d), run);
    }
    let positions = place.ids(place.len);
    let run = || rotary(qkv.clone(), positions.clone(), 2 * place.heads, d / place.heads, 1e4);
    place.operator(criterion, "rotary", bytes(6 * m * d), run);

    let (branch, gamma, beta, bias) = (place.leaf([m, d]), place.leaf([d]), place.leaf([d]), place.leaf([d]));
    for (name, beta, bias) in [("residual_layer_norm", Some(beta), Some(bias)), ("residual_rms_norm", None, None)] {
        let norm = || Norm { gamma: gamma.clone(), beta: beta.clone(), eps: 1e-5 };
        let branch = || Branch { bias: bias.clone(), ..branch.clone().into() };
        let run = || add_norm(x.clone(), Some(branch()), Some((0.1, &stream)), norm()).1;
        place.operator(criterion, name, bytes(4 * m * d), run);
    }
    place.operator(criterion, "dropout", bytes(2 * m * d), || dropout(x.clone(), 0.1, &stream));
    let gate_up = place.leaf([m, 2 * f]);
    place.operator(criterion, "swiglu", bytes(3 * m * f), || swiglu(gate_up.clone()));
    drop((gate_up, qkv, branch));

    let (table, places, ids) = (place.leaf([v, d]), place.leaf([m / 2, d]), place.ids(v));
    place.operator(criterion, "embedding", bytes(2 * m * d), || {
        embed(ids.clone(), table.clone(), 2.0, Some(places.clone()), Some((0.1, &stream)))
    });
    let (logits, labels) = (place.leaf([m, v]), place.ids(v));
    let config = CrossEntropyConfig { label_smoothing: 0.1, ignore_index: 0 };
    let run = || cross_entropy(logits.clone(), labels.clone(), &config).loss_sum;
    place.operator(criterion, "cross_entropy", bytes(m * v), run);
}

criterion_group!(benches, operators);
criterion_main!(benches);
