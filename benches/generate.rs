//! Decoding with a key/value cache: greedy and beam search.
//!
//! ```text
//! cargo bench --bench generate                                          # CPU
//! KILN_BENCH_DEVICE=cuda cargo bench --features cuda --bench generate
//! ```
//!
//! Weights are random, so nearly every row runs to its limit; rates count the output tokens up to it. Outputs are read, which
//! waits for the device.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kiln::config::Precision;
use kiln::config::{EarlyStopping, LengthNormalization};
use kiln::device::{DeviceChoice, compute_dtype, device_name, is_cpu};
use kiln::generate::batching::{SourceBatch, SourceRow};
use kiln::generate::beam::BeamConfig;
use kiln::generate::{Targets, TokenRules, beam_search, greedy};
use kiln_data::SpecialIds;
use kiln_model::TransformerConfig;

const SPECIAL: SpecialIds = SpecialIds { pad: 0, bos: 1, eos: 2, unk: 3 };

fn bench_generate(criterion: &mut Criterion) {
    let choice = std::env::var("KILN_BENCH_DEVICE").unwrap_or_else(|_| "cpu".to_string());
    let choice: DeviceChoice = choice.parse().unwrap_or_else(|error| panic!("KILN_BENCH_DEVICE: {error}"));
    let device = choice.open().unwrap_or_else(|error| panic!("KILN_BENCH_DEVICE: {error}"));
    let cpu = is_cpu(&device);
    let (name, model, vocab_size, batch_size, len, limit) = if cpu {
        ("tiny", TransformerConfig::tiny(), 4000, 32, 16, 24)
    } else {
        ("base", TransformerConfig::base(), 16_000, 256, 32, 40)
    };
    let model = TransformerConfig { source_vocab_size: vocab_size, target_vocab_size: vocab_size, ..model };
    let dtype = compute_dtype(Precision::Auto, &device).expect("a precision of this device");
    let max_positions = model.max_positions;
    let model = model.init_encoder_decoder(1, dtype, &device);
    let rows: Vec<SourceRow> = (0..batch_size)
        .map(|row| {
            let mut ids: Vec<u32> = (1..len).map(|i| 4 + ((row * 31 + i) * 7919 % (vocab_size - 4)) as u32).collect();
            ids.push(SPECIAL.eos);
            SourceRow { ids, limit }
        })
        .collect();
    let sources = SourceBatch::new(&rows.iter().collect::<Vec<_>>(), SPECIAL.pad, max_positions, &device);

    let rules = TokenRules::of(SPECIAL);
    let begin = || Targets::begin(&model, &sources, SPECIAL);
    let mut group = criterion.benchmark_group("generate");
    group.sample_size(10).warm_up_time(Duration::from_secs(3)).measurement_time(Duration::from_secs(10));
    group.throughput(Throughput::Elements((batch_size * limit) as u64));
    let described = format!("{name} {dtype:?} {batch_size}x{len} {}", device_name(&device));
    let steps_per_sync = if cpu { 1 } else { 8 };
    group.bench_function(BenchmarkId::new("greedy", &described), |bencher| {
        bencher.iter(|| black_box(greedy(begin(), &rules, steps_per_sync).expect("tokens")));
    });
    for beam_size in [4, 8] {
        let (normalization, early_stopping) = (LengthNormalization::Wu, EarlyStopping::Never);
        let config = BeamConfig {
            beam_size,
            length_penalty: 0.6,
            normalization,
            early_stopping,
            force_end: false,
            n_first: 0,
            n_best: 1,
        };
        group.bench_function(BenchmarkId::new(format!("beam_{beam_size}"), &described), |bencher| {
            bencher.iter(|| black_box(beam_search(begin(), &rules, &config).expect("tokens")));
        });
    }
    group.finish();
}

criterion_group!(benches, bench_generate);
criterion_main!(benches);
