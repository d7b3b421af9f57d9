//! Pages and pictures of runs, and what a real browser makes of them.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::kiln::{Workplace, browser, copy_folder};

/// Trains two runs of 16 steps with a different learning rate.
fn two_runs() -> Workplace {
    let place = Workplace::new();
    for (run, lr) in [("runs/a", "optim.lr=1e-3"), ("runs/b", "optim.lr=2e-3")] {
        let validate = ["--set", "train.validate_every=8", "--set", "generate.beam_size=1"];
        let train = ["--run", run, "--set", lr, "--set", "train.steps=16"];
        place.train(&[&train[..], &validate].concat()).ok();
    }
    place
}

/// The elements of a page that stand between `<` and `>`, without their attributes; void elements are left out.
fn tags(page: &str) -> Vec<&str> {
    let void = ["!DOCTYPE", "meta", "line", "rect", "circle", "polyline", "polygon"];
    let style = page.find("<style>").zip(page.find("</style>")).expect("a style sheet");
    let parts = [&page[..style.0], &page[style.1 + "</style>".len()..]];
    let names = parts.into_iter().flat_map(|part| part.split('<').skip(1)).map(|tag| {
        let end = tag.find(|c: char| c.is_whitespace() || c == '>').expect("an end");
        &tag[..end]
    });
    names.filter(|name| !void.contains(name)).collect()
}

#[test]
fn a_report_is_one_page_that_needs_nothing_else() {
    let place = two_runs();
    let ran = place.run(&["report", "runs/a", "runs/b"]).ok();
    assert_eq!(ran.stdout, "report.html\n");
    let page = place.read("report.html");

    // Every element is closed, in order.
    let mut open = Vec::new();
    for tag in tags(&page) {
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "{open:?}"),
            None => open.push(tag),
        }
    }
    assert!(open.is_empty(), "{open:?}");

    for part in ["http:", "https:", "<script", "src=", "url(", "@import"] {
        assert!(!page.contains(part), "{part} is in the page");
    }
    for part in [
        "<html lang=\"en\">",
        "name=\"viewport\"",
        "prefers-color-scheme: dark",
        "<h1>a, b</h1>",
        "<a class=\"skip\" href=\"#main\">",
        "<th scope=\"row\">optim.lr</th><td>0.001</td><td>0.002</td>",
        "<section id=\"data\" aria-labelledby=\"data-h\">",
        "<figure id=\"lengths-1\"><h3>Lengths of training rows: a</h3>",
        "target: half of the rows have up to ",
        "<figure id=\"loss\">",
        "<figure id=\"scores-bleu\">",
        "<figure id=\"lr\">",
        "<figure id=\"throughput\">",
        "<figure id=\"padding\">",
        "a, training: ",
        "<summary>Numbers",
        "tabindex=\"0\" role=\"region\"",
        "<section id=\"samples\"",
        "<tr><th scope=\"row\">wanted</th>",
    ] {
        assert!(page.contains(part), "{part} is missing in the page");
    }
    for absent in ["id=\"mfu\"", "id=\"power\"", "id=\"loss-scale\""] {
        assert!(!page.contains(absent), "{absent}: the runs have logged nothing for it");
    }
    let links = page.split("<a href=\"#").skip(1).filter_map(|rest| rest.split_once('"'));
    for (id, _) in links {
        assert!(page.contains(&format!("id=\"{id}\"")), "#{id} leads nowhere");
    }

    // A report of the same runs is replaced. One of other runs is not, and no other file.
    place.run(&["report", "runs/b", "runs/a"]).ok();
    assert!(place.read("report.html").contains("<h1>b, a</h1>"));
    let alone = place.run(&["report", "runs/a"]).ok();
    assert_eq!(alone.stdout, "runs/a/report.html\n");
    assert!(place.read("runs/a/report.html").contains("<h1>a</h1>"));
    let other = ["report", "runs/b", "--out", "report.html"];
    place.run(&other).refused(2, &["report.html: this file exists", "is a report of other runs", "--out"]);
    assert!(place.read("report.html").contains("<h1>b, a</h1>"));
    place.write("mine.html", "<h1>mine</h1>");
    place.run(&["report", "runs/a", "--out", "mine.html"]).refused(2, &["mine.html: this file exists", "--out"]);
    assert_eq!(place.read("mine.html"), "<h1>mine</h1>");
}

#[test]
fn pictures_are_written_for_the_figures_that_are_asked_for() {
    let place = two_runs();
    let ran = place.run(&["report", "runs/a", "runs/b", "--figure", "loss", "--figure", "lr", "--svg", "a.svg"]).ok();
    assert_eq!(ran.stdout, "a.svg\n");
    let drawing = place.read("a.svg");
    assert!(drawing.contains("<title>Loss, Learning rate</title>") && drawing.contains("xmlns="), "{drawing}");
    assert!(!place.path("report.html").exists(), "only what was asked for");

    place.run(&["report", "runs/a", "--png", "a.png"]).ok();
    let picture = fs::read(place.path("a.png")).expect("written");
    assert!(picture.starts_with(b"\x89PNG") && picture.len() > 5000, "{} bytes", picture.len());

    let refused = |more: &[&str], parts: &[&str]| {
        place.run(&[&["report", "runs/a"], more].concat()).refused(2, parts);
    };
    refused(&["--figure", "lose", "--svg", "x.svg"], &["--figure lose", "loss, nll, scores"]);
    refused(&["--figure", "power", "--svg", "x.svg"], &["logged nothing for it", "loss, nll, scores"]);
    refused(&["--figure", "loss"], &["--svg FILE"]);
    refused(&["--live", "--svg", "x.svg"], &["--live"]);
    place.run(&["report", "runs/a", "--svg", "a.svg"]).ok();
    refused(&["--svg", "a.png"], &["a.png: this file exists and is not an SVG picture"]);
    refused(&["--png", "a.svg"], &["a.svg: this file exists and is not a PNG picture"]);
    assert!(!place.path("x.svg").exists());
}

#[test]
fn paths_without_steps_are_refused_and_say_why() {
    let place = Workplace::new();
    place.run(&["report", "runs/none"]).refused(2, &["runs/none: this folder holds no run"]);
    place.write("runs/empty/config.toml", "");
    place.run(&["report", "runs/empty"]).refused(2, &["runs/empty: this run has no metrics.jsonl"]);
    place.write("runs/empty/metrics.jsonl", "{\"kind\":\"note\",\"note\":\"hello\"}\n");
    place.run(&["report", "runs/empty"]).refused(2, &["runs/empty: no step has been logged yet", "--live"]);
    place.run(&["report", "runs/none", "--live"]).refused(2, &["runs/none: this folder holds no run"]);
    place.run(&[&["report"], &["runs/empty"; 9][..]].concat()).refused(2, &["9 runs", "give fewer"]);
    assert!(!place.path("report.html").exists());
}

/// A run of an earlier version, and one that is being written: with fields of later versions, damaged lines and a torn end.
#[test]
fn old_growing_and_damaged_runs_are_shown_as_far_as_they_go() {
    let place = Workplace::new();
    let old = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/run-format-1/lm/run");
    copy_folder(&old, &place.path("runs/old"));
    place.run(&["report", "runs/old"]).ok();
    assert!(place.read("runs/old/report.html").contains("<figure id=\"bits\">"));

    place.write("runs/new/config.toml", "task = \"lm\"\n");
    let mut lines =
        String::from("{\"kind\":\"start\",\"schema\":2,\"device\":\"NVIDIA X\",\"devices\":2,\"step\":0}\n");
    for step in 1..=20 {
        lines += &format!("{{\"kind\":\"step\",\"step\":{step},\"loss\":{},\"lr\":1e-3}}\n", 3.0 / f64::from(step));
        lines += &format!(
            "{{\"kind\":\"window\",\"step\":{step},\"host\":{{\"elapsed_ms\":10,\"enqueue_ms\":7.5,\"drain_ms\":2.5}},\
             \"gpu\":{{\"power_w\":500.5}},\"device_memory\":{{\"live_bytes\":1000000000,\"peak_bytes\":2000000000}},\
             \"unknown\":{{\"a\":[1,2]}}}}\n"
        );
    }
    lines += "damaged\nagain\n{\"kind\":\"sample\",\"step\":20,\"source\":\"<i>\",\"output\":\"& more\",\"reference\":\"x\"}\n{\"kind\":\"st";
    place.write("runs/new/metrics.jsonl", &lines);

    let ran = place.run(&["report", "runs/old", "runs/new", "--out", "both.html"]).ok();
    assert!(ran.stderr.contains("runs/new: 3 damaged lines"), "{ran:#?}");
    let page = place.read("both.html");
    for part in [
        "<td>-</td><td>2 x NVIDIA X</td>",
        "still training, or killed",
        "id=\"power\"",
        "id=\"phases-2\"",
        "id=\"memory-device-memory-peak-bytes\"",
        "&lt;i&gt;",
        "&amp; more",
    ] {
        assert!(page.contains(part), "{part} is missing in {page}");
    }
    let alone = place.run(&["report", "runs/new", "--figure", "phases", "--svg", "phases.svg"]).ok();
    assert_eq!(alone.stdout, "phases.svg\n");
    assert!(place.read("phases.svg").contains("enqueue: 75 at step 1, 75 at step 20"), "{}", place.read("phases.svg"));
}

#[test]
fn a_live_report_follows_a_run_on_the_loopback_address() {
    let place = Workplace::new();
    place.write("runs/a/config.toml", "");
    let mut child = place
        .command(&["report", "runs/a", "--live"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut url = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut url).expect("its address");
    let address = url.trim().strip_prefix("http://").and_then(|rest| rest.strip_suffix('/')).expect("an address");
    assert!(address.starts_with("127.0.0.1:"), "{url}");

    let get = |path: &str| {
        let mut stream = TcpStream::connect(address).expect("it listens");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").expect("it reads");
        let mut page = String::new();
        stream.read_to_string(&mut page).expect("it answers");
        page
    };
    let waiting = get("/");
    assert!(waiting.contains("Nothing to show yet") && waiting.contains("http-equiv=\"refresh\""), "{waiting}");
    place.write("runs/a/metrics.jsonl", "{\"kind\":\"step\",\"step\":1,\"loss\":2.5}\n{\"kind\":\"st");
    let page = get("/");
    assert!(page.contains("<figure id=\"loss\">") && page.contains("content=\"5\""), "{page}");
    let paused = get("/paused");
    assert!(paused.contains("<figure id=\"loss\">") && !paused.contains("http-equiv=\"refresh\""), "{paused}");

    child.kill().expect("it runs");
    child.wait().expect("it ends");
}

/// Looks at a page in two frames, as wide as a phone and as a desktop, and writes what it found into its own body.
const LOOK: &str = "<!DOCTYPE html><title>look</title>
<iframe id=phone src=report.html style='width:390px;height:800px;border:0'></iframe>
<iframe id=desk src=report.html style='width:1200px;height:800px;border:0'></iframe>
<pre id=found></pre><script>
addEventListener('load', () => {
  const lines = [];
  for (const id of ['phone', 'desk']) {
    const view = document.getElementById(id).contentWindow, page = view.document;
    const pictures = [...page.querySelectorAll('figure svg')].map(svg => svg.getBoundingClientRect());
    const stops = [...page.querySelectorAll('a, summary, [tabindex]:not(details [tabindex])')];
    const focused = stops.filter(stop => { stop.focus(); return page.activeElement === stop; });
    const outside = pictures.filter(box => box.left < 0 || box.right > view.innerWidth + 1);
    const narrow = pictures.filter(box => box.width < 300 || box.height < 140);
    page.querySelector('summary').click();
    lines.push([id, 'overflow', page.documentElement.scrollWidth - view.innerWidth, 'pictures', pictures.length,
      'outside', outside.length, 'narrow', narrow.length, 'stops', stops.length, 'focused', focused.length,
      'opened', page.querySelectorAll('details[open] table').length,
      'page', view.getComputedStyle(page.body).backgroundColor,
      'line', view.getComputedStyle(page.querySelector('polyline[stroke=\"#0072B2\"]')).stroke].join(' '));
  }
  document.getElementById('found').textContent = 'FOUND\\n' + lines.join('\\n') + '\\nEND';
});
</script>";

/// What the browser found, a line for each frame.
fn look(browser: &Path, place: &Workplace, more: &[&str]) -> Vec<String> {
    let profile = tempfile::tempdir().expect("a folder");
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom"])
        .args(["--window-size=1300,900", "--virtual-time-budget=20000"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(more)
        .arg(format!("file://{}", place.path("look.html").display()))
        .output()
        .expect("it starts");
    let page = String::from_utf8_lossy(&output.stdout).into_owned();
    let found = page.split("FOUND\n").nth(1).and_then(|rest| rest.split("\nEND").next());
    let found = found.unwrap_or_else(|| panic!("{page}{}", String::from_utf8_lossy(&output.stderr)));
    found.lines().map(str::to_owned).collect()
}

#[test]
fn a_browser_shows_the_page_on_a_phone_by_keyboard_in_light_and_dark() {
    let Some(browser) = browser() else {
        println!("skipped: no Chromium or Chrome is installed (KILN_BROWSER names one)");
        return;
    };
    let place = two_runs();
    place.run(&["report", "runs/a", "runs/b"]).ok();
    place.write("look.html", LOOK);

    let light = look(&browser, &place, &[]);
    let number = |line: &str, name: &str| -> i64 {
        let mut words = line.split(' ').skip_while(|word| *word != name);
        words.nth(1).and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{name} in {line}"))
    };
    assert_eq!(light.len(), 2, "{light:?}");
    for line in &light {
        for name in ["overflow", "outside", "narrow"] {
            assert!(number(line, name) <= 0, "{name}: {line}");
        }
        assert!(number(line, "pictures") >= 8, "{line}");
        assert_eq!(number(line, "focused"), number(line, "stops"), "all are reached by keyboard: {line}");
        assert_eq!(number(line, "opened"), 1, "{line}");
        assert!(line.contains("page rgb(255, 255, 255) line rgb(0, 114, 178)"), "{line}");
    }
    let dark = look(&browser, &place, &["--blink-settings=preferredColorScheme=0"]);
    assert!(dark.iter().all(|line| line.contains("page rgb(18, 23, 28) line rgb(86, 180, 233)")), "{dark:?}");
}
