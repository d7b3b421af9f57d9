//! Tokens per second of text whose token cache is limited, next to the same text from a whole cache.
//!
//! ```text
//! cargo run --release -p kiln-data --features arrow --example streamed_text -- FOLDER LIMIT_MB TEXT.jsonl [TEXT.parquet ...]
//! ```
//!
//! Each argument behind the limit is a text: a file, or several joined by commas. All texts are prepared, and the first one is loaded.
//! The first run in FOLDER trains a tokenizer on the first text, so name a small one then. Tokenizer and caches stay there, where
//! `scripts/streaming_peer.py` finds the same tokenizer. Rows have 1024 tokens, batches 16 rows.
//! Figures count labels. Streamed text is loaded as fast as it comes, so its rate is the rate of tokenizing ahead.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kiln_data::{
    BatchSource, Loader, LoaderConfig, Position, Shards, StreamedSource, Task, TextConfig, TextCorpus, TextSource,
    TextTokenizer, TokenCache, TokenizerConfig, TokenizerKind, prepare_text,
};

const WORKERS: [usize; 3] = [0, 1, 2];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [folder, limit, texts @ ..] = &args[..] else { return Err("FOLDER LIMIT_MB TEXT [TEXT ...]".into()) };
    let (folder, limit) = (PathBuf::from(folder), limit.parse::<u64>()? * 1_000_000);
    std::fs::create_dir_all(&folder)?;
    let threads = std::thread::available_parallelism()?.get();
    println!("{threads} cores, batches of 16 rows of 1024 tokens, at most {} MB of caches", limit / 1_000_000);

    let corpora: Vec<(&String, TextCorpus)> =
        texts.iter().map(|text| Ok::<_, kiln_data::Error>((text, corpus(text)?))).collect::<Result<_, _>>()?;
    let tokenizer = tokenizer(&folder, &corpora.first().ok_or("no text")?.1, threads)?;
    for (number, (text, corpus)) in corpora.iter().enumerate() {
        let path = folder.join(format!("text{number}.tokens"));
        let _ = std::fs::remove_file(&path);
        let start = Instant::now();
        let cache = prepare_text(&path, corpus, &tokenizer, threads, &mut |_| ())?.cache;
        let (secs, tokens) = (start.elapsed().as_secs_f64(), cache.n_tokens() as f64);
        println!("prepare {text}: {secs:.2} s, {tokens} tokens, {:.2} M tokens/s", tokens / secs / 1e6);
    }

    let corpus = &corpora[0].1;
    let (text, config) = (rows(), LoaderConfig { batch_tokens: 16_384, ..LoaderConfig::default() });
    let start = Instant::now();
    let prepare = || Shards::of_text(&folder.join("shards"), corpus.clone(), &tokenizer, limit, threads);
    let shards = prepare()?;
    println!(
        "count {} of {} shards: {:.2} s; their caches take {:.0} MB",
        shards.n_counted(),
        shards.n_shards(),
        start.elapsed().as_secs_f64(),
        shards.n_bytes() as f64 / 1e6
    );
    drop(shards);

    println!(
        "{:>8} {:>18} {:>18} {:>12} {:>10}",
        "workers", "cached tokens/s", "streamed tokens/s", "first batch", "on disk"
    );
    for num_workers in WORKERS {
        let config = LoaderConfig { num_workers, ..config.clone() };
        let cache = TokenCache::open(&folder.join("text0.tokens"))?;
        let cached = TextSource::new(cache, &tokenizer, Task::Lm, &text, &config)?;
        let (cached, _) = tokens_per_second(Arc::new(cached), &config, 3.0)?;
        remove_caches(&folder.join("shards"));
        let streamed = StreamedSource::new(prepare()?, &tokenizer, Task::Lm, &text, &config)?;
        let (streamed, first) = tokens_per_second(Arc::new(streamed), &config, 40.0)?;
        let taken = files(&folder.join("shards")).map(|(_, bytes)| bytes).sum::<u64>() / 1_000_000;
        println!(
            "{num_workers:>8} {:>16.2} M {:>16.2} M {:>10.2} s {taken:>7} MB",
            cached / 1e6,
            streamed / 1e6,
            first.as_secs_f64()
        );
    }
    Ok(())
}

fn rows() -> TextConfig {
    TextConfig { seq_len: 1024, ..TextConfig::default() }
}

fn corpus(text: &str) -> kiln_data::Result<TextCorpus> {
    let files: Vec<PathBuf> = text.split(',').map(PathBuf::from).collect();
    TextCorpus::open(&files, &rows())
}

/// The token caches in a folder, with their sizes.
fn files(folder: &Path) -> impl Iterator<Item = (PathBuf, u64)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let caches = entries.filter(|entry| entry.path().extension().is_some_and(|ending| ending == "tokens"));
    caches.map(|entry| (entry.path(), entry.metadata().map_or(0, |file| file.len())))
}

fn remove_caches(folder: &Path) {
    files(folder).for_each(|(path, _)| _ = std::fs::remove_file(path));
}

fn tokenizer(folder: &Path, corpus: &TextCorpus, threads: usize) -> kiln_data::Result<TextTokenizer> {
    if folder.join("tokenizer.json").exists() {
        return TextTokenizer::load_dir(folder);
    }
    let config = TokenizerConfig { kind: TokenizerKind::ByteLevelBpe, vocab_size: 8000, ..TokenizerConfig::default() };
    let tokenizer = TextTokenizer::train(&config, corpus, threads)?;
    tokenizer.save(folder)?;
    Ok(tokenizer)
}

/// Measures for so many seconds, after the first batch and one second that warms up. Returns the time to the first batch, too.
fn tokens_per_second(
    source: Arc<dyn BatchSource>,
    config: &LoaderConfig,
    secs: f64,
) -> kiln_data::Result<(f64, Duration)> {
    let mut loader = Loader::new(source, config, 1, Position::default())?;
    let start = Instant::now();
    let batch = loader.next_batch()?;
    loader.recycle(batch);
    let first = start.elapsed();
    let mut run = |secs: f64| {
        let (start, mut tokens) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_secs_f64(secs) {
            let batch = loader.next_batch()?;
            tokens += batch.target_tokens;
            loader.recycle(batch);
        }
        kiln_data::Result::Ok(tokens as f64 / start.elapsed().as_secs_f64())
    };
    run(1.0)?;
    Ok((run(secs)?, first))
}
