//! The sink against a server of a few lines that answers as MLflow 3 does.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use super::super::samples;
use super::*;
use crate::{RunMetrics, StartMetrics};

type Requests = Arc<Mutex<Vec<(String, Value)>>>;

/// Answers on a port of its own until the process ends, and keeps the requests.
fn server() -> (String, Requests) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let uri = format!("http://{}", listener.local_addr().expect("an address"));
    let requests = Requests::default();
    let kept = requests.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let kept = kept.clone();
            std::thread::spawn(move || serve(stream, &kept));
        }
    });
    (uri, requests)
}

fn serve(stream: TcpStream, kept: &Requests) {
    let mut reader = BufReader::new(stream.try_clone().expect("a stream"));
    let mut line = String::new();
    while reader.read_line(&mut line).is_ok_and(|n| n > 0) {
        let path = line.split(' ').nth(1).expect("a path").to_owned();
        let mut length = 0;
        loop {
            line.clear();
            reader.read_line(&mut line).expect("a header");
            if line.trim().is_empty() {
                break;
            }
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length");
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).expect("a body");
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();

        let what = path.trim_start_matches("/api/2.0/mlflow/").to_owned();
        let (status, answer) = match what.as_str() {
            "experiments/create" => ("400 Bad Request", json!({ "error_code": "RESOURCE_ALREADY_EXISTS" })),
            "runs/create" => ("200 OK", json!({ "run": { "info": { "run_id": "abc" } } })),
            what if what.starts_with("experiments/get-by-name") => {
                ("200 OK", json!({ "experiment": { "experiment_id": "7" } }))
            }
            _ => ("200 OK", json!({})),
        };
        kept.lock().expect("requests").push((what, body));
        let answer = answer.to_string();
        let head =
            format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", answer.len());
        (&stream).write_all((head + &answer).as_bytes()).expect("answered");
        line.clear();
    }
}

fn end(outcome: &str) -> RunMetrics {
    RunMetrics { outcome: outcome.into(), ..samples::end() }
}

#[test]
fn a_run_arrives_with_its_configuration_metrics_and_end() {
    let (uri, requests) = server();
    let folder = tempfile::tempdir().expect("a folder");
    let config = json!({ "seed": 1, "optim": { "lr": 0.5, "schedule": "cosine" }, "train": { "steps": 8 } });
    let sink = || Mlflow::new(&uri, Some("mine & yours".into()), folder.path(), &config).expect("an address");
    let mut first = sink();
    first
        .write(&Record::Start(&StartMetrics { devices: 2, device: "CPU".into(), ..Default::default() }))
        .expect("kept");
    let nan = crate::StepMetrics { loss: f64::NAN, ..samples::step(7) };
    first.write(&Record::Step(&nan)).expect("kept");
    first.write(&Record::Step(&samples::step(8))).expect("kept");
    assert!(requests.lock().expect("requests").is_empty(), "steps travel with their line");
    first.write(&Record::Window(&samples::window(8))).expect("sent");
    first.write(&Record::Validation(&samples::validation(8))).expect("sent");
    first.write(&Record::End(&end("stopped"))).expect("sent");
    assert_eq!(first.trouble(), None);

    let found = std::mem::take(&mut *requests.lock().expect("requests"));
    let paths: Vec<_> = found.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "experiments/create",
            "experiments/get-by-name?experiment_name=mine%20%26%20yours",
            "runs/create",
            "runs/log-batch",
            "runs/log-batch",
            "runs/log-batch",
            "runs/update"
        ]
    );
    let (run, params, line, validation) = (&found[2].1, &found[3].1["params"], &found[4].1["metrics"], &found[5].1);
    assert_eq!((&run["experiment_id"], &run["tags"][1]["value"]), (&json!("7"), &json!("2 x CPU")));
    let optim = json!([{ "key": "optim.lr", "value": "0.5" }, { "key": "optim.schedule", "value": "cosine" }]);
    assert_eq!(json!([params[0], params[1]]), optim);

    let values = |metrics: &Value, key: &str| -> Vec<(u64, f64)> {
        let metrics = metrics.as_array().expect("metrics").iter().filter(|metric| metric["key"] == key);
        metrics.map(|it| (it["step"].as_u64().expect("a step"), it["value"].as_f64().expect("a number"))).collect()
    };
    assert_eq!(values(line, "loss"), [(8, 2.5)], "neither the NaN nor the mean of the line");
    assert_eq!(values(line, "nll"), [(7, 1.5), (8, 1.5)]);
    assert_eq!((values(line, "tokens_per_sec"), values(line, "host.elapsed_ms").len()), (vec![(8, 1234567.8)], 1));
    assert_eq!(values(&validation["metrics"], "validation.bleu"), [(8, 51.234)]);
    assert_eq!(found[6].1["status"], "KILLED");

    // A resumed run goes on where it was.
    let mut second = sink();
    second.write(&Record::Window(&samples::window(9))).expect("sent");
    second.write(&Record::End(&end("steps"))).expect("sent");
    let found = requests.lock().expect("requests");
    let sent: Vec<_> = found.iter().map(|(path, body)| (path.as_str(), body["run_id"].as_str())).collect();
    let [update, batch] = ["runs/update", "runs/log-batch"].map(|path| (path, Some("abc")));
    assert_eq!(sent, [update, batch, batch, update]);
    assert_eq!((&found[0].1["status"], &found[3].1["status"]), (&json!("RUNNING"), &json!("FINISHED")));
}

#[test]
fn a_server_that_is_away_is_named_once_and_gets_the_metrics_later() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let uri = format!("http://{}/", listener.local_addr().expect("an address"));
    drop(listener);
    let folder = tempfile::tempdir().expect("a folder");
    let mut sink = Mlflow::new(&uri, None, folder.path(), &json!({})).expect("an address");
    sink.write(&Record::Window(&samples::window(1))).expect("never an error");
    let trouble = sink.trouble().expect("named");
    assert!(trouble.contains(uri.trim_end_matches('/')) && trouble.contains("metrics.jsonl has them"), "{trouble}");
    sink.write(&Record::Window(&samples::window(2))).expect("never an error");
    sink.write(&Record::End(&end("steps"))).expect("never an error");
    assert_eq!(sink.trouble(), None, "once");

    let (uri, requests) = server();
    (sink.address, sink.retry_at) = (Address::parse(&uri).expect("an address"), None);
    sink.write(&Record::Window(&samples::window(3))).expect("sent");
    let found = requests.lock().expect("requests");
    let steps = found.last().expect("a batch").1["metrics"].as_array().expect("metrics").iter();
    let mut steps: Vec<_> = steps.map(|metric| metric["step"].as_u64().expect("a step")).collect();
    steps.dedup();
    assert_eq!(steps, [1, 2, 3], "nothing is lost");
}

#[test]
fn an_address_that_kiln_cannot_use_is_explained() {
    for uri in ["https://mlflow.example", "databricks", "file:///tmp/mlruns", ""] {
        let error = Mlflow::new(uri, None, Path::new("runs/a"), &json!({})).err().expect("refused").to_string();
        assert!(error.contains("http:// addresses only") && error.contains("metrics.jsonl"), "{error}");
    }
}

/// Answers each request on a port of its own with `answer`, and keeps what it was sent.
fn answering(answer: impl Fn(&str) -> String + Send + 'static) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let host = listener.local_addr().expect("an address").to_string();
    let requests = Arc::new(Mutex::new(Vec::new()));
    let kept = requests.clone();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut buffer = [0; 8192];
            let n = stream.read(&mut buffer).unwrap_or(0);
            let request = String::from_utf8_lossy(&buffer[..n]).into_owned();
            let answer = answer(&request);
            kept.lock().expect("requests").push(request);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    (host, requests)
}

#[test]
fn a_password_reaches_the_server_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    // A server that repeats what it was sent, and would write on the terminal.
    let (host, requests) = answering(|request| {
        let body = format!("{request}\u{1b}[2Jdenied to me:hunter2\nerror: nothing is saved");
        format!("HTTP/1.1 401 Unauthorized\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
    });
    let uri = format!("http://me:hunter2@{host}");
    let mut sink = Mlflow::new(&uri, None, folder.path(), &json!({})).expect("an address");
    sink.write(&Record::Window(&samples::window(1))).expect("never an error");
    let trouble = sink.trouble().expect("named");
    assert!(trouble.contains(&host) && trouble.contains("status 401"), "{trouble}");
    for secret in ["hunter2", "bWU6aHVudGVyMg", "\u{1b}", "\n"] {
        assert!(!trouble.contains(secret), "{secret:?} in {trouble:?}");
    }
    let sent = requests.lock().expect("requests")[0].to_lowercase();
    assert!(sent.contains("authorization: basic bwu6ahvudgvymg=="), "{sent}");

    let (uri, _) = server();
    let uri = uri.replace("http://", "http://me:hunter2@");
    // A file of an earlier version holds the password until the run goes on.
    let earlier = json!({ "uri": uri, "experiment": "kiln", "run_id": "abc" }).to_string();
    for already_there in [None, Some(earlier)] {
        if let Some(earlier) = already_there {
            fs::write(folder.path().join(FILE), earlier).expect("written");
        }
        let mut sink = Mlflow::new(&uri, None, folder.path(), &json!({})).expect("an address");
        sink.write(&Record::Window(&samples::window(1))).expect("sent");
        assert_eq!(sink.trouble(), None);
        let file = fs::read_to_string(folder.path().join(FILE)).expect("a file");
        assert!(!file.contains("hunter2") && file.contains("\"run_id\":\"abc\""), "{file}");
    }
}

#[test]
fn a_redirect_is_named_and_not_followed() {
    let (other, stolen) = answering(|_| "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}".into());
    let target = format!("http://{other}/api");
    let (host, _) = answering(move |_| {
        format!("HTTP/1.1 307 Moved\r\nLocation: {target}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    });
    let folder = tempfile::tempdir().expect("a folder");
    let mut sink =
        Mlflow::new(&format!("http://me:hunter2@{host}"), None, folder.path(), &json!({})).expect("an address");
    sink.write(&Record::Window(&samples::window(1))).expect("never an error");
    let trouble = sink.trouble().expect("named");
    assert!(
        trouble.contains("status 307") && trouble.contains(&other) && trouble.contains("does not follow"),
        "{trouble}"
    );
    assert!(stolen.lock().expect("requests").is_empty(), "the other host was asked");
}
