use serde_json::{Value, json};

use crate::corpus::followed::rows_made;
use crate::corpus::pairs::{CorpusConfig, Header, PairCorpus};

/// Writes a table, and returns how it is refused and what the first command makes of it; nothing if it is read.
fn opened(name: &str, text: &str, config: &CorpusConfig) -> (String, Vec<Value>) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join(name);
    std::fs::write(&file, text).expect("writable");
    std::fs::write(folder.path().join("links.csv"), "0\t1\n1\t0\n2\t5\n").expect("writable");
    let said = PairCorpus::open(&[file], config).err().map(|error| error.to_string()).unwrap_or_default();
    let made = if said.contains("> rows.jsonl") { rows_made(&said, folder.path()) } else { None };
    (said, made.unwrap_or_default())
}

fn table(names: &str, row: &dyn Fn(usize) -> String) -> String {
    names.to_owned() + &(0..40).map(|n| row(n) + "\n").collect::<String>()
}

#[test]
fn rows_with_the_same_key_are_joined() {
    let text = |n: usize| ["In the beginning", "In principio"][n % 2].to_owned() + &format!(" {}", n / 2);
    let joined = json!({"en": "In the beginning 0", "it": "In principio 0"});
    let config = CorpusConfig::default();

    for (name, text, program) in [
        (
            "a.csv",
            table("id,lang,text\n", &|n| format!("{},{},{}", n / 2, ["en", "it"][n % 2], text(n))),
            "group_by(.id)[]",
        ),
        (
            "a.csv",
            table("text;Sprache;id\n", &|n| format!("{};{};{}", text(n), ["en", "it"][n % 2], n / 2)),
            "group_by(.id)[]",
        ),
        ("a.tsv", table("", &|n| format!("{}\t{}\t{}", n / 2, ["en", "it"][n % 2], text(n))), "group_by(.[0])[]"),
        ("a.tsv", table("", &|n| format!("{}\t{}\t\"{}\"", n / 2, ["en", "it"][n % 2], text(n))), "group_by(.[0])[]"),
    ] {
        let (said, made) = opened(name, &text, &config);
        assert!(said.contains(program) && said.contains("source_field=en --set data.corpus.target_field=it"), "{said}");
        let wanted = if text.contains('"') {
            json!({"en": "\"In the beginning 0\"", "it": "\"In principio 0\""})
        } else {
            joined.clone()
        };
        assert!(made.is_empty() || made.len() == 20 && made.contains(&wanted), "{made:?}");

        let no = CorpusConfig { header: Header::No, ..config.clone() };
        assert_eq!(opened(name, &text, &no).0, "", "the user decides");
    }
}

#[test]
fn a_language_and_a_text_are_never_trained_as_a_pair() {
    let config = CorpusConfig::default();
    let text = |n: usize| format!("The doctor of {n} repairs the garden.");
    let (said, made) =
        opened("a.tsv", &table("", &|n| format!("{n}\t{}\t{}", ["eng", "deu"][n % 2], text(n))), &config);
    assert!(said.contains("no column says which rows have the same text") && said.contains("links.csv"), "{said}");
    let wanted = [json!({"eng": text(0), "deu": text(1)}), json!({"eng": text(2), "deu": text(5)})];
    assert!(made.is_empty() || made == wanted, "{made:?}");
    for names in ["", "lang\ttext\n", "language\tsentence\n"] {
        let (said, _) = opened("a.tsv", &table(names, &|n| format!("{}\t{}", ["eng", "deu"][n % 2], text(n))), &config);
        assert!(said.contains("--task classification learns the language"), "{said}");
    }
}

#[test]
fn other_tables_are_pairs() {
    let config = CorpusConfig::default();
    let text = |n: usize| format!("some words of {n}");
    for row in [
        &(|n| format!("{n}\t{}\t{}\t{}", ["en", "de"][n % 2], text(n), text(n + 1))) as &dyn Fn(usize) -> String,
        &|n| format!("{}\t{}\t{}", text(n), ["IT", "DE"][n % 2], n),
        &|n| format!("{}\t{}", ["one", "two"][n % 2], text(n)),
        &|n| format!("w{n}\tp{n}"),
    ] {
        let (said, _) = opened("a.tsv", &table("", row), &config);
        assert!(said.is_empty() || said.contains("alone of its") && !said.contains("group_by"), "{said}");
    }
}

#[test]
fn the_rows_of_one_language_may_follow_those_of_another_one() {
    let config = CorpusConfig::default();
    let row = |n: usize| format!("{}\t{}\tthe words {n} of it\n", n % 80, ["it", "en"][n / 80]);
    let rows: String = (0..160).map(row).collect();
    for (text, program) in
        [(format!("id\tlanguage\ttext\n{rows}"), "group_by(.id)[]"), (rows.clone(), "group_by(.[0])[]")]
    {
        let (said, made) = opened("a.tsv", &text, &config);
        assert!(said.contains(program), "{said}");
        assert!(made.is_empty() || made.len() == 80, "{made:?}");
    }
    // Tatoeba has hundreds of languages, of which few are known here.
    let codes = ["cmn", "epo", "ber", "kab", "tok", "eng", "deu", "fra", "ita", "rus"];
    let row = |n: usize| format!("{n}\t{}\tthe words {n} of it\n", codes[n / 60]);
    let (said, _) = opened("a.tsv", &(0..600).map(row).collect::<String>(), &config);
    assert!(said.contains("links.csv"), "{said}");
    let one = |n: usize| format!("{n}\tadj\tthe words {n} of it\n");
    let (said, _) = opened("a.tsv", &(0..160).map(one).collect::<String>(), &config);
    assert!(said.contains("column 2 alone of its 3 columns has texts"), "{said}");
}
