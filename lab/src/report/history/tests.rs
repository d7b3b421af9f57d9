//! Histories of runs that go on, that were resumed, or whose lines are damaged.

use std::fs;

use super::super::catalogue::find;
use super::*;

fn run(metrics: &[u8]) -> (tempfile::TempDir, Result<History, HistoryError>) {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join(RUN_CONFIG_FILE), "").expect("writable");
    fs::write(folder.path().join(METRICS_FILE), metrics).expect("writable");
    let history = History::read(folder.path());
    (folder, history)
}

#[test]
fn a_run_that_goes_on_is_read_up_to_its_torn_line() {
    let (_folder, history) = run(b"{\"kind\":\"note\",\"note\":\"hello\"}
{\"kind\":\"step\",\"step\":1,\"loss\":2.5,\"grad_norm\":1}
{\"kind\":\"step\",\"step\":2,\"loss\":null,\"grad_norm\":1}
{\"kind\":\"window\",\"step\":2,\"time\":9.5,\"tokens_per_sec\":70}
{\"kind\":\"sample\",\"step\":2,\"source\":\"a\",\"output\":\"b\"}
{\"kind\":\"step\",\"st");
    let history = history.expect("two steps");
    assert_eq!((history.n_steps, history.last_step, history.bad_lines), (2, 2, 1));
    assert_eq!((history.non_finite_steps, history.last_time), (1, Some(9.5)));
    assert!(history.end.is_none());
    assert_eq!(history.points(&find("loss").expect("known").measures[0]), [(1.0, 2.5)]);
    assert_eq!(history.field("window", "tokens_per_sec"), [(2.0, 70.0)]);
    assert_eq!(history.notes, [Note { step: 0, text: "hello".into() }]);
    assert_eq!((history.samples[0].output.as_str(), history.samples[0].step), ("b", 2));
}

#[test]
fn a_resumed_run_has_not_ended() {
    let step = |n: u64| format!("{{\"kind\":\"step\",\"step\":{n},\"loss\":1}}\n");
    let end = "{\"kind\":\"end\",\"step\":1,\"outcome\":\"stopped\",\"train_secs\":3}\n";
    let (_folder, history) = run(format!("{}{end}", step(1)).as_bytes());
    assert_eq!(history.expect("a step").end.expect("ended").outcome, "stopped");
    let (_folder, history) = run(format!("{}{end}{}", step(1), step(2)).as_bytes());
    assert!(history.expect("steps").end.is_none());
}

#[test]
fn the_padding_of_a_resumed_run_is_all_its_processes() {
    let step = |n: u64, padded: u64| {
        format!("{{\"kind\":\"step\",\"step\":{n},\"loss\":1,\"tokens\":60,\"padded_tokens\":{padded}}}\n")
    };
    let end = "{\"kind\":\"end\",\"step\":2,\"outcome\":\"steps\",\"padding_ratio\":0.25}\n";
    let (_folder, history) = run(format!("{}{}{end}", step(1, 120), step(2, 80)).as_bytes());
    let found = history.expect("steps").padding_ratio().expect("the steps say it");
    assert!((found - 0.4).abs() < 1e-9, "{found}");
}

#[test]
fn what_is_not_a_trained_run_is_refused_with_a_reason() {
    let (folder, history) = run(b"{\"kind\":\"note\",\"note\":\"hello\"}\n");
    assert!(history.expect_err("no steps").to_string().contains("no step has been logged yet"));
    fs::remove_file(folder.path().join(METRICS_FILE)).expect("there");
    assert!(History::read(folder.path()).expect_err("no metrics").to_string().contains("was never trained"));
    fs::remove_file(folder.path().join(RUN_CONFIG_FILE)).expect("there");
    assert!(History::read(folder.path()).expect_err("no run").to_string().contains("holds no run"));
}

#[test]
fn an_overlong_line_is_skipped_without_being_kept() {
    let mut metrics = vec![b'x'; 3 * LONGEST_LINE as usize];
    metrics.extend_from_slice(b"\n{\"kind\":\"step\",\"step\":1,\"loss\":2.5}\n");
    let history = run(&metrics).1.expect("a step");
    assert_eq!((history.n_steps, history.bad_lines), (1, 1));
}

#[test]
fn two_folders_of_one_name_are_named_by_their_paths() {
    let history = run(b"{\"kind\":\"step\",\"step\":1,\"loss\":2.5}\n").1.expect("a step");
    let of = |dir: &str| History { dir: dir.into(), name: "x".into(), ..history.clone() };
    let mut runs = [of("a/x"), of("b/x"), History { name: "y".into(), ..of("c/y") }];
    name_apart(&mut runs);
    assert_eq!(runs.map(|run| run.name), ["a/x", "b/x", "y"]);
}

#[test]
fn lengths_are_the_newest_process_s_and_damaged_ones_are_left_out() {
    let side = |name: &str, n_bars: usize| {
        let bars = vec!["[4,9]"; n_bars].join(",");
        format!("{{\"side\":\"{name}\",\"rows\":9,\"mean\":3,\"quantiles\":[3,4,4,4],\"bars\":[{bars}]}}")
    };
    let start = |lengths: &str| format!("{{\"kind\":\"start\",\"step\":0,\"lengths\":{lengths}}}\n");
    let step = "{\"kind\":\"step\",\"step\":1,\"loss\":1}\n";
    let read = |starts: &str| run(format!("{starts}{step}").as_bytes()).1.expect("a step").lengths;

    let lengths = read(&(start("[]") + &start(&format!("[{},{}]", side("a\\u0007b", 1), side("target", 5000)))));
    assert_eq!((lengths.len(), lengths[0].side.as_str()), (2, "a\u{fffd}b"));
    assert_eq!((lengths[0].bars.as_slice(), lengths[1].bars.len()), ([(4, 9)].as_slice(), MOST_BARS));

    let many = vec![side("x", 1); 1000].join(",");
    assert_eq!(read(&start(&format!("[{many}]"))).len(), MOST_SIDES);
    for damaged in ["7", "null", "[{\"side\":\"x\"}]", "[[]]", "{\"side\":1}"] {
        assert!(read(&start(damaged)).is_empty(), "{damaged}");
    }
}
