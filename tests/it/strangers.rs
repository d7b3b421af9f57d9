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
        [["train", "--preset", "tiny", "--run", "trained", "--set", "train.steps=6"].as_slice(), &small].concat();
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

/// `kiln train` of a few steps.
#[cfg(unix)]
fn training<'a>(run: &'a str, small: &[&'a str]) -> Vec<&'a str> {
    [["train", "--preset", "tiny", "--run", run, "--set", "train.steps=6"].as_slice(), small].concat()
}

#[cfg(unix)]
#[test]
fn a_folder_of_somebody_else_neither_overwrites_files_nor_stalls_a_command() {
    use std::os::unix::fs::symlink;

    let place = Workplace::new();
    let small: Vec<&str> = crate::kiln::SMALL.iter().flat_map(|set| ["--set", *set]).collect();
    place.run(&training("good", &small)).ok();
    let mine = "mine, and nobody else's\n";
    let victim = place.write("victim", mine);

    // Files that Kiln replaces: the link goes, the file stays.
    for name in ["config.toml.tmp", "checkpoints/last.tmp", "checkpoints/best.tmp"] {
        let run = format!("replaced-{}", name.replace('/', "-"));
        fs::create_dir_all(place.path(&run).join("checkpoints")).expect("a folder");
        symlink(&victim, place.path(&run).join(name)).expect("a link");
        let ran = place.run(&training(&run, &small));
        assert_eq!(fs::read_to_string(&victim).expect("there"), mine, "{name}: {ran:?}");
    }
    // Files that it keeps: refused in words.
    for name in ["run.lock", "metrics.jsonl"] {
        let path = place.path("good").join(name);
        let kept = fs::read(&path).expect("there");
        fs::remove_file(&path).expect("removed");
        symlink(&victim, &path).expect("a link");
        let ran = place.run(&["train", "--run", "good", "--resume", "--set", "train.steps=8"]);
        assert_eq!(fs::read_to_string(&victim).expect("there"), mine, "{name}: {ran:?}");
        if name == "run.lock" {
            assert!(ran.code != 0 && ran.stderr.contains("symbolic link"), "{ran:?}");
        }
        fs::remove_file(&path).expect("removed");
        fs::write(&path, kept).expect("written");
    }
    place.write("rows.txt", "some text of a language\n".repeat(40));
    for name in ["train.tokens.lock", "train.tokens.partial"] {
        fs::create_dir_all(place.path("cache")).expect("a folder");
        symlink(&victim, place.path("cache").join(name)).expect("a link");
    }
    let prepare =
        ["prepare", "rows.txt", "--preset", "gpt2-tiny", "--cache", "cache", "--set", "tokenizer.vocab_size=300"];
    place.run(&prepare);
    assert_eq!(fs::read_to_string(&victim).expect("there"), mine);

    // What is not a file, in place of any file of a run.
    let checkpoint = fs::read_to_string(place.path("good/checkpoints/last")).expect("a pointer");
    let checkpoint = format!("checkpoints/{}", checkpoint.trim());
    let mut names = vec!["config.toml".to_owned(), "metrics.jsonl".into(), "checkpoints/last".into()];
    let listed = fs::read_dir(place.path("good").join(&checkpoint)).expect("a folder").flatten();
    names.extend(listed.map(|entry| format!("{checkpoint}/{}", entry.file_name().to_string_lossy())));
    assert!(names.len() > 6, "{names:?}");
    for name in &names {
        let path = place.path("good").join(name);
        let aside = place.path("aside");
        fs::rename(&path, &aside).expect("renamed");
        for what in ["zero", "pipe", "sparse"] {
            match what {
                "zero" => symlink("/dev/zero", &path).expect("a link"),
                "pipe" => assert!(std::process::Command::new("mkfifo").arg(&path).status().expect("a tool").success()),
                _ => fs::File::create(&path).expect("a file").set_len(1 << 40).expect("sparse"),
            }
            for command in
                [["check", "good"].as_slice(), &["evaluate", "good"], &["report", "good", "--out", "page.html"]]
            {
                let ran = place.run(command);
                assert!(!ran.stderr.contains("panicked") && ran.code < 4, "{what} as {name}: {ran:?}");
            }
            fs::remove_file(&path).expect("removed");
        }
        fs::rename(&aside, &path).expect("renamed");
    }
    let text = ["train", "--preset", "gpt2-tiny", "--run", "text", "--set", "data.train=/dev/zero"];
    let ran = place.run(&text);
    assert!(ran.code != 0 && ran.stderr.contains("a device"), "{ran:?}");
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

#[test]
fn more_threads_than_any_machine_has_are_refused() {
    let place = Workplace::new();
    let output = place.command(&["config", "--preset", "tiny"]).env("RAYON_NUM_THREADS", "100000").output();
    let output = output.expect("it ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && stderr.contains("RAYON_NUM_THREADS is 100000"), "{stderr}");
}

#[test]
fn limits_of_the_shell_that_are_too_low_are_named() {
    let place = Workplace::new();
    let under = |limit: &str| {
        let kiln = env!("CARGO_BIN_EXE_kiln");
        let train =
            format!("ulimit {limit} && exec {kiln} train --preset tiny --set train.steps=3 --run run{}", &limit[1..2]);
        let output = std::process::Command::new("bash")
            .args(["-c", &train])
            .current_dir(place.path(""))
            .output()
            .expect("it ends");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (limit, words) in
        [("-s 64", "limits the stack to 64 KiB"), ("-v 500000", "limits the address space to 500000 KiB")]
    {
        let (code, said) = under(limit);
        assert!(code == Some(2) && said.contains(words) && said.contains("ulimit"), "{limit}: {code:?} {said}");
    }
    // A file that may not grow is an error of the write.
    let (code, said) = under("-f 10");
    assert!(code == Some(1) && said.contains("error: ") && said.contains("File too large"), "{code:?} {said}");
}

#[test]
fn a_report_of_losses_at_the_ends_of_the_numbers_ends() {
    let place = Workplace::new();
    place.write("run/config.toml", "");
    let step = |step: usize, loss: f64| {
        format!(
            "{{\"kind\":\"step\",\"time\":{step}.0,\"step\":{step},\"loss\":{loss:e},\"nll\":{loss:e},\"grad_norm\":1.0,\"lr\":0.1}}\n"
        )
    };
    let lines: String = (1..9).map(|n| step(n, if n % 2 == 0 { 1e308 } else { -1e308 })).collect();
    place.write("run/metrics.jsonl", lines);
    let ran = place.run(&["report", "run", "--out", "page.html"]);
    assert!(ran.code == 0 && place.path("page.html").is_file(), "{ran:?}");
}
