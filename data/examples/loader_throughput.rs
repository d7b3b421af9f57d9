//! Tokens per second of the data loader from the token cache, for 0 to 8 workers.
//!
//! ```text
//! cargo run --release -p kiln-data --example loader_throughput -- [CORPUS.jsonl] [FOLDER] [LIMIT_MB]
//! ```
//!
//! Without a corpus, the example uses numbers and their English words. A corpus whose name does not end in `.jsonl` or
//! `.tsv` is plain text for a language model: rows of 1024 tokens, packed in both ways, and sentences. Tokenizer and
//! cache stay in FOLDER, where `scripts/loader_peer.py` finds the same tokenizer. Figures count non-padding source and
//! label tokens.
//!
//! With a limit, pairs are also streamed from token caches of at most so many MB (`data.cache_limit`). Nothing else uses the batches, so
//! that rate is the rate of tokenizing ahead once the caches do not fit.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kiln_data::built_in::numbers;
use kiln_data::{
    BatchSource, CorpusConfig, Loader, LoaderConfig, Order, Packing, PairCorpus, PairSource, PairTokenizers, Position,
    Shards, StreamedRows, Task, TextConfig, TextCorpus, TextSource, TextTokenizer, TokenCache, TokenizerConfig,
    TokenizerKind, prepare_pairs, prepare_text,
};

const WORKERS: [usize; 5] = [0, 1, 2, 4, 8];
const BATCH_TOKENS: usize = 16_384;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let corpus = args.next().map(PathBuf::from);
    let folder = args.next().map_or_else(|| std::env::temp_dir().join("kiln-loader-throughput"), PathBuf::from);
    std::fs::create_dir_all(&folder)?;
    let limit = args.next().map(|limit| limit.parse::<u64>()).transpose()?.map(|limit| limit * 1_000_000);
    let threads = std::thread::available_parallelism()?.get();
    println!("{threads} cores, batches of {BATCH_TOKENS} tokens");
    let pairs = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "jsonl" || ending == "tsv");
    match corpus {
        Some(path) if !pairs(&path) => text_throughput(path, &folder, threads),
        corpus => pair_throughput(corpus, &folder, threads, limit),
    }
}

fn pair_throughput(
    corpus: Option<PathBuf>,
    folder: &Path,
    threads: usize,
    limit: Option<u64>,
) -> Result<(), Box<dyn std::error::Error>> {
    let (path, tokenizer_config) = match corpus {
        Some(path) => (path, TokenizerConfig::default()),
        None => {
            let path = folder.join("numbers.jsonl");
            numbers::write_jsonl(&path, &numbers::examples(200_000, 0, 12, 1)?.train)?;
            (path, numbers::tokenizer_config())
        }
    };
    let corpus =
        PairCorpus::open(&[path], &CorpusConfig { max_source_len: 128, max_target_len: 128, ..Default::default() })?;
    let tokenizers = tokenizers(folder, &tokenizer_config, &corpus, threads)?;
    println!("vocabulary {}, fingerprint {}", tokenizers.source_vocab_size(), &tokenizers.fingerprint()[..16]);

    let cache = folder.join("train.tokens");
    for run in ["first", "second"] {
        let start = Instant::now();
        let prepared = prepare_pairs(&cache, &corpus, &tokenizers, threads, &mut |_| ())?;
        let why = prepared.built_because.unwrap_or_else(|| "the cache fits".into());
        println!("prepare, {run} run: {:.3} s ({why}); {}", start.elapsed().as_secs_f64(), prepared.cache.report());
    }

    let config = LoaderConfig { batch_tokens: BATCH_TOKENS, ..Default::default() };
    let cached = timed("opening the cache and sorting rows into buckets", || {
        PairSource::new(TokenCache::open(&cache)?, &tokenizers, &config)
    })?;
    timed("planning an epoch", || Ok(cached.plan(Order::Shuffled { seed: 1, epoch: 0 })))?;
    println!(
        "{} batches per epoch, {} shapes, padding {:.2} %",
        cached.batches_per_epoch(),
        cached.buckets().shapes().len(),
        100.0 * cached.buckets().padding_ratio()
    );

    println!("{:>8} {:>16}", "workers", "cached tokens/s");
    let cached = Arc::new(cached);
    for num_workers in WORKERS {
        let config = LoaderConfig { num_workers, ..config.clone() };
        let cached = tokens_per_second(cached.clone(), &config, 3.0)?;
        println!("{num_workers:>8} {:>14.2} M", cached / 1e6);
    }
    limit.map_or(Ok(()), |limit| streamed_throughput(&corpus, &tokenizers, &folder.join("shards"), limit, threads))
}

fn streamed_throughput(
    corpus: &PairCorpus,
    tokenizers: &PairTokenizers,
    folder: &Path,
    limit: u64,
    threads: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let config = LoaderConfig { batch_tokens: BATCH_TOKENS, ..Default::default() };
    let count = || Shards::of_pairs(folder, corpus.clone(), tokenizers, config.bucket_multiple, limit, threads);
    let shards = timed("counting shards", count)?;
    let (n_shards, n_bytes) = (shards.n_shards(), shards.n_bytes());
    println!("{n_shards} shards, {:.1} MB of caches, at most {} MB of them", n_bytes as f64 / 1e6, limit / 1_000_000);
    let source = StreamedRows::of_pairs(shards, tokenizers, &config)?;
    let shapes = source.shapes().unwrap_or_default();
    let padded: usize = shapes.iter().map(|(shape, batches)| shape.padded_tokens() * batches).sum();
    let n_batches = source.batches_per_epoch();
    println!("{n_batches} batches per epoch, {} shapes, {padded} tokens with padding", shapes.len());

    println!("{:>8} {:>16}", "workers", "streamed tokens/s");
    for num_workers in [0, 1, 2] {
        let config = LoaderConfig { num_workers, ..config.clone() };
        let source = StreamedRows::of_pairs(count()?, tokenizers, &config)?;
        let streamed = tokens_per_second(Arc::new(source), &config, 30.0)?;
        println!("{num_workers:>8} {:>14.2} M", streamed / 1e6);
    }
    Ok(())
}

fn text_throughput(path: PathBuf, folder: &Path, threads: usize) -> Result<(), Box<dyn std::error::Error>> {
    let bytes = std::fs::metadata(&path)?.len() as f64;
    let corpus = TextCorpus::open(&[path], &TextConfig::default())?;
    let tokenizer = if folder.join("tokenizer.json").exists() {
        TextTokenizer::load_dir(folder)?
    } else {
        let config = TokenizerConfig { kind: TokenizerKind::ByteLevelBpe, ..Default::default() };
        let tokenizer = timed("training the tokenizer", || TextTokenizer::train(&config, &corpus, threads))?;
        tokenizer.save(folder)?;
        tokenizer
    };

    let cache = folder.join("text.tokens");
    for run in ["first", "second"] {
        let start = Instant::now();
        let prepared = prepare_text(&cache, &corpus, &tokenizer, threads, &mut |_| ())?;
        let (secs, tokens) = (start.elapsed().as_secs_f64(), prepared.cache.n_tokens() as f64);
        let why = prepared.built_because.unwrap_or_else(|| "the cache fits".into());
        println!(
            "prepare, {run} run: {secs:.3} s ({why}), {:.1} MB/s, {:.2} M tokens/s; {}",
            bytes / secs / 1e6,
            tokens / secs / 1e6,
            prepared.cache.report()
        );
    }

    let settings = [
        ("lm, documents", Task::Lm, Packing::Documents),
        ("lm, stream", Task::Lm, Packing::Stream),
        ("mlm, sentences", Task::Mlm, Packing::Sentences),
    ];
    for (name, task, packing) in settings {
        let text = TextConfig { packing, seq_len: 1024, ..Default::default() };
        let config = LoaderConfig { batch_tokens: BATCH_TOKENS, ..Default::default() };
        let source = TextSource::new(TokenCache::open(&cache)?, &tokenizer, task, &text, &config)?;
        println!(
            "{name}: {} tokens, {} rows, padding {:.3} %",
            source.n_tokens(),
            source.n_rows(),
            100.0 * source.padding_ratio()
        );
        timed("planning an epoch", || Ok(source.plan(Order::Shuffled { seed: 1, epoch: 0 })))?;
        let source = Arc::new(source);
        for num_workers in WORKERS {
            let tokens = tokens_per_second(source.clone(), &LoaderConfig { num_workers, ..config.clone() }, 3.0)?;
            println!("{num_workers:>8} workers {:>10.2} M tokens/s", tokens / 1e6);
        }
    }
    Ok(())
}

fn timed<T>(what: &str, work: impl FnOnce() -> kiln_data::Result<T>) -> kiln_data::Result<T> {
    let start = Instant::now();
    let result = work()?;
    println!("{what}: {:.1} ms", 1e3 * start.elapsed().as_secs_f64());
    Ok(result)
}

fn tokenizers(
    folder: &Path,
    config: &TokenizerConfig,
    corpus: &PairCorpus,
    threads: usize,
) -> kiln_data::Result<PairTokenizers> {
    if folder.join("tokenizer.json").exists() {
        return PairTokenizers::load_dir(folder);
    }
    let tokenizers = timed("training the tokenizer", || PairTokenizers::train(config, corpus, threads))?;
    tokenizers.save(folder)?;
    Ok(tokenizers)
}

/// Measures for so many seconds, after one second that warms up the threads and their tables of words.
fn tokens_per_second(source: Arc<dyn BatchSource>, config: &LoaderConfig, secs: f64) -> kiln_data::Result<f64> {
    let mut loader = Loader::new(source, config, 1, Position::default())?;
    let mut run = |secs: f64| {
        let (start, mut tokens) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_secs_f64(secs) {
            let batch = loader.next_batch()?;
            tokens += batch.source_tokens + batch.target_tokens;
            loader.recycle(batch);
        }
        kiln_data::Result::Ok(tokens as f64 / start.elapsed().as_secs_f64())
    };
    run(1.0)?;
    run(secs)
}
