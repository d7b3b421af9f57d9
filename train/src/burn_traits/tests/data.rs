use std::sync::Arc;

use burn::data::dataloader::DataLoader;
use burn::data::dataloader::split::split_dataloader;
use burn::data::dataset::Dataset;
use burn::tensor::Device;
use kiln_data::{
    BatchSource, CachedRow, CorpusConfig, HostBatch, Loader, LoaderConfig, OnePass, Packing, PairCorpus, PairSource,
    PairTokenizers, Position, Task, TextConfig, TextCorpus, TextFormat, TextSource, TextTokenizer, TokenizerConfig,
    prepare_pairs, prepare_text,
};
use kiln_model::Batch;

use crate::burn_traits::{BatchLoader, CachedRows, SourceBatches};

const SEED: u64 = 7;

fn config() -> LoaderConfig {
    LoaderConfig { batch_tokens: 256, num_workers: 2, ..LoaderConfig::default() }
}

fn vocabulary() -> TokenizerConfig {
    TokenizerConfig { vocab_size: 320, ..TokenizerConfig::default() }
}

/// Pairs, their texts, and a folder that holds the cache.
struct Pairs {
    folder: tempfile::TempDir,
    corpus: PairCorpus,
    tokenizers: PairTokenizers,
}

impl Pairs {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let lines: String = (0..300).map(|i| format!("good morning {i}\tbuongiorno {i}, {}\n", i * i)).collect();
        let path = folder.path().join("pairs.tsv");
        std::fs::write(&path, lines).expect("a writable folder");
        let corpus = PairCorpus::open(&[path], &CorpusConfig::default()).expect("a corpus");
        let tokenizers = PairTokenizers::train(&vocabulary(), &corpus, 2).expect("enough text");
        Self { folder, corpus, tokenizers }
    }

    fn cache(&self) -> kiln_data::TokenCache {
        let path = self.folder.path().join("pairs.tokens");
        prepare_pairs(&path, &self.corpus, &self.tokenizers, 2, &mut |_| ()).expect("a good corpus").cache
    }

    fn source(&self) -> Arc<dyn BatchSource> {
        Arc::new(PairSource::new(self.cache(), &self.tokenizers, &config()).expect("a matching cache"))
    }
}

/// Packed text, whose batches are not put into buckets.
fn text(folder: &std::path::Path) -> (TextTokenizer, TextCorpus, TextConfig) {
    let documents: String = (0..200).map(|i| format!("document {i} is one of {}\n", 200 + i)).collect();
    let path = folder.join("text.txt");
    std::fs::write(&path, documents).expect("a writable folder");
    let text = TextConfig { format: TextFormat::Lines, packing: Packing::Stream, seq_len: 16, ..TextConfig::default() };
    let corpus = TextCorpus::open(&[path], &text).expect("a corpus");
    let tokenizer = TextTokenizer::train(&vocabulary(), &corpus, 2).expect("enough text");
    (tokenizer, corpus, text)
}

#[test]
fn a_dataset_has_the_rows_of_the_files() {
    let pairs = Pairs::new();
    let rows = CachedRows::new(pairs.cache());
    let (examples, _) = pairs.corpus.read_all().expect("a good corpus");
    assert_eq!(rows.len(), examples.len());

    let without_end = |ids: &[u32]| ids[..ids.len() - 1].to_vec();
    for i in [0, 1, 150, 299] {
        let source = &pairs.tokenizers.encode_sources(&[&examples[i].source]).expect("encodes")[0];
        let target = &pairs.tokenizers.encode_targets(&[&examples[i].target]).expect("encodes")[0];
        let wanted = CachedRow::Pair { source: without_end(source), target: without_end(target) };
        assert_eq!(rows.get(i).expect("a row"), wanted, "row {i}");
    }
    assert_eq!(rows.iter().filter(|row| row.is_ok()).count(), 300);

    let folder = tempfile::tempdir().expect("a folder");
    let (tokenizer, corpus, _) = text(folder.path());
    let path = folder.path().join("text.tokens");
    let documents = CachedRows::new(prepare_text(&path, &corpus, &tokenizer, 2, &mut |_| ()).expect("text").cache);
    let texts = corpus.read_all().expect("a good corpus").0;
    assert_eq!(documents.len(), texts.len());
    let ids = tokenizer.encode(&texts[42]).expect("encodes");
    assert_eq!(documents.get(42).expect("a document"), CachedRow::Document(ids));
}

#[test]
#[should_panic(expected = "row 300 of 300")]
fn a_row_behind_the_last_one_panics_as_a_slice_does() {
    let pairs = Pairs::new();
    let _ = CachedRows::new(pairs.cache()).get(300);
}

#[test]
fn a_dataset_of_batches_has_the_batches_of_validation() {
    let pairs = Pairs::new();
    let batches = SourceBatches::new(pairs.source());
    let pass: Vec<HostBatch> =
        OnePass::new(pairs.source(), &config()).expect("starts").collect::<Result<_, _>>().expect("batches");
    assert_eq!(batches.len(), pass.len());
    assert!(pass.len() > 5, "{}", pass.len());
    for (i, wanted) in pass.into_iter().enumerate() {
        // A dataset has no position.
        let wanted = HostBatch { next: Position::default(), ..wanted };
        assert_eq!(batches.get(i).expect("a batch"), wanted, "batch {i}");
    }
}

/// The ids of a batch of pairs or text on the device.
fn ids(batch: &Batch) -> Vec<i32> {
    let tensors = match batch {
        Batch::Pairs(batch) => vec![batch.source.clone(), batch.target_input.clone(), batch.labels.clone()],
        Batch::Text(batch) => vec![batch.input.clone(), batch.labels.clone()],
    };
    tensors.into_iter().flat_map(|tensor| tensor.into_data().iter::<i32>().collect::<Vec<_>>()).collect()
}

fn epoch(loader: &dyn DataLoader<Batch>) -> Vec<Vec<i32>> {
    let mut items = loader.iter();
    let total = items.progress().total.expect("known in advance");
    let mut batches = Vec::new();
    while let Some(batch) = items.next() {
        batches.push(ids(&batch.expect("a batch")));
        assert_eq!(items.progress().items_processed, batches.len());
    }
    assert_eq!((batches.len(), items.progress().total), (total, Some(total)));
    batches
}

fn sources() -> (Pairs, tempfile::TempDir, [Arc<dyn BatchSource>; 2]) {
    let (pairs, folder) = (Pairs::new(), tempfile::tempdir().expect("a folder"));
    let (tokenizer, corpus, text) = text(folder.path());
    let path = folder.path().join("text.tokens");
    let cache = prepare_text(&path, &corpus, &tokenizer, 2, &mut |_| ()).expect("text").cache;
    let packed = TextSource::new(cache, &tokenizer, Task::Lm, &text, &config()).expect("a matching cache");
    let sources = [pairs.source(), Arc::new(packed) as Arc<dyn BatchSource>];
    (pairs, folder, sources)
}

#[test]
fn a_data_loader_has_the_batches_of_the_loader_epoch_after_epoch() {
    let (_pairs, _folder, sources) = sources();
    for source in sources {
        let n = source.batches_per_epoch() as usize;
        let mut wanted = Loader::new(source.clone(), &config(), SEED, Position::default()).expect("starts");
        let burn = BatchLoader::new(source.clone(), &config(), SEED, &Device::flex());
        assert_eq!((burn.num_items(), burn.expected_num_items()), (n, Some(n)));
        let mut epochs = Vec::new();
        for number in 0..3 {
            let epoch_of_burn = epoch(&burn);
            assert_eq!(epoch_of_burn.len(), n);
            for (i, found) in epoch_of_burn.iter().enumerate() {
                let host = wanted.next_batch().expect("a batch");
                let batch = crate::device::upload(&host, &Device::flex());
                assert_eq!(*found, ids(&batch), "epoch {number}, batch {i}");
            }
            epochs.push(epoch_of_burn);
        }
        assert_ne!(epochs[0], epochs[1], "shuffled");
        let resumed = BatchLoader::new(source.clone(), &config(), SEED, &Device::flex()).at_epoch(2);
        assert_eq!(epoch(&resumed), epochs[2]);

        let in_order = LoaderConfig { shuffle: false, ..config() };
        let valid = BatchLoader::new(source, &in_order, SEED, &Device::flex());
        assert_eq!(epoch(&valid), epoch(&valid));
    }
}

#[test]
fn slices_and_splits_divide_each_epoch_without_changing_it() {
    let (_pairs, _folder, sources) = sources();
    for source in sources {
        let whole = BatchLoader::new(source.clone(), &config(), SEED, &Device::flex());
        let n = whole.num_items();
        let parts =
            split_dataloader(whole.to_device(&Device::flex()), &[Device::flex(), Device::flex(), Device::flex()]);
        assert_eq!(parts.iter().map(|part| part.num_items()).sum::<usize>(), n);
        let middle = whole.slice(2, 5).slice(1, 9);
        assert_eq!(middle.num_items(), 2, "a slice of a slice ends where the first one does");

        for number in 0..2 {
            let all = epoch(&whole);
            let of_parts: Vec<_> = parts.iter().flat_map(|part| epoch(part.as_ref())).collect();
            assert_eq!(of_parts, all, "epoch {number}");
            assert_eq!(epoch(middle.as_ref()), all[3..5], "epoch {number}");
        }
        assert_eq!(whole.slice(n, n).iter().count(), 0);
    }
}
