use serde_json::json;

use super::roles_tests::refusal;
use super::*;

#[test]
fn texts_by_language_in_a_list_get_a_field_of_each_language() {
    let row = |n: usize| json!({"id": n, "translation": [{"lang": "en", "text": format!("Good day {n}")}, {"lang": "it", "text": format!("Buon giorno {n}")}]});
    for (task, format) in
        [(Task::Translation, TextFormat::Auto), (Task::Lm, TextFormat::Auto), (Task::Lm, TextFormat::Chat)]
    {
        let said = refusal(&|n| row(n).to_string(), task, format);
        assert!(
            said.contains(".translation | map({(.lang): .text}) | add | select(.[\"en\"] and .[\"it\"])"),
            "{said}"
        );
        assert!(said.contains("source_field=en --set data.corpus.target_field=it (or the other way round)"), "{said}");
        assert!(!said.contains("=id"), "{said}");
    }
    // Speakers have names.
    let talk = |n: usize| json!({"turns": [{"language": "Ann", "text": format!("Good day {n}")}, {"language": "Bob", "text": "Good bye now"}]});
    assert!(!refusal(&|n| talk(n).to_string(), Task::Lm, TextFormat::Chat).contains("in several languages"));
}

#[test]
fn rows_of_one_language_each_are_joined_by_what_they_share() {
    for (key, language, text, languages) in
        [("id", "lang", "text", ["en", "la"]), ("key", "locale", "value", ["en-US", "it"])]
    {
        let row = |n: usize| json!({key: format!("k{}", n / 2), language: languages[n % 2], text: format!("some words of {}", n / 2)});
        let said = refusal(&|n| row(n).to_string(), Task::Translation, TextFormat::Auto);
        assert!(said.contains(&format!("group_by(.{key})[]")), "{said}");
        assert!(said.contains(&format!("source_field={} --set", languages[0])), "{said}");
    }
    // Texts without anything in common are texts, and so is a pair next to its languages.
    let alone = |n: usize| json!({"id": n, "lang": (["en", "fr"][n % 2]), "text": format!("some words of {n}")});
    let said = refusal(&|n| alone(n).to_string(), Task::Translation, TextFormat::Auto);
    assert!(said.contains("data.text.field=text") || said.contains("--task lm"), "{said}");
    let pair = |n: usize| json!({"id": n / 2, "lang": (["it", "fr"][n % 2]), "source": format!("some words of {n}"), "target": format!("other words of {n}")});
    let said = refusal(&|n| pair(n).to_string(), Task::Translation, TextFormat::Auto);
    assert!(said.contains("source_field=source") && !said.contains("group_by"), "{said}");
}
