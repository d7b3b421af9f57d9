use super::*;
use crate::cache::Tokens;
use crate::fixtures::{Fixture, TextFixture, stories};
use crate::host_batch::{BatchLayout, Position};
use crate::loader::{Loader, OnePass, Rank};
use crate::tokenizer::{TokenizerConfig, TokenizerKind};

fn fixture() -> TextFixture {
    TextFixture::new(&stories(300, 60), &tokenizer(TokenizerKind::ByteLevelBpe))
}

fn tokenizer(kind: TokenizerKind) -> TokenizerConfig {
    TokenizerConfig { kind, vocab_size: 400, ..TokenizerConfig::default() }
}

fn text(packing: Packing, seq_len: usize) -> TextConfig {
    TextConfig { packing, seq_len, ..TextConfig::default() }
}

fn loader(num_workers: usize, batch_tokens: usize) -> LoaderConfig {
    LoaderConfig { num_workers, batch_tokens, prefetch_factor: 3, ..LoaderConfig::default() }
}

fn document(cache: &TokenCache, i: usize) -> Vec<i32> {
    match cache.document(i) {
        Tokens::Narrow(ids) => ids.iter().map(|id| i32::from(*id)).collect(),
        Tokens::Wide(ids) => ids.iter().map(|id| *id as i32).collect(),
    }
}

/// Inputs and labels of all places of a document.
fn places(source: &TextSource, i: usize) -> Vec<(i32, i32)> {
    let format = &source.format;
    let side = |around: &Around| [&around.before[..], &document(&source.cache, i), &around.behind[..]].concat();
    side(&format.input).into_iter().zip(side(&format.labels)).collect()
}

/// All documents in the order in which an epoch packs them.
fn packed_places(source: &TextSource, epoch: u64) -> Vec<(i32, i32)> {
    let plan = source.plan(Order::Shuffled { seed: 7, epoch });
    let documents = plan.documents().expect("packed");
    documents.starting_at(0, |i| source.places(i)).flat_map(|(i, _)| places(source, i)).collect()
}

fn epochs(source: &Arc<TextSource>, num_workers: usize, batch_tokens: usize, n: u64) -> Vec<Vec<HostBatch>> {
    let mut loader =
        Loader::new(source.clone(), &loader(num_workers, batch_tokens), 7, Position::default()).expect("ok");
    let per_epoch = source.batches_per_epoch();
    (0..n).map(|_| (0..per_epoch).map(|_| loader.next_batch().expect("a batch")).collect()).collect()
}

/// The rows of an epoch by number, without padding.
fn rows(batches: &[HostBatch]) -> BTreeMap<u32, Vec<(i32, i32)>> {
    let mut rows = BTreeMap::new();
    for batch in batches {
        for (i, number) in batch.rows.iter().enumerate() {
            let places = i * batch.target_len..i * batch.target_len + batch.lengths()[i] as usize;
            let both = batch.target_input()[places.clone()].iter().copied().zip(batch.labels()[places].iter().copied());
            assert!(rows.insert(*number, both.collect()).is_none(), "row {number} came twice");
        }
    }
    rows
}

/// No token of an epoch is lost or seen twice, whatever the packing, the length of rows and the number of workers.
#[test]
fn every_token_is_a_label_once_an_epoch() {
    let fixture = fixture();
    for packing in [Packing::Documents, Packing::Stream, Packing::Sentences] {
        for task in [Task::Lm, Task::Mlm] {
            for seq_len in [8, 33, 128, 4096] {
                let batch_tokens = 4 * seq_len + 3;
                let source = fixture.source(task, &text(packing, seq_len), &loader(0, batch_tokens));
                let source = Arc::new(source);
                let mut wanted = BTreeMap::<i32, usize>::new();
                for (_, label) in (0..source.cache.n_rows()).flat_map(|i| places(&source, i)) {
                    *wanted.entry(label).or_default() += 1;
                }

                for num_workers in [0, 3] {
                    for batches in epochs(&source, num_workers, batch_tokens, 2) {
                        let mut seen = BTreeMap::<i32, usize>::new();
                        for (_, label) in rows(&batches).into_values().flatten() {
                            *seen.entry(label).or_default() += 1;
                        }
                        assert_eq!(seen, wanted, "{packing:?} {task:?} {seq_len} {num_workers}");

                        let tokens: u64 = batches.iter().map(|batch| batch.target_tokens).sum();
                        assert_eq!(tokens, source.n_tokens());
                        let counted: usize = batches
                            .iter()
                            .map(|batch| batch.labels().iter().filter(|id| **id != HostBatch::NOT_COUNTED).count())
                            .sum();
                        assert_eq!(counted as u64, tokens, "every label counts, and nothing else does");
                    }
                }
            }
        }
    }
}

#[test]
fn rows_put_together_are_the_documents_in_their_order() {
    let fixture = fixture();
    for packing in [Packing::Documents, Packing::Stream] {
        for task in [Task::Lm, Task::Mlm] {
            let source = Arc::new(fixture.source(task, &text(packing, 50), &loader(0, 400)));
            let orders: Vec<_> = (0..2).map(|epoch| packed_places(&source, epoch)).collect();
            assert_ne!(orders[0], orders[1]);
            for (batches, order) in epochs(&source, 2, 400, 2).iter().zip(orders) {
                let rows = rows(batches);
                assert_eq!(rows.len(), source.n_rows());
                assert!(rows.values().take(rows.len() - 1).all(|row| row.len() == 50), "full rows");
                assert_eq!(rows.into_values().flatten().collect::<Vec<_>>(), order);
            }
        }
    }
}

#[test]
fn inputs_are_the_labels_one_place_later() {
    let fixture = fixture();
    let special = fixture.tokenizer.special();
    let (start, end) = (special.bos.expect("there") as i32, special.eos.expect("there") as i32);
    let source = Arc::new(fixture.source(Task::Lm, &text(Packing::Documents, 64), &loader(0, 256)));
    for batch in epochs(&source, 0, 256, 1).iter().flatten() {
        assert_eq!((batch.layout, batch.boundaries), (BatchLayout::Text, true));
        for row in 0..batch.batch_size {
            let range = row * 64..row * 64 + batch.lengths()[row] as usize;
            let (input, labels) = (&batch.target_input()[range.clone()], &batch.labels()[range.clone()]);
            let (positions, documents) = (&batch.positions()[range.clone()], &batch.documents()[range]);
            assert_eq!((positions[0], documents[0]), (0, 0));
            for i in 1..input.len() {
                let new = labels[i - 1] == end;
                assert_eq!(input[i], if new { start } else { labels[i - 1] });
                assert_eq!(positions[i], if new { 0 } else { positions[i - 1] + 1 });
                assert_eq!(documents[i], documents[i - 1] + i32::from(new));
            }
        }
    }
}

#[test]
fn padding_is_a_document_of_its_own() {
    let fixture = fixture();
    for packing in [Packing::Documents, Packing::Stream, Packing::Sentences] {
        let source = Arc::new(fixture.source(Task::Lm, &text(packing, 1000), &loader(0, 3000)));
        let mut padded = 0;
        for batch in epochs(&source, 0, 3000, 1).iter().flatten() {
            for row in 0..batch.batch_size {
                let (start, len) = (row * batch.target_len, batch.lengths()[row] as usize);
                let end = start + batch.target_len;
                if len == batch.target_len {
                    continue;
                }
                padded += 1;

                let number = batch.documents()[start + len - 1] + 1;
                assert!(batch.documents()[start + len..end].iter().all(|document| *document == number));
                assert!(batch.labels()[start + len..end].iter().all(|id| *id == HostBatch::NOT_COUNTED));
                assert!(batch.target_input()[start + len..end].iter().all(|id| *id == 0), "the padding token");
                assert!(batch.documents()[start..end].is_sorted());
                assert!(batch.positions()[start..end].iter().all(|position| (0..1000).contains(position)));
                if packing != Packing::Documents {
                    assert!(batch.positions()[start..end].iter().copied().eq(0..batch.target_len as i32));
                    assert!(!batch.boundaries && number == 1);
                }
            }
        }
        assert_eq!(padded == 1, packing != Packing::Sentences, "{padded} rows are padded with {packing:?}");
    }
}

#[test]
fn packed_batches_have_one_shape_and_the_last_what_is_left() {
    let fixture = fixture();
    let source = Arc::new(fixture.source(Task::Lm, &text(Packing::Stream, 32), &loader(0, 250)));
    let shapes = source.shapes().expect("known");
    assert_eq!(shapes.keys().map(|shape| shape.target_len).max(), Some(32));
    assert!(shapes.len() <= 2 && shapes.contains_key(&Shape::text(7, 32)), "{shapes:?}");
    let mut seen = BTreeMap::<Shape, usize>::new();
    let batches = epochs(&source, 2, 250, 1).remove(0);
    assert!(batches[..batches.len() - 1].iter().all(|batch| batch.batch_size == 7));
    for batch in &batches {
        *seen.entry(batch.shape()).or_default() += 1;
    }
    assert_eq!(seen, shapes);
    assert!(source.padding_ratio() < 32.0 / source.n_tokens() as f64);
    let sentences = fixture.source(Task::Mlm, &text(Packing::Sentences, 32), &loader(0, 250));
    assert!(sentences.shapes().expect("known").keys().all(|shape| shape.batch_size * shape.target_len <= 250));
    assert!(sentences.n_rows() > 300, "long documents take several rows");
}

#[test]
fn masked_rows_have_the_tokenizers_tokens_around_documents() {
    let documents = stories(40, 5);
    let fixture = TextFixture::new(&documents, &tokenizer(TokenizerKind::WordPiece));
    let special = fixture.tokenizer.special();
    let source = Arc::new(fixture.source(Task::Mlm, &text(Packing::Sentences, 64), &loader(0, 256)));
    for row in rows(&epochs(&source, 0, 256, 1)[0]).into_values() {
        assert!(row.iter().all(|(input, label)| input == label));
        assert_eq!((row[0].0, row[row.len() - 1].0), (special.cls.unwrap() as i32, special.sep.unwrap() as i32));
        let ids: Vec<u32> = row.iter().map(|(id, _)| *id as u32).collect();
        assert!(documents.contains(&fixture.tokenizer.decode(&ids).expect("decodes")));
    }
}

#[test]
fn any_number_of_workers_gives_the_same_batches_from_any_position() {
    let fixture = fixture();
    for packing in [Packing::Documents, Packing::Sentences] {
        let source = Arc::new(fixture.source(Task::Lm, &text(packing, 40), &loader(0, 160)));
        let all: Vec<_> = epochs(&source, 0, 160, 3).into_iter().flatten().collect();
        let per_epoch = source.batches_per_epoch();
        for num_workers in [0, 1, 2, 8] {
            for skip in [0, 1, per_epoch - 2, per_epoch, 2 * per_epoch - 1] {
                let start = Position { epoch: skip / per_epoch, batch: skip % per_epoch };
                let mut loader = Loader::new(source.clone(), &loader(num_workers, 160), 7, start).expect("starts");
                for wanted in &all[skip as usize..][..5] {
                    assert_eq!(loader.next_batch().expect("a batch"), *wanted);
                }
            }
        }

        // Ranks take turns.
        for rank in 0..2 {
            let rank = Rank { rank, world_size: 2, ..Rank::default() };
            let mut loader =
                Loader::for_rank(source.clone(), &loader(2, 160), 7, Position::default(), rank).expect("starts");
            for wanted in all.iter().skip(rank.rank).step_by(2).take(20) {
                assert_eq!(loader.next_batch().expect("a batch").ids, wanted.ids);
            }
        }
    }
}

#[test]
fn one_pass_keeps_the_order_of_the_files() {
    let fixture = fixture();
    let source = Arc::new(fixture.source(Task::Lm, &text(Packing::Stream, 40), &loader(0, 160)));
    let pass = OnePass::new(source.clone(), &loader(2, 160)).expect("starts");
    let batches: Vec<_> = pass.map(|batch| batch.expect("a batch")).collect();
    let wanted: Vec<_> = (0..source.cache.n_rows()).flat_map(|i| places(&source, i)).collect();
    assert_eq!(rows(&batches).into_values().flatten().collect::<Vec<_>>(), wanted);
}

#[test]
fn the_fingerprint_tells_what_is_in_the_rows() {
    let fixture = fixture();
    let of = |task, packing, seq_len| fixture.source(task, &text(packing, seq_len), &loader(0, 160)).fingerprint();
    let all = [
        of(Task::Lm, Packing::Documents, 40),
        of(Task::Mlm, Packing::Documents, 40),
        of(Task::Lm, Packing::Stream, 40),
        of(Task::Lm, Packing::Documents, 41),
    ];
    assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
    assert_eq!(all[0], of(Task::Lm, Packing::Documents, 40));
}

#[test]
fn what_does_not_fit_is_refused() {
    let fixture = fixture();
    let refused = |task, config: &TextConfig, loader: &LoaderConfig| {
        TextSource::new(fixture.cache(), &fixture.tokenizer, task, config, loader).expect_err("refused").to_string()
    };
    let good = text(Packing::Documents, 64);
    let error = refused(Task::Translation, &good, &loader(0, 640));
    assert!(error.contains("translation learns from pairs"), "{error}");
    let error = refused(Task::Lm, &good, &loader(0, 63));
    assert!(error.contains("loader.batch_tokens = 63 cannot hold one row of data.text.seq_len = 64"), "{error}");
    let error = refused(Task::Lm, &text(Packing::Documents, 0), &loader(0, 640));
    assert!(error.contains("data.text.seq_len = 0 leaves no room"), "{error}");
    let error = refused(Task::Mlm, &text(Packing::Documents, 2), &loader(0, 640));
    assert!(error.contains("data.text.seq_len = 2 leaves no room for text next to 2 special tokens"), "{error}");
    let error = refused(Task::Lm, &TextConfig { max_bad_rows: 2.0, ..good.clone() }, &loader(0, 0));
    assert!(error.contains("data.text.max_bad_rows") && error.contains("loader.batch_tokens"), "{error}");

    let other = TextFixture::new(&stories(20, 60), &tokenizer(TokenizerKind::ByteLevelBpe));
    let error = TextSource::new(other.cache(), &fixture.tokenizer, Task::Lm, &good, &loader(0, 640));
    assert!(error.expect_err("refused").to_string().contains("was made with another tokenizer"));
    let pairs = Fixture::numbers(50);
    drop(pairs.cached(&loader(0, 640)));
    let cache = TokenCache::open(&pairs.cache_path()).expect("a cache");
    let error = TextSource::new(cache, &fixture.tokenizer, Task::Lm, &good, &loader(0, 640));
    assert!(error.expect_err("refused").to_string().contains("holds pairs, wanted documents"));
    let error = crate::source::PairSource::new(fixture.cache(), &pairs.tokenizers, &loader(0, 640));
    assert!(error.expect_err("refused").to_string().contains("holds documents of plain text, wanted pairs"));
}

#[test]
fn ids_out_of_range_are_found_before_they_reach_a_device() {
    let fixture = fixture();
    let path = fixture.cache().path().to_owned();
    let mut bytes = std::fs::read(&path).expect("there");
    bytes[512..514].copy_from_slice(&[0xff, 0xff]);
    std::fs::remove_file(&path).expect("there");
    std::fs::write(&path, bytes).expect("a writable folder");
    let cache = TokenCache::open(&path).expect("its index is whole");
    let source = TextSource::new(cache, &fixture.tokenizer, Task::Lm, &text(Packing::Stream, 64), &loader(0, 640));
    let error = OnePass::new(Arc::new(source.expect("the same tokenizer")), &loader(2, 640))
        .expect("starts")
        .find_map(Result::err)
        .expect("a damaged document")
        .to_string();
    assert!(error.contains("document 0 is damaged: it has id 65535"), "{error}");
}

#[test]
fn recycled_buffers_bound_memory() {
    let fixture = fixture();
    let source = Arc::new(fixture.source(Task::Lm, &text(Packing::Documents, 40), &loader(0, 160)));
    let mut loader = Loader::new(source.clone(), &loader(2, 160), 7, Position::default()).expect("starts");
    for _ in 0..5 * source.batches_per_epoch() {
        let batch = loader.next_batch().expect("a batch");
        loader.recycle(batch);
    }
    assert!(loader.n_buffers() <= 2 * 3 + 1, "{}", loader.n_buffers());
}

#[test]
fn the_settings_in_the_fingerprint_never_change_between_versions() {
    // A resumed run compares fingerprints: this text may only change with a new checkpoint format.
    let fixture = fixture();
    let (bos, eos) = (fixture.tokenizer.special().bos.expect("bos"), fixture.tokenizer.special().eos.expect("eos"));
    let pad = fixture.tokenizer.special().pad.expect("pad");
    let source = fixture.source(Task::Lm, &text(Packing::Documents, 64), &loader(0, 640));
    let wanted = format!(
        "Lm Documents 64 RowFormat {{ input: Around {{ before: [{bos}], behind: [] }}, labels: Around {{ before: [], \
         behind: [{eos}] }}, fill: {pad}, boundaries: true }}"
    );
    assert_eq!(source.settings, wanted);
}
