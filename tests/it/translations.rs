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
