use super::*;

fn check(name: &str, text: &str, task: Task, config: &LabelConfig) -> std::result::Result<(), String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("writable");
    check_form(&path, task, config).map_err(|error| error.to_string())
}

fn refused(name: &str, text: &str, task: Task) -> String {
    check(name, text, task, &LabelConfig::default()).expect_err("another form")
}

#[test]
fn a_table_with_other_names_is_answered_with_flags_to_paste() {
    let rows: String = (0..20).map(|n| format!("{n},the message {n},{}\n", ["info", "error"][n % 2])).collect();
    let text = refused("a.csv", &format!("id,message,severity\n{rows}"), Task::Classification);
    let flags = "--set data.labels.text_field=message --set data.labels.label_field=severity";
    assert!(text.contains("none of them is \"text\" or \"label\": it has \"id\", \"message\""), "{text}");
    assert!(text.ends_with(flags), "a first row with an id has names: {text}");
    let one = refused("a.csv", &format!("id,text,severity\n{rows}"), Task::Classification);
    assert!(one.ends_with("to name the columns: --set data.labels.label_field=severity"), "{one}");

    let tagged = "words\tner\nin Rome now\tO LOC O\nto Paris\tO LOC\n";
    let text = refused("a.tsv", tagged, Task::Tagging);
    assert!(text.contains("--set data.labels.words_field=words --set data.labels.tags_field=ner"), "{text}");
    assert_eq!(check("a.csv", "text,label\na,b\n", Task::Classification, &LabelConfig::default()), Ok(()));
}

#[test]
fn labels_with_decimal_commas_are_numbers_and_times_are_no_texts() {
    for (times, what) in [("05.01.2024 10:", "dates"), ("2024-01-05T10:", "ISO"), ("10:", "times")] {
        let row =
            |n: usize| format!("{times}{:02};the room is warm, {n},5 degrees;{},{}\n", n + 10, n % 4 + 1, 5 * (n % 2));
        let rows: String = (0..24).map(row).collect();
        let text = refused("a.csv", &format!("Zeit;Meldung;Komfort\n{rows}"), Task::Classification);
        let flags = "to name the columns: --set data.labels.text_field=Meldung --set data.labels.label_field=Komfort\n";
        assert!(text.contains(flags) && text.contains("numbers on a scale (1 to 4.5"), "{what}: {text}");
        assert!(text.contains("gsub(\",\"; \".\")") && !text.contains("several labels"), "{what}: {text}");
    }
}

#[test]
fn a_table_in_another_encoding_is_converted_before_its_columns_are_named() {
    let rows: String = (0..24).map(|n| format!("la citt\u{e0} {n};{}\n", ["bene", "male"][n % 2])).collect();
    let bytes: Vec<u8> = format!("testo;voto\n{rows}").chars().map(|c| c as u8).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.csv");
    std::fs::write(&path, bytes).expect("writable");
    let refused =
        check_form(&path, Task::Classification, &LabelConfig::default()).expect_err("other names").to_string();
    assert!(refused.contains("iconv -f cp1252 -t utf-8") && refused.contains("label_field=voto"), "{refused}");
}

#[test]
fn a_second_text_and_other_classes_are_offered() {
    let rows: String = (0..20)
        .map(|n| format!("the first text {n},{},a second one {n},{}\n", ["low", "high"][n % 2], ["A", "B", "C"][n % 3]))
        .collect();
    let text = refused("a.csv", &format!("premise,priority,hypothesis,queue\n{rows}"), Task::Classification);
    let flags = "--set data.labels.text_field=premise --set data.labels.label_field=priority \
                 --set data.labels.pair_field=hypothesis\n  other columns that can be the class: queue\n  if the first";
    assert!(text.contains(flags), "{text}");
    let text = refused("a.csv", &format!("premise,priority,hypothesis,topic\n{rows}"), Task::Classification);
    let flags = "--set data.labels.text_field=premise --set data.labels.label_field=topic \
                 --set data.labels.pair_field=hypothesis\n  other columns that can be the class: priority";
    assert!(text.ends_with(flags), "{text}");
}

#[test]
fn a_usual_name_comes_before_columns_with_fewer_values() {
    for (columns, values) in [
        ("review,overall,date,country", ["5.0,2024-01-02,DE", "1.0,2024-01-02,US"]),
        ("review,star_rating,verified,date", ["5,true,2024-01-02", "4,false,2024-01-03"]),
    ] {
        let rows: String = (0..20).map(|n| format!("the review {n},{}\n", values[n % 2])).collect();
        let text = refused("a.csv", &format!("{columns}\n{rows}"), Task::Classification);
        let wanted = columns.split(',').nth(1).expect("a second column");
        assert!(text.contains(&format!("data.labels.label_field={wanted}")), "{text}");
    }
    let rows: String = (0..20).map(|n| format!("the text {n},{},x\n", ["low", "high"][n % 2])).collect();
    let text = refused("a.csv", &format!("body,state,batch\n{rows}"), Task::Classification);
    assert!(text.contains("label_field=state"), "one value tells nothing: {text}");
}

#[test]
fn a_second_text_that_the_user_has_named_must_be_there() {
    let named = LabelConfig { pair_field: "answer".into(), ..LabelConfig::default() };
    let text = check("a.csv", "text,label\na,b\n", Task::Classification, &named).expect_err("no answer");
    assert!(text.contains("none of them is \"answer\"") && text.contains("data.labels.pair_field=NAME"), "{text}");
    assert_eq!(check("a.csv", "text,answer,label\na,b,c\n", Task::Classification, &named), Ok(()));
}

#[test]
fn a_delimiter_that_no_table_has_is_named() {
    let rows: String = (0..20).map(|n| format!("the message {n}|{}\n", ["info", "error"][n % 2])).collect();
    for name in ["a.csv", "a.tsv"] {
        let text = refused(name, &format!("text|label\n{rows}"), Task::Classification);
        let ending = &name[1..];
        assert!(
            text.contains("`|` divides each of them evenly") && text.ends_with(&format!("> rows{ending}")),
            "{text}"
        );
        let named = check(name, &format!("sep=|\ntext|label\n{rows}"), Task::Classification, &LabelConfig::default());
        assert_eq!(named, Ok(()));
    }
}

#[test]
fn rows_without_names_are_called_so() {
    let rows: String = (0..20).map(|n| format!("{}\tthe message {n}\n", ["info", "error"][n % 2])).collect();
    let text = refused("a.tsv", &rows, Task::Classification);
    assert!(text.contains("\"info\" stands again below it"), "{text}");
    assert!(text.contains("(printf 'label\\ttext\\n'; cat "), "{text}");
}

#[test]
fn conll_by_another_name_and_fast_text_are_recognized() {
    let conll = "-DOCSTART- -X- O\n\nRome NNP B-LOC\nsleeps VBZ O\n\nParis NNP B-LOC\n";
    for name in ["a.tsv", "a.txt", "a.csv"] {
        let text = refused(name, conll, Task::Tagging);
        assert!(text.contains("let its name end in .conll"), "{text}");
        let text = refused(name, "__label__info Connection from here\n__label__error Gone\n", Task::Classification);
        assert!(text.contains("as in files of fastText") && text.contains("> rows.tsv"), "{text}");
    }
    let config = LabelConfig::default();
    let json = "{\"text\": \"a\", \"label\": \"b\"}\n\n{\"text\": \"a\", \"label\": \"b\"}\n";
    assert_eq!(check("a.txt", json, Task::Classification, &config), Ok(()));
    assert_eq!(check("a.txt", json, Task::Tagging, &config), Ok(()), "what is wrong is said of the rows");
}

/// A table of CSV with a word in each row.
fn word_rows(header: &str, row: impl Fn(usize, &str) -> String) -> String {
    let words = "This code is new in Rome ; it works well and \",\" fast .";
    words.split(' ').enumerate().fold(format!("{header}\n"), |text, (at, word)| text + &row(at, word) + "\n")
}

#[test]
fn a_table_with_a_word_in_each_row_is_said_to_be_one() {
    let default = LabelConfig::default();
    let fields = LabelConfig { words_field: "Word".into(), tags_field: "Tag".into(), ..default.clone() };
    let kaggle = |at: usize, word: &str| {
        format!("{},{word},NN,O", if at.is_multiple_of(7) { format!("Sentence: {at}") } else { String::new() })
    };
    let counted = |at: usize, word: &str| format!("{},{word},O", at / 4);
    for (name, header, table, configs) in [
        ("a.csv", "Sentence #,Word,POS,Tag", word_rows("Sentence #,Word,POS,Tag", kaggle), vec![&default, &fields]),
        ("a.csv", "n,tokens,tags", word_rows("n,tokens,tags", counted), vec![&default]),
        (
            "a.tsv",
            "sid\tword\ttag",
            word_rows("sid\tword\ttag", counted).replace("\",\"", "-").replace(',', "\t"),
            vec![&default],
        ),
    ] {
        for config in configs {
            let text = check(name, &table, Task::Tagging, config).expect_err("a word in each row");
            assert!(text.contains("each row has one word") && text.contains("python3 -c"), "{header}: {text}");
            assert!(text.contains("> rows.conll") && !text.contains("--set"), "{header}: {text}");
        }
    }
    let alone = word_rows("word,tag", |_, word| format!("{word},O"));
    let text = refused("a.csv", &alone, Task::Tagging);
    assert!(text.contains("add a column with the number of the sentence") && !text.contains("--set"), "{text}");
    let divided = word_rows("tokens\ttags", |at, word| format!("{word}\tO{}", if at % 4 == 3 { "\n" } else { "" }));
    let text = refused("a.tsv", &divided, Task::Tagging);
    assert!(text.contains("tail -n +2"), "{text}");

    let lists = word_rows("tokens,tags", |_, word| format!("\"[\"\"{}\"\"]\",[1]", word.replace('"', "")));
    assert_eq!(check("a.csv", &lists, Task::Tagging, &default), Ok(()), "lists of one word");
}

#[test]
fn two_texts_of_tables_get_both_fields() {
    let long = "a long text of many words that is at least four times as long as the other one which stands next to it";
    for (header, row, flags) in [
        (
            "sentence1,sentence2,label,idx",
            "LONG,short N,C,N",
            "text_field=sentence1 --set data.labels.pair_field=sentence2",
        ),
        (
            "uid,premise,hypothesis,label,reason",
            "N,LONG,no N,C,",
            "text_field=premise --set data.labels.pair_field=hypothesis",
        ),
        (
            "question,passage,answer",
            "is it N,LONG,C",
            "text_field=question --set data.labels.label_field=answer --set data.labels.pair_field=passage",
        ),
        (
            "gold_label,s1_parse,s1,s2",
            "C,( LONG ),a N,b N",
            "text_field=s1 --set data.labels.label_field=gold_label --set data.labels.pair_field=s2",
        ),
    ] {
        let rows: String = (0..20)
            .map(|n| {
                row.replace("LONG", &format!("{long} {n}"))
                    .replace('N', &n.to_string())
                    .replace('C', ["no", "yes"][n % 2])
                    + "\n"
            })
            .collect();
        let text = refused("a.csv", &format!("{header}\n{rows}"), Task::Classification);
        assert!(text.contains(&format!("--set data.labels.{flags}")), "{text}");
    }

    let named = LabelConfig { text_field: "hypothesis".into(), ..LabelConfig::default() };
    let rows: String = (0..20).map(|n| format!("{long} {n},no {n},{}\n", n % 2)).collect();
    let text = check("a.csv", &format!("premise,hypothesis,gold\n{rows}"), Task::Classification, &named)
        .expect_err("no label");
    assert!(!text.contains("data.labels.text_field=") && text.contains("data.labels.pair_field=premise"), "{text}");
}

#[test]
fn conll_u_by_another_name_gets_its_own() {
    let word = |id: usize| format!("{id}\tRome\trome\tPROPN\t_\t_\t0\troot\t_\t_\n");
    let text = format!("# sent_id = 1\n#plain comment\n{}{}\n", word(1), word(2)).repeat(4);
    for name in ["a.txt", "a.tsv", "a.csv"] {
        let found = refused(name, &text, Task::Tagging);
        assert!(found.ends_with("let its name end in .conllu"), "{found}");
    }
}

#[test]
fn further_classes_of_fast_text_stay_out_of_the_text() {
    let several = "__label__soup __label__vegan hot water\n__label__cake sugar and\t__label__sweet flour\n";
    let text = refused("a.txt", several, Task::Classification);
    assert!(text.contains("2 of its first 2 lines have several classes, which are not supported"), "{text}");
    let single = refused("a.txt", "__label__soup hot water\n__label__cake sugar\n", Task::Classification);
    assert!(!single.contains("several classes"), "{single}");

    let start = text.find("awk '").expect("a command") + 5;
    let program = &text[start..start + text[start..].find('\'').expect("its end")];
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a.txt");
    std::fs::write(&file, several).expect("writable");
    let Ok(ran) = std::process::Command::new("awk").arg(program).arg(&file).output() else { return };
    let table = String::from_utf8(ran.stdout).expect("text");
    assert_eq!(table, "label\ttext\nsoup\thot water\ncake\tsugar and flour\n");

    let rows = "{\"text\": \"__label__vegan hot water\", \"label\": \"soup\"}\n{\"text\": \"flour\", \"label\": \"cake\"}\n\
                {\"text\": \"leaves\", \"label\": \"tea\"}\n";
    let path = folder.path().join("a.jsonl");
    std::fs::write(&path, rows).expect("writable");
    let found = super::super::LabelledCorpus::read(&[path], Task::Classification, &LabelConfig::default());
    let found = found.expect_err("the class is in the text").to_string();
    assert!(found.contains("the text has the label __label__vegan of fastText in it"), "{found}");
}

#[test]
fn several_labels_in_a_cell_are_never_taken_silently() {
    for (labels, command) in [
        (["\"['soup', 'vegan']\"", "['cake']"], "re.split"),
        (["\"[\"\"soup\"\", \"\"vegan\"\"]\"", "\"[\"\"cake\"\"]\""], "re.split"),
        (["soup|vegan", "soup"], "cell.split(\"|\")[0]"),
        (["soup; vegan", "vegan"], "cell.split(\";\")[0]"),
    ] {
        let more =
            ["soup|cake", "cake|vegan"].map(|more| more.replace('|', if labels[0].contains(';') { "; " } else { "|" }));
        let row = |n: usize| match n % 4 {
            at @ (0 | 1) => format!("the text {n},{}\n", labels[at]),
            at if labels[1].contains('[') => format!("the text {n},{}\n", labels[at - 2]),
            at => format!("the text {n},{}\n", more[at - 2]),
        };
        let rows: String = (0..20).map(row).collect();
        let text = refused("a.csv", &format!("recipe,kinds\n{rows}"), Task::Classification);
        assert!(text.contains("each combination would be a class") && text.contains(command), "{text}");

        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.csv");
        std::fs::write(&path, format!("text,label\n{rows}")).expect("writable");
        let read = super::super::LabelledCorpus::read(&[path], Task::Classification, &LabelConfig::default());
        let note = read.expect("classes").classes().note_on_combinations(Task::Classification).expect("a note");
        assert!(note.contains("several labels of one text are not supported"), "{note}");
    }
    let rows: String = (0..20).map(|n| format!("the text {n},{}\n", ["read/write", "open"][n % 2])).collect();
    assert!(!refused("a.csv", &format!("recipe,kinds\n{rows}"), Task::Classification).contains("combination"));
}

#[test]
fn a_table_without_a_known_ending_is_called_one() {
    let tabs: String = (0..9).map(|n| format!("{}\tthe message {n}, as it is\n", ["ham", "spam"][n % 2])).collect();
    let commas: String = (0..9).map(|n| format!("{},the message {n}\n", ["ham", "spam"][n % 2])).collect();
    for (name, text, ending) in [
        ("Messages", tabs.clone(), ".tsv"),
        ("a.txt", format!("label\ttext\n{tabs}"), ".tsv"),
        ("a.dat", format!("label,text\n{commas}"), ".csv"),
        ("a.data", format!("kind;words\n{}", commas.replace(',', ";")), ".csv"),
    ] {
        let found = refused(name, &text, Task::Classification);
        assert!(found.ends_with(&format!("let its name end in {ending}")), "{found}");
    }
    let texts = "a text, with a comma\nanother one\nand, well, one more\n";
    assert_eq!(check("a.txt", texts, Task::Classification, &LabelConfig::default()), Ok(()));
}

#[test]
fn lines_above_a_table_are_named_instead_of_its_columns() {
    let rows: String = (0..20).map(|n| format!("the message {n},{}\n", ["low", "high"][n % 2])).collect();
    for above in ["# exported today\n", "Messages of a day,\n\n"] {
        let text = refused("a.csv", &format!("{above}body,state\n{rows}"), Task::Classification);
        assert!(text.contains("stand above the table") && text.contains("tail -n +"), "{text}");
        assert!(!text.contains("--set"), "{text}");
    }
}

#[test]
fn tags_are_the_column_with_as_many_words_as_the_text() {
    let texts = ["show me a flight to boston", "which meal is there", "to dallas"];
    let slots = |text: &str| {
        let of_word = |word: &str| if ["boston", "dallas"].contains(&word) { "B-city" } else { "O" }.to_owned();
        text.split(' ').map(of_word).collect::<Vec<_>>()
    };
    for (names, tags) in [("text,intent,slots", "slots"), ("utterance,label,bio", "bio")] {
        let row = |n: usize| {
            format!("{},{},{}\n", texts[n % 3], ["flight", "meal", "other"][n % 3], slots(texts[n % 3]).join(" "))
        };
        let text = refused("a.csv", &format!("{names}\n{}", (0..24).map(row).collect::<String>()), Task::Tagging);
        let words = names.split(',').next().expect("a column");
        let flags = format!("--set data.labels.words_field={words} --set data.labels.tags_field={tags}");
        assert!(text.contains(&flags), "{text}");
        let list = |words: Vec<String>| format!("\"{}\"", serde_json::json!(words).to_string().replace('"', "\"\""));
        let row = |n: usize| {
            let words = texts[n % 3].split(' ').map(str::to_owned).collect();
            format!("{},x{n},{}\n", list(words), list(slots(texts[n % 3])))
        };
        let text = refused("a.csv", &format!("{names}\n{}", (0..24).map(row).collect::<String>()), Task::Tagging);
        assert!(text.contains(&flags), "{text}");
    }
}
