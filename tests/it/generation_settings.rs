//! The settings of generation in a model folder: acted on as `transformers` does, or named; and written again by an export.

use std::path::Path;

use serde_json::{Value, json};

use crate::kiln::{Ran, Workplace, copy_folder};

/// Imports a family with this `generation_config.json` into `runs/FAMILY`.
fn import(place: &Workplace, family: &str, generation: &Value) -> Ran {
    for folder in ["model", "runs"].map(|parent| place.path(parent).join(family)) {
        let _ = std::fs::remove_dir_all(folder);
    }
    copy_folder(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("model/fixtures/hf").join(family),
        &place.path("model").join(family),
    );
    place.write(&format!("model/{family}/generation_config.json"), generation.to_string());
    place.run(&["import", &format!("model/{family}")]).ok()
}

fn generation_of(place: &Workplace, family: &str) -> Value {
    let _ = std::fs::remove_dir_all(place.path("out"));
    place.run(&["export", &format!("runs/{family}"), "out"]).ok();
    serde_json::from_str(&place.read("out/generation_config.json")).expect("JSON")
}

#[test]
fn a_decoder_samples_only_where_transformers_does() {
    let place = Workplace::new();
    for (given, wanted) in [
        (json!({"do_sample": false, "temperature": 0.5}), "sample = false\ntemperature = 1.0\ntop_k = 0\n"),
        (json!({"temperature": 0.5}), "sample = false\ntemperature = 1.0\ntop_k = 0\n"),
        (json!({"do_sample": true}), "sample = true\ntemperature = 1.0\ntop_k = 50\ntop_p = 1.0\n"),
        (
            json!({"do_sample": true, "top_k": 0, "top_p": 0.9}),
            "sample = true\ntemperature = 1.0\ntop_k = 0\ntop_p = 0.9\n",
        ),
        (json!({"repetition_penalty": 1.3}), "repetition_penalty = 1.3\n"),
        (json!({"max_new_tokens": 33, "max_length": 40}), "max_new_tokens = 33\n"),
        (json!({"stop_strings": ["###", "END"]}), "stop = [\"###\", \"END\"]\n"),
    ] {
        let imported = import(&place, "llama", &given);
        let config = place.read("runs/llama/config.toml");
        assert!(config.contains(wanted), "{given}: {wanted} is missing in {config}");
        assert!(!imported.stderr.contains("not supported"), "{imported:#?}");
    }
}

#[test]
fn what_changes_the_text_is_named() {
    let place = Workplace::new();
    let both = [
        ("begin_suppress_tokens", json!([3])),
        ("constraints", json!([[4]])),
        ("diversity_penalty", json!(0.5)),
        ("encoder_no_repeat_ngram_size", json!(2)),
        ("exponential_decay_length_penalty", json!([5, 1.1])),
        ("sequence_bias", json!([[[3], -10.0]])),
        ("typical_p", json!(0.9)),
        ("unheard_of", json!(1)),
    ];
    let of_text =
        [("forced_bos_token_id", json!(3)), ("forced_eos_token_id", json!(2)), ("num_return_sequences", json!(2))];

    let of_pairs = [("stop_strings", json!(["x"]))];
    for (family, own) in [("llama", &of_text[..]), ("marian", &of_pairs[..])] {
        let mut given = json!({"decoder_start_token_id": 48, "eos_token_id": if family == "llama" { 2 } else { 0 }});
        both.iter().chain(own).for_each(|(key, value)| given[*key] = value.clone());
        let imported = import(&place, family, &given);
        for (key, _) in both.iter().chain(own) {
            assert!(
                imported.stderr.contains(&format!("note: {key} ")),
                "{family}: {key} is not named in {imported:#?}"
            );
        }
    }
    let given = json!({"decoder_start_token_id": 48, "num_beams": 2, "repetition_penalty": 1.5, "do_sample": true});
    let imported = import(&place, "marian", &given);
    for note in ["repetition_penalty = 1.5 of", "do_sample = true of"] {
        assert!(imported.stderr.contains(note), "{note} is missing in {imported:#?}");
    }
}

/// The special tokens that Kiln never writes, or words of the vocabulary, which an export forbids again.
#[test]
fn what_a_folder_forbids_is_forbidden() {
    let place = Workplace::new();
    let special = json!([[0], [1], [2]]); // the last one ends texts

    for (family, given, never, words) in [
        ("llama", json!({"suppress_tokens": [0, 1]}), true, json!([])),
        ("llama", json!({"bad_words_ids": special}), true, json!([])),
        ("llama", json!({"suppress_tokens": [1], "bad_words_ids": [[0]]}), true, json!([])),
        ("llama", json!({"suppress_tokens": [0]}), false, json!([[0]])),
        ("llama", json!({"suppress_tokens": [0, 1, 7]}), true, json!([[7]])),
        ("llama", json!({"suppress_tokens": [0, 1, 100_000]}), true, json!([])),
        ("llama", json!({"bad_words_ids": [[0], [1], [3, 4]]}), true, json!([[3, 4]])),
        ("marian", json!({"bad_words_ids": [[48]]}), true, json!([])),
        ("marian", json!({"suppress_tokens": [48, 7]}), true, json!([[7]])),
        ("marian", json!({"suppress_tokens": [7], "bad_words_ids": [[5, 6]]}), false, json!([[5, 6], [7]])),
    ] {
        let mut given = given;
        if family == "marian" {
            given["decoder_start_token_id"] = json!(48);
        }
        given["eos_token_id"] = json!(if family == "llama" { 2 } else { 0 });
        given["no_repeat_ngram_size"] = json!(3);

        let imported = import(&place, family, &given);
        assert!(!imported.stderr.contains("not supported"), "{given}: {imported:#?}");
        let config = place.read(&format!("runs/{family}/config.toml"));
        let wanted = format!("special_tokens = \"{}\"", if never { "never" } else { "allowed" });
        assert!(config.contains(&wanted) && config.contains("no_repeat_ngram_size = 3\n"), "{given}: {config}");

        let exported = generation_of(&place, family);
        let bad = exported["bad_words_ids"].as_array().cloned().unwrap_or_default();
        let own: Vec<&Value> = bad.iter().filter(|word| **word != json!([48])).collect();
        assert_eq!((json!(own), &exported["no_repeat_ngram_size"]), (words, &json!(3)), "{given}: {exported}");
    }

    // A token that the vocabulary lacks is named.
    import(&place, "llama", &json!({}));
    let generate = |more: &[&str]| {
        let all = ["generate", "runs/llama", "--prompt", "ab", "--max-new-tokens", "24", "--greedy", "--json"];
        place.run(&[&all, more].concat())
    };
    generate(&["--bad-word", "nowhere"]).refused(2, &["no token \"nowhere\" (generate.bad_words)"]);

    // Alone and among others, no two tokens come twice in the same order, and a word stays out.
    let plain = generate(&[]).ok();
    for more in [&[][..], &["--prompt", "b"]] {
        let banned = generate(&[&["--no-repeat-ngram-size", "2", "--bad-word", "b"], more].concat()).ok();
        assert!(plain.stdout.contains("bb") && !banned.stdout.contains("bb"), "{plain:#?} {banned:#?}");
    }
}

#[test]
fn values_that_make_no_sense_are_refused() {
    let place = Workplace::new();
    for (key, value, problem) in [
        ("temperature", json!("hot"), "temperature is \"hot\", but must be a number"),
        ("do_sample", json!("yes"), "do_sample is \"yes\", but must be true or false"),
        ("top_k", json!(-1), "top_k is -1, but must be a whole number"),
        ("bad_words_ids", json!([3]), "bad_words_ids is [3], but must be a list of lists of ids"),
        ("early_stopping", json!("always"), "early_stopping is \"always\", but must be true, false or \"never\""),
        ("repetition_penalty", json!(-2.0), "generate.repetition_penalty -2 is not above 0"),
        ("top_p", json!(1.5), "generate.top_p 1.5 is outside (0, 1]"),
    ] {
        let _ = std::fs::remove_dir_all(place.path("model"));
        copy_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("model/fixtures/hf/llama"), &place.path("model"));
        place.write("model/generation_config.json", json!({"do_sample": true, key: value}).to_string());
        place.run(&["import", "model"]).refused(3, &["generation_config.json", problem]);
    }
}

/// The texts of `transformers` 5.24, `generate(do_sample=False, max_new_tokens=8, ...)`.
#[test]
fn decoders_search_beams_as_transformers_does() {
    let place = Workplace::new();
    for (family, beams, wanted) in [
        ("llama", json!({}), "bbbbb\u{17}bb"),
        ("llama", json!({"num_beams": 4}), "\u{fffd}bbak\u{fffd}\u{fffd}ak\u{fffd}"),
        ("llama", json!({"num_beams": 3, "early_stopping": true}), "bb\u{fffd}\u{fffd}bb\u{17}b"),
        ("qwen2", json!({"num_beams": 4, "length_penalty": -1.0}), "'|~~~~~~"),
        ("qwen2", json!({"num_beams": 3, "early_stopping": true}), "'|~'jjjj"),
    ] {
        let mut given = beams;
        given["eos_token_id"] = json!(if family == "llama" { 2 } else { 0 });
        given["max_new_tokens"] = json!(8);
        let imported = import(&place, family, &given);
        assert!(!imported.stderr.contains("not supported"), "{imported:#?}");
        let run = format!("runs/{family}");
        let generated = place.run(&["generate", &run, "--prompt", "the cat", "--json", "--device", "cpu"]).ok();
        let generated: Value = serde_json::from_str(&generated.stdout).expect("JSON");
        assert_eq!(generated["text"], wanted, "{family}, {given}");

        let written = generation_of(&place, family);
        for (key, value) in given.as_object().expect("keys") {
            assert_eq!(&written[key], value, "{family}: {key}");
        }
    }
}

/// The texts of `transformers` 5.24, `generate(num_beams=1, max_new_tokens=8, repetition_penalty=...)`.
#[test]
fn translators_penalize_repetitions_as_transformers_does() {
    let place = Workplace::new();
    for (family, penalty, wanted) in [
        ("marian", 1.0, "uuuuuuu"),
        ("marian", 1.5, "uk rrrr"),
        ("marian", 3.0, "uk rtheri t"),
        ("t5", 1.0, "yyyyyyyy"),
        ("t5", 1.5, "y an te asve tey"),
        ("t5", 3.0, "y an te asve w model"),
    ] {
        let ids = match family {
            "marian" => {
                json!({"decoder_start_token_id": 48, "eos_token_id": 0, "pad_token_id": 48, "forced_eos_token_id": 0})
            }
            _ => json!({"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}),
        };
        let mut given = ids;
        (given["repetition_penalty"], given["max_new_tokens"]) = (json!(penalty), json!(8));
        import(&place, family, &given);
        let translated =
            place.run_with_input(&["translate", &format!("runs/{family}"), "--device", "cpu"], "the cat sat\n").ok();
        assert_eq!(translated.stdout.trim_end_matches('\n'), wanted, "{family}, penalty {penalty}");
    }
}

#[test]
fn an_export_says_how_the_run_generates() {
    let place = Workplace::new();
    let given = json!({
        "eos_token_id": 2, "do_sample": true, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.1,
        "max_new_tokens": 13,
    });
    import(&place, "llama", &given);
    let written = generation_of(&place, "llama");
    given.as_object().expect("keys").iter().for_each(|(key, value)| assert_eq!(&written[key], value, "{key}"));

    // The model has 24 positions: `transformers` would fail beyond them.
    import(&place, "llama", &json!({"eos_token_id": 2, "max_new_tokens": 33}));
    let written = generation_of(&place, "llama");
    assert_eq!((&written["max_length"], &written["max_new_tokens"]), (&json!(24), &Value::Null), "{written}");
    let again = import(&place, "llama", &written);
    assert!(!again.stderr.contains("max_length"), "{again:#?}");

    import(&place, "llama", &json!({"eos_token_id": 2, "temperature": 0.7}));
    let written = generation_of(&place, "llama");
    assert_eq!((&written["do_sample"], &written["temperature"]), (&json!(false), &Value::Null), "{written}");

    for (forced, family) in [(json!(0), "marian"), (Value::Null, "marian"), (Value::Null, "bart")] {
        let (start, end) = if family == "marian" { (48, 0) } else { (2, 2) };
        let given = json!({
            "decoder_start_token_id": start, "eos_token_id": end, "forced_eos_token_id": forced, "max_length": 12,
            "repetition_penalty": 1.5,
        });
        import(&place, family, &given);
        let written = generation_of(&place, family);
        for key in ["forced_eos_token_id", "max_length", "repetition_penalty"] {
            assert_eq!(written[key], given[key], "{family}: {key}");
        }
    }
}
