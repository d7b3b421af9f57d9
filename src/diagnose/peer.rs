//! The PyTorch script that is run beside us: started with the workload's arguments, its lines read.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// A line of the peer: `NAME compile=True: 33.20 ms/step 494000 effective tok/s MFU 40.1% peak 8.60 GiB ...`.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerTime {
    /// Through `torch.compile`, or eager.
    pub compiled: bool,
    /// Milliseconds a step.
    pub step_ms: f64,
    /// Tokens that are no padding, a second.
    pub tokens_per_sec: f64,
    /// Share of the peak, in percent.
    pub mfu_percent: f64,
    /// Peak memory in GiB.
    pub peak_gib: f64,
}

/// An operator's line of the peer: `matmul nt 16384x768x50304 1.780 ms 711 TFLOP/s`.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerOperator {
    /// What stands before the time.
    pub name: String,
    /// Milliseconds a call.
    pub ms: f64,
}

/// Runs `script` for its operators.
///
/// # Errors
/// As [`run`].
pub fn run_operators(script: &Path) -> Result<Vec<PeerOperator>> {
    let operators: Vec<PeerOperator> = output(script, &["ops"])?.lines().filter_map(parse_operator).collect();
    ensure!(!operators.is_empty(), "{} printed no operators", script.display());
    Ok(operators)
}

/// Runs `script` for the workload called `name` and returns what it measured: eager and compiled. Nothing for a workload that
/// it does not have.
///
/// # Errors
/// If Python or the script fails, or prints no figures for a workload that it has.
pub fn run(script: &Path, name: &str) -> Result<Option<Vec<PeerTime>>> {
    let arguments: &[&str] = match name {
        "gpt" => &["gpt", "--batch", "16"],
        "gpt64" => &["gpt", "--batch", "64"],
        "mt" => &["mt"],
        _ => return Ok(None),
    };
    let times: Vec<PeerTime> = output(script, arguments)?.lines().filter_map(parse).collect();
    ensure!(!times.is_empty(), "{} printed no figures for {name}", script.display());
    Ok(Some(times))
}

/// What `script` prints.
fn output(script: &Path, arguments: &[&str]) -> Result<String> {
    let python = std::env::var_os("KILN_PYTHON").unwrap_or_else(|| "python3".into());
    let output = Command::new(&python).arg(script).args(arguments).output().with_context(|| {
        format!("starting {} for the peer; set KILN_PYTHON to a Python with PyTorch", python.display())
    })?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{} ended with {}: {}",
        script.display(),
        output.status,
        errors.lines().last().unwrap_or_default()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn parse_operator(line: &str) -> Option<PeerOperator> {
    let (before, after) = line.split_once(" ms")?;
    if !(after.is_empty() || after.starts_with(' ')) {
        return None;
    }
    let (name, ms) = before.rsplit_once(' ')?;
    Some(PeerOperator { name: name.into(), ms: ms.parse().ok()? })
}

fn parse(line: &str) -> Option<PeerTime> {
    let (name, figures) = line.split_once(": ")?;
    let words: Vec<&str> = figures.split_whitespace().collect();
    let before = |unit: &str| -> Option<f64> { words[words.iter().position(|word| *word == unit)? - 1].parse().ok() };
    let after = |label: &str| -> Option<f64> {
        words.get(words.iter().position(|word| *word == label)? + 1)?.trim_end_matches('%').parse().ok()
    };
    Some(PeerTime {
        compiled: name.ends_with("compile=True"),
        step_ms: before("ms/step")?,
        tokens_per_sec: before("effective")?,
        mfu_percent: after("MFU")?,
        peak_gib: after("peak")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_peer_is_read() {
        let line = "gpt124m B16 T1024 compile=True: 33.20 ms/step 493494 effective tok/s MFU 40.1% peak 8.60 GiB warmup 18.0s loss 10.9";
        let expected =
            PeerTime { compiled: true, step_ms: 33.2, tokens_per_sec: 493_494.0, mfu_percent: 40.1, peak_gib: 8.6 };
        assert_eq!(parse(line), Some(expected));
        assert_eq!(parse("attention fwd causal=True 0.088 ms 293 TFLOP/s"), None);
        assert_eq!(parse("Traceback (most recent call last): 1"), None);
    }

    #[test]
    fn an_operator_of_the_peer_is_read() {
        let found = parse_operator("attention fwd+bwd causal=True 0.376 ms 959 TFLOP/s");
        assert_eq!(found, Some(PeerOperator { name: "attention fwd+bwd causal=True".into(), ms: 0.376 }));
        assert_eq!(parse_operator("gpt124m B16 T1024 compile=True: 33.20 ms/step"), None);
        assert_eq!(parse_operator("Traceback ms"), None);
    }

    #[test]
    fn a_script_that_fails_is_an_error_with_its_last_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let script = folder.path().join("peer.py");
        std::fs::write(&script, "import sys\nsys.exit('no module named torch')\n").expect("writable");
        let error = run(&script, "mt").expect_err("it fails").to_string();
        assert!(error.contains("no module named torch") || error.contains("starting"), "{error}");
    }
}
