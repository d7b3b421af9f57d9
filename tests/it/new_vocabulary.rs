//! Runs that start from weights of another vocabulary: `kiln train --from RUN --new-vocabulary`.

mod pairs;

use std::collections::BTreeMap;
use std::path::Path;

use kiln::checkpoint::NamedTensor;
use kiln::hugging_face::TokenizerFile;
use kiln::run::TrainedModel;
use serde_json::Value;

use crate::kiln::Workplace;

const TEXT: &str = "The old man walked down to the river and looked at the boats.\n\nThere was nobody on the water, and the \
                    boats lay still.\n\nHe sat down on a stone and waited for the evening.\n\n";
const OTHER: &str = "The young woman walked up to the lake and looked at the birds.\n\nThere was somebody on the shore, and the \
                     birds sang.\n\nShe stood on a hill, who knows why, and waited for the morning: zigzag, quiz, jazz.\n\n";

/// A place with two texts and a small language model of the first, `runs/a`.
fn place() -> Workplace {
    let place = Workplace::new();
    place.write("a.txt", TEXT.repeat(30));
    place.write("b.txt", OTHER.repeat(30));
    let settings = [
        "model.d_model=32",
        "model.n_heads=2",
        "model.d_ff=64",
        "model.n_decoder_layers=1",
        "model.max_positions=48",
        "model.tie_embeddings=\"none\"",
        "loader.batch_tokens=192",
        "tokenizer.vocab_size=320",
        "optim.warmup_steps=5",
        "optim.lr=0.01",
        "train.validate_every=0",
        "train.save_every=0",
        "train.steps=60",
        "data.train=a.txt",
        "data.valid=a.txt",
    ];
    let settings: Vec<&str> = settings.into_iter().flat_map(|set| ["--set", set]).collect();
    place.run(&[&["train", "--device", "cpu", "--task", "lm", "--run", "runs/a"][..], &settings].concat()).ok();
    place
}

fn train_b(place: &Workplace, run: &str, more: &[&str]) -> String {
    let all = ["train", "--from", "runs/a", "--run", run, "--set", "data.train=b.txt", "--set", "data.valid=b.txt"];
    place.run(&[&all[..], more].concat()).ok().stderr
}

/// The tensors of a checkpoint by name, and the spellings of its tokens.
fn opened(run: &Path, step: &str) -> (BTreeMap<String, NamedTensor>, BTreeMap<u32, Vec<u8>>) {
    let model = TrainedModel::open(run, Some(step)).expect("a run");
    let tokens = TokenizerFile::read(&model.path.join("tokenizer.json")).expect("a tokenizer").spellings();
    (model.weights().iter().map(|tensor| (tensor.name.clone(), tensor.clone())).collect(), tokens)
}

/// The numbers of a token: a row of a table, or a column of a matrix.
fn numbers(tensor: &NamedTensor, id: usize) -> Vec<f32> {
    match (tensor.name.as_str(), tensor.shape.as_slice()) {
        ("output.weight", [_, n]) => tensor.values.iter().skip(id).step_by(*n).copied().collect(),
        (_, [_, d]) => tensor.values[id * d..(id + 1) * d].to_vec(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn rows_follow_their_tokens_and_the_model_begins_with_what_it_knows() {
    let place = place();
    let new = ["--new-vocabulary", "--device", "cpu", "--set", "tokenizer.vocab_size=400"];
    let said = train_b(&place, "runs/b", &[&new[..], &["--set", "train.steps=2"]].concat());
    let note = said.lines().find(|line| line.contains("--new-vocabulary: ")).expect("a note");
    assert!(
        note.contains("keep their rows") && note.contains("are new and begin with the mean of all rows ("),
        "{note}"
    );

    let (old, old_tokens) = opened(&place.path("runs/a"), "last");
    let (new, new_tokens) = opened(&place.path("runs/b"), "step-00000000");
    let by_text: BTreeMap<&[u8], u32> =
        old_tokens.iter().rev().map(|(id, spelling)| (spelling.as_slice(), *id)).collect();
    let (mut n_kept, mut n_new) = (0, 0);
    for name in ["embedding.table", "output.weight"] {
        for (id, spelling) in &new_tokens {
            let found = numbers(&new[name], *id as usize);
            match by_text.get(spelling.as_slice()) {
                Some(old_id) => {
                    assert_eq!(found, numbers(&old[name], *old_id as usize), "{name}, {spelling:?}");
                    n_kept += 1;
                }
                None => {
                    let mean = |column: usize| {
                        let all = (0..old_tokens.len()).map(|id| f64::from(numbers(&old[name], id)[column]));
                        all.sum::<f64>() / old_tokens.len() as f64
                    };
                    assert!((f64::from(found[3]) - mean(3)).abs() < 1e-6, "{name}, {spelling:?}");
                    n_new += 1;
                }
            }
        }
    }
    assert!(n_kept > 500 && n_new > 100, "{n_kept} {n_new}");
    assert!(note.contains(&format!("{} of {} tokens", n_kept / 2, new_tokens.len())), "{note}");
    assert_eq!(old["decoder.layers.0.feed_forward.input.weight"], new["decoder.layers.0.feed_forward.input.weight"]);

    // It learns the other text faster than a model that begins with nothing.
    let last_loss = |run: &str| {
        let metrics = place.read(&format!("{run}/metrics.jsonl"));
        let records = metrics.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let mut steps = records.filter(|record| record["kind"] == "step");
        steps.next_back().expect("a step")["loss"].as_f64().expect("a loss")
    };
    let short =
        ["--device", "cpu", "--set", "train.steps=10", "--set", "optim.warmup_steps=1", "--set", "optim.lr=0.003"];
    train_b(&place, "runs/known", &[&["--new-vocabulary"][..], &short].concat());
    let config = place.path("runs/known/config.toml");
    let config = ["train", "--config", config.to_str().expect("a plain name"), "--run", "runs/nothing"];
    place.run(&[&config[..], &short].concat()).ok();
    let (known, nothing) = (last_loss("runs/known"), last_loss("runs/nothing"));
    assert!(known < nothing - 0.3, "{known} {nothing}");

    // Two processes begin with the same rows, and a resumed run needs the old one no more.
    train_b(&place, "runs/two", &["--new-vocabulary", "--devices", "cpu,cpu", "--set", "train.steps=1"]);
    place.run(&["generate", "runs/b", "--device", "cpu", "--prompt", "The", "--max-new-tokens", "3"]).ok();
    place.run(&["train", "--run", "runs/b", "--resume", "--set", "train.steps=4", "--device", "cpu"]).ok();
}

#[test]
fn what_would_do_nothing_is_refused() {
    let place = place();
    let from = ["train", "--device", "cpu", "--from", "runs/a", "--run", "runs/b", "--set", "data.train=b.txt"];
    place
        .run(&[&from[..], &["--set", "tokenizer.vocab_size=400"]].concat())
        .refused(2, &["--from takes the vocabulary of that run", "add --new-vocabulary"]);
    place
        .run(&[&from[..], &["--new-vocabulary", "--set", "model.lora.rank=4"]].concat())
        .refused(2, &["rows that must be trained, and model.lora.rank trains adapters alone"]);
    let frozen = ["--new-vocabulary", "--set", "tokenizer.vocab_size=400", "--set", "train.freeze=[\"embedding\"]"];
    place
        .run(&[&from[..], &frozen].concat())
        .refused(2, &["embedding.table gets", "new rows, which train.freeze would leave as they begin"]);
    place.run(&["train", "--new-vocabulary", "--device", "cpu"]).refused(2, &["--from"]);
}
