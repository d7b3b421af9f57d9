//! Forms of files of the ninth trial by newcomers: what is printed about them is run as it stands, and what it makes is read.

mod mediums;

use std::process::Command;

use serde_json::{Value, json};

use crate::fifth_trial::with_set;
use crate::kiln::{Ran, Workplace};

const CHAT: &[&str] = &["--task", "lm", "--set", "data.text.format=chat"];
pub(crate) const LM: &[&str] = &["--task", "lm"];
pub(crate) const CLASSES: &[&str] = &["--task", "classification"];
pub(crate) const TAGS: &[&str] = &["--task", "tagging"];
pub(crate) const PAIRS: &[&str] = &[];

pub(crate) fn dry(place: &Workplace, options: &[&str], keys: &[&str]) -> Ran {
    place.run(&with_set(&[&["train", "--dry-run", "--device", "cpu"], options].concat(), keys))
}

pub(crate) fn shown(ran: Ran) -> String {
    let ran = ran.ok();
    ran.stdout + &ran.stderr
}

pub(crate) fn lines(n: usize, row: impl Fn(usize) -> Value) -> String {
    (0..n).map(|n| format!("{}\n", row(n))).collect()
}

/// Returns the part of a message from `start` on, up to one of its ends.
pub(crate) fn between<'m>(message: &'m str, start: &str, end: &str) -> &'m str {
    let at = message.find(start).unwrap_or_else(|| panic!("{start:?} is missing in {message}"));
    let rest = &message[at..];
    &rest[..rest.find(end).unwrap_or_else(|| panic!("{end:?} is missing in {rest}"))]
}

/// Runs a command in the place, and returns its output and what it says on stderr; `None` without its program.
pub(crate) fn ran(place: &Workplace, command: &str) -> Option<[String; 2]> {
    let ran = Command::new("sh").args(["-c", command]).current_dir(place.path(".")).output().expect("a shell");
    let [stdout, stderr] = [ran.stdout, ran.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(ran.status.success() || ran.status.code() == Some(127), "{command}: {stderr}");
    ran.status.success().then_some([stdout, stderr])
}

/// Runs the command of a message that begins with `start` and writes rows.jsonl.
fn followed(place: &Workplace, message: &str, start: &str) -> Option<String> {
    let command = between(message, start, "> rows.jsonl");
    ran(place, &format!("{command}> rows.jsonl")).map(|[_, said]| said)
}

fn rows(place: &Workplace, file: &str) -> Vec<Value> {
    place.read(file).lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

/// A row made of a number, and the options that read it.
type Case = (fn(usize) -> Value, &'static [&'static str]);

/// The part of a data set that row `n` of 210 belongs to.
fn part(n: usize) -> &'static str {
    if n < 150 { "train" } else { ["validation", "test"][n % 2] }
}

fn text<'r>(row: &'r Value, field: &str) -> &'r str {
    row[field].as_str().unwrap_or_else(|| panic!("{field} in {row}"))
}

#[test]
fn translations_of_a_memory_are_picked_by_their_languages() {
    let place = Workplace::new();
    let side = |name: &str, text: String| format!("<tuv xml:lang=\"{name}\"><seg>{text}</seg></tuv>");
    let unit = |n: usize| {
        let (en, de) = (side("en", format!("open file {n}")), side("de", format!("Datei {n} oeffnen")));
        let sides = match n % 4 {
            0 => en + &side("fr", format!("ouvrir {n}")),
            1 => de + &en,
            _ => en + &de,
        };
        format!("<tu>{sides}</tu>\n")
    };
    let units: String = (0..80).map(unit).collect();
    place.write("mix.tmx", format!("<?xml version=\"1.0\"?>\n<tmx version=\"1.4\"><body>\n{units}</body></tmx>\n"));
    let refused =
        dry(&place, PAIRS, &["data.train=mix.tmx"]).refused(3, &["takes en as the source and de as the target"]);
    assert!(refused.stderr.contains("en (80), de (60), fr (20)"), "{refused:?}");

    let Some(said) = followed(&place, &refused.stderr, "python3 -c") else { return };
    assert!(said.contains("lack a text in en or de: 20"), "{said}");
    let found = rows(&place, "rows.jsonl");
    assert!(
        found.len() == 60
            && found.iter().all(|row| text(row, "src").starts_with("open") && text(row, "trg").starts_with("Datei"))
    );
    assert!(shown(dry(&place, PAIRS, &["data.train=rows.jsonl"])).contains("60 of 60 rows kept"));
}

#[test]
fn logs_keep_the_messages_of_numbers_and_lose_notes_on_media() {
    let place = Workplace::new();
    let android = |n: usize| match n % 5 {
        0 => format!("12/05/2023, 21:04 - +49 170 1234567: ask number {n}\n"),
        1 => format!(
            "12/05/2023, 21:05 - Ben Müller: goodone {n}\nand 1 more line\n2. a line that begins with a number\n"
        ),
        2 => "12/05/2023, 21:06 - +49 170 1234567: <Media omitted>\n".to_owned(),
        3 => format!("12/05/2023, 21:07 - ~Zoë: ask again {n}\n"),
        _ => "12/05/2023, 21:08 - Anna added Ben\n".to_owned(),
    };
    let ios = |n: usize| match n % 5 {
        0 => format!("[12/05/23, 9:08:05\u{202f}PM] \u{202a}+49 170 1234567\u{202c}: ask number {n}\r\n"),
        1 => format!(
            "[12/05/23, 9:08:05\u{202f}PM] Ben Müller: goodone {n}\r\nand 1 more line\r\n2. a line that begins with a number \u{200e}<This message was edited>\r\n"
        ),
        2 => "\u{200e}[12/05/23, 9:09:05\u{202f}PM] +49 170 1234567: \u{200e}image omitted\r\n".to_owned(),
        3 => format!("[12/05/23, 9:09:06\u{202f}PM] ~\u{202f}Zoë: ask again {n}\r\n"),
        _ => "[12/05/23, 9:10:00\u{202f}PM] Ben Müller: \u{200e}Ben Müller hat eine Datei gesendet\r\n".to_owned(),
    };

    for log in [(0..100).map(android).collect::<String>(), (0..100).map(ios).collect()] {
        place.write("log.txt", log);
        let refused = dry(&place, CHAT, &["data.train=log.txt"]).refused(3, &["\"Ben Müller\" is the assistant"]);
        let Some(said) = followed(&place, &refused.stderr, "python3 -c") else { return };
        assert!(said.contains("messages: 60 - left out what the program wrote, such as notes on media: 40"), "{said}");
        let all: Vec<Value> = rows(&place, "rows.jsonl")
            .iter()
            .flat_map(|row| row["messages"].as_array().expect("a list").clone())
            .collect();
        let (answers, asked): (Vec<&Value>, Vec<&Value>) =
            all.iter().partition(|message| message["role"] == "assistant");
        let wanted = |n: usize| format!("goodone {n}\nand 1 more line\n2. a line that begins with a number");
        let learned: Vec<&str> = answers.iter().map(|message| text(message, "content")).collect();
        assert_eq!(learned, (0..20).map(|n| wanted(5 * n + 1)).collect::<Vec<_>>());
        assert!(
            asked.len() == 40 && asked.iter().all(|message| text(message, "content").starts_with("ask")),
            "{asked:?}"
        );
        assert!(shown(dry(&place, CHAT, &["data.train=rows.jsonl"])).contains("rows kept"));
    }
}

#[test]
fn the_text_of_a_row_is_learned_once() {
    let place = Workplace::new();
    let row = |n: usize| {
        json!({"code": format!("def f{n}(x):\n    return x+{n}"), "original_string": format!("def f{n}(x):\n  return x+{n}"),
               "docstring": format!("Adds {n} to x")})
    };
    place.write("a.jsonl", lines(200, row));
    let refused = dry(&place, LM, &["data.train=a.jsonl"]).refused(3, &["data.text.field="]);
    for flag in refused.stderr.split("--set ").skip(1).filter(|flag| flag.contains("data.text.field=")) {
        let value = flag.trim_start_matches('\'').split(['\'', '\n']).next().expect("a value").trim();
        let text = shown(dry(&place, LM, &["data.train=a.jsonl", &value.replace("\\n", "\n")]));
        let first = text.split("the first").last().expect("a row");
        // A row has several documents, with a mark between them.
        let documents = between(first, "  text: ", "\n").split(" // ");
        assert!(documents.into_iter().all(|document| document.matches("def f").count() <= 1), "{value}: {text}");
    }
}

#[test]
fn parts_of_a_data_set_are_named_and_divided_for_every_task() {
    let pair = |n: usize| json!({"src": format!("word {n} of it"), "trg": format!("parola {n} di"), "split": part(n)});
    let labelled =
        |n: usize| json!({"text": format!("words {n} of it"), "label": (["a", "b"][n / 2 % 2]), "split": part(n)});
    let tagged = |n: usize| json!({"tokens": ["in", format!("rome{n}")], "tags": ["O", "B-place"], "split": part(n)});
    let document = |n: usize| json!({"text": format!("words {n} of it and more"), "meta": {"subset": part(n)}});
    let chat = |n: usize| json!({"prompt": format!("ask {n}"), "completion": format!("say {n}"), "partition": part(n)});
    let cases: [Case; 5] = [(pair, PAIRS), (labelled, CLASSES), (tagged, TAGS), (document, LM), (chat, CHAT)];
    for (row, options) in cases {
        let place = Workplace::new();
        place.write("it's.jsonl", lines(210, row));
        let said = shown(dry(&place, options, &["data.train=it's.jsonl"]));
        assert!(
            said.contains("marks 150 rows for training, 30 rows for validation, 30 rows for tests, and all of them"),
            "{said}"
        );
        let commands = between(&said, "jq -c", "\nand train on");
        if ran(&place, commands).is_none() {
            return;
        }
        assert!(said.contains("'it'\\''s.train.jsonl', with --set data.valid='it'\\''s.valid.jsonl'"), "{said}");
        assert_eq!(
            ["it's.train.jsonl", "it's.valid.jsonl", "it's.test.jsonl"].map(|file| rows(&place, file).len()),
            [150, 30, 30]
        );
        let said = shown(dry(&place, options, &["data.train=it's.train.jsonl", "data.valid=it's.valid.jsonl"]));
        assert!(!said.contains("marks"), "{said}");
    }

    // A table, and rows that a command makes anew.
    let place = Workplace::new();
    let row = |n: usize| format!("words {n} of it,{},{}\n", ["a", "b"][n % 2], part(n));
    place.write("a.csv", "text,label,split\n".to_owned() + &(0..210).map(row).collect::<String>());
    let said = shown(dry(&place, CLASSES, &["data.train=a.csv"]));
    if ran(&place, between(&said, "python3 -c", "\nand train on")).is_none() {
        return;
    }
    assert_eq!(rows(&place, "a.train.jsonl").len(), 150);
    place.write(
        "q.jsonl",
        lines(210, |n| json!({"question": format!("ask {n}"), "opa": "a", "opb": format!("b{n}"), "cop": n % 2, "split": part(n)})),
    );
    dry(&place, CHAT, &["data.train=q.jsonl"]).refused(
        3,
        &["marks 150 rows for training", "makes rows of all of them; to divide the file:\njq -c", "> q.test.jsonl"],
    );
}

#[test]
fn rejected_annotations_are_left_out() {
    let place = Workplace::new();
    let answer = |n: usize| ["accept", "reject", "accept", "ignore"][n % 4];
    let spans = |n: usize| {
        json!({"text": "Ada Byron met Bob in Rome.", "tokens": [{"text": "Ada", "start": 0, "end": 3, "id": 0}],
               "spans": [{"start": 0, "end": 9, "token_start": 0, "token_end": 1, "label": if answer(n) == "accept" { "PER" } else { "BAD" }}],
               "answer": answer(n)})
    };
    place.write("a.jsonl", lines(80, spans));
    let refused = dry(&place, TAGS, &["data.train=a.jsonl"]).refused(3, &["without rows that \"answer\" rejects"]);
    let command = between(&refused.stderr, "python3 -c", "> words.jsonl");
    let Some([_, said]) = ran(&place, &format!("{command}> words.jsonl")) else { return };
    assert!(said.contains("rows left out by their answer: 40"), "{said}");
    assert!(place.read("words.jsonl").lines().count() == 40 && !place.read("words.jsonl").contains("BAD"));
    let refused = dry(&place, CHAT, &["data.train=a.jsonl"]);
    assert!(!refused.stderr.contains("text,answer"), "{refused:?}");

    place.write(
        "b.jsonl",
        lines(80, |n| json!({"text": format!("a text {n}"), "label": (["x", "y"][n / 4 % 2]), "answer": answer(n)})),
    );
    let said = shown(dry(&place, CLASSES, &["data.train=b.jsonl"]));
    assert!(said.contains("warning: \"answer\" of b.jsonl is \"ignore\" or \"reject\" in 40 of 80 rows"), "{said}");
    if followed(&place, &said, "jq -c").is_none() {
        return;
    }
    assert!(rows(&place, "rows.jsonl").iter().all(|row| row["answer"] == "accept"));
    assert!(!shown(dry(&place, CLASSES, &["data.train=rows.jsonl"])).contains("warning: \"answer\""));
}

#[test]
fn equal_texts_are_on_one_side_of_a_split() {
    let place = Workplace::new();
    let text = |n: usize| format!("ticket about thing {}", n % 90);
    place.write("a.jsonl", lines(400, |n| json!({"text": text(n), "label": (["a", "b"][n / 90 % 2]), "id": n})));
    let said = shown(dry(&place, CLASSES, &["data.train=a.jsonl", "data.split=0.2"]));
    assert!(!said.contains("also stand") && said.contains("chosen by a hash of what the model reads"), "{said}");
    place
        .write("b.jsonl", lines(400, |n| json!({"prompt": text(n), "completion": format!("say {}", n % 90), "id": n})));
    let said = shown(dry(&place, CHAT, &["data.train=b.jsonl", "data.split=0.2"]));
    assert!(!said.contains("also stand") && !said.contains("some of these become training rows"), "{said}");
    let said = shown(dry(&place, CHAT, &["data.train=b.jsonl", "data.split=50"]));
    let fraction = between(&said, "--set data.split=", ")").trim_start_matches("--set ").to_owned();
    let said = shown(dry(&place, CHAT, &["data.train=b.jsonl", &fraction]));
    assert!(said.contains("rows are for validation") && !said.contains("some of these become"), "{said}");
}

#[test]
fn classes_that_stand_for_missing_labels_come_with_the_command_that_leaves_them_out() {
    let place = Workplace::new();
    let label = |n: usize| if n % 10 == 9 { -1 } else { i64::try_from(n % 3).expect("small") };
    place.write("a.jsonl", lines(100, |n| json!({"text": format!("a text {n}"), "label": label(n)})));
    let row = |n: usize| format!("a text {n},{}\n", ["pos", "neg", "nan", "None", "#N/A"][n % 5]);
    place.write("b.csv", "text,label\n".to_owned() + &(0..100).map(row).collect::<String>());
    for (file, start, named, n_kept) in [
        ("a.jsonl", "jq -c", "the class \"-1\" (10.0 %) seems", 90),
        ("b.csv", "python3 -c", "\"None\" (20.0 %), \"nan\" (20.0 %) seem", 40),
    ] {
        for split in [&[][..], &["data.split=0.2"]] {
            let said = shown(dry(&place, CLASSES, &[&[&*format!("data.train={file}")], split].concat()));
            let is_sampled = !split.is_empty();
            assert!(said.contains("to stand for missing labels") && (is_sampled || said.contains(named)), "{said}");
            if followed(&place, &between(&said, "missing labels", "and train on")["missing labels".len()..], start)
                .is_none()
            {
                return;
            }
            assert_eq!(rows(&place, "rows.jsonl").len(), n_kept, "{said}");
            assert!(!shown(dry(&place, CLASSES, &["data.train=rows.jsonl"])).contains("missing labels"));
        }
    }
}

#[test]
fn two_files_of_json_become_rows_by_their_names() {
    let place = Workplace::new();
    let menu = |text: &dyn Fn(usize) -> String| {
        let menu: serde_json::Map<String, Value> = (0..60).map(|n| (format!("k{n}"), json!(text(n)))).collect();
        serde_json::to_string_pretty(&json!({"menu": menu})).expect("JSON")
    };
    place.write("en.json", menu(&|n| format!("open file {n}")));
    place.write("de.json", menu(&|n| if n == 7 { "open file 7".to_owned() } else { format!("Datei {n} oeffnen") }));
    let refused = dry(&place, PAIRS, &["data.train=en.json,de.json"]).refused(3, &["they are JSON"]);
    let Some(said) = followed(&place, &refused.stderr, "python3 -c") else { return };
    assert!(said.contains("the same in both: 1"), "{said}");
    let found = rows(&place, "rows.jsonl");
    assert!(found.len() == 59 && found.iter().all(|row| text(row, "trg").starts_with("Datei")));
    assert!(shown(dry(&place, PAIRS, &["data.train=rows.jsonl"])).contains("59 of 59 rows kept"));
    let as_lines = dry(&place, PAIRS, &["data.train=en.json,de.json", "data.corpus.format=parallel"]).ok();
    assert!(as_lines.stdout.contains("rows kept") || as_lines.stderr.contains("rows kept"), "{as_lines:?}");
}

#[test]
fn a_model_of_two_texts_is_asked_for_both_and_json_is_not_its_text() {
    let place = Workplace::new();
    let row = |n: usize| json!({"premise": format!("a man eats {}", n % 7), "hypothesis": format!("food is {}", n % 5), "label": (["yes", "no"][n % 2])});
    place.write("a.jsonl", lines(60, row));
    let keys = [
        "data.train=a.jsonl",
        "data.labels.text_field=premise",
        "data.labels.pair_field=hypothesis",
        "train.steps=2",
        "optim.warmup_steps=1",
    ];
    let trained =
        place.run(&with_set(&["train", "--run", "runs/a", "--device", "cpu", "--task", "classification"], &keys)).ok();
    let next = trained.stdout.lines().find(|line| line.starts_with("Next: ")).expect("a command");
    assert!(next.contains(" classify runs/a '") && next.ends_with(" --pair 'food is 0'"), "{next}");

    let one = place.run(&["classify", "runs/a", "a man eats 1", "--device", "cpu"]).ok();
    assert!(one.stderr.contains("learned from two texts, and reads one: --pair gives the second one"), "{one:?}");
    let both = place.run(&["classify", "runs/a", "a man eats 1", "--pair", "food is 1", "--device", "cpu"]).ok();
    assert!(!both.stderr.contains("two texts"), "{both:?}");
    let asked = ["classify", "runs/a", "--jsonl", "--device", "cpu"];
    let row = "{\"premise\": \"a man eats 1\", \"hypothesis\": \"food is 1\"}\n";
    let from_rows = place.run_with_input(&asked, row).ok();
    assert!(!from_rows.stderr.contains("lacks") && !from_rows.stderr.contains("two texts"), "{from_rows:?}");
    let lacking = place.run_with_input(&asked, row.replace("eats", "eats ß")).ok();
    assert!(lacking.stderr.contains("lacks ß (once)") || lacking.stderr.contains('ß'), "{lacking:?}");
    let lacks_pair = place.run_with_input(&asked, "{\"premise\": \"a man eats 1\"}\n").ok();
    assert!(lacks_pair.stderr.contains("{\"hypothesis\":\"...\",\"premise\":\"...\"}"), "{lacks_pair:?}");
}
