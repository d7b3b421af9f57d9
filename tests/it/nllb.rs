//! A translator between many languages, as NLLB and M2M-100 are published: imported for two languages, used, adapted and exported.
//! `tests/fixtures/nllb/make.py` makes the folders and stores what `transformers` makes of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kiln::hugging_face::Folder;
use serde_json::{Value, json};

use crate::kiln::{Workplace, copy_folder};
use crate::opus_mt::numbers::compare;
use crate::opus_mt::{sources, tokenizers, translate};

/// A published model.
struct Published {
    fixtures: &'static str,
    /// English and Italian, as a user calls them, and the tokens.
    languages: [[&'static str; 2]; 2],
}

const NLLB: Published = Published { fixtures: "nllb", languages: [["eng_Latn", "eng_Latn"], ["ita_Latn", "ita_Latn"]] };
const M2M100: Published = Published { fixtures: "m2m100", languages: [["en", "__en__"], ["it", "__it__"]] };

impl Published {
    fn folder(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(self.fixtures)
    }

    fn model(&self) -> PathBuf {
        self.folder().join("model")
    }

    fn expected(&self) -> Value {
        serde_json::from_slice(&fs::read(self.folder().join("expected.json")).expect("committed")).expect("JSON")
    }

    /// Imports the folder into `runs/LANGUAGE`, to translate into that language.
    fn import(&self, place: &Workplace, language: &str) -> String {
        let out = format!("runs/{language}");
        let model = self.model();
        let model = model.to_str().expect("a plain name");
        place.run(&["import", model, "--target-lang", language, "--out", &out]).ok().stderr
    }
}

fn model_folder() -> String {
    NLLB.model().to_str().expect("a plain name").to_owned()
}

#[test]
fn ids_numbers_and_greedy_text_are_those_of_transformers() {
    for published in [NLLB, M2M100] {
        let place = Workplace::new();
        let expected = published.expected();
        let rows = expected["rows"].as_array().expect("rows");
        for [language, token] in published.languages {
            let said = published.import(&place, language);
            let notes = said.matches("note:").count();
            assert!(said.contains("imported a m2m_100 model"), "{said}");
            // M2M-100 has eight rows that no token uses.
            assert!(notes == usize::from(said.contains("the other rows are kept but never used")), "{said}");
            let found = translate(&place, &format!("runs/{language}"), &[], &sources(rows));
            for (row, found) in rows.iter().zip(&found) {
                assert_eq!(row[token], **found, "{token}, {}", row["source"]);
            }
        }

        let [_, [italian, _]] = published.languages;
        let tokenizers = tokenizers(&place, &format!("runs/{italian}"));
        for row in rows {
            let source = row["source"].as_str().expect("a text");
            let ids = |key: &str| serde_json::from_value::<Vec<u32>>(row[key].clone()).expect("ids");
            assert_eq!(tokenizers.encode_sources(&[source]).expect("encodes"), [ids("source_ids")], "{source:?}");
            assert_eq!(tokenizers.encode_targets(&[source]).expect("encodes"), [ids("target_ids")], "{source:?}");
        }
        compare(&published.model(), &tokenizers, &expected, false);
    }
}

#[test]
fn it_is_adapted_and_exported() {
    let place = Workplace::new();
    NLLB.import(&place, "ita_Latn");
    place.run(&["export", "runs/ita_Latn", "out/same"]).ok();
    let tensors = |dir: &Path| {
        let folder = Folder::open(dir).expect("a model");
        let tensors = folder.tensors().into_iter().map(|it| (it.name.clone(), it.shape.clone(), it.bytes.to_vec()));
        tensors.collect::<Vec<_>>()
    };
    assert!(tensors(&place.path("out/same")) == tensors(&NLLB.model()));
    let json = |name: &str| -> Value { serde_json::from_str(&place.read(name)).expect("JSON") };
    let italian = 261;
    assert_eq!(json("out/same/generation_config.json")["forced_bos_token_id"], json!(italian));
    assert_eq!(json("out/same/config.json")["architectures"], json!(["M2M100ForConditionalGeneration"]));

    // The export names its languages itself.
    place.run(&["import", "out/same", "--out", "runs/back"]).ok();
    let line = "Code omni completion\n";
    assert_eq!(translate(&place, "runs/back", &[], line), translate(&place, "runs/ita_Latn", &[], line));

    let pair = json!({"src": "Print the page", "trg": "Stampa la pagina"});
    place.write("pairs.jsonl", format!("{pair}\n{pair}\n"));
    let settings = [
        "data.train=pairs.jsonl",
        "optim.lr=0.01",
        "optim.warmup_steps=5",
        "optim.schedule=\"constant\"",
        "train.steps=100",
        "train.label_smoothing=0.0",
        "train.validate_every=0",
        "train.save_every=0",
        "model.dropout=0.0",
        "loader.num_workers=1",
    ];
    let begin = ["train", "--from", "runs/back", "--run", "runs/adapted", "--device", "cpu"];
    let settings: Vec<&str> = settings.into_iter().flat_map(|set| ["--set", set]).collect();
    place.run(&[&begin[..], &settings].concat()).ok();
    assert_eq!(translate(&place, "runs/adapted", &[], "Print the page\n"), ["Stampa la pagina"]);
}

#[test]
fn transformers_translates_what_kiln_exports() {
    let Some(python) = std::env::var_os("KILN_TRANSFORMERS_PYTHON") else {
        eprintln!("skipped: KILN_TRANSFORMERS_PYTHON is not set; name a Python that has torch and transformers 5");
        return;
    };
    let script = "import sys, transformers as t\n\
                  model, tokenizer = t.AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1]), t.AutoTokenizer.from_pretrained(sys.argv[1])\n\
                  ids = model.generate(**tokenizer(sys.argv[2], return_tensors='pt'))[0]\n\
                  print(tokenizer.decode(ids, skip_special_tokens=True))";
    for published in [NLLB, M2M100] {
        let place = Workplace::new();
        let [_, [italian, _]] = published.languages;
        published.import(&place, italian);
        let run = format!("runs/{italian}");
        place.run(&["export", &run, "out/same"]).ok();
        let folder = place.path("out/same");
        for source in ["Code omni completion", "Create title page"] {
            let output =
                Command::new(&python).args(["-c", script]).arg(&folder).arg(source).output().expect("it starts");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let found = String::from_utf8(output.stdout).expect("UTF-8");
            assert_eq!([found.trim()], *translate(&place, &run, &[], &format!("{source}\n")));
        }
    }
}

#[test]
fn languages_must_be_named_and_known() {
    let place = Workplace::new();
    let model = model_folder();
    place
        .run(&["import", &model])
        .refused(2, &["name yours with --source-lang and --target-lang", "eng_Latn and ita_Latn"]);
    place.run(&["import", &model, "--target-lang", "it"]).refused(3, &["tokenizer.json: has no language \"it\""]);
    let other = Path::new(env!("CARGO_MANIFEST_DIR")).join("model/fixtures/hf/marian");
    let other = other.to_str().expect("a plain name");
    place
        .run(&["import", other, "--target-lang", "ita_Latn"])
        .refused(2, &["are for M2M-100 and NLLB", "a marian model"]);
    let model = M2M100.model();
    let model = model.to_str().expect("a plain name");
    place.run(&["import", model, "--target-lang", "xx"]).refused(3, &["vocab.json: has no language \"xx\""]);

    // A model with experts is not of this family.
    copy_folder(&NLLB.model(), &place.path("experts"));
    let config = place.read("experts/config.json").replace("\"m2m_100\"", "\"nllb-moe\"");
    place.write("experts/config.json", config);
    place.run(&["import", "experts"]).refused(3, &["model_type \"nllb-moe\" is not supported"]);
}
