//! One optimizer step: upload, forward, backward, clipping, AdamW.
//!
//! ```text
//! cargo bench --bench train_step                                        # CPU
//! KILN_BENCH_DEVICE=cuda cargo bench --features cuda --bench train_step
//! ```
//!
//! Tokens are synthetic and no row is padded, so every token counts. The clock stops after the device is done and a result
//! has been read.

use std::hint::black_box;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kiln::config::{Config, Task, presets};
use kiln::device::{DeviceChoice, compute_dtype, device_name, is_cpu, upload};
use kiln::train::{TrainState, train_step};
use kiln_data::{HostBatch, PairParts, Shape, TextParts};

/// Makes rows of full length, with ids spread over the vocabulary.
fn synthetic(task: Task, batch_size: usize, len: usize, vocab_size: usize) -> HostBatch {
    match task {
        Task::Translation => synthetic_pairs(batch_size, len, vocab_size),
        // Here masked models predict every token; the choice of labels does not change the time.
        Task::Lm | Task::Mlm | Task::Classification | Task::Tagging => synthetic_text(batch_size, len, vocab_size),
    }
}

fn synthetic_text(batch_size: usize, len: usize, vocab_size: usize) -> HostBatch {
    let n = batch_size * len;
    let id = |i: usize| (4 + (i * 7919) % (vocab_size - 4)) as i32;
    let parts = TextParts {
        input: (0..n).map(id).collect(),
        labels: (1..=n).map(id).collect(),
        positions: (0..n).map(|i| (i % len) as i32).collect(),
        documents: vec![0; n],
        lengths: vec![len as i32; batch_size],
    };
    HostBatch::text(Shape::text(batch_size, len), false, parts)
}

fn synthetic_pairs(batch_size: usize, len: usize, vocab_size: usize) -> HostBatch {
    let n = batch_size * len;
    let id = |i: usize| (4 + (i * 7919) % (vocab_size - 4)) as i32;
    let parts = PairParts {
        source: (0..n).map(id).collect(),
        target_input: (n..2 * n).map(id).collect(),
        labels: (2 * n..3 * n).map(id).collect(),
        source_lengths: vec![len as i32; batch_size],
        target_lengths: vec![len as i32; batch_size],
    };
    HostBatch::pairs(Shape { batch_size, source_len: len, target_len: len }, parts)
}

fn with_vocab(mut config: Config, vocab_size: usize) -> Config {
    config.model.source_vocab_size = vocab_size;
    config.model.target_vocab_size = vocab_size;
    config
}

/// Name, configuration, rows, tokens per row and side.
fn cases(device: &Device) -> Vec<(&'static str, Config, usize, usize)> {
    if is_cpu(device) {
        vec![
            ("numbers", with_vocab(presets::numbers(), 96), 128, 16),
            ("tiny", with_vocab(presets::tiny(), 4000), 64, 32),
            ("gpt2_tiny", with_vocab(presets::gpt2_tiny(), 1000), 8, 128),
            ("bert_tiny", with_vocab(presets::bert_tiny(), 1000), 8, 128),
        ]
    } else {
        vec![
            ("base_16k", with_vocab(presets::base(), 16_000), 256, 64),
            ("base_25k", with_vocab(presets::base(), 32_000), 400, 64),
            ("big_16k", with_vocab(presets::big(), 32_000), 256, 64),
            ("gpt2_124m_32k", with_vocab(presets::gpt2_124m(), 50_257), 32, 1024),
            ("llama_125m_32k", with_vocab(presets::llama_125m(), 32_000), 32, 1024),
            ("bert_small_32k", with_vocab(presets::bert_small(), 30_522), 64, 512),
        ]
    }
}

fn bench_train_step(criterion: &mut Criterion) {
    let choice = std::env::var("KILN_BENCH_DEVICE").unwrap_or_else(|_| "cpu".to_string());
    let choice: DeviceChoice = choice.parse().unwrap_or_else(|error| panic!("KILN_BENCH_DEVICE: {error}"));
    let device = choice.open().unwrap_or_else(|error| panic!("KILN_BENCH_DEVICE: {error}"));
    let mut group = criterion.benchmark_group("train_step");
    group.sample_size(10).warm_up_time(Duration::from_secs(5)).measurement_time(Duration::from_secs(10));
    for (name, config, batch_size, len) in cases(&device) {
        let dtype = compute_dtype(config.train.precision, &device).expect("a precision of this device");
        let host = synthetic(config.task, batch_size, len, config.model.vocab_size());
        let mut state = TrainState::new(&config, &config.model, dtype, &device).expect("nothing is frozen");
        group.throughput(Throughput::Elements(host.source_tokens + host.target_tokens));
        let id = BenchmarkId::new(name, format!("{dtype:?} {batch_size}x{len} {}", device_name(&device)));
        group.bench_function(id, |bencher| {
            bencher.iter_custom(|iterations| {
                let start = Instant::now();
                let mut last = None;
                for _ in 0..iterations {
                    last = Some(train_step(&mut state, &[upload(&host, &device)]));
                }
                device.sync().expect("the device is alive");
                let loss = last.expect("at least one step").loss_sum.into_scalar::<f32>();
                assert!(black_box(loss).is_finite(), "{name}: the loss is {loss}");
                start.elapsed()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, bench_train_step);
criterion_main!(benches);
