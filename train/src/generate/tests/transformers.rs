//! Beam search compared with `transformers` on the models of `model/fixtures/hf`.

use std::path::{Path, PathBuf};

use burn::tensor::{Int, Tensor, TensorReadError};
use kiln_model::hf::{self, ElementType, FileTensor};
use kiln_model::{Prompts, Transformer};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::Value;

use super::*;

/// Logits multiplied by a number, as the fixture's are.
struct Sharpened<S> {
    sequences: S,
    sharpness: f64,
}

impl<S: Sequences> Sharpened<S> {
    fn begin(begun: Begun<S>, sharpness: f64) -> Begun<Self> {
        let Begun { sequences, logits, limits } = begun;
        Begun { sequences: Self { sequences, sharpness }, logits: logits * sharpness, limits }
    }
}

impl<S: Sequences> Sequences for Sharpened<S> {
    fn step(&mut self, ids: Tensor<1, Int>) -> Tensor<2> {
        self.sequences.step(ids) * self.sharpness
    }

    fn select(&mut self, rows: &[usize]) {
        self.sequences.select(rows);
    }

    fn reorder_beams(&mut self, rows: &[usize]) {
        self.sequences.reorder_beams(rows);
    }
}

pub(super) fn repository() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).to_path_buf()
}

/// The model of `model/fixtures/hf/FAMILY`.
fn imported(family: &str) -> Transformer {
    imported_with(family, |_| ())
}

/// [`imported`] with changes before the model is built.
pub(super) fn imported_with(family: &str, change: impl FnOnce(&mut hf::Imported)) -> Transformer {
    let folder = repository().join("model/fixtures/hf").join(family);
    let config = std::fs::read(folder.join("config.json")).expect("fixtures are committed");
    let config: Value = serde_json::from_slice(&config).expect("JSON");
    let bytes = std::fs::read(folder.join("model.safetensors")).expect("fixtures are committed");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let views = file.tensors();
    let tensor = |(name, view): &(String, TensorView<'_>)| {
        let start = view.data().as_ptr().addr() - bytes.as_ptr().addr();
        FileTensor {
            name: name.clone(),
            shape: view.shape().to_vec(),
            element_type: ElementType::F32,
            bytes: &bytes[start..start + view.data().len()],
        }
    };
    let tensors: Vec<FileTensor<'_>> = views.iter().map(tensor).collect();
    let mut imported = hf::import(&config, &tensors).unwrap_or_else(|error| panic!("{family}: {error}"));
    change(&mut imported);
    imported.into_model(FloatDType::F32, &Device::flex())
}

/// A model of the fixture, and what it was searched with.
struct Family {
    name: String,
    model: Transformer,
    /// The first token of every target, where there are sources.
    start: u32,
    rules: TokenRules,
    /// Tokens of a target.
    limit: usize,
    inputs: Vec<Vec<u32>>,
}

impl Family {
    fn of(json: &Value) -> Self {
        let name = json["family"].as_str().expect("a name").to_owned();
        Self {
            model: imported(&name),
            name,
            start: json["start"].as_u64().unwrap_or_default() as u32,
            rules: TokenRules { ends: ids(&json["ends"]), never: Vec::new(), bans: Bans::default() },
            limit: json["limit"].as_u64().expect("a number") as usize,
            inputs: json["inputs"].as_array().expect("a list").iter().map(ids).collect(),
        }
    }

    /// Whether targets begin with a token of their own.
    fn has_start(&self) -> bool {
        matches!(self.model, Transformer::EncoderDecoder(_))
    }

    /// Searches all inputs in one batch; `transformers` searched them one by one.
    fn search(&self, sharpness: f64, config: &BeamConfig) -> Vec<Vec<Scored>> {
        self.with(sharpness, |begun| match begun {
            Either::Texts(begun) => beam_search(begun, &self.rules, config),
            Either::Targets(begun) => beam_search(begun, &self.rules, config),
        })
    }

    /// The target of the first input by greedy search.
    fn greedy(&self, sharpness: f64) -> Vec<u32> {
        let found = self.with(sharpness, |begun| match begun {
            Either::Texts(begun) => greedy(begun, &self.rules, 4),
            Either::Targets(begun) => greedy(begun, &self.rules, 4),
        });
        found.into_iter().next().expect("an input")
    }

    /// Lets `search` finish all inputs.
    fn with<T>(&self, sharpness: f64, search: impl FnOnce(Either<'_>) -> Result<T, TensorReadError>) -> T {
        let device = Device::flex();
        let found = match &self.model {
            Transformer::DecoderOnly(model) => {
                let prompts = Prompts::new(&self.inputs, model.config(), &device).expect("prompts");
                let lengths = self.inputs.iter().map(Vec::len).collect();
                let begun = Texts::begin(model, &prompts, lengths, vec![self.limit; self.inputs.len()]);
                search(Either::Texts(Sharpened::begin(begun, sharpness)))
            }
            Transformer::EncoderDecoder(model) => {
                let (pad, positions) = (model.config().pad_id, model.config().max_positions);
                let row = |ids: &Vec<u32>| SourceRow { ids: ids.clone(), limit: self.limit };
                let rows: Vec<SourceRow> = self.inputs.iter().map(row).collect();
                let batch = SourceBatch::new(&rows.iter().collect::<Vec<_>>(), pad, positions, &device);
                let begun = Targets::begin(model, &batch, SpecialIds { pad, bos: self.start, ..SPECIAL });
                search(Either::Targets(Sharpened::begin(begun, sharpness)))
            }
            Transformer::EncoderOnly(_) => unreachable!("the fixture has none"),
        };
        found.expect("the CPU answers")
    }
}

/// Texts to continue, or targets of sources.
enum Either<'a> {
    Texts(Begun<Sharpened<Texts<'a>>>),
    Targets(Begun<Sharpened<Targets<'a>>>),
}

fn ids(json: &Value) -> Vec<u32> {
    json.as_array().expect("a list").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

/// Tokens and scores, best first.
fn targets(json: &Value) -> Vec<(Vec<u32>, f64)> {
    let target = |json: &Value| (ids(&json["tokens"]), json["score"].as_f64().expect("a number"));
    json.as_array().expect("a list").iter().map(target).collect()
}

/// Tokens and scores of `transformers`, for texts and pairs. `tests/fixtures/beam/make.py` writes the expected targets.
///
/// With its default `early_stopping=False` they are those of [`EarlyStopping::Heuristic`]. [`EarlyStopping::Never`] finds better
/// ones where that rule stops before the best target is found, as `early_stopping="never"` does.
#[test]
fn targets_and_scores_are_those_of_transformers() {
    let file = repository().join("tests/fixtures/beam/expected.json");
    let fixture: Value = serde_json::from_slice(&std::fs::read(file).expect("fixtures are committed")).expect("JSON");
    let sharpness = fixture["sharpness"].as_f64().expect("a number");
    let (mut n_cases, mut n_stopped_early) = (0, 0);
    for json in fixture["families"].as_array().expect("a list") {
        let family = Family::of(json);
        let cases = json["cases"].as_array().expect("a list");
        for setting in cases.iter().filter(|case| case["input"] == 0) {
            let beam_size = setting["beam_size"].as_u64().expect("a number") as usize;
            let length_penalty = setting["length_penalty"].as_f64().expect("a number");
            let exact =
                BeamConfig { normalization: LengthNormalization::Power, ..beams(beam_size, length_penalty, beam_size) };
            let heuristic = BeamConfig { early_stopping: EarlyStopping::Heuristic, ..exact };
            let case_of = |input: usize, beam_size: usize| {
                let wanted = |case: &&Value| {
                    (&case["input"], &case["beam_size"], &case["length_penalty"])
                        == (&input.into(), &beam_size.into(), &setting["length_penalty"])
                };
                cases.iter().find(wanted).expect("every input has every setting")
            };

            for (input, found) in family.search(sharpness, &heuristic).iter().enumerate() {
                let context = format!("{}, input {input}, {heuristic:?}", family.name);
                same_targets(found, &targets(&case_of(input, beam_size)["found"]), &context);
            }
            for (input, found) in family.search(sharpness, &exact).iter().enumerate() {
                let context = format!("{}, input {input}, {exact:?}", family.name);
                let case = case_of(input, beam_size);
                let mut wanted = targets(&case["found"]);
                n_cases += 1;
                if case["exact"].is_array() {
                    let exact = targets(&case["exact"]);
                    assert!(length_penalty > 0.0, "{context}: the rules differ for positive penalties only");
                    assert!(exact.iter().zip(&wanted).all(|(exact, wanted)| exact.1 >= wanted.1), "{context}");
                    n_stopped_early += 1;
                    wanted = exact;
                }
                let greedy = targets(&case_of(input, 1)["found"]).remove(0);
                assert!(greedy.1 <= wanted[0].1 + 1e-4, "{context}: Kiln returns greedy search's target instead");
                same_targets(found, &wanted, &context);
            }
        }
    }
    assert!(n_cases == 240 && (1..20).contains(&n_stopped_early), "{n_cases} cases, {n_stopped_early} stopped early");
}

/// `no_repeat_ngram_size` and `bad_words_ids` of `transformers`, in greedy search and with beams; the prompt of a text counts.
/// `tests/fixtures/beam/bans.py` writes the expected targets.
#[test]
fn bans_are_those_of_transformers() {
    let file = repository().join("tests/fixtures/beam/bans.json");
    let fixture: Value = serde_json::from_slice(&std::fs::read(file).expect("fixtures are committed")).expect("JSON");
    let sharpness = fixture["sharpness"].as_f64().expect("a number");
    let mut n_cases = 0;
    for json in fixture["families"].as_array().expect("a list") {
        let mut family = Family::of(json);
        let inputs = std::mem::take(&mut family.inputs);
        for case in json["cases"].as_array().expect("a list") {
            let input = &inputs[case["input"].as_u64().expect("a number") as usize];
            let before = if family.has_start() { vec![family.start] } else { input.clone() };
            family.inputs = vec![input.clone()];
            family.rules.bans = Bans {
                no_repeat_ngram_size: case["ngram"].as_u64().expect("a number") as usize,
                words: case["words"].as_array().expect("a list").iter().map(ids).collect(),
                given: vec![before],
            };

            let beam_size = case["beam_size"].as_u64().expect("a number") as usize;
            let normalization = LengthNormalization::Power;
            let early_stopping = EarlyStopping::Heuristic;
            let config = BeamConfig { normalization, early_stopping, ..beams(beam_size, 1.0, beam_size) };
            let context = format!("{}, {case}", family.name);
            let wanted = targets(&case["found"]);
            same_targets(&family.search(sharpness, &config)[0], &wanted, &context);
            if beam_size == 1 {
                assert_eq!(family.greedy(sharpness), wanted[0].0, "{context}");
            }
            n_cases += 1;
        }
    }
    assert_eq!(n_cases, 120);
}

fn same_targets(found: &[Scored], wanted: &[(Vec<u32>, f64)], context: &str) {
    assert_eq!(found.len(), wanted.len(), "{context}");
    for (found, (tokens, score)) in found.iter().zip(wanted) {
        assert_eq!(&found.tokens, tokens, "{context}");
        let tolerance = 2e-5 * score.abs().max(1.0);
        assert!((found.score - score).abs() < tolerance, "{context}: {} instead of {score}", found.score);
    }
}
