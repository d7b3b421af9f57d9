//! Data of the twelfth trial by newcomers, of line ends, references, preferences, chats and files of markup: what is printed about them is run
//! as it stands, and what it makes is read.

use serde_json::{Value, json};

use crate::kiln::Workplace;
use crate::ninth_trial_forms::{LM, PAIRS, between, dry, lines, ran, shown};

const CHAT: &[&str] = &["--task", "lm", "--set", "data.text.format=chat"];
const PREFERENCES: &[&str] = &["--task", "lm", "--set", "data.text.format=preferences"];

/// Runs the command of a message that begins with `start`, and returns the flags behind it, if it names some. `None` without its program.
fn followed(place: &Workplace, said: &str, start: &str) -> Option<Vec<String>> {
    let command = between(said, start, "> rows.jsonl").to_owned() + "> rows.jsonl";
    ran(place, &command)?;
    let behind = said.split_once("read rows.jsonl with ").map_or("", |(_, behind)| behind);
    let flags = behind.lines().next().unwrap_or_default().split(' ').collect::<Vec<_>>();
    Some(flags.chunks(2).filter(|two| two.len() == 2 && two[0] == "--set").map(|two| two[1].to_owned()).collect())
}

/// Returns what is shown of `rows.jsonl`.
fn shown_rows(place: &Workplace, options: &[&str], more: &[String]) -> String {
    let keys: Vec<&str> =
        ["data.train=rows.jsonl", "data.split=8"].into_iter().chain(more.iter().map(String::as_str)).collect();
    shown(dry(place, options, &keys))
}

#[test]
fn windows_line_ends_in_strings_are_one_line_end_for_all_tasks() {
    let place = Workplace::new();
    let code = |n: usize| format!("def f{n}(x):\r\n  return x");
    place.write("rows.jsonl", lines(40, |n| json!({"text": format!("write f {n}\r\nnow"), "code": code(n)})));
    let fields = ["data.corpus.source_field=text".to_owned(), "data.corpus.target_field=code".to_owned()];
    let pairs = shown_rows(&place, PAIRS, &fields);
    let chat = shown_rows(&place, CHAT, &["data.text.field=text,code".to_owned()]);
    let text = shown_rows(&place, LM, &["data.text.field=code".to_owned()]);
    for said in [pairs, chat, text] {
        assert!(said.contains("(x):\\n  return x") && !said.contains("\\n\\n") && !said.contains("\\r"), "{said}");
    }
    let cells = |n: usize| format!("\"write f {n}\",\"{}\"\r\n", code(n));
    place.write("rows.csv", "text,code\r\n".to_owned() + &(0..40).map(cells).collect::<String>());
    let keys = ["data.train=rows.csv", "data.split=8", &*fields[0], &*fields[1]];
    let said = shown(dry(&place, PAIRS, &keys));
    assert!(said.contains("(x):\\n  return x") && !said.contains("\\n\\n"), "{said}");
}

#[test]
fn references_become_rows_and_lists_become_sources() {
    let place = Workplace::new();
    let row = |n: usize| json!({"image": format!("{n}.jpg"), "en": format!("A man {n} runs."), "de": [format!("Dieser Mann {n}."), format!("Der Mann {n}.")]});
    place.write("refs.jsonl", lines(60, row));
    let said =
        dry(&place, PAIRS, &["data.train=refs.jsonl", "data.split=8"]).refused(3, &["several texts in \"de\""]).stderr;
    assert!(!said.contains("image="), "{said}");
    let Some(flags) = followed(&place, &said, "jq ") else { return };
    let made = shown_rows(&place, PAIRS, &flags);
    assert!(made.contains("A man") && made.contains("Mann") && made.contains("120"), "{made}");

    let row = |n: usize| json!({"input": [format!("A{n} | of | B"), "B | in | C"], "target": format!("The A {n} of B."), "category": (["x", "y"][n % 2])});
    place.write("web.jsonl", lines(60, row));
    dry(&place, PAIRS, &["data.train=web.jsonl"])
        .refused(3, &["data.corpus.source_field={input}", "target_field=target"]);
    let keys =
        ["data.train=web.jsonl", "data.split=8", "data.corpus.source_field={input}", "data.corpus.target_field=target"];
    assert!(shown(dry(&place, PAIRS, &keys)).contains("| of | B B | in | C"));
}

#[test]
fn preferences_in_lists_and_strings_are_followed_to_their_texts() {
    let place = Workplace::new();
    let row = |n: usize| {
        let list = |text: String| json!([text]).to_string();
        json!({
            "prompt": list(format!("ask {n}")), "response_a": list(format!("yes {n}")), "response_b": list(format!("no {n}")),
            "winner_model_a": n % 2, "winner_model_b": 1 - n % 2, "winner_tie": 0
        })
    };
    place.write("arena.jsonl", lines(60, row));
    let said = dry(&place, PREFERENCES, &["data.train=arena.jsonl"]).refused(3, &["its rows are preferences"]).stderr;
    let Some(_) = followed(&place, &said, "jq ") else { return };
    let first: Value = serde_json::from_str(place.read("rows.jsonl").lines().next().expect("rows")).expect("JSON");
    assert_eq!(first, json!({"prompt": "ask 0", "chosen": "no 0", "rejected": "yes 0"}));

    let row = |n: usize| {
        let message = |role: &str| json!([{"role": role, "content": format!("{role} {n}")}]);
        json!({"prompt": message("user"), "completion": message("assistant"), "label": n.is_multiple_of(2)})
    };
    place.write("kto.jsonl", lines(60, row));
    let said = dry(&place, PREFERENCES, &["data.train=kto.jsonl"]).refused(3, &["(KTO)"]).stderr;
    let Some(flags) = followed(&place, &said, "jq ") else { return };
    assert_eq!(flags, ["data.text.format=chat"]);
    let made = shown_rows(&place, LM, &flags);
    assert!(made.contains("user 0") || made.contains("user 2"), "the prompts are there: {made}");
}

#[test]
fn threads_become_conversations() {
    let place = Workplace::new();
    let row = |n: usize| {
        let reply = |id: &str, rank: usize| json!({"message_id": id, "text": format!("say {id} {n}"), "role": "assistant", "rank": rank, "replies": []});
        json!({"prompt": {"message_id": "m", "text": format!("ask {n}"), "role": "prompter", "replies": [reply("a", 1), reply("b", 0)]}})
    };
    place.write("trees.jsonl", lines(40, row));
    let said = dry(&place, CHAT, &["data.train=trees.jsonl"]).refused(3, &["trees of messages"]).stderr;
    let Some(_) = followed(&place, &said, "jq ") else { return };
    let made = shown_rows(&place, CHAT, &[]);
    assert!(made.contains("say b ") && !made.contains("say a "), "{made}");

    let row = |n: usize| {
        let parent = if n.is_multiple_of(3) { "t3_p".to_owned() } else { format!("t1_c{}", n - 1) };
        let body = if n % 9 == 4 { "[deleted]".to_owned() } else { format!("comment {n}") };
        json!({"id": format!("c{n}"), "parent_id": parent, "author": (["ada", "bob"][n % 2]), "body": body})
    };
    place.write("reddit.jsonl", lines(90, row));
    let said = dry(&place, CHAT, &["data.train=reddit.jsonl"]).refused(3, &["replies to in \"parent_id\""]).stderr;
    let Some(_) = followed(&place, &said, "jq ") else { return };
    let rows = place.read("rows.jsonl");
    assert!(rows.lines().count() == 20 && !rows.contains("deleted"), "{rows}");
    assert!(shown_rows(&place, CHAT, &[]).contains("comment"));
}

#[test]
fn files_of_markup_become_rows() {
    let place = Workplace::new();
    let set = |text: &str| {
        let seg = |n: usize| format!("<seg id=\"{n}\">{text} {n} &amp; more</seg>\n");
        format!("<srcset>\n<doc docid=\"d\">\n<p>\n{}</p>\n</doc>\n</srcset>\n", (0..60).map(seg).collect::<String>())
    };
    place.write("src.sgm", set("cat"));
    place.write("ref.sgm", set("gatto"));
    let said =
        dry(&place, PAIRS, &["data.train=src.sgm,ref.sgm", "data.split=8"]).refused(3, &["segments with tags"]).stderr;
    let Some(_) = followed(&place, &said, "python3 ") else { return };
    let made = shown_rows(&place, PAIRS, &[]);
    assert!(made.contains("& more") && !made.contains("<seg"), "{made}");

    let page = |n: usize| format!("<tr><td>text {n} of it</td><td>testo {n} di</td></tr>\n");
    let rows = (0..40).map(page).collect::<String>();
    place.write("export.csv", format!("<table><tr><th>en</th><th>it</th></tr>\n{rows}</table>\n"));
    let said = dry(&place, PAIRS, &["data.train=export.csv"]).refused(3, &["a page of HTML"]).stderr;
    let command = between(&said, "python3 ", "> rows.csv").to_owned() + "> rows.csv";
    let Some(_) = ran(&place, &command) else { return };
    let fields = ["data.corpus.source_field=en", "data.corpus.target_field=it"];
    let said = shown(dry(&place, PAIRS, &["data.train=rows.csv", "data.split=8", fields[0], fields[1]]));
    assert!(said.contains("testo") && !said.contains("<td>"), "{said}");
}
