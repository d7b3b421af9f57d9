use super::*;

fn in_shell(program: &str) -> String {
    format!("jq -c '{program}'")
}

fn rows(rows: &[&str]) -> Vec<Map<String, Value>> {
    rows.iter().map(|row| serde_json::from_str(row).expect(row)).collect()
}

#[test]
fn ratings_are_known_by_their_name_and_their_value() {
    for rating in [
        r#""label": false"#,
        r#""label": 0"#,
        r#""label": "1""#,
        r#""label": "undesirable""#,
        r#""kto_tag": true"#,
        r#""score": 4.5"#,
        r#""Rating": "Good""#,
        r#""thumbs_down": true"#,
        r#""stars": 5"#,
        r#""vote": -1"#,
        r#""n_votes": 3"#,
        r#""thumbs": "up""#,
        r#""quality_score": 4.5"#,
        r#""Answer Quality": "poor""#,
        r#""userFeedback": "positive""#,
        r#""avg-rating": "3.5""#,
    ] {
        let row = format!(r#"{{"question": "a", "answer": "b", {rating}}}"#);
        assert!(Rating::of(&rows(&[&row])[0]).is_some(), "{rating}");
    }

    for other in [
        r#""label": "billing""#,
        r#""label": null"#,
        r#""label": ["good"]"#,
        r#""category": 3"#,
        r#""quality": "it reads well""#,
        r#""feedback": "Good, but too long.""#,
        r#""id": 1"#,
        r#""label": "positive""#,
        r#""feedback_id": 7"#,
        r#""language_score": 0.98"#,
        r#""reward_model": "a name""#,
        r#""chosen": "b", "rejected": "c", "score": 3"#,
    ] {
        let row = format!(r#"{{"question": "a", "answer": "b", {other}}}"#);
        assert!(Rating::of(&rows(&[&row])[0]).is_none(), "{other}");
    }
}

#[test]
fn advice_keeps_good_answers_whatever_rates_them() {
    let booleans = "keep the rows whose label is true and drop the label: jq -c 'select(.label) | del(.label)'";

    for (first, second, wanted) in [
        (r#"{"label": false}"#, r#"{"label": true}"#, booleans),
        (r#"{"label": 0}"#, r#"{"label": 1}"#, "with the highest label and drop the label: jq -c 'select(.label >= 1)"),
        (r#"{"label": 0}"#, r#"{"label": 0}"#, "'select(.label >= 1)"),
        (r#"{"score": 2.5}"#, r#"{"score": 4.5}"#, "'select(.score >= 4.5)"),
        (r#"{"label": "0"}"#, r#"{"label": "1"}"#, "'select((.label | tonumber) >= 1)"),
        (r#"{"label": "undesirable"}"#, r#"{"label": "desirable"}"#, "'select(.label == \"desirable\")"),
        (r#"{"label": "bad"}"#, r#"{"label": "bad"}"#, "'select(.label != \"bad\")"),
        (r#"{"is_bad": true}"#, r#"{"is_bad": false}"#, "whose is_bad is false and drop the is_bad"),
        (r#"{"is_bad": true}"#, r#"{"is_bad": false}"#, "'select(.is_bad | not)"),
        (r#"{"thumbs_down": 1}"#, r#"{"thumbs_down": 0}"#, "'select(.thumbs_down <= 0)"),
        (r#"{"thumbs": "down"}"#, r#"{"thumbs": "up"}"#, "'select(.thumbs == \"up\")"),
        (r#"{"dislikes": 3}"#, r#"{"dislikes": 1}"#, "with the lowest dislikes"),
        (
            r#"{"User Rating": 3}"#,
            r#"{"User Rating": 5}"#,
            "'select(.[\"User Rating\"] >= 5) | del(.[\"User Rating\"])'",
        ),
    ] {
        let rows = rows(&[first, second]);
        let advice = Rating::of(&rows[0]).expect(first).advice(&rows, &in_shell);
        assert!(advice.contains(wanted), "{first}: {advice}");
    }
}

#[test]
fn numbers_keep_the_better_half_and_several_ratings_together_enough_rows() {
    let row = |n: usize| format!(r#"{{"prompt": "a", "response": "b", "score": 0.{:03}}}"#, n * 37 % 100 * 10);
    let all: Vec<String> = (0..100).map(row).collect();
    let rows_of = |all: &[String]| rows(&all.iter().map(String::as_str).collect::<Vec<_>>());
    let continuous = rows_of(&all);
    let advice = Rating::of(&continuous[0]).expect("a score").advice(&continuous, &in_shell);
    assert!(
        advice.contains("'select(.score >= 0.5)") && advice.ends_with("keeps 50 of the first 100 rows"),
        "{advice}"
    );

    let row = |n: usize| {
        format!(
            r#"{{"prompt": "a", "response": "b", "helpfulness": {}, "correctness": {}, "is_bad": {}}}"#,
            n % 5,
            n / 5 % 5,
            n.is_multiple_of(4)
        )
    };
    let all: Vec<String> = (0..100).map(row).collect();
    let several = rows_of(&all);
    let advice = Rating::of(&several[0]).expect("a rating").advice(&several, &in_shell);
    assert!(advice.contains("| del(.correctness, .helpfulness, .is_bad)'"), "{advice}");
    assert!(advice.contains("select(.correctness >= 2 and .helpfulness >= 2 and (.is_bad | not))"), "{advice}");
    let n_kept = several.iter().filter(|row| {
        row["correctness"].as_u64() >= Some(2) && row["helpfulness"].as_u64() >= Some(2) && row["is_bad"] == false
    });
    assert!(advice.ends_with(&format!("keeps {} of the first 100 rows", n_kept.count())), "{advice}");

    // Rare good answers are never joined by bad ones.
    for (good, bad) in [(1, 0), (5, 1)] {
        let all: Vec<String> = (0..20)
            .map(|n| {
                format!(r#"{{"prompt": "a", "response": "b", "label": {}}}"#, if n % 10 == 0 { good } else { bad })
            })
            .collect();
        let rare = rows_of(&all);
        assert!(
            Rating::of(&rare[0])
                .expect("a label")
                .advice(&rare, &in_shell)
                .contains(&format!("select(.label >= {good})"))
        );
    }
}
