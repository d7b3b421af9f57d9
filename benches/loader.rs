//! Tokens per second of the data loader from the token cache, for 0 to 8 workers.
//!
//! ```text
//! cargo bench --bench loader
//! KILN_BENCH_CORPUS=en-it.train.jsonl KILN_BENCH_FOLDER=/tmp/kiln cargo bench --bench loader
//! ```
//!
//! Counts non-padding source and label tokens. Without a corpus, the bench uses numbers and their English words. Tokenizer and
//! cache are kept in the folder. The example `loader_throughput` of `kiln-data` prints the same figures as one table, and
//! `scripts/loader_peer.py` prints PyTorch's.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kiln_data::built_in::numbers;
use kiln_data::{
    BatchSource, CorpusConfig, Loader, LoaderConfig, Order, PairCorpus, PairSource, PairTokenizers, Position,
    TokenizerConfig, prepare_pairs,
};

const WORKERS: [usize; 5] = [0, 1, 2, 4, 8];

struct Data {
    tokenizers: PairTokenizers,
    cache: PathBuf,
    config: LoaderConfig,
}

impl Data {
    fn new() -> kiln_data::Result<Self> {
        let folder = std::env::var_os("KILN_BENCH_FOLDER")
            .map_or_else(|| std::env::temp_dir().join("kiln-bench-loader"), PathBuf::from);
        let (path, tokenizer_config) = match std::env::var_os("KILN_BENCH_CORPUS") {
            Some(path) => (PathBuf::from(path), TokenizerConfig::default()),
            None => {
                let path = folder.join("numbers.jsonl");
                numbers::write_jsonl(&path, &numbers::examples(200_000, 0, 12, 1)?.train)?;
                (path, numbers::tokenizer_config())
            }
        };
        let limits = CorpusConfig { max_source_len: 128, max_target_len: 128, ..CorpusConfig::default() };
        let corpus = PairCorpus::open(&[path], &limits)?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let tokenizers = PairTokenizers::train(&tokenizer_config, &corpus, threads)?;
        let cache = folder.join("train.tokens");
        prepare_pairs(&cache, &corpus, &tokenizers, threads, &mut |_| ())?;
        let config = LoaderConfig { batch_tokens: 16_384, ..LoaderConfig::default() };
        Ok(Self { tokenizers, cache, config })
    }

    fn cached(&self) -> kiln_data::Result<PairSource> {
        PairSource::new(kiln_data::TokenCache::open(&self.cache)?, &self.tokenizers, &self.config)
    }
}

/// Takes batches from a warm loader, and scales the time to the number of tokens that criterion requested.
fn bench_source(criterion: &mut Criterion, name: &str, source: Arc<dyn BatchSource>, config: &LoaderConfig) {
    // Tokens of one iteration.
    const TOKENS: u64 = 100_000;
    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Elements(TOKENS)).sample_size(20).measurement_time(Duration::from_secs(5));
    for num_workers in WORKERS {
        let config = LoaderConfig { num_workers, ..config.clone() };
        let mut loader = Loader::new(source.clone(), &config, 1, Position::default()).expect("a loader");
        group.bench_function(BenchmarkId::new("workers", num_workers), |bench| {
            bench.iter_custom(|iterations| {
                let (start, wanted, mut tokens) = (Instant::now(), iterations * TOKENS, 0);
                while tokens < wanted {
                    let batch = loader.next_batch().expect("a batch");
                    tokens += batch.source_tokens + batch.target_tokens;
                    loader.recycle(batch);
                }
                start.elapsed().mul_f64(wanted as f64 / tokens as f64)
            });
        });
    }
    group.finish();
}

fn loader(criterion: &mut Criterion) {
    let data = Data::new().expect("a corpus and its cache");
    let cached = Arc::new(data.cached().expect("a cache"));
    eprintln!("{}", cached.cache().report());
    eprintln!("padding {:.2} %, {} shapes", 100.0 * cached.buckets().padding_ratio(), cached.buckets().shapes().len());
    criterion.bench_function("plan an epoch", |bench| {
        let mut epoch = 0;
        bench.iter(|| {
            epoch += 1;
            cached.plan(Order::Shuffled { seed: 1, epoch })
        });
    });
    bench_source(criterion, "cached", cached, &data.config);
}

criterion_group!(benches, loader);
criterion_main!(benches);
