use std::fs;

use super::*;
use crate::corpus::{CorpusConfig, TextConfig};

/// First digits of the fingerprints that 0.1.0 and later give. A change makes every cache of a format new.
const PAIRS: [(&str, &str); 6] = [
    ("rows.jsonl", "6e8399360cdc"),
    ("rows.json", "6e8399360cdc"),
    ("rows.tsv", "953a9aa1fe0f"),
    ("rows.csv", "326200ab5dab"),
    ("header.csv", "32030f6f7fbc"),
    ("rows.en,rows.it", "9d87dec36990"),
];

const TEXTS: [(&str, TextFormat, &str); 8] = [
    ("rows.jsonl", TextFormat::Auto, "693498ab503f"),
    ("rows.json", TextFormat::Auto, "693498ab503f"),
    ("rows.csv", TextFormat::Auto, "9f89d2a9081d"),
    ("rows.en", TextFormat::Auto, "bb32a9973a09"),
    ("rows.en", TextFormat::Lines, "bab71b0cd5ba"),
    ("rows.en", TextFormat::Files, "3f3569fb4e52"),
    ("rows.jsonl", TextFormat::Chat, "6b82e5bd93bd"),
    ("rows.en", TextFormat::Preferences, "0fa157defd0f"),
];

#[test]
fn fingerprints_of_formats_stay_what_they_are() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in [
        ("rows.jsonl", "{\"src\": \"a\", \"trg\": \"b\"}\n"),
        ("rows.json", "{\"src\": \"a\", \"trg\": \"b\"}\n"),
        ("rows.tsv", "a\tb\n"),
        ("rows.csv", "a;b\n"),
        ("header.csv", "id,trg,src\n1,b,a\n"),
        ("rows.en", "a\n"),
        ("rows.it", "b\n"),
    ] {
        fs::write(folder.path().join(name), text).expect("writable");
    }
    let path = |name: &str| {
        let names: Vec<_> = name.split(',').map(|name| folder.path().join(name).display().to_string()).collect();
        PathBuf::from(names.join(","))
    };

    let mut found = Vec::new();
    for (name, wanted) in PAIRS {
        let corpus = PairCorpus::open(&[path(name)], &CorpusConfig::default()).expect(name);
        let hash = pair_fingerprint(&corpus, &Ledger::default()).expect(name).0.to_hex();
        found.push((name.to_owned(), wanted, hash[..12].to_owned()));
    }
    for (name, format, wanted) in TEXTS {
        let corpus = TextCorpus::open(&[path(name)], &TextConfig { format, ..TextConfig::default() }).expect(name);
        let hash = text_fingerprint(&corpus, &Ledger::default()).expect(name).0.to_hex();
        found.push((format!("{name} {format:?}"), wanted, hash[..12].to_owned()));
    }
    let changed: Vec<_> = found.iter().filter(|(_, wanted, hash)| hash != wanted).collect();
    assert!(changed.is_empty(), "{changed:#?}");
}
