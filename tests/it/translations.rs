//! What `kiln translate` prints besides translations: scores of tokens, and what follows a given beginning.

use serde_json::Value;

use crate::kiln::Workplace;

const LINES: &str = "12\n345\n\n9876\n";

fn trained() -> Workplace {
    let place = Workplace::new();
    place.train(&["--run", "runs/a", "--set", "train.steps=120", "--set", "optim.lr=5e-3"]).ok();
    place
}

fn translate(place: &Workplace, options: &[&str], lines: &str) -> Vec<String> {
    let device: &[&str] = if options.contains(&"--devices") { &[] } else { &["--device", "cpu"] };
    let all = [&["translate", "runs/a"], device, options].concat();
    place.run_with_input(&all, lines).ok().stdout.lines().map(str::to_owned).collect()
}

fn objects(lines: &[String]) -> Vec<Value> {
    lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// The tokens of a translation and their log-probabilities.
fn scores(of: &Value) -> Vec<(String, f64)> {
    let pair = |pair: &Value| (pair[0].as_str().expect("a token").to_owned(), pair[1].as_f64().expect("a number"));
    of["token_scores"].as_array().expect("a list").iter().map(pair).collect()
}

#[test]
fn tokens_are_scored_with_every_search() {
    let place = trained();
    let plain = translate(&place, &["--greedy"], LINES);
    let greedy = objects(&translate(&place, &["--greedy", "--json", "--token-scores"], LINES));
    for (plain, object) in plain.iter().zip(&greedy) {
        assert_eq!(object["translation"], **plain);
        if plain.is_empty() {
            assert!(object.get("token_scores").is_none(), "{object}");
            continue;
        }
        let scores = scores(object);
        assert_eq!(scores.last().expect("the end").0, "</s>");
        assert!(scores.iter().all(|(_, log_prob)| *log_prob <= 0.0), "{scores:?}");
        // Greedy search takes the likeliest of tokens that share the probability.
        assert!(scores.iter().all(|(_, log_prob)| *log_prob > -(400f64.ln())), "{scores:?}");
        let words: String =
            scores.iter().filter(|(token, _)| token != "</s>").map(|(token, _)| token.as_str()).collect();
        let letters = |text: &str| text.chars().filter(|x| x.is_ascii_alphanumeric()).collect::<String>();
        assert_eq!(letters(&words), letters(plain));
    }

    let beams = objects(&translate(&place, &["--beam", "3", "--n-best", "3", "--json", "--token-scores"], LINES));
    let mut n_ended = 0;
    for found in beams.iter().flat_map(|object| object["translations"].as_array().expect("a list")) {
        let (scores, log_prob) = (scores(found), found["log_prob"].as_f64().expect("a number"));
        assert_eq!(scores.len() as u64, found["tokens"].as_u64().expect("a number") + 1);
        let sum: f64 = scores.iter().map(|(_, log_prob)| log_prob).sum();
        // A translation that its limit has cut has no end token in its log-probability.
        let cut = sum - scores.last().expect("the end").1;
        assert!((sum - log_prob).abs().min((cut - log_prob).abs()) < 1e-3, "{sum} and {log_prob} in {found}");
        n_ended += usize::from((sum - log_prob).abs() < 1e-3);
    }
    assert!(n_ended > 2, "{beams:?}");
    place.run(&["translate", "runs/a", "--token-scores"]).refused(2, &["--token-scores", "--json"]);
}

/// A translation that fills the positions of its model leaves none for the score of an end token.
#[test]
fn a_translation_without_an_end_is_scored() {
    let place = Workplace::new();
    let short = ["--set", "model.max_positions=24", "--set", "generate.max_len_offset=100"];
    place.train(&[&["--run", "runs/a", "--set", "train.steps=8"], &short[..]].concat()).ok();
    let options = ["--beam", "2", "--n-best", "2", "--bad-word", "</s>", "--json", "--token-scores"];
    let found = objects(&translate(&place, &options, "12\n345\n"));
    let all = found.iter().flat_map(|object| object["translations"].as_array().expect("a list"));
    let lengths: Vec<[u64; 2]> =
        all.map(|one| [one["tokens"].as_u64().expect("a number"), scores(one).len() as u64]).collect();
    assert!(lengths.contains(&[24, 24]), "{lengths:?}");
    assert!(lengths.iter().all(|[tokens, scores]| *scores == (tokens + 1).min(24)), "{lengths:?}");
}

#[test]
fn a_translation_begins_as_it_should() {
    let place = trained();
    let plain = translate(&place, &["--greedy"], LINES);
    let with = |options: &[&str], prefix: &dyn Fn(usize) -> String| {
        let lines: Vec<String> = LINES.lines().enumerate().map(|(i, line)| format!("{line}{}\n", prefix(i))).collect();
        translate(&place, &[&["--target-prefix"], options].concat(), &lines.concat())
    };
    assert_eq!(with(&["--greedy"], &|_| String::new()), plain, "lines without a tab");
    assert_eq!(with(&["--greedy"], &|_| "\t".to_owned()), plain);

    // The first words of a translation lead to the rest of it.
    let first = |i: usize| plain[i].split(' ').next().unwrap_or_default().to_owned();
    assert_eq!(with(&["--greedy"], &|i| if i == 1 { String::new() } else { format!("\t{}", first(i)) }), plain);

    for options in [&["--greedy"][..], &["--beam", "3"], &["--sample", "--seed", "4"], &["--devices", "cpu,cpu"]] {
        let found = with(options, &|i| if i == 3 { String::new() } else { "\tnine thousand".to_owned() });
        for (i, line) in found.iter().enumerate() {
            assert_eq!(
                line.starts_with("nine thousand"),
                i < 2 || i == 3 && plain[3].starts_with("nine thousand"),
                "{found:?}"
            );
        }
    }

    let object = &objects(&with(&["--json", "--token-scores"], &|_| "\tnine thousand".to_owned()))[0];
    assert_eq!([&object["source"], &object["target_prefix"]], ["12", "nine thousand"]);
    assert!(scores(object).len() > 2 && object["translation"].as_str().expect("text").starts_with("nine thousand"));

    let long = format!("7\t{}\n", "nine ".repeat(400));
    let refused = ["translate", "runs/a", "--device", "cpu", "--target-prefix"];
    place.run_with_input(&refused, &long).refused(3, &["line 1: its translation begins with", "behind the tab"]);
}

/// Int8 on the CPU: nearly the same translations, whatever the batch, and what it is not for is refused.
#[test]
fn searches_multiply_in_int8() {
    let place = Workplace::new();
    place.train(&["--run", "runs/a", "--set", "train.steps=300", "--set", "optim.lr=5e-3"]).ok();
    let lines: String = (0..40).map(|i| format!("{}\n", 17 + i * 2_311)).collect();
    let plain = translate(&place, &["--greedy", "--json", "--token-scores"], &lines);
    for part in ["--int8", "--int8=both", "--int8=weights"] {
        let found = translate(&place, &["--greedy", "--json", "--token-scores", part], &lines);
        let small = translate(&place, &["--greedy", "--json", "--token-scores", part, "--batch-tokens", "64"], &lines);
        assert_eq!(found, small, "{part}: in other batches");
        let (found, plain) = (objects(&found), objects(&plain));
        let same = found.iter().zip(&plain).filter(|(a, b)| a["translation"] == b["translation"]).count();
        assert!(same >= 30, "{part}: {same} of 40 translations are equal");
        let sum = |of: &Value| scores(of).iter().map(|(_, log_prob)| log_prob).sum::<f64>();
        let distances: Vec<f64> = found.iter().zip(&plain).map(|(a, b)| (sum(a) - sum(b)).abs()).collect();
        assert!(distances.iter().any(|distance| *distance > 0.0), "{part} rounds nothing");
    }
    assert_eq!(translate(&place, &["--int8"], &lines), translate(&place, &["--int8=both"], &lines));
    let beams = translate(&place, &["--int8", "--beam", "3", "--n-best", "2"], &lines);
    assert_eq!(beams.len(), 80);

    let scores = place.run(&["evaluate", "runs/a", "--device", "cpu", "--json", "--int8"]).ok();
    let scores: Value = serde_json::from_str(&scores.stdout).expect("JSON");
    assert!(scores["chrf"].as_f64().is_some_and(|chrf| chrf > 50.0), "{scores}");
    place.run(&["translate", "runs/a", "--int8=4"]).refused(2, &["--int8", "weights"]);
}

#[test]
fn texts_are_continued_in_int8() {
    let place = Workplace::new();
    let text: String = (0..400).map(|i| format!("Line {} follows line {}.\n", i % 20 + 1, i % 20)).collect();
    std::fs::write(place.path("text.txt"), text).expect("a file");
    let options = ["--task", "lm", "--run", "runs/lm", "--set", "data.train=text.txt", "--set", "train.steps=80"];
    place.train(&options).ok();
    let written = |options: &[&str]| {
        let all = [&["generate", "runs/lm", "--device", "cpu", "--greedy", "--prompt", "Line 7"], options].concat();
        place.run(&all).ok().stdout
    };
    let plain = written(&[]);
    for part in ["--int8", "--int8=weights"] {
        let found = written(&[part]);
        let same = found.chars().zip(plain.chars()).take_while(|(a, b)| a == b).count();
        assert!(same >= 12, "{part}: {found:?}, and in f32 {plain:?}");
    }
    let message = "applies to translations only";
    place.run(&["evaluate", "runs/lm", "--device", "cpu", "--int8"]).refused(2, &[message]);
}
