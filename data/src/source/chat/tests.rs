use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::*;
use crate::cache::{Tokens, prepare_chat};
use crate::corpus::{Learn, TextCorpus, TextFormat};
use crate::loader::{Loader, OnePass};
use crate::sampler::Order;
use crate::tokenizer::FLAG;

struct Fixture {
    dir: tempfile::TempDir,
    tokenizer: TextTokenizer,
}

impl Fixture {
    /// A vocabulary, and these rows as a file.
    fn new(rows: &[String]) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/chat");
        fs::copy(from.join("byte-level.json"), dir.path().join("tokenizer.json")).expect("committed");
        fs::copy(from.join("chatml.jinja"), dir.path().join("chat_template.jinja")).expect("committed");
        fs::write(dir.path().join("rows.jsonl"), rows.join("\n")).expect("writable");
        let tokenizer = TextTokenizer::load_dir(dir.path()).expect("a tokenizer");
        Self { dir, tokenizer }
    }

    fn prepare(&self, config: &TextConfig) -> Result<TokenCache> {
        let corpus = TextCorpus::open(&[self.dir.path().join("rows.jsonl")], config)?;
        let (path, template) = (self.dir.path().join("chat.tokens"), self.tokenizer.chat_template()?);
        Ok(prepare_chat(&path, &corpus, &self.tokenizer, &template, 2, &mut |_| ())?.cache)
    }

    fn source(&self, seq_len: usize) -> Arc<ChatSource> {
        self.source_of(&text(seq_len))
    }

    fn source_of(&self, config: &TextConfig) -> Arc<ChatSource> {
        let cache = self.prepare(config).expect("good rows");
        Arc::new(ChatSource::new(cache, &self.tokenizer, config, &loader(2)).expect("good settings"))
    }
}

fn text(seq_len: usize) -> TextConfig {
    TextConfig { format: TextFormat::Chat, seq_len, max_bad_rows: 0.9, ..TextConfig::default() }
}

fn loader(num_workers: usize) -> LoaderConfig {
    LoaderConfig { num_workers, batch_tokens: 300, prefetch_factor: 2, ..LoaderConfig::default() }
}

fn row(question: &str, answer: &str) -> String {
    serde_json::json!({ "prompt": question, "completion": answer }).to_string()
}

/// Rows of many lengths.
fn rows() -> Vec<String> {
    (0..60).map(|n| row(&format!("What is {n}?"), &format!("It is {}", "a number ".repeat(n % 7 + 1)))).collect()
}

/// Input, labels and positions of a conversation.
type Places = (Vec<i32>, Vec<i32>, Vec<i32>);

/// The conversations of an epoch.
fn conversations(batches: &[HostBatch]) -> Vec<Places> {
    let mut found: BTreeMap<(u32, i32), Places> = BTreeMap::new();
    for batch in batches {
        for (row, number) in batch.rows.iter().enumerate() {
            for place in (row * batch.target_len..).take(batch.lengths()[row] as usize) {
                let conversation = found.entry((*number, batch.documents()[place])).or_default();
                conversation.0.push(batch.target_input()[place]);
                conversation.1.push(batch.labels()[place]);
                conversation.2.push(batch.positions()[place]);
            }
        }
    }
    found.into_values().collect()
}

#[test]
fn an_epoch_has_each_conversation_once_and_whole() {
    let fixture = Fixture::new(&rows());
    let (packed, single) = (fixture.source(100), fixture.source_of(&in_rows()));
    assert!(packed.n_rows() < 60 && packed.padding_ratio() < 0.1, "{} rows", packed.n_rows());
    assert!(single.n_rows() == 60 && single.padding_ratio() < 0.3, "{} padding", single.padding_ratio());
    assert_ne!(packed.fingerprint(), single.fingerprint());
    check_epoch(&fixture, &packed);
    check_epoch(&fixture, &single);
    let batch =
        OnePass::new(single as Arc<dyn BatchSource>, &loader(0)).expect("ok").next().expect("one").expect("a batch");
    assert!(!batch.boundaries, "a row has one document");
}

/// Conversations in rows of their own.
fn in_rows() -> TextConfig {
    TextConfig { packing: Packing::Sentences, ..text(100) }
}

fn check_epoch(fixture: &Fixture, source: &Arc<ChatSource>) {
    let mut epochs: Vec<Vec<HostBatch>> = Vec::new();
    for workers in [0, 3] {
        let mut batches = Loader::new(source.clone(), &loader(workers), 7, Default::default()).expect("ok");
        let epoch: Vec<_> = (0..source.batches_per_epoch()).map(|_| batches.next_batch().expect("a batch")).collect();
        epochs.push(epoch);
    }
    assert_eq!(epochs[0], epochs[1], "workers do not matter");
    assert_eq!(source.shapes().expect("known").values().sum::<usize>() as u64, source.batches_per_epoch());

    let mut found = conversations(&epochs[0]);
    let mut wanted: Vec<Places> = (0..source.cache().n_rows())
        .map(|i| {
            let Tokens::Wide(ids) = source.cache().document(i) else { panic!("four bytes each") };
            let label = |id: &u32| if id & FLAG == 0 { HostBatch::NOT_COUNTED } else { (id & !FLAG) as i32 };
            let labels = ids.iter().skip(1).map(label).chain([HostBatch::NOT_COUNTED]).collect();
            (ids.iter().map(|id| (id & !FLAG) as i32).collect(), labels, (0..ids.len() as i32).collect())
        })
        .collect();
    found.sort();
    wanted.sort();
    assert_eq!(found, wanted);

    let first = &found[0];
    let answer: Vec<u32> = first.1.iter().filter(|label| **label >= 0).map(|label| *label as u32).collect();
    assert!(fixture.tokenizer.decode(&answer).expect("text").starts_with("It is a number"), "only the answer counts");
    let passed = OnePass::new(source.clone() as Arc<dyn BatchSource>, &loader(0)).expect("ok").count();
    assert_eq!(passed as u64, source.batches_per_epoch());
    let orders = [0, 1].map(|epoch| source.plan(Order::Shuffled { seed: 7, epoch }));
    assert_ne!(orders[0], orders[1]);
}

#[test]
fn conversations_that_are_too_long_or_wrong_are_counted_and_shown() {
    let too_long = row("?", &"very long ".repeat(100));
    let fixture =
        Fixture::new(&[row("Hi", "Hello"), too_long, "{}".into(), String::new(), row("Hi", " "), row("a", "b")]);
    let report = fixture.prepare(&text(100)).expect("two rows are good").report().clone();
    assert_eq!((report.kept, report.over_long, report.malformed, report.empty), (2, 1, 2, 1));
    assert!(report.longest > 200, "{report:?}");
    let shown = report.to_string();
    for part in
        ["rows.jsonl:2: the conversation has ", "100 are allowed (data.text.seq_len)", "message 2: the answer is empty"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let strict = TextConfig { max_bad_rows: 0.1, ..text(100) };
    let error = fixture.prepare(&strict).expect_err("too many bad rows").to_string();
    assert!(error.contains("66.67 % of the rows cannot be used"), "{error}");
    let long = Fixture::new(&[row("?", &"very long ".repeat(90)), row("?", &"very long ".repeat(100))]);
    let error = long.prepare(&text(100)).expect_err("no row is left").to_string();
    let longest = error.split("the longest has ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a length");
    assert!(
        longest.parse::<u64>().is_ok_and(|tokens| tokens > 200) && error.contains("at most to model.max_positions"),
        "{error}"
    );
}

#[test]
fn a_cache_is_made_anew_for_other_settings_and_templates() {
    let mut fixture = Fixture::new(&rows());
    let of = |fixture: &Fixture, config: &TextConfig| fixture.prepare(config).expect("good rows").fingerprint();
    let first = of(&fixture, &text(100));
    assert_eq!(of(&fixture, &text(100)), first);
    assert_ne!(of(&fixture, &TextConfig { learn: Learn::Everything, ..text(100) }), first);
    assert_ne!(of(&fixture, &text(99)), first);
    fixture.tokenizer = fixture.tokenizer.with_chat_template("{% for m in messages %}{{ m.content }}!{% endfor %}");
    assert_ne!(of(&fixture, &text(100)), first);

    fixture.tokenizer = fixture.tokenizer.with_chat_template("\n{{ '' ~ ([[[1] * 1000] * 1000] * 1000) }}");
    let problem = fixture.prepare(&text(100)).expect_err("no end").to_string();
    assert!(problem.starts_with("the chat template: line 2 of the template: it "), "{problem}");
}

#[test]
fn a_cache_that_does_not_fit_is_refused() {
    let fixture = Fixture::new(&rows());
    let refused = |seq_len: usize, loader: &LoaderConfig| {
        let cache = fixture.prepare(&text(100)).expect("good rows");
        ChatSource::new(cache, &fixture.tokenizer, &text(seq_len), loader).expect_err("refused").to_string()
    };
    assert!(refused(20, &loader(0)).contains("data.text.seq_len = 20 has no room for it"));
    let small = LoaderConfig { batch_tokens: 50, ..loader(0) };
    assert!(refused(100, &small).contains("loader.batch_tokens = 50 cannot hold one row"));
    let cache = fixture.prepare(&text(100)).expect("good rows");
    let plain =
        crate::source::TextSource::new(cache, &fixture.tokenizer, crate::corpus::Task::Lm, &text(100), &loader(0));
    assert!(plain.is_err(), "conversations are not documents");
}

#[test]
fn fields_that_are_left_out_are_named_once_with_their_rows() {
    let rows: Vec<String> = (0..30)
        .map(|n| {
            let mut row = serde_json::json!({
                "system": "Be brief.", "prompt": format!("What is {n}?"), "response": "A number.", "source": format!("web {n}"), "id": "x",
            });
            if n < 4 {
                row["note"] = "checked".into();
            }
            row.to_string()
        })
        .collect();
    let cache = Fixture::new(&rows).prepare(&text(200)).expect("good rows");
    let notes = cache.report().notes();
    let wanted =
        "fields that are left out: id, source (in 30 rows), note (in 4 rows); put texts that the model must read";
    assert!(notes.len() == 1 && notes[0].starts_with(wanted), "{notes:?}");

    let plain = Fixture::new(&self::rows()).prepare(&text(200)).expect("good rows");
    assert_eq!(plain.report().notes(), Vec::<String>::new());
}
