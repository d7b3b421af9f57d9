//! Pairs with a vocabulary for each side; resuming; several ranks.

use std::collections::BTreeMap;
use std::fs;

use safetensors::tensor::SafeTensors;
use serde_json::Value;

use crate::kiln::{SMALL, Workplace};

const FROM: [&str; 8] = ["train", "--device", "cpu", "--from", "runs/a", "--new-vocabulary", "--run", "runs/b"];

/// Sets `keys` of a small run that writes the loss of each step.
fn with<'a>(keys: &[&'a str]) -> Vec<&'a str> {
    let small = SMALL
        .into_iter()
        .filter(|set| !set.contains("log_every") && !set.contains("warmup") && !set.contains("dropout"));
    small
        .chain(["train.log_every=1", "model.dropout=0", "optim.warmup_steps=0"])
        .chain(keys.iter().copied())
        .flat_map(|set| ["--set", set])
        .collect()
}

/// A folder with a run on pairs in `runs/a`, and other pairs in `b.tsv`, of which half the words are new.
fn trained(keys: &[&str]) -> Workplace {
    let place = Workplace::new();
    let rows = |words: [&str; 3], others: [&str; 3]| -> String {
        let row = |n: usize| {
            format!("{} {} {n}\t{} {} {n}\n", words[n % 3], words[n / 3 % 3], others[n % 3], others[n / 3 % 3])
        };
        (0..60).map(row).collect()
    };
    place.write("a.tsv", rows(["house", "river", "stone"], ["casa", "fiume", "pietra"]));
    place.write("b.tsv", rows(["house", "river", "zebra"], ["casa", "fiume", "zebra"]));
    let run = ["train", "--device", "cpu", "--run", "runs/a", "--preset", "tiny", "--quiet"];
    let more = with(&["data.train=a.tsv", "tokenizer.vocab_size=330", "train.steps=40", "optim.lr=0.01"]);
    let keys: Vec<&str> = keys.iter().flat_map(|key| ["--set", key]).collect();
    place.run(&[&run[..], &more, &keys].concat()).ok();
    place
}

/// Shapes and numbers of the tensors of a checkpoint.
fn tensors(place: &Workplace, checkpoint: &str) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let bytes = fs::read(place.path(checkpoint).join("model.safetensors")).expect("a checkpoint");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let number = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("four bytes"));
    let numbers = |data: &[u8]| data.chunks_exact(4).map(number).collect();
    file.tensors().into_iter().map(|(name, view)| (name, (view.shape().to_vec(), numbers(view.data())))).collect()
}

/// Returns the ids of the tokens in a `tokenizer.json` by spelling.
fn ids(place: &Workplace, file: &str) -> BTreeMap<String, usize> {
    let parts: Value = serde_json::from_str(&place.read(file)).expect("JSON");
    let vocabulary = parts["model"]["vocab"].as_object().expect("a BPE vocabulary");
    vocabulary.iter().map(|(token, id)| (token.clone(), id.as_u64().expect("an id") as usize)).collect()
}

/// Rows of `table` in both checkpoints by the tokens of two tokenizers. Returns the number of tokens that both have.
fn compare_rows(place: &Workplace, [table, before, now]: [&str; 3], by_column: bool) -> usize {
    let folders = ["runs/a/checkpoints/step-00000040", "runs/b/checkpoints/step-00000000"];
    let [mut of_a, mut of_b] = folders.map(|folder| tensors(place, folder));
    let (a, b) = (of_a.remove(table).expect("there"), of_b.remove(table).expect("there"));
    let [ids_a, ids_b] = [0, 1].map(|i| ids(place, &format!("{}/{}", folders[i], [before, now][i])));
    let row = |(shape, values): &(Vec<usize>, Vec<f32>), id: usize| -> Vec<f32> {
        match by_column {
            true => values.iter().skip(id).step_by(shape[1]).copied().collect(),
            false => values[id * shape[1]..][..shape[1]].to_vec(),
        }
    };

    assert_eq!(b.0[usize::from(by_column)], ids_b.len(), "{table}");

    let mut both = 0;
    for (token, id) in &ids_b {
        let Some(before) = ids_a.get(token) else {
            // A character that is new has the row of its byte.
            let is_new = (0..ids_a.len()).all(|other| row(&a, other) != row(&b, *id));
            assert!(is_new || token.len() == 1, "{token} is new");
            continue;
        };
        assert_eq!(row(&a, *before), row(&b, *id), "{table}: {token}");
        both += 1;
    }
    // Nothing else has changed.
    for (name, (shape, values)) in
        of_a.iter().filter(|(name, _)| name.starts_with("encoder.") || name.starts_with("decoder."))
    {
        assert_eq!((shape, values), (&of_b[name].0, &of_b[name].1), "{name}");
    }
    both
}

#[test]
fn each_side_and_the_output_have_rows_of_their_own() {
    let place = trained(&["tokenizer.joint=false", "tokenizer.split_digits=false", "model.tie_embeddings=\"none\""]);
    let more = with(&["data.train=b.tsv", "tokenizer.vocab_size=340", "train.steps=1"]);
    let ran = place.run(&[&FROM[..], &more].concat()).ok();
    let [source, target] = ["source.tokenizer.json", "target.tokenizer.json"];
    let n = [
        compare_rows(&place, ["source_embedding.table", source, source], false),
        compare_rows(&place, ["target_embedding.table", target, target], false),
        compare_rows(&place, ["output.weight", target, target], true),
    ];
    assert!(n[0] > 270 && n[1] == n[2], "{n:?}");
    for side in ["source", "target"] {
        assert!(ran.stderr.contains(&format!(" of 340 tokens of the {side}s keep their rows; ")), "{ran:#?}");
    }
}

#[test]
fn it_resumes_bit_for_bit_and_all_ranks_begin_alike() {
    let place = trained(&[]);
    let keys = ["data.train=b.tsv", "tokenizer.vocab_size=340", "train.steps=4", "train.save_every=2"];
    place.run(&[&FROM[..], &with(&keys)].concat()).ok();
    let last =
        |run: &str| fs::read(place.path(run).join("checkpoints/step-00000004/model.safetensors")).expect("saved");
    let whole = last("runs/b");
    let resume = ["train", "--device", "cpu", "--run", "runs/b", "--resume"];
    fs::remove_dir_all(place.path("runs/b/checkpoints/step-00000004")).expect("there");
    place.run(&resume).ok();
    assert!(last("runs/b") == whole);
    // Interrupted before its first save, it begins again with the same weights and the same vocabulary.
    for step in ["step-00000002", "step-00000004"] {
        fs::remove_dir_all(place.path("runs/b/checkpoints").join(step)).expect("there");
    }
    place.run(&resume).ok();
    assert!(last("runs/b") == whole);

    let run = ["train", "--devices", "cpu,cpu", "--from", "runs/a", "--new-vocabulary", "--run", "runs/two"];
    place.run(&[&run[..], &with(&keys)].concat()).ok();
    let first = |run: &str| tensors(&place, &format!("{run}/checkpoints/step-00000000"));
    assert!(first("runs/two") == first("runs/b"));
}
