//! Tables and tagged words of the fourteenth trial: what is printed about them is run as it stands, and what it makes is read.

use crate::kiln::Workplace;
use crate::ninth_trial_forms::{CLASSES, PAIRS, TAGS, between, dry, ran, shown};
use crate::twelfth_trial_talks::made;

/// Sentences of several words without a number.
const SENTENCES: [&str; 5] = [
    "The small screen is too dark.",
    "A very good meal for us all.",
    "Nobody came to the old shop.",
    "It works as it should.",
    "We could not find the door.",
];

fn sentence(n: usize) -> &'static str {
    SENTENCES[n % SENTENCES.len()]
}

/// Writes a file with a first line and 40 rows.
fn write(place: &Workplace, file: &str, first: &str, row: impl Fn(usize) -> String) {
    place.write(file, first.to_owned() + &(0..40).map(|n| row(n) + "\n").collect::<String>());
}

/// Runs the command of a message that begins with `start` and writes `file`; `None` without its program.
fn followed(place: &Workplace, said: &str, start: &str, file: &str) -> Option<[String; 2]> {
    let end = format!("> {file}");
    ran(place, &(between(said, start, &end).to_owned() + &end))
}

#[test]
fn questions_above_a_table_name_its_columns() {
    let place = Workplace::new();
    let row = |n: usize| format!("{n},{} {n},{} {n}", sentence(n), sentence(n + 1));
    for names in ["id,What went well?,What next?\n", "No,What could be better next year and why.,Next!\n"] {
        write(&place, "survey.csv", names, row);
        dry(&place, PAIRS, &["data.train=survey.csv"]).refused(3, &["the first row looks like a header"]);
    }

    // Without numbers below them, nothing proves that they are names.
    write(&place, "two.csv", "What went well?,What next?\n", |n| format!("{} {n},{}", sentence(n), sentence(n + 1)));
    let said = shown(dry(&place, PAIRS, &["data.train=two.csv"]));
    assert!(said.contains("is taken as a pair; if it names the columns"), "{said}");
}

#[test]
fn further_headers_of_a_survey_are_left_out() {
    let place = Workplace::new();
    let first = "StartDate,Status,Progress,ResponseId,Q1,Q2\nStart Date,Response Type,Progress,Response ID,\"What did you like, and why?\",And now?\n\
                 \"{\"\"ImportId\"\":\"\"startDate\"\"}\",\"{\"\"ImportId\"\":\"\"status\"\"}\",\"{\"\"ImportId\"\":\"\"progress\"\"}\",x,x,x\n";
    let row =
        |n: usize| format!("2024-03-01 08:00:00,IP Address,100,R_d65b{n},{} {n},{}", sentence(n), sentence(n + 1));
    write(&place, "survey.csv", first, row);
    for task in [PAIRS, CLASSES] {
        let said = dry(&place, task, &["data.train=survey.csv"]).refused(3, &["as Qualtrics writes them"]).stderr;
        let Some(_) = followed(&place, &said, "python3 -c", "answers.csv") else { return };
        assert_eq!(place.read("answers.csv").lines().count(), 41);
    }
    dry(&place, PAIRS, &["data.train=answers.csv"]).refused(3, &["the first row looks like a header", "\"Q1\""]);
}

#[test]
fn ids_and_names_next_to_a_text_are_no_second_text() {
    let place = Workplace::new();
    let forms: [(&str, &dyn Fn(usize) -> String); 3] = [
        ("emotions.tsv", &|n| format!("{} {n}\t{}\te{:x}kib{n}", sentence(n), n % 28, 7 * n + 900)),
        ("tweets.csv", &|n| {
            format!(
                "\"{}\",\"{n}\",\"Mon Apr 06 22:19:45 PDT 2009\",\"NO_QUERY\",\"user{}\",\"{} {n}\"",
                n % 5,
                n % 7,
                sentence(n)
            )
        }),
        ("claims.tsv", &|n| {
            format!(
                "{n}.json\t{}\t{} {n}\teconomy\tada-{}\tsenator\ta news release",
                ["true", "false"][n % 2],
                sentence(n),
                n % 6
            )
        }),
    ];

    for (file, row) in forms {
        write(&place, file, "", row);
        let train = format!("data.train={file}");
        dry(&place, PAIRS, &[&train]).refused(3, &["alone of its", "--task classification"]);
    }
}

#[test]
fn options_without_names_get_them() {
    let place = Workplace::new();
    write(&place, "questions.csv", "", |n| {
        format!("What is number {n}?,red {n},green {n},blue {n},grey {n},{}", ["A", "B", "C", "D"][n % 4])
    });
    let said = dry(&place, PAIRS, &["data.train=questions.csv"]).refused(3, &["the letter of the right one"]).stderr;
    let Some(_) = followed(&place, &said, "printf", "rows.csv") else { return };
    let said = dry(&place, PAIRS, &["data.train=rows.csv"]).refused(3, &["questions with options"]).stderr;
    let Some(rows) = made(&place, &said, "python3 -c") else { return };
    assert_eq!((rows.len(), &rows[3]["completion"]), (40, &"D. grey 3".into()));
}

#[test]
fn pairs_that_a_column_judges_are_learned_with_a_warning() {
    let place = Workplace::new();
    let texts = |n: usize| format!("{} {n}\t{} {n}", sentence(n), sentence(n + 1));
    write(&place, "entails.tsv", "", |n| format!("{}\t{}", texts(n), ["entails", "neutral"][usize::from(n % 4 > 0)]));
    write(&place, "quality.tsv", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n", |n| {
        format!("{}\t{n}\t{}\t{}", n % 2, n + 90, texts(n))
    });
    let named = ["data.corpus.source_field=#1 String", "data.corpus.target_field=#2 String"];
    for (file, keys, n) in [("entails.tsv", &[][..], 10), ("quality.tsv", &named, 21)] {
        let train = format!("data.train={file}");
        let said = shown(dry(&place, PAIRS, &[&[train.as_str()], keys].concat()));
        assert!(said.contains("seems to say which of its pairs belong together"), "{said}");
        let Some(_) = followed(&place, &said, "awk", "rows.tsv") else { return };
        assert_eq!(place.read("rows.tsv").lines().count(), n, "{said}");
        let said = shown(dry(&place, PAIRS, &[&["data.train=rows.tsv"], keys].concat()));
        assert!(!said.contains("seems to say"), "{said}");
    }

    // A score of the aligner is no judgement.
    write(&place, "mined.tsv", "", |n| format!("{}\t0.9{}", texts(n), n % 10));
    assert!(!shown(dry(&place, PAIRS, &["data.train=mined.tsv"])).contains("seems to say"));
}

#[test]
fn tags_in_front_of_words_are_the_tags() {
    let place = Workplace::new();
    let sentence = |n: usize| format!("O\tshow\nO\tme\nB-GENRE\tfilm{n}\nI-GENRE\tfilms\n\n");
    place.write("train.bio", (0..40).map(sentence).collect::<String>());
    let said = shown(dry(&place, TAGS, &["data.train=train.bio", "data.split=0.2"]));
    assert!(said.contains("3 classes: O 50.0%") && said.contains("show me film"), "{said}");
}

#[test]
fn the_columns_of_ontonotes_are_read_and_their_names_become_tags() {
    let place = Workplace::new();
    let word =
        |n: usize, word: &str, pos: &str, name: &str| format!("bc/x 0 {n} {word} {pos} * - - - spk {name} * -\n");
    let sentence = |n: usize| {
        let words =
            word(0, "Ada", "NNP", "(PERSON*") + &word(1, &format!("Lee{n}"), "NNP", "*)") + &word(2, "saw", "VBD", "*");
        format!("#begin document (bc/x); part 00{n}\n{words}{}\n#end document\n", word(3, "Rome", "NNP", "(GPE)"))
    };
    place.write("onto.conll", (0..40).map(sentence).collect::<String>());
    let said = shown(dry(&place, TAGS, &["data.train=onto.conll", "data.split=0.2"]));
    assert!(said.contains("NNP 75.0%") && said.contains("learns the parts of speech"), "{said}");
    let Some(_) = followed(&place, &said, "awk", "rows.conll") else { return };
    assert!(place.read("rows.conll").starts_with("Ada\tB-PERSON\nLee0\tI-PERSON\nsaw\tO\nRome\tB-GPE\n\n"), "{said}");
    assert!(shown(dry(&place, TAGS, &["data.train=rows.conll", "data.split=0.2"])).contains("B-GPE"));
}

#[test]
fn words_with_two_marks_keep_the_first_and_the_last_part() {
    let place = Workplace::new();
    let line = |n: usize| format!("Ivo{n}|NNP|I-PER lives|VBZ|O in|IN|O Oslo|NNP|I-LOC\n");
    place.write("iob.txt", (0..40).map(line).collect::<String>());
    let said = dry(&place, TAGS, &["data.train=iob.txt"]).refused(3, &["each word has its tag behind it"]).stderr;
    let Some(_) = followed(&place, &said, "awk", "rows.conll") else { return };
    assert!(place.read("rows.conll").starts_with("Ivo0\tI-PER\nlives\tO\nin\tO\nOslo\tI-LOC\n\n"), "{said}");
}

#[test]
fn signs_between_several_cells_divide_a_table() {
    let place = Workplace::new();
    place.write(
        "phrases.txt",
        (0..40).map(|n| format!("[NN] ||| book {n} ||| a volume {n} ||| 0.{n}\n")).collect::<String>(),
    );
    place.write(
        "words.txt",
        (0..40).map(|n| format!("Haus {n} {{n}} | Häuser :: house {n} | houses\n")).collect::<String>(),
    );
    for (file, first) in
        [("phrases.txt", "[NN]\tbook 0\ta volume 0\t0.0\n"), ("words.txt", "Haus 0 {n} | Häuser\thouse 0 | houses\n")]
    {
        let train = format!("data.train={file}");
        let said = dry(&place, PAIRS, &[&train]).refused(3, &["a table is wanted"]).stderr;
        let Some(_) = followed(&place, &said, "awk", "rows.tsv") else { return };
        assert!(place.read("rows.tsv").starts_with(first), "{said}");
    }
}

#[test]
fn several_classes_with_commas_are_no_decimals_and_scores_of_pairs_are_found() {
    let place = Workplace::new();
    write(&place, "emotions.tsv", "", |n| format!("{} {n}\t{}\te{n}kib", sentence(n), ["2", "2,14", "0", "27"][n % 4]));
    let said = dry(&place, CLASSES, &["data.train=emotions.tsv"]).refused(3, &["to add a first row with names"]).stderr;
    assert!(!said.contains("on a scale"), "{said}");
    write(&place, "sts.tsv", "", |n| {
        format!(
            "main-captions\tMSRvid\t{n:04}\t{}.{:03}\t{} {n}\t{} {n}",
            n % 5,
            7 * n + 101,
            sentence(n),
            sentence(n + 1)
        )
    });
    dry(&place, CLASSES, &["data.train=sts.tsv"]).refused(3, &["label\\ttext\\ttext_pair"]);
}

#[test]
fn lines_of_texts_and_lines_of_classes_are_joined() {
    let place = Workplace::new();
    write(&place, "texts.txt", "", |n| format!("{} {n}", sentence(n)));
    write(&place, "labels.txt", "", |n| (n % 3).to_string());
    let said =
        dry(&place, CLASSES, &["data.train=texts.txt,labels.txt"]).refused(2, &["texts and lines of classes"]).stderr;
    let Some(rows) = made(&place, &said, "paste") else { return };
    assert_eq!((rows.len(), &rows[4]["label"]), (40, &"1".into()));
    assert!(shown(dry(&place, CLASSES, &["data.train=rows.jsonl", "data.split=0.2"])).contains("3 classes"));
}

#[test]
fn names_of_data_in_other_trainers_are_known() {
    let place = Workplace::new();
    for (key, meant) in [("data.path", "data.train"), ("data.file", "data.train"), ("test_size", "data.split")] {
        let set = format!("{key}=x");
        dry(&place, PAIRS, &[&set]).refused(2, &[&format!("unknown key {key}; did you mean {meant}?")]);
    }
}
