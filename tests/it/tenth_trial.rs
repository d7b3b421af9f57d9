//! Data and runs of the tenth trial by newcomers: what is printed about them is run as it stands, and what it makes is read.

mod lines;

use serde_json::{Value, json};

use crate::fifth_trial::with_set;
use crate::kiln::Workplace;
use crate::ninth_trial_forms::{CLASSES, LM, PAIRS, TAGS, between, dry, lines as rows, ran, shown};

/// Returns the flags of a message: those that a shell reads between `--set` and the end of the line.
fn flags(message: &str) -> Vec<String> {
    let line = message.lines().find(|line| line.contains("--set")).unwrap_or_else(|| panic!("no flags in {message}"));
    let at = line.find("--task").into_iter().chain(line.find("--set")).min().expect("a flag");
    line[at..].split_whitespace().map(|word| word.trim_matches('\'').to_owned()).collect()
}

fn game(n: usize) -> String {
    let moves = ["1. e4 e5 2. Nf3", "1. d4 d5 2. c4", "1. c4 e5 2. g3"][n % 3];
    format!(
        "[Event \"Club {}\"]\n[White \"Anna\"]\n[Black \"Ben {n}\"]\n[Result \"1-0\"]\n\n{moves} a{n} 1-0\n\n",
        n % 7
    )
}

#[test]
fn the_command_for_games_is_said_once_and_never_writes_over_its_input() {
    let games: String = (0..80).map(game).collect();
    for name in ["club.pgn", "plain.txt"] {
        let place = Workplace::new();
        place.write(name, &games);
        let file = format!("data.train={name}");
        let said = shown(dry(&place, LM, &[&file]));
        let stats = place.run(&with_set(&["data", "stats", "--task", "lm"], &[&file])).ok();
        assert!(stats.stdout.contains("games (PGN)"), "{stats:#?}");
        let plain = if name == "plain.txt" { "new-plain.txt" } else { "plain.txt" };
        let command = between(&said, "awk ", ", whose documents");
        assert!(command.ends_with(&format!("> {plain}")), "{command}");
        let Some(_) = ran(&place, command) else { return };
        assert_eq!(place.read(name), games, "the input stays");
        assert!(
            !shown(dry(&place, LM, &[&file, "data.text.format=lines"])).contains("awk "),
            "lines are not documents"
        );

        let said = shown(dry(&place, LM, &[&format!("data.train={plain}")]));
        assert!(said.contains("80 of 80 rows kept") && !said.contains("awk "), "{said}");
    }
}

#[test]
fn forms_of_words_are_spelled_whatever_template_makes_the_source() {
    let place = Workplace::new();
    let form = |n: usize| {
        format!("{}{n}en\tge{}{n}t\tV;{}\n", ["mach", "leb", "spiel"][n % 3], ["mach", "leb", "spiel"][n % 3], n % 4)
    };
    place.write("deu.tsv", "lemma\tform\ttags\n".to_owned() + &(0..300).map(form).collect::<String>());
    let keys = ["data.train=deu.tsv", "data.corpus.source_field={lemma} {tags}", "data.corpus.target_field=form"];
    let said = shown(dry(&place, PAIRS, &keys));
    assert!(said.contains("because targets are single words, which are to be spelled"), "{said}");
    let said = shown(dry(&place, PAIRS, &[&keys[..], &["tokenizer.vocab_size=1400"]].concat()));
    assert!(!said.contains("to be spelled") && !said.contains("vocabulary: at most"), "{said}");

    let sentence = |n: usize| format!("a sentence of words {n}\tuna frase di parole {n}\n");
    place.write("sentences.tsv", (0..300).map(sentence).collect::<String>());
    let said = shown(dry(&place, PAIRS, &["data.train=sentences.tsv"]));
    assert!(said.contains("vocabulary: at most 1,500 entries, as the preset few-pairs has it"), "{said}");
}

#[test]
fn shared_passages_and_copies_are_told_apart() {
    let place = Workplace::new();
    let opening = "the members of the club met on the first day of the month and played as they always had, ".repeat(3);
    let words = |n: usize| (0..60).map(|k| format!("w{} ", (n * 7919 + k * 104_729) % 9973)).collect::<String>();
    let text: String = (0..80).map(|n| format!("{opening}{}\n\n", words(n))).collect();
    place.write("shared.txt", &text);
    let said = shown(dry(&place, LM, &["data.train=shared.txt", "data.split=16"]));
    let line = said.lines().find(|line| line.contains("also stands")).expect("shared passages");
    assert!(line.starts_with("note: ") && line.contains("nearly whole: none of 16;"), "{line}");
    assert!(!said.contains("capitals") && !said.contains("earlier version"), "{said}");

    // Each text stands twice, with another last word.
    let copies: String = (0..160).map(|n| format!("{}{}end{n}\n\n", words(n / 2), words(n / 2 + 500))).collect();
    place.write("copies.txt", &copies);
    let said = shown(dry(&place, LM, &["data.train=copies.txt", "data.split=16"]));
    let line = said.lines().find(|line| line.contains("also stands")).expect("copies");
    assert!(line.starts_with("warning: ") && line.contains(" of 16; if they are copies"), "{line}");
}

#[test]
fn a_list_is_the_text_of_a_class_and_of_a_language_model() {
    let dish = |n: usize| {
        let kind = ["greek", "thai"][n % 2];
        json!({"id": n, "cuisine": kind, "ingredients": [format!("{kind} oil"), "plain flour", format!("salt {n}")]})
    };
    let place = Workplace::new();
    let all: Vec<Value> = (0..60).map(dish).collect();
    place.write("dishes.json", serde_json::to_string_pretty(&all).expect("JSON"));
    place.write("dishes.jsonl", rows(60, dish));

    let label = "data.labels.label_field=cuisine";
    for file in ["data.train=dishes.json", "data.train=dishes.jsonl"] {
        for (options, keys) in [
            (CLASSES, &[][..]),
            (CLASSES, &[label]),
            (CLASSES, &[label, "data.labels.text_field=ingredients"]),
            (LM, &[]),
            (LM, &["data.text.field=ingredients"]),
        ] {
            let keys = [&[file], keys].concat();
            let refused = dry(&place, options, &keys);
            assert!(refused.code == 3 && refused.stderr.contains("{ingredients}"), "{keys:?}: {refused:#?}");

            let flags = flags(&refused.stderr);
            let options: Vec<&str> = options.iter().copied().chain(flags.iter().map(String::as_str)).collect();
            // Keys of the message replace those before.
            let is_kept = |key: &&str| flags.iter().all(|flag| flag.split('=').next() != key.split('=').next());
            let keys: Vec<&str> = keys.iter().copied().filter(is_kept).collect();
            let said = shown(dry(&place, &options, &keys));
            assert!(said.contains("oil plain flour salt"), "{options:?} {keys:?}: {said}");
            if options.contains(&"classification") {
                assert!(said.contains("2 classes") && said.contains("  class: "), "{said}");
            }
        }
    }
}

#[test]
fn words_with_a_tag_behind_a_slash_become_columns() {
    let sentence = |n: usize| {
        let noun = ["jury", "county", "city"][n % 3];
        format!("\tThe/at {noun}/nn said/vbd 1/2/cd of/in it/pps {n}/cd ./.\n\n\n")
    };
    for name in ["ca01", "ca01.tsv", "brown.txt", "brown.conll", "rows.conll"] {
        for divider in ["/", "_"] {
            let place = Workplace::new();
            let text = (0..40).map(sentence).collect::<String>().replace("1/2/cd", "half/cd").replace('/', divider);
            place.write(name, &text);
            let refused = dry(&place, TAGS, &[&format!("data.train={name}")]).refused(3, &["has its tag behind it"]);
            let new = if name == "rows.conll" { "new-rows.conll" } else { "rows.conll" };
            let Some(_) = ran(&place, between(&refused.stderr, "awk ", "\nand train on")) else { return };
            assert_eq!(place.read(name), text, "the input stays");
            assert!(refused.stderr.contains(&format!("train on {new}")), "{refused:#?}");
            assert!(place.read(new).starts_with("The\tat\njury\tnn\nsaid\tvbd\n"), "{}", place.read(new));
            let said = shown(dry(&place, TAGS, &[&format!("data.train={new}")]));
            assert!(said.contains("data: 40 rows") && said.contains("7 classes"), "{said}");
            assert!(said.contains("token of each word: the/at "), "{said}");
        }
    }
}

#[test]
fn keys_in_front_of_parallel_lines_are_left_out() {
    let place = Workplace::new();
    let verse = |text: &str| (1..=60).map(|n| format!("GEN 10:{n}\tAnd {text} said {n}\n")).collect::<String>();
    place.write("web.txt", verse("Moses"));
    place.write("luther.txt", verse("Moyses"));
    let files = "data.train=web.txt,luther.txt";
    let said = shown(dry(&place, PAIRS, &[files]));
    assert!(said.contains("begin with the same keys, such as \"GEN 10:1\""), "{said}");
    let stats = place.run(&with_set(&["data", "stats"], &[files])).ok();
    assert!(stats.stdout.contains("begin with the same keys"), "{stats:#?}");
    let Some(_) = ran(&place, between(&said, "awk ", "\nand train on")) else { return };
    let said = shown(dry(&place, PAIRS, &["data.train=rows.tsv"]));
    assert!(said.contains("60 of 60 rows kept") && said.contains("source: And Moses said"), "{said}");
    assert!(!said.contains("GEN") && !said.contains("keys"), "{said}");
}

#[test]
fn lists_in_cells_are_joined() {
    let json = |n: usize| format!("{n},Cake {n},\"[\"\"jalape\\u00f1o\"\", \"\"salt {n}\"\"]\",[]\n");
    let python = |n: usize| format!("{n},Cake {n},\"['jalape\\xf1o', 'salt {n}']\",[]\n");
    for row in [json, python] as [fn(usize) -> String; 2] {
        for (options, keys) in [
            (PAIRS, &["data.corpus.source_field=ner", "data.corpus.target_field=title"][..]),
            (PAIRS, &["data.corpus.source_field=with {ner}", "data.corpus.target_field=title"]),
            (LM, &["data.text.format=records", "data.text.field=ner"]),
        ] {
            let place = Workplace::new();
            place.write("a.csv", ",title,ner,more\n".to_owned() + &(0..60).map(row).collect::<String>());
            let said = shown(dry(&place, options, &[&["data.train=a.csv"], keys].concat()));
            assert!(said.contains("the texts in \"ner\" of a.csv are lists"), "{said}");
            let Some(_) = ran(&place, between(&said, "python3 -c", "\nand read rows.jsonl")) else { return };
            let more = keys.iter().filter(|key| !key.contains("format"));
            let keys: Vec<&str> = ["data.train=rows.jsonl"].into_iter().chain(more.copied()).collect();
            let said = shown(dry(&place, options, &keys));
            assert!(said.contains("jalapeño salt") && !said.contains("are lists"), "{said}");
        }
    }
}
