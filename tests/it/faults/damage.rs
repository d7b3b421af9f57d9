//! Bits that flip on disk, text that changes, clocks that jump.

use std::time::{Duration, SystemTime};

use super::*;
use crate::kiln::copy_folder;

const STEPS: usize = 12;

/// `runs/a`: a whole run; `half`: the same, killed after step 9.
fn places() -> Workplace {
    let place = workplace();
    let arguments = [arguments("runs/a", STEPS), ["--set", "train.keep_last=4"].map(String::from).into()].concat();
    place.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).ok();
    copy_folder(&place.path("runs/a"), &place.path("half"));
    fs::remove_dir_all(place.path("half/checkpoints/step-00000012")).expect("there");
    fs::write(place.path("half/checkpoints/last"), "step-00000009\n").expect("writable");
    fs::write(place.path("half/checkpoints/best"), "step-00000007\n").expect("writable");
    place
}

#[test]
fn a_flipped_bit_in_any_file_is_harmless_or_named() {
    let place = places();
    let mut random = Random::new("flips");
    let files = files_below(&place.path("half"));
    let relative: Vec<_> =
        files.iter().map(|path| path.strip_prefix(place.path("half")).expect("below").to_path_buf()).collect();
    // Once in each file, or as often as asked for, file after file.
    let flips = count("KILN_FAULT_FLIPS", relative.len());
    let mut harmless = 0;
    let offset = random.below(relative.len() as u64) as usize;
    for i in 0..flips {
        let file = &relative[(offset + i) % relative.len()];
        let run = format!("runs/flip-{i}");
        copy_folder(&place.path("half"), &place.path(&run));
        let path = place.path(&run).join(file);
        let mut bytes = fs::read(&path).expect("there");
        if bytes.is_empty() {
            continue;
        }
        let (at, bit) = (random.below(bytes.len() as u64) as usize, random.below(8));
        bytes[at] ^= 1 << bit;
        fs::write(&path, bytes).expect("writable");
        let what = format!("bit {bit} of byte {at} of {}", file.display());
        let is_hashed = file.components().count() == 3 && !file.starts_with("tb")
            || file.extension().is_some_and(|e| e == "tokens");
        let checked = place.run(&["check", &run]);
        assert!(!checked.stderr.contains("panicked"), "{what}: {checked:#?}");
        if is_hashed && file.starts_with("checkpoints") {
            let name = file.components().nth(1).expect("a folder").as_os_str().to_string_lossy().into_owned();
            let is_white = fs::read(place.path("half").join(file)).expect("there")[at].is_ascii_whitespace();
            assert!(
                checked.code == 1 && checked.stdout.contains(&format!("DAMAGED  checkpoints/{name}")) || is_white,
                "{what}: {checked:#?}"
            );
        }
        let ran = resume(&place, &run);
        assert!(!ran.stderr.contains("panicked"), "{what}: {ran:#?}");
        if ran.code == 0 {
            let model =
                |run: &str| fs::read(place.path(&format!("{run}/checkpoints/step-{STEPS:08}/model.safetensors"))).ok();
            assert!(model(&run) == model("runs/a"), "{what} changed the weights and nobody said so: {ran:#?}");
            harmless += 1;
        } else {
            assert!(matches!(ran.code, 2 | 3) && ran.stderr.contains("error: "), "{what}: {ran:#?}");
            println!("{what}: {}", ran.stderr.lines().last().unwrap_or_default());
        }
        fs::remove_dir_all(place.path(&run)).expect("ours");
    }
    println!("{flips} flips, {harmless} of them without effect on the end");
}

/// Every flipped bit is reported under the name of its file or folder, or the file is named as not vouched for.
#[test]
fn check_sees_a_flipped_bit_in_any_file_that_it_vouches_for() {
    let place = Workplace::new();
    place.train(&["--run", "run", "--set", "train.steps=8", "--set", "train.save_every=4"]).ok();
    let sound = place.run(&["check", "run"]).ok().stdout;
    let rest = sound.lines().find(|line| line.starts_with("note     not vouched for: ")).expect("its last line");
    for vouched in ["config.toml", "cache/", "checkpoints/"] {
        assert!(!rest.contains(vouched), "{rest}");
    }

    let mut random = Random::new("flips seen by check");
    let files: Vec<_> = files_below(&place.path("run"))
        .into_iter()
        .filter(|file| fs::metadata(file).expect("there").len() > 0)
        .collect();
    let mut n_seen = 0;
    for i in 0..count("KILN_FAULT_FLIPS", 2 * files.len()) {
        let path = &files[i % files.len()];
        let name = path.strip_prefix(place.path("run")).expect("below").display().to_string();
        let whole = fs::read(path).expect("there");
        let (at, bit) = (random.below(whole.len() as u64) as usize, random.below(8));
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << bit;
        fs::write(path, &flipped).expect("writable");
        let checked = place.run(&["check", "run"]);
        fs::write(path, &whole).expect("writable");

        let what = format!("bit {bit} of byte {at} of {name}");
        assert!(!checked.stderr.contains("panicked"), "{what}: {checked:#?}");
        let is_named = rest.contains(&name) || (name.starts_with("tb/") && rest.contains("tb/"));
        let names_it = |line: &&str| {
            let part = line.get(9..).and_then(|line| line.split_once(": ")).map_or("", |(part, _)| part);
            !line.starts_with("sound") && !part.is_empty() && Path::new(&name).starts_with(part)
        };
        let is_seen = checked.stdout.lines().filter(|line| !sound.contains(line)).any(|line| names_it(&line));
        assert!(is_seen || is_named, "{what}: {checked:#?}");
        n_seen += usize::from(is_seen);
    }
    println!("{n_seen} flips seen, the others in {rest}");
}

#[test]
fn check_says_which_records_an_earlier_version_left_without_a_digest() {
    let place = places();
    for file in ["half/cache/tokenizer/made_from.json", "half/cache/train.tokens.files.json"] {
        let mut record: serde_json::Value = serde_json::from_str(&place.read(file)).expect("JSON");
        assert!(record.as_object_mut().expect("fields").remove("digest").is_some(), "{file}");
        place.write(file, record.to_string());
    }
    let checked = place.run(&["check", "half"]).ok();
    for file in ["cache/tokenizer/made_from.json", "cache/train.tokens.files.json"] {
        let line = format!("note     {file}: an earlier version wrote it without a digest");
        assert!(checked.stdout.contains(&line), "{line:?} is missing in {checked:#?}");
        let rest = checked.stdout.lines().last().expect("the rest");
        assert!(rest.contains("not vouched for: ") && rest.contains(file), "{rest}");
    }
    resume(&place, "half").ok();
    assert_same_end(&place, "runs/a", "half", STEPS);
}

#[test]
fn a_damaged_checkpoint_or_configuration_is_answered_with_a_sound_one() {
    let place = places();
    fs::write(place.path("half/checkpoints/step-00000009/tokenizer.json"), "{}").expect("writable");
    let translate = |run: &[&str]| place.run_with_input(&[&["translate", "--device", "cpu"][..], run].concat(), b"1\n");
    let ran = translate(&["half", "--checkpoint", "last"]).refused(3, &["step-00000009/tokenizer.json is damaged"]);
    let advice = ran.stderr.split_once("the newest sound checkpoint of this run is ").expect("advice").1;
    let sound = advice.split(':').next().expect("a folder");
    assert!(sound.starts_with("step-") && !sound.ends_with('9'), "{ran:#?}");
    translate(&["half", "--checkpoint", sound]).ok();

    let config = place.read("half/config.toml");
    place.write("half/config.toml", config.replacen("[optim]", "[optim", 1));
    let copy = format!("\n  cp 'half/checkpoints/{sound}/config.toml' 'half/config.toml'\n");
    let ran = resume(&place, "half").refused(2, &[&copy, "half/config.toml:"]);
    assert_eq!(ran.stderr.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{ran:#?}");
    let checked = place.run(&["check", "half"]);
    assert!(checked.stdout.contains(&format!("copy half/checkpoints/{sound}/config.toml over it")), "{checked:#?}");
}

#[test]
fn text_that_changed_is_refused_and_a_clock_that_jumped_is_not() {
    let place = places();
    let text = place.path("train.jsonl");
    for (name, seconds) in [("early", 1), ("late", 4_102_444_800)] {
        // The same text with a time stamp of 1970 or 2100, as a clock gone wrong leaves it.
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        fs::File::options().append(true).open(&text).and_then(|file| file.set_modified(time)).expect("writable");
        copy_folder(&place.path("half"), &place.path(name));
        resume(&place, name).ok();
        assert_same_end(&place, "runs/a", name, STEPS);
    }
    let whole = fs::read_to_string(&text).expect("there");
    fs::write(&text, whole.replacen("\"1\"", "\"2\"", 1)).expect("writable");
    resume(&place, "half").refused(2, &["data: contents", "--allow"]);
    let resumed = ["train", "--device", "cpu", "--run", "half", "--resume", "--allow", "data"];
    place.run(&resumed).ok();
}

#[test]
fn a_finished_run_says_so_and_other_workers_change_nothing() {
    let place = places();
    let ran = resume(&place, "runs/a").ok();
    assert!(ran.stderr.contains("this run is finished"), "{ran:#?}");
    let mut arguments = vec!["train", "--device", "cpu", "--run", "half", "--resume"];
    arguments.extend(["--set", "loader.num_workers=3", "--set", "loader.prefetch_factor=5"]);
    place.run(&arguments).ok();
    assert_same_end(&place, "runs/a", "half", STEPS);
}

#[test]
fn check_finds_what_is_wrong_and_says_so() {
    let place = places();
    let sound = place.run(&["check", "runs/a"]).ok();
    for part in ["config.toml: 12 steps", "train.tokens", "checkpoints/step-00000012", "checkpoints/best"] {
        assert!(sound.stdout.contains(part), "{part:?} is missing in {sound:#?}");
    }
    fs::write(place.path("half/checkpoints/step-00000009/tokenizer.json"), "{}").expect("writable");
    let cache = place.path("half/cache/train.tokens");
    let mut bytes = fs::read(&cache).expect("there");
    bytes[600] ^= 1;
    fs::write(&cache, bytes).expect("writable");
    let ran = place.run(&["check", "half"]);
    assert_eq!(ran.code, 1, "{ran:#?}");
    for part in ["DAMAGED  checkpoints/step-00000009", "tokenizer.json", "DAMAGED  cache/train.tokens", "delete it"] {
        assert!(ran.stdout.contains(part), "{part:?} is missing in {ran:#?}");
    }
    assert!(ran.stderr.contains("2 parts of half are damaged"), "{ran:#?}");
    // Training finds its way all the same, from the checkpoint before.
    let ran = resume(&place, "half").ok();
    assert!(ran.stderr.contains("skipped a damaged checkpoint") && ran.stderr.contains("tokens differ"), "{ran:#?}");
    assert_same_end(&place, "runs/a", "half", STEPS);
    place.run(&["check", "elsewhere"]).refused(2, &["there is no run here"]);
}
