use std::path::Path;

use super::super::promises::Subject;
use super::super::tasks::config as config_of_tasks;
use super::super::tasks::{Files, LIMIT, dialogues, documents, pass, text_of};
use super::*;
use crate::cache::{TokenCache, prepare_text};
use crate::corpus::{LabelConfig, LabelledCorpus, LabelledText, Packing, Task, TextConfig, TextCorpus, TextFormat};
use crate::fixtures::PairFiles;
use crate::host_batch::Position;
use crate::loader::{Loader, Rank};
use crate::loader_config::LoaderConfig;
use crate::source::{ChatSource, LabelledSource, PairSource, PreferenceSource, TextSource};
use crate::tokenizer::{LabelledShape, TokenizerKind};

fn config() -> LoaderConfig {
    LoaderConfig { shuffle: false, max_buckets: 3, ..config_of_tasks() }
}

/// Documents of which some are longer than a row.
fn stories() -> Files {
    Files::new(190, 12, "jsonl", TokenizerKind::ByteLevelBpe, &|number, text| {
        let text = if number % 23 == 5 { [text; 9].join(" and ") } else { text.to_owned() };
        serde_json::json!({ "text": format!("{number} {text}") }).to_string() + "\n"
    })
}

fn text(packing: Packing) -> TextConfig {
    TextConfig { seq_len: 64, packing, ..TextConfig::default() }
}

impl Files {
    fn corpus(&self, text: &TextConfig) -> TextCorpus {
        TextCorpus::open(&self.files, text).expect("files")
    }

    fn shards_of_text(&self, text: &TextConfig) -> Shards {
        Shards::of_text(&self.folder(), self.corpus(text), &self.tokenizer, LIMIT, 2).expect("an index")
    }

    fn whole_text(&self, text: &TextConfig) -> TokenCache {
        let path = self.folder().with_extension("whole");
        prepare_text(&path, &self.corpus(text), &self.tokenizer, 2, &mut |_| ()).expect("a cache").cache
    }
}

/// Checks that batches in shards are those of the whole, whatever the number of workers and ranks, from any start, under the limit.
fn are_those_of_the_whole(
    open: &dyn Fn(&LoaderConfig) -> StreamedInOrder,
    whole: impl BatchSource,
    folder: &Path,
    config: &LoaderConfig,
    limit: u64,
) {
    let (first, whole) = (open(config), Arc::new(whole));
    assert_eq!((first.batches_per_epoch(), first.shapes()), (whole.batches_per_epoch(), whole.shapes()));
    assert!(first.batches.starts.len() > 4, "{:?}", first.batches.starts);
    let n = first.batches_per_epoch() + 3;
    let mut loader = Loader::new(whole, config, 5, Position::default()).expect("a loader");
    let wanted: Vec<HostBatch> = (0..n).map(|_| loader.next_batch().expect("a batch")).collect();

    let open = |config: &LoaderConfig| -> Arc<dyn BatchSource> { Arc::new(open(config)) };
    let subject = Subject { open: &open, folders: vec![folder], config: config.clone(), limit };
    for num_workers in [0, 2] {
        let found = subject.batches(num_workers, Position::default(), n, Rank::default());
        for (index, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            assert!(found == wanted, "batch {index} with {num_workers} workers: {:?}, {:?}", found.rows, wanted.rows);
        }
    }
    subject.the_disk_stays_under_its_limit(first.shards().n_bytes());

    let contents = |batches: &[HostBatch]| -> Vec<_> {
        batches.iter().map(|batch| (batch.ids.clone(), batch.rows.clone())).collect()
    };
    for rank in 0..2 {
        let of_rank = subject.batches(2, Position::default(), n / 2, Rank { rank, world_size: 2, group_size: 2 });
        let wanted: Vec<HostBatch> = wanted.iter().skip(rank).step_by(2).take(of_rank.len()).cloned().collect();
        assert!(contents(&of_rank) == contents(&wanted), "rank {rank}");
    }
    let per_epoch = first.batches_per_epoch();
    for start in (1..per_epoch).step_by(7).chain([per_epoch - 1, per_epoch]) {
        if start % 3 == 0 {
            std::fs::remove_dir_all(folder).expect("there");
        }
        let position = Position { epoch: start / per_epoch, batch: start % per_epoch };
        let again = subject.batches((start % 3) as usize, position, 3, Rank::default());
        assert!(again == wanted[start as usize..start as usize + 3], "from {start} of {per_epoch}");
    }
}

#[test]
fn documents_of_shards_in_order_are_packed_as_in_the_whole() {
    let files = stories();
    for packing in [Packing::Documents, Packing::Stream] {
        let text = text(packing);
        let open = |config: &LoaderConfig| {
            let source = StreamedSource::new(files.shards_of_text(&text), &files.tokenizer, Task::Lm, &text, config);
            source.and_then(StreamedSource::in_file_order).expect("rows")
        };
        let whole = TextSource::new(files.whole_text(&text), &files.tokenizer, Task::Lm, &text, &config());
        are_those_of_the_whole(&open, whole.expect("rows"), &files.folder(), &config(), LIMIT);
    }
}

#[test]
fn documents_in_rows_of_their_own_are_those_of_the_whole_shuffled_or_not() {
    let (files, text) = (stories(), text(Packing::Sentences));
    let rows = |config: &LoaderConfig| {
        StreamedRows::of_documents(files.shards_of_text(&text), &files.tokenizer, Task::Lm, &text, config)
            .expect("rows")
    };
    let whole =
        || TextSource::new(files.whole_text(&text), &files.tokenizer, Task::Lm, &text, &config()).expect("a source");
    let n_rows = whole().n_rows() as u32;
    assert!(n_rows > 1000, "long documents take several rows: {n_rows}");
    are_those_of_the_whole(
        &|config| rows(config).in_file_order().expect("rows"),
        whole(),
        &files.folder(),
        &config(),
        LIMIT,
    );

    let open = |config: &LoaderConfig| -> Arc<dyn BatchSource> { Arc::new(rows(config)) };
    let folder = files.folder();
    let subject = Subject { open: &open, folders: vec![&folder], config: config_of_tasks(), limit: LIMIT };
    let epoch = subject.an_epoch_has_every_row(n_rows, 1);
    assert!(documents(epoch) == documents(pass(Arc::new(whole()))));
    subject.the_disk_stays_under_its_limit(rows(&config()).shards().n_bytes());
    subject.batches_depend_on_the_position_alone();
}

#[test]
fn a_document_that_takes_several_blocks_is_counted_once() {
    let files = Files::new(12, 1, "txt", TokenizerKind::ByteLevelBpe, &|number, text| {
        format!("{number} {text}\n").repeat(if number == 3 { 40_000 } else { 3 })
    });
    let text = TextConfig { format: TextFormat::Auto, seq_len: 512, ..text(Packing::Sentences) };
    let shards = Shards::of_text(&files.folder(), files.corpus(&text), &files.tokenizer, 100 << 20, 2);
    let shards = shards.expect("an index");
    let cache = files.whole_text(&text);
    let mut lengths: Vec<u32> = (0..cache.n_rows()).map(|document| cache.document_len(document) as u32).collect();
    let counted = shards.cells().flatten().flat_map(|(_, len, n)| vec![*len; *n as usize]);
    let mut counted: Vec<u32> = counted.collect();
    counted.sort_unstable();
    lengths.sort_unstable();
    assert!(lengths.len() == 12 && lengths[11] > 200_000, "{lengths:?}");
    assert_eq!(counted, lengths);
}

#[test]
fn pairs_of_shards_in_order_are_those_of_the_whole() {
    let (pairs, limit) = (PairFiles::new(120), 110 << 10);
    let config = LoaderConfig { batch_tokens: 512, ..config() };
    let open = |config: &LoaderConfig| {
        let rows = StreamedRows::of_pairs(pairs.shards(limit).expect("an index"), &pairs.tokenizers, config);
        rows.and_then(StreamedRows::in_file_order).expect("rows")
    };
    let whole = PairSource::new(pairs.whole(), &pairs.tokenizers, &config).expect("a source");
    are_those_of_the_whole(&open, whole, &pairs.folder(), &config, limit);
}

#[test]
fn answers_to_compare_in_order_are_those_of_the_whole() {
    let files = Files::new(120, 5, "jsonl", TokenizerKind::ByteLevelBpe, &|number, text| {
        serde_json::json!({"prompt": number.to_string(), "chosen": text, "rejected": "no"}).to_string() + "\n"
    });
    let text = text_of(TextFormat::Preferences, Packing::Documents);
    let open = |config: &LoaderConfig| {
        let rows = StreamedRows::of_preferences(files.conversations(&text), &files.tokenizer, 256, config, 0.25);
        rows.and_then(StreamedRows::in_file_order).expect("pairs")
    };
    let whole = PreferenceSource::new(files.whole(&text), &files.tokenizer, 256, &config(), 0.25).expect("a source");
    are_those_of_the_whole(&open, whole, &files.folder(), &config(), LIMIT);
}

#[test]
fn classes_in_order_are_those_of_the_rows_in_memory() {
    let files = Files::new(110, 20, "jsonl", TokenizerKind::WordPiece, &|number, text| {
        let label = ["up", "down", "left"][number % 3];
        serde_json::json!({"text": text, "label": label}).to_string() + "\n"
    });
    let (labels, config) = (LabelConfig::default(), LoaderConfig { batch_tokens: 1024, ..config() });
    let shape = LabelledShape { max_len: 24, has_types: true, is_decoder: false, splits_special_tokens: true };
    let open = |config: &LoaderConfig| {
        let text = LabelledText::open(&files.files, Task::Classification, &labels).expect("files");
        let classes = crate::cache::find_classes(&files.folder(), &text, 2).expect("classes");
        let text = text.with_classes(&classes.names);
        let shards = Shards::of_labels(&files.folder(), text, &files.tokenizer, shape, LIMIT, 2).expect("an index");
        let rows = StreamedRows::of_labels(shards, &files.tokenizer, shape, 3, config);
        rows.and_then(StreamedRows::in_file_order).expect("rows")
    };
    let corpus = LabelledCorpus::read(&files.files, Task::Classification, &labels).expect("rows");
    let whole = LabelledSource::new(&corpus, &files.tokenizer, shape, &config, 2).expect("a source");
    are_those_of_the_whole(&open, whole, &files.folder(), &config, LIMIT);
}

#[test]
fn conversations_in_order_are_those_of_the_whole_or_packed_shard_by_shard() {
    let files = dialogues();
    let single = text_of(TextFormat::Chat, Packing::Sentences);
    let open = |config: &LoaderConfig| {
        let rows = StreamedRows::of_conversations(files.conversations(&single), &files.tokenizer, &single, config);
        rows.and_then(StreamedRows::in_file_order).expect("rows")
    };
    let whole = ChatSource::new(files.whole(&single), &files.tokenizer, &single, &config()).expect("a source");
    are_those_of_the_whole(&open, whole, &files.folder(), &config(), LIMIT);

    let packed = text_of(TextFormat::Chat, Packing::Documents);
    let open = |config: &LoaderConfig| -> Arc<dyn BatchSource> {
        let source = StreamedSource::new(files.conversations(&packed), &files.tokenizer, Task::Lm, &packed, config);
        Arc::new(source.and_then(StreamedSource::in_file_order).expect("rows"))
    };
    let folder = files.folder();
    let subject = Subject { open: &open, folders: vec![&folder], config: config(), limit: LIMIT };
    let n = open(&config()).batches_per_epoch();
    let epoch = subject.batches(2, Position::default(), n, Rank::default());
    let numbers: Vec<u32> = epoch.iter().flat_map(|batch| batch.rows.clone()).collect();
    assert!(numbers.len() > 50 && numbers == (0..numbers.len() as u32).collect::<Vec<_>>(), "in order: {numbers:?}");
    let whole = ChatSource::new(files.whole(&packed), &files.tokenizer, &packed, &config()).expect("a source");
    assert!(documents(epoch) == documents(pass(Arc::new(whole))));
    subject.the_disk_stays_under_its_limit(files.conversations(&packed).n_bytes());
    subject.batches_depend_on_the_position_alone();
}
