//! `benches/speedrun/run.sh`, at small size.

use std::path::Path;
use std::process::Command;

use crate::kiln::Workplace;

/// Runs the script, and returns its exit code, the last line of its output, and what it wrote to stderr.
fn attempt(place: &Workplace, arguments: &[&str]) -> (i32, String, String) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/speedrun/run.sh");
    let output = Command::new("bash")
        .arg(script)
        .args(arguments)
        .env("KILN", env!("CARGO_BIN_EXE_kiln"))
        .current_dir(place.path(""))
        .output()
        .expect("bash");
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    (output.status.code().unwrap_or(-1), stdout.lines().last().unwrap_or("").to_owned(), stderr)
}

#[test]
fn an_attempt_says_its_loss_and_its_minutes() {
    let place = Workplace::new();
    let text = |n: usize| -> String {
        let sentence =
            |i: usize| format!("the {} of {} is {}.\n", ["sum", "root", "half"][i % 3], i * 7 % 50, i * 3 % 50);
        (0..n).map(sentence).collect()
    };
    place.write("train.txt", text(600));
    let small = [
        "model.d_model=64",
        "model.n_heads=2",
        "model.d_ff=128",
        "model.n_decoder_layers=2",
        "model.max_positions=32",
        "tokenizer.vocab_size=300",
        "loader.batch_tokens=256",
        "train.grad_accum_steps=1",
        "train.steps=40",
        "optim.warmup_steps=4",
    ];
    let options: Vec<_> = small.iter().flat_map(|set| ["--set", *set]).collect();
    let with = |text: &str| {
        let arguments = [&[text, "run", "--preset", "modern-124m", "--device", "cpu"], &options[..]].concat();
        attempt(&place, &arguments)
    };

    let (code, _, stderr) = with(".");
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("no ./dev.txt; scripts/corpora/english.sh . makes it"), "{stderr}");

    place.write("dev.txt", text(60));
    let (code, line, stderr) = with(".");
    assert_eq!(code, 0, "{stderr}");
    let loss = line
        .strip_prefix("validation loss ")
        .and_then(|rest| rest.split(' ').next())
        .and_then(|loss| loss.parse::<f32>().ok());
    assert!(loss.is_some_and(|loss| loss < 3.0), "Muon and the layers of the preset learn: {line}");
    assert!(line.contains(" after 40 steps, 0.0 M tokens, ") && line.ends_with(" minutes of training"), "{line}");
}
