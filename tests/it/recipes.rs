//! The recipes of `docs/recipes.md`, at small size.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::kiln::{SMALL, Workplace};

const NUMBERS: [(&str, &str); 6] =
    [("one", "uno"), ("two", "due"), ("three", "tre"), ("four", "quattro"), ("five", "cinque"), ("six", "sei")];

/// Lines of `n` rows of one to three numbers, in both languages.
fn lines(n: usize) -> [String; 2] {
    let row = |at: usize, pick: fn(&(&'static str, &'static str)) -> &'static str| {
        let words: Vec<_> = (0..at % 3 + 1).map(|i| pick(&NUMBERS[(at / 3 + i * (at % 5 + 1)) % 6])).collect();
        words.join(" ") + "\n"
    };
    [(0..n).map(|at| row(at, |pair| pair.0)).collect(), (0..n).map(|at| row(at, |pair| pair.1)).collect()]
}

/// A folder with text, and a run that translates from Italian to English.
fn prepared() -> Workplace {
    let place = Workplace::new();
    let [english, italian] = lines(240);
    place.write("train.en", &english);
    place.write("train.it", &italian);
    let [english, italian] = lines(12);
    place.write("dev.en", english);
    place.write("dev.it", italian);
    let text = ["--set", "data.train=train.it,train.en", "--set", "data.valid=dev.it,dev.en"];
    let steps = ["--set", "train.steps=120", "--set", "optim.lr=3e-3", "--run", "it-en"];
    place.train(&[&text[..], &steps[..]].concat()).ok();
    place
}

/// A program that writes down its calls, fails at the second translation, and otherwise is Kiln.
fn failing_once(place: &Workplace) -> PathBuf {
    let kiln = env!("CARGO_BIN_EXE_kiln");
    let script = format!(
        "#!/bin/sh\necho \"$1\" >>calls\nif [ \"$1\" = translate ] && [ \"$(grep -c translate calls)\" = 2 ]; then exit 9; fi\n\
         exec '{kiln}' \"$@\"\n"
    );
    let path = place.write("failing-once", script);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("ours");
    path
}

/// Runs a recipe with small settings, and returns its exit code and what it wrote to stderr.
fn recipe(place: &Workplace, name: &str, arguments: &[&str]) -> (i32, String) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/recipes").join(name);
    let settings = SMALL.iter().chain(&["train.steps=6"]).flat_map(|set| ["--set", *set]);
    let output = Command::new("bash")
        .arg(script)
        .args(arguments)
        .args(["--device", "cpu"])
        .args(settings)
        .current_dir(place.path(""))
        .output()
        .expect("bash");
    (output.status.code().expect("not killed"), String::from_utf8(output.stderr).expect("UTF-8"))
}

#[test]
fn a_distillation_goes_on_where_it_ended_and_repeats_no_part() {
    let place = prepared();
    let kiln = failing_once(&place);
    let kiln = kiln.to_str().expect("UTF-8");
    let arguments = ["--lines", "100", kiln, "it-en", "train.it", "out", "--set", "data.valid=dev.it,dev.en"];

    let (code, stderr) = recipe(&place, "distill.sh", &arguments);
    assert_ne!(code, 0, "{stderr}");
    assert!(place.path("out/parts/target.000000").exists() && !place.path("out/translations").exists(), "{stderr}");
    let (code, stderr) = recipe(&place, "distill.sh", &arguments);
    assert_eq!(code, 0, "{stderr}");
    // One part before the failure, the failure, two parts after it.
    assert_eq!(place.read("calls").lines().filter(|call| *call == "translate").count(), 4);

    let rows = |name: &str| place.read(name).lines().count();
    assert!(rows("out/lines") > 120 && rows("out/lines") == rows("out/translations"), "{stderr}");
    assert!(place.path("out/student/checkpoints/last").exists(), "{stderr}");

    let (code, stderr) = recipe(&place, "distill.sh", &[kiln, "it-en", "dev.it", "out"]);
    assert_ne!(code, 0);
    assert!(stderr.contains("out was begun with another file, run or options"), "{stderr}");
}

#[test]
fn back_translations_are_tagged_and_mixed_with_the_pairs() {
    let place = prepared();
    let kiln = env!("CARGO_BIN_EXE_kiln");
    let valid = ["--set", "data.valid=dev.en,dev.it"];
    let arguments = [&[kiln, "it-en", "train.en,train.it", "dev.it", "back"], &valid[..]].concat();
    let (code, stderr) = recipe(&place, "back_translate.sh", &arguments);
    assert_eq!(code, 0, "{stderr}");

    assert!(place.read("back/mix.toml").contains("train = [\"back/translations,back/lines\"]\ntag = \"<BT>\""));
    assert!(stderr.contains("mixture: back is"), "{stderr}");
    assert!(place.path("back/translator/checkpoints/last").exists(), "{stderr}");

    // The same command has nothing left to do.
    let (code, stderr) = recipe(&place, "back_translate.sh", &arguments);
    assert!(code == 0 && stderr.contains("this run is finished"), "{stderr}");
}
