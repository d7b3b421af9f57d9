//! Whatever is printed passes `terminal::clean`: only a few files may touch stdout, stderr or the terminal itself.

use super::PROGRAM;
use super::scan::words;
use super::tree;

/// The files that clean what they print.
const CLEANING: [&str; 2] = ["metrics/src/logging/print.rs", "metrics/src/logging/console.rs"];
/// What may be asked of a stream anywhere, since it prints nothing.
const QUESTIONS: [&str; 3] = [".is_terminal()", ".as_fd()", ".size"];

/// The ways around the cleaning that `code` takes.
fn ways_around(code: &str) -> Vec<String> {
    let macros = ["print", "println", "eprint", "eprintln", "dbg"].into_iter().flat_map(|name| {
        let is_called = move |at: &usize| code[at + name.len()..].starts_with('!');
        words(code, name).filter(is_called).map(move |_| format!("{name}!"))
    });
    let streams = ["stdout", "stderr"].into_iter().flat_map(|name| {
        let after = move |at: usize| code[at + name.len()..].strip_prefix("()");
        let opens = move |at: &usize| {
            let is_of_this_process = code[..*at].ends_with("io::") || code[..*at].ends_with("Term::");
            let prints = |after: &str| !QUESTIONS.iter().any(|question| after.trim_start().starts_with(question));
            is_of_this_process && after(*at).is_some_and(prints)
        };
        words(code, name).filter(opens).map(move |_| format!("io::{name}()"))
    });
    let bars = ["ProgressBar", "set_message"].into_iter();
    let bars = bars.flat_map(|name| words(code, name).map(move |_| name.to_owned()));
    macros.chain(streams).chain(bars).collect()
}

#[test]
fn nothing_is_printed_around_the_cleaning() {
    let mut found = Vec::new();
    for source in tree::sources() {
        let is_of_a_command = PROGRAM.iter().chain(&["data/src/"]).any(|folder| source.path.starts_with(folder));
        if !is_of_a_command || source.is_test || CLEANING.contains(&source.path.as_str()) {
            continue;
        }
        let code = &source.scanned.code;
        let code = &code[..code.find("mod tests {").unwrap_or(code.len())];
        found.extend(ways_around(code).into_iter().map(|way| format!("{}: {way}", source.path)));
    }
    // The bar of the console, of which the pulse changes the time alone; the width of a terminal.
    let allowed = ["metrics/src/logging/pulse.rs: ProgressBar", "metrics/src/logging/pulse.rs: set_message"];
    found.retain(|way| !allowed.contains(&way.as_str()) && !way.starts_with("metrics/src/logging/wrap.rs: io::"));
    assert!(found.is_empty(), "use the macros of metrics/src/logging/print.rs:\n  {}", found.join("\n  "));
}

#[test]
fn each_way_around_is_seen() {
    for (code, ways) in [
        ("println!(a)", 1),
        ("eprint!(a); dbg!(b)", 2),
        ("writeln!(std::io::stderr(), a)", 1),
        ("let out = io::stdout().lock();", 1),
        ("io::stderr()\n.is_terminal()", 0),
        ("child.stdout().read()", 0),
        ("ProgressBar::new(1)", 1),
        ("stdout_line!(a); stderr_line!(b)", 0),
    ] {
        assert_eq!(ways_around(code).len(), ways, "{code}");
    }
}
