//! Data of the twelfth trial by newcomers: what is printed about them is run as it stands, and what it makes is read.

use crate::kiln::Workplace;
use crate::ninth_trial_forms::{CLASSES, LM, PAIRS, TAGS, between, dry, ran, shown};

/// Runs the command in brackets or without that a message prints from `start` on, up to the file that it makes.
fn follow(place: &Workplace, said: &str, start: &str, file: &str) -> Option<()> {
    let command = between(said, start, &format!(" > {file}")).to_owned() + &format!(" > {file}");
    ran(place, &command).map(|_| ())
}

#[test]
fn notes_on_tables_of_pairs_come_with_data_split_too() {
    let place = Workplace::new();
    let scored = |n: usize| format!("1.{n:03}\tthe word {n} is here\tla parola {n} si trova qui\n");
    place.write("mined.tsv", (0..120).map(scored).collect::<String>());
    place.write("dev.tsv", (120..140).map(scored).collect::<String>());
    let note = "1 is the source and 2 the target, counted from 0, because 0 has no texts";
    for keys in [["data.train=mined.tsv", "data.split=20"], ["data.train=mined.tsv", "data.valid=dev.tsv"]] {
        let said = shown(dry(&place, PAIRS, &keys));
        assert!(said.contains(note), "{keys:?}: {said}");
    }

    // One column with texts does not make pairs, with a header or without.
    let reaction = |n: usize| format!("US{n},{},CC(=O)O{n}>>CCO\n", n % 9);
    let reactions: String = (0..120).map(reaction).collect();
    for header in ["", "id,class,reactants>reagents>production\n"] {
        place.write("uspto.csv", header.to_owned() + &reactions);
        let refused = dry(&place, PAIRS, &["data.train=uspto.csv", "data.split=0.1"]);
        refused.refused(3, &["--task classification"]);
    }
    place.write("uspto.csv", &reactions);
    let refused = dry(&place, PAIRS, &["data.train=uspto.csv", "data.split=0.1"]);
    refused.refused(3, &["column 2 alone of its 3 columns has texts", "data.corpus.header=no"]);
    let kept = ["data.train=uspto.csv", "data.split=0.1", "data.corpus.header=no"];
    assert!(shown(dry(&place, PAIRS, &kept)).contains("has 3 columns: 0 is the source"), "the user decides");

    let marked =
        |n: usize| format!("{}\t{}\t{}\tThe dog {n} barks.\tA dog barks {n} times.\n", n % 2, 1000 + n, 2000 + n);
    let header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n";
    place.write("msr.tsv", header.to_owned() + &(0..120).map(marked).collect::<String>());
    dry(&place, PAIRS, &["data.train=msr.tsv", "data.split=0.1"])
        .refused(3, &["looks like a header", "source_field=#1 String"]);
}

#[test]
fn a_file_that_is_one_document_comes_with_what_it_is() {
    let place = Workplace::new();
    let row =
        |n: usize| format!("{{\"id\": {n}, \"abstract\": \"The words {n} of an abstract.\", \"title\": \"Words\"}}\n");
    place.write("arxiv.txt", (0..200).map(row).collect::<String>());
    place.write(
        "news.csv",
        (0..200).map(|n| format!("{},\"News {n}\",\"Text {n} of it.\"\n", n % 4)).collect::<String>(),
    );
    place.write("prot.fasta", (0..40).map(|n| format!(">p{n}\nMKVLAAGIVGGSAWWT\nMKVLAAGIVGGS\n")).collect::<String>());
    for (file, wanted) in [
        ("arxiv.txt", "--set data.text.format=jsonl --set data.text.field=abstract"),
        ("news.csv", "data.text.format=records"),
        ("prot.fasta", "> plain.txt, and read it with --set data.text.format=lines"),
    ] {
        let train = format!("data.train={file}");
        let refused = dry(&place, LM, &[&train, "data.split=0.1"]);
        let said = refused.refused(3, &["cannot divide one document", wanted, "name a text for data.valid"]).stderr;
        assert!(!said.contains("take each line as a document"), "{said}");
    }
    let keys = ["data.train=arxiv.txt", "data.split=0.1", "data.text.format=jsonl", "data.text.field=abstract"];
    assert!(shown(dry(&place, LM, &keys)).contains("of 200 rows are for validation"));
}

#[test]
fn columns_whose_names_repeat_are_numbered_and_others_are_read() {
    let place = Workplace::new();
    let header = "Summary;Issue key;Issue Type;Status;Priority;Labels;Labels;Description\n";
    let row = |n: usize| {
        let (kind, status, priority) =
            (["Bug", "Task"][n % 2], ["Open", "Done"][n / 2 % 2], ["Major", "Minor"][n / 4 % 2]);
        format!("The summary {n};KILN-{n};{kind};{status};{priority};{};b;The description of {n}.\n", ["a", "c"][n % 2])
    };
    place.write("jira.csv", header.to_owned() + &(0..160).map(row).collect::<String>());
    let said =
        dry(&place, CLASSES, &["data.train=jira.csv"]).refused(3, &["label_field=NAME", "\"Issue Type\""]).stderr;
    assert!(!said.contains("Labels ("), "{said}");
    let named = |label: &'static str| ["data.train=jira.csv", "data.labels.text_field=Description", label];
    let said = shown(dry(&place, CLASSES, &named("data.labels.label_field=Issue Type")));
    assert!(said.contains("2 classes: Bug"), "{said}");
    let twice = dry(&place, CLASSES, &named("data.labels.label_field=Labels"));
    let said = twice.refused(3, &["two columns have the name \"Labels\""]).stderr;
    let Some(()) = follow(&place, &said, "(printf", "rows.csv") else { return };
    let keys = ["data.train=rows.csv", "data.labels.text_field=Description", "data.labels.label_field=Labels"];
    assert!(shown(dry(&place, CLASSES, &keys)).contains("2 classes: a 50.0%"));
}

#[test]
fn titles_above_a_table_are_left_out_by_the_printed_command() {
    let place = Workplace::new();
    let above = "Kontonummer;DE12 3456\nZeitraum;01.01.2024 - 31.12.2024\n\n";
    let row = |n: usize| {
        format!("{:02}.01.2024;Shop {n};Einkauf Nummer {n};-{n},50;{}\n", n % 28 + 1, ["Essen", "Miete"][n % 2])
    };
    let header = "Buchungstag;Auftraggeber;Verwendungszweck;Betrag;Kategorie\n";
    place.write("bank.csv", above.to_owned() + header + &(0..120).map(row).collect::<String>());
    for task in [CLASSES, PAIRS] {
        let refused = dry(&place, task, &["data.train=bank.csv", "data.split=0.1"]);
        let said = refused.refused(3, &["stand above the table", "\"Kontonummer\""]).stderr;
        let Some(()) = follow(&place, &said, "tail -n", "table.csv") else { return };
    }
    let keys = ["data.labels.text_field=Verwendungszweck", "data.labels.label_field=Kategorie", "data.split=0.1"];
    let said = shown(dry(&place, CLASSES, &[&["data.train=table.csv"][..], &keys].concat()));
    assert!(said.contains("2 classes: Essen"), "{said}");
}

#[test]
fn missing_labels_are_left_out_of_the_rows_for_validation_too() {
    let place = Workplace::new();
    let row = |n: usize| {
        let label = ["entailment", "neutral", "-"][n % 3];
        format!("{{\"sentence1\": \"a dog {n} runs\", \"sentence2\": \"it moves {n}\", \"gold_label\": \"{label}\"}}\n")
    };
    place.write("train.jsonl", (0..150).map(row).collect::<String>());
    place.write("dev.jsonl", (150..210).map(row).collect::<String>());
    let keys =
        ["data.labels.text_field=sentence1", "data.labels.pair_field=sentence2", "data.labels.label_field=gold_label"];
    let with = |files: [&'static str; 2]| [&files[..], &keys].concat();
    let said = shown(dry(&place, CLASSES, &with(["data.train=train.jsonl", "data.valid=dev.jsonl"])));
    assert_eq!(said.matches("to stand for missing labels").count(), 1, "{said}");
    let Some(()) = follow(&place, &said, "jq -c", "rows.jsonl") else { return };
    let (_, of_valid) = said.split_once("the rows for validation have them, too: ").expect("both files");
    follow(&place, of_valid, "jq -c", "valid.jsonl").expect("jq");
    let said = shown(dry(&place, CLASSES, &with(["data.train=rows.jsonl", "data.valid=valid.jsonl"])));
    assert!(said.contains("2 classes: ") && !said.contains("missing labels"), "{said}");
}

#[test]
fn lines_of_words_and_lines_of_tags_are_joined() {
    let place = Workplace::new();
    place.write("seq.in", (0..60).map(|n| format!("play the song {n} by Ada\n")).collect::<String>());
    place.write("seq.out", "O O B-track I-track O B-artist\n".repeat(60));
    let said =
        dry(&place, TAGS, &["data.train=seq.in,seq.out"]).refused(2, &["lines of words and lines of tags"]).stderr;
    let Some(()) = follow(&place, &said, "paste ", "rows.jsonl") else { return };
    let said = shown(dry(&place, TAGS, &["data.train=rows.jsonl", "data.split=0.1"]));
    assert!(said.contains("B-track") && said.contains("of 60 rows"), "{said}");
}

#[test]
fn a_printed_first_row_names_both_texts_and_rows_without_one_are_counted() {
    let place = Workplace::new();
    let row =
        |n: usize| format!("\"{}\",\"The class of {n}\",\"Reuters - the label {n} is here, and so on.\"\n", n % 4 + 1);
    place.write("test.csv", (0..120).map(row).collect::<String>());
    let said = dry(&place, CLASSES, &["data.train=test.csv"]).refused(3, &["printf 'label,text,text_pair"]).stderr;
    let Some(()) = follow(&place, &said, "(printf", "rows.csv") else { return };
    let said = shown(dry(&place, CLASSES, &["data.train=rows.csv", "data.split=20"]));
    assert!(said.contains("4 classes: ") && !said.contains("(data.labels.pair_field)"), "{said}");

    let row = |n: usize| {
        let pair = if n % 30 == 7 { "" } else { ", \"text_pair\": \"and a second one\"" };
        format!("{{\"text\": \"a text {n}\", \"label\": \"{}\"{pair}}}\n", ["x", "y"][n % 2])
    };
    place.write("some.jsonl", (0..120).map(row).collect::<String>());
    let said = shown(dry(&place, CLASSES, &["data.train=some.jsonl"]));
    assert!(said.contains("4 of 120 rows have no \"text_pair\" (data.labels.pair_field)"), "{said}");
}
