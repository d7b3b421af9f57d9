//! `kiln train --restarts N`: a run that is started again when one of its processes dies.

use std::env;
use std::ffi::OsString;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use kiln_data::files::open_file;
use kiln_metrics::logging::METRICS_FILE;
use kiln_metrics::logging::print::stderr_line;
use kiln_ranks::launch::Signals;
use kiln_train::checkpoint::RUN_CONFIG_FILE;
use serde_json::Value;

use crate::cli::exit::{BAD_DATA, INTERRUPTED, USAGE};
use crate::cli::together::DevicesArgs;

/// Starts that take no step, one after another, after which the run does not start again.
const STARTS_WITHOUT_STEP: usize = 3;
/// The last step stands in so many bytes at the end of `metrics.jsonl`.
const TAIL: u64 = 1 << 18;

/// How a start of the run has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct End {
    code: u8,
    /// The last step that it has written; `None` if it has taken none.
    step: Option<u64>,
}

/// Trains in other processes, and starts them again when one dies.
pub(super) fn run(devices: &DevicesArgs, dir: &Path, restarts: u32) -> Result<ExitCode> {
    let signals = Signals::listen().context("listening for Ctrl-C")?;
    let args = without(&env::args_os().skip(1).collect::<Vec<_>>(), "--restarts", true);
    let mut ends: Vec<End> = Vec::new();
    loop {
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let again = !ends.is_empty() && dir.join(RUN_CONFIG_FILE).exists();
        let code = devices.start(&if again { continuing(&args) } else { args.clone() }, &signals)?;
        if code == 0 || [USAGE, BAD_DATA, INTERRUPTED].contains(&code) {
            return Ok(ExitCode::from(code));
        }
        ends.push(End { code, step: last_step(dir, began) });

        let n = ends.len();
        let stopped = signals.end_was_asked().then(|| "it was asked to end".to_owned());
        let used_up = || (n > restarts as usize).then(|| format!("{restarts} restarts are used up"));
        if let Some(reason) = stopped.or_else(|| hopeless(&ends)).or_else(used_up) {
            stderr_line!("the run has failed with exit code {code}, and is not started again: {reason}");
            return Ok(ExitCode::from(code));
        }
        let step = ends[n - 1].step.map_or("before its first step".to_owned(), |step| format!("after step {step}"));
        stderr_line!(
            "restart {n} of {restarts}: the run has ended with exit code {code} {step}; it continues from its newest checkpoint"
        );
    }
}

/// Returns the `args` that continue what `args` have begun. A run that has begun has its weights and vocabulary.
fn continuing(args: &[OsString]) -> Vec<OsString> {
    let mut all = without(&without(args, "--from", true), "--new-vocabulary", false);
    if !all.iter().any(|arg| arg.to_string_lossy().starts_with("--resume")) {
        all.push("--resume=auto".into());
    }
    all
}

/// Returns the `args` without the flag `name` and, if it has one, its value.
fn without(args: &[OsString], name: &str, has_value: bool) -> Vec<OsString> {
    let mut args = args.iter();
    let mut kept = Vec::new();
    while let Some(arg) = args.next() {
        match arg.to_str().and_then(|arg| arg.strip_prefix(name)) {
            Some("") if has_value => drop(args.next()),
            Some("") => (),
            Some(value) if value.starts_with('=') => (),
            _ => kept.push(arg.clone()),
        }
    }
    kept
}

/// Says why another start would fail, too.
fn hopeless(ends: &[End]) -> Option<String> {
    if let [.., before, now] = ends
        && let Some(step) = now.step
        && before == now
    {
        return Some(format!("it has failed twice after step {step}"));
    }
    let without = ends.iter().rev().take_while(|end| end.step.is_none()).count();
    (without >= STARTS_WITHOUT_STEP).then(|| format!("{without} starts in a row have taken no step"))
}

/// Returns the last step in `metrics.jsonl` that was written since `began`, in seconds of Unix time.
fn last_step(dir: &Path, began: f64) -> Option<u64> {
    let mut file = open_file(&dir.join(METRICS_FILE)).ok()?;
    let size = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(TAIL))).ok()?;
    let mut tail = Vec::new();
    file.take(TAIL).read_to_end(&mut tail).ok()?;
    let lines = tail.split(|byte| *byte == b'\n').rev();
    let mut steps =
        lines.filter_map(|line| serde_json::from_slice::<Value>(line).ok()).filter(|line| line["kind"] == "step");
    let last = steps.next()?;
    (last["time"].as_f64()? >= began).then(|| last["step"].as_u64())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_step_fails_once_more_and_no_further() {
        let end = |code, step| End { code, step };
        assert_eq!(hopeless(&[end(1, Some(5))]), None);
        assert_eq!(hopeless(&[end(137, Some(5)), end(137, Some(7))]), None);
        assert_eq!(hopeless(&[end(137, Some(5)), end(1, Some(5))]), None, "another failure");
        assert!(hopeless(&[end(1, Some(5)), end(1, Some(5))]).expect("hopeless").contains("twice after step 5"));
        assert_eq!(hopeless(&[end(1, None), end(1, None)]), None);
        assert_eq!(hopeless(&[end(1, None), end(1, Some(2)), end(1, None), end(1, None)]), None);
        assert!(hopeless(&[end(9, None), end(1, None), end(9, None)]).expect("hopeless").contains("no step"));
    }

    #[test]
    fn only_its_own_argument_is_taken_out() {
        let args = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let first = |text: &str| without(&args(text), "--restarts", true);
        assert_eq!(first("train --restarts 3 --run r"), args("train --run r"));
        assert_eq!(first("train --run r --restarts=3 --resume"), args("train --run r --resume"));

        let next = |text: &str| continuing(&args(text));
        assert_eq!(next("train --from a --run r --new-vocabulary"), args("train --run r --resume=auto"));
        assert_eq!(next("train --from=a --run r --resume auto"), args("train --run r --resume auto"));
    }

    #[test]
    fn steps_of_earlier_starts_do_not_count() {
        let dir = tempfile::tempdir().expect("a folder");
        assert_eq!(last_step(dir.path(), 0.0), None);
        let lines = "{\"kind\":\"step\",\"step\":4,\"time\":99.5}\n{\"kind\":\"save\",\"step\":4}\n{\"kind\":\"st";
        std::fs::write(dir.path().join(METRICS_FILE), lines).expect("writable");
        assert_eq!((last_step(dir.path(), 99.0), last_step(dir.path(), 100.0)), (Some(4), None));
    }
}
