//! Rows that no task reads as they are: the printed command is run as it stands, and the rows that it makes are trained on.

use std::process::Command;

use crate::kiln::{Ran, Workplace};

/// A row made of a number, the options of the command, words of each prompt, and a word that is learned.
type Case = (fn(usize) -> String, &'static [&'static str], &'static [&'static str], &'static str);

const CHAT: &[&str] = &["--task", "lm", "--set", "data.text.format=chat"];
const LM: &[&str] = &["--task", "lm"];
const CLASSES: &[&str] = &["--task", "classification"];
const PAIRS: &[&str] = &[];

/// The options of a question, of which `right` is right.
fn options(right: usize) -> [String; 3] {
    [0, 1, 2].map(|n| if n == right { "goodone".to_owned() } else { format!("wrong{n}") })
}

fn letter(n: usize) -> &'static str {
    ["A", "B", "C"][n % 3]
}

fn exam(n: usize) -> String {
    let [a, b, c] = options(n % 3);
    format!(
        r#"{{"question": "ask{n}", "opa": "{a}", "opb": "{b}", "opc": "{c}", "cop": {}, "exp": "because of it {n}"}}"#,
        n % 3
    )
}

fn endings(n: usize) -> String {
    let [a, b, c] = options(n % 3);
    format!(r#"{{"ctx": "ask{n}", "endings": ["{a}", "{b}", "{c}"], "label": "{}"}}"#, n % 3)
}

fn by_letter(n: usize) -> String {
    let [a, b, c] = options(n % 3);
    format!(
        r#"{{"passage": "passage{n}", "stem": "ask{n}", "choices": {{"A": "{a}", "B": "{b}", "C": "{c}"}}, "answerKey": "{}"}}"#,
        letter(n)
    )
}

fn two_lists(n: usize) -> String {
    let [a, b, c] = options(n % 3);
    format!(
        r#"{{"question": "ask{n}", "choices": {{"text": ["{a}", "{b}", "{c}"], "label": ["A", "B", "C"]}}, "answerKey": "{}"}}"#,
        letter(n)
    )
}

fn distractors(n: usize) -> String {
    // The right answer is the last, the second or the first one in the order of letters.
    let [one, other] = [["a", "b"], ["a", "y"], ["z", "y"]][n % 3].map(|letter| format!("{letter} wrong {n}"));
    format!(
        r#"{{"question": "ask{n}", "distractor1": "{one}", "distractor2": "{other}", "correct_answer": "goodone", "support": "passage{n} has it"}}"#
    )
}

fn calls(n: usize) -> String {
    format!(
        r#"{{"query": "ask{n}", "tools": "[{{\"name\": \"passage{n} f\"}}]", "answers": "[{{\"goodone\": {n}}}]"}}"#
    )
}

fn transcript(n: usize) -> String {
    format!(
        r#"{{"system": "SYSTEM: be kind", "chat": "USER: ask{n} of it\n\n\nASSISTANT: goodone {n} <|endoftext|>\n\n\nUSER: passage{n}\n\n\nASSISTANT: goodone"}}"#
    )
}

fn by_name(n: usize) -> String {
    let (name, text) = if n.is_multiple_of(2) { ("Anna", "ask") } else { ("Ben", "goodone") };
    format!(r#"{{"from": "{name}", "text": "{text}{n} of them"}}"#)
}

const CASES: [Case; 16] = [
    (exam, CHAT, &["ask", "goodone", "wrong"], "goodone"),
    (exam, LM, &["ask", "goodone", "wrong"], "goodone"),
    (exam, PAIRS, &["ask", "goodone", "wrong"], "goodone"),
    (exam, CLASSES, &["ask", "goodone", "wrong"], ""),
    (endings, CHAT, &["ask", "goodone", "wrong"], "goodone"),
    (endings, CLASSES, &["ask", "goodone", "wrong"], ""),
    (by_letter, CHAT, &["passage", "ask", "goodone", "wrong"], "goodone"),
    (two_lists, CHAT, &["ask", "goodone", "wrong"], "goodone"),
    (two_lists, CLASSES, &["ask", "goodone", "wrong"], ""),
    (distractors, CHAT, &["passage", "ask", "goodone", "wrong"], "goodone"),
    (distractors, PAIRS, &["passage", "ask", "goodone", "wrong"], "goodone"),
    (distractors, CLASSES, &["passage", "ask", "goodone", "wrong"], ""),
    (calls, PAIRS, &["passage", "ask"], "goodone"),
    (calls, CHAT, &["passage", "ask"], "goodone"),
    (transcript, CHAT, &["ask", "be kind"], "goodone"),
    (by_name, CHAT, &["ask"], "goodone"),
];

/// A dry run on the CPU with a small model.
pub(crate) fn dry(place: &Workplace, file: &str, options: &[String]) -> Ran {
    let small = ["train.steps=20", "model.d_model=32", "model.n_heads=2", "model.d_ff=64"];
    let train = format!("data.train={file}");
    let all = ["train", "--dry-run", "--device", "cpu", "--set", &train].into_iter();
    let all = all.chain(small.iter().flat_map(|key| ["--set", *key])).chain(options.iter().map(String::as_str));
    place.run(&all.collect::<Vec<_>>())
}

/// Returns what a model learns of the conversation that a dry run shows.
fn learned_of(shown: &str) -> &str {
    let (_, learned) = shown.split_once("learned: ").expect("what is learned");
    learned.lines().next().expect("a line")
}

/// Returns the command of a message that writes `rows.jsonl`.
fn command_in(message: &str) -> String {
    let start = ["jq -c", "python3 -c"].iter().filter_map(|program| message.find(program)).min().expect(message);
    let end = message[start..].find("> rows.jsonl").expect(message);
    format!("{}> rows.jsonl", &message[start..start + end])
}

/// Runs the command in the place; `false` without its program.
fn ran(place: &Workplace, command: &str) -> bool {
    let ran = Command::new("sh").args(["-c", command]).current_dir(place.path(".")).output().expect("a shell");
    assert!(ran.status.success() || ran.status.code() == Some(127), "{command}: {ran:?}");
    ran.status.success()
}

/// Returns the flags behind "read rows.jsonl with", which follow those before.
fn flags_in(message: &str, options: &[&str]) -> Vec<String> {
    let given = options.iter().map(ToString::to_string);
    let flags =
        message.split_once("read rows.jsonl with ").map_or("", |(_, flags)| flags.lines().next().unwrap_or_default());
    if flags.is_empty() || flags.starts_with("the same flags") {
        return given.collect();
    }
    let flags: Vec<String> = flags.split_whitespace().map(|word| word.trim_matches('\'').to_owned()).collect();
    let has_task = flags.contains(&"--task".to_owned());
    let kept = options.chunks(2).filter(|pair| pair[0] != "--task" || !has_task).flatten();
    kept.map(ToString::to_string).chain(flags).collect()
}

#[test]
fn commands_that_make_rows_put_all_of_a_question_into_the_prompt_and_the_right_answer_behind_it() {
    for (number, (row, options, asked, learned)) in CASES.into_iter().enumerate() {
        let place = Workplace::new();
        place.write("data.jsonl", (0..60).map(|n| row(n) + "\n").collect::<String>());
        let given: Vec<String> = options.iter().map(ToString::to_string).collect();
        let first = dry(&place, "data.jsonl", &given).refused(3, &["rows.jsonl"]);
        if !ran(&place, &command_in(&first.stderr)) {
            return;
        }

        let rows = place.read("rows.jsonl");
        let what = format!("{number} {options:?}: {rows}");
        for row in rows.lines() {
            let row: serde_json::Value = serde_json::from_str(row).expect("JSON");
            let prompt = row.get("prompt").or_else(|| row.get("text")).map(|text| text.to_string());
            let prompt = prompt.unwrap_or_else(|| row.to_string());
            assert!(asked.iter().all(|word| prompt.contains(word)), "{what}");
        }
        let last = dry(&place, "rows.jsonl", &flags_in(&first.stderr, options)).ok();
        let shown = last.stdout.split("the first").last().expect("a row").to_owned();
        if learned.is_empty() {
            assert!(last.stdout.contains("3 classes: ") || last.stderr.contains("3 classes: "), "{what}\n{last:?}");
            continue;
        }
        let shown = learned_of(&shown);
        assert!(shown.contains(learned) && !shown.contains("wrong") && !shown.contains("ask"), "{what}\n{shown}");
    }
}

#[test]
fn options_that_a_prompt_lacks_come_with_the_command_that_puts_them_there() {
    let place = Workplace::new();
    let row = |n: usize| {
        let [a, b, c] = options(n % 3);
        format!(
            "{{\"question\": \"ask{n}\", \"options\": [\"{a}\", \"{b}\", \"{c}\"], \"answer\": \"{}\"}}\n",
            letter(n)
        )
    };
    place.write("data.jsonl", (0..60).map(row).collect::<String>());
    let pairs = ["--set", "data.corpus.source_field=question", "--set", "data.corpus.target_field=answer"];
    let classes = [
        "--task",
        "classification",
        "--set",
        "data.labels.text_field=question",
        "--set",
        "data.labels.label_field=answer",
    ];

    for options in [CHAT, &pairs, &classes] {
        let given: Vec<String> = options.iter().map(ToString::to_string).collect();
        let shown = dry(&place, "data.jsonl", &given).ok();
        let shown = shown.stdout + &shown.stderr;
        assert!(shown.contains("warning: the model does not read \"options\""), "{shown}");
        if !ran(&place, &command_in(&shown)) {
            return;
        }
        assert!(place.read("rows.jsonl").lines().all(|row| row.contains("wrong") && row.contains("goodone")));
        let stats: Vec<&str> = ["data", "stats"].into_iter().chain(options.iter().copied()).collect();
        let stats = place.run(&[&stats[..], &["--set", "data.train=data.jsonl"]].concat()).ok();
        assert!(stats.stdout.contains("does not read \"options\""), "{stats:?}");
    }
    // With the options in a template, nothing is left out.
    let template =
        ["--set", "data.corpus.source_field={{ question }} {{ options }}", "--set", "data.corpus.target_field=answer"];
    let shown = dry(&place, "data.jsonl", &template.map(str::to_owned)).ok();
    assert!(!(shown.stdout + &shown.stderr).contains("does not read"));
}

#[test]
fn tables_of_questions_with_options_are_recognized_by_every_task() {
    let row = |n: usize| {
        let [a, b, c] = options(n % 3);
        format!("ask{n} of it,{a},{b},{c},{}\n", letter(n))
    };
    for options in [CHAT, PAIRS, CLASSES] {
        let place = Workplace::new();
        place.write("data.csv", "Question,A,B,C,Answer\n".to_owned() + &(0..60).map(row).collect::<String>());
        let given: Vec<String> = options.iter().map(ToString::to_string).collect();
        let first =
            dry(&place, "data.csv", &given).refused(3, &["questions with options in \"A\", \"B\", \"C\", \"Answer\""]);
        if !ran(&place, &command_in(&first.stderr)) {
            return;
        }
        assert!(place.read("rows.jsonl").lines().count() == 60, "{first:?}");
        dry(&place, "rows.jsonl", &flags_in(&first.stderr, options)).ok();
    }
}

#[test]
fn logs_of_chats_become_conversations() {
    let place = Workplace::new();
    let line = |form: &str, n: usize| {
        let (name, text) = if n.is_multiple_of(2) { ("Anna", "ask") } else { ("Ben", "goodone") };
        form.replace("NAME", name).replace("TEXT", &format!("{text}{n} of them")) + "\n"
    };

    for form in [
        "12/03/2023, 21:14 - NAME: TEXT",
        "[12.03.23, 21:14:05] NAME: TEXT",
        "[00:00:12] NAME: TEXT",
        "[21:14] <NAME> TEXT",
        "NAME: TEXT",
    ] {
        place.write("log.txt", (0..60).map(|n| line(form, n)).collect::<String>());
        let given: Vec<String> = CHAT.iter().map(ToString::to_string).collect();
        let first = dry(&place, "log.txt", &given).refused(3, &["messages of persons", "\"Ben\" is the assistant"]);
        if !ran(&place, &command_in(&first.stderr)) {
            return;
        }
        let last = dry(&place, "rows.jsonl", &given).ok();
        let learned = learned_of(&last.stdout);
        assert!(learned.contains("goodone") && !learned.contains("ask"), "{form}: {learned}");
    }
    place.write("page.xml", "<quiz>\n<question>What is it?</question>\n</quiz>\n");
    let given: Vec<String> = CHAT.iter().map(ToString::to_string).collect();
    dry(&place, "page.xml", &given).refused(3, &["its lines are plain text, and rows with conversations are wanted"]);
}
