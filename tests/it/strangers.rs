//! What strangers bring: bytes that a terminal would act on.

use std::fs;

use crate::kiln::{Ran, Workplace};

/// Clears the screen, changes the title, shows text in another order.
const ACTS: &str = "\u{1b}[2J\u{1b}]0;owned\u{7}\u{202e}\u{9b}31m";

/// Asserts that a terminal that shows `ran` acts on nothing.
fn is_clean(ran: &Ran) {
    for (name, text) in [("stdout", &ran.stdout), ("stderr", &ran.stderr)] {
        let acted_on = text.chars().find(|c| c.is_control() && !"\n\t".contains(*c) || *c == '\u{202e}');
        assert_eq!(acted_on, None, "{name}: {text:?}");
    }
}

#[test]
fn what_strangers_wrote_reaches_a_terminal_without_control_characters() {
    let place = Workplace::new();
    // A row of data.
    let row = format!("{{\"src\": \"a\", \"{ACTS}\": 1}}\n").repeat(30);
    place.write("rows.jsonl", &row);
    let prepared = place.run(&["prepare", "rows.jsonl", "--preset", "tiny", "--cache", "cache"]);
    assert_eq!(prepared.code, 3, "{prepared:?}");
    is_clean(&prepared);

    // The name of a file.
    let named = format!("{ACTS}.jsonl");
    place.write(&named, "{\"src\": 1}\n");
    let prepared = place.run(&["prepare", &named, "--preset", "tiny", "--cache", "cache"]);
    assert!(prepared.code == 3 && prepared.stderr.contains("owned"), "{prepared:?}");
    is_clean(&prepared);

    // A key of a configuration, which says so in its own way.
    place.write("config.toml", format!("\"{}\" = 1\n", ACTS.escape_unicode().to_string().replace(['{', '}'], "")));
    let configured = place.run(&["config", "--config", "config.toml"]);
    assert_ne!(configured.code, 0, "{configured:?}");
    is_clean(&configured);

    // A file name in the manifest of a checkpoint.
    let run = place.path("run");
    fs::create_dir_all(run.join("checkpoints")).expect("a folder");
    let small: Vec<&str> = crate::kiln::SMALL.iter().flat_map(|set| ["--set", *set]).collect();
    let train =
        [["train", "--preset", "tiny", "--run", "trained", "--set", "train.steps=2"].as_slice(), &small].concat();
    place.run(&train).ok();
    let manifests: Vec<_> = fs::read_dir(place.path("trained/checkpoints")).expect("checkpoints").flatten().collect();
    let manifest = manifests.iter().map(|entry| entry.path().join("manifest.json")).find(|path| path.exists());
    let manifest = manifest.expect("a manifest");
    let text = fs::read_to_string(&manifest).expect("text");
    let escaped = serde_json::to_string(ACTS).expect("text");
    let hostile = text.replacen("model.safetensors", escaped.trim_matches('"'), 1);
    assert_ne!(hostile, text, "the manifest names the weights: {text}");
    fs::write(&manifest, hostile).expect("written");
    for command in [["check", "trained"].as_slice(), &["evaluate", "trained"]] {
        let ran = place.run(command);
        assert_ne!(ran.code, 0, "{ran:?}");
        is_clean(&ran);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn results_for_a_full_disk_end_in_words() {
    use std::process::Stdio;

    let place = Workplace::new();
    place.write("rows.txt", "some text of a language\n".repeat(40));
    for arguments in [
        ["config", "--preset", "tiny"].as_slice(),
        &["doctor"],
        &["memory", "--preset", "tiny"],
        &["train", "--preset", "tiny", "--dry-run"],
        &["--help"],
    ] {
        let full = fs::File::options().write(true).open("/dev/full").expect("Linux");
        let mut command = place.command(arguments);
        command.stdout(Stdio::from(full)).stderr(Stdio::piped());
        let output = command.spawn().expect("it starts").wait_with_output().expect("it ends");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!stderr.contains("panicked"), "{arguments:?}: {stderr}");
        if arguments[0] != "--help" {
            assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
            assert!(stderr.contains("stdout cannot be written") && stderr.contains("free space"), "{stderr}");
        }
    }
}
