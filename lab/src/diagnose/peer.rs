//! The PyTorch baseline that `kiln bench --peer` runs next to Kiln, and the lines that it prints.
//!
//! The scripts of `benches/pytorch` are carried in the binary. Another program can take their place; its README has the line
//! protocol.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tempfile::TempDir;

use super::decoding::Decoding;
use super::workload::Workload;

/// The script of the baseline that is started, and the modules that it imports.
const SCRIPT: &str = "train_step.py";
/// The script of the carried baseline that decodes.
const DECODING: &str = "decode.py";
const CARRIED: [(&str, &str); 5] = [
    (SCRIPT, include_str!("pytorch/train_step.py")),
    (DECODING, include_str!("pytorch/decode.py")),
    ("operators.py", include_str!("pytorch/operators.py")),
    ("models.py", include_str!("pytorch/models.py")),
    ("transformer.py", include_str!("pytorch/transformer.py")),
];

/// Exits with 0 if PyTorch is installed. Looking it up takes milliseconds, importing it takes seconds.
const HAS_TORCH: &str = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)";

/// A program that measures the same workloads as Kiln.
#[derive(Debug)]
pub struct Peer {
    python: OsString,
    script: PathBuf,
    /// Holds the carried scripts, and is removed with this value.
    folder: Option<TempDir>,
}

/// A training step as the baseline reports it: `NAME compile=True: 33.20 ms/step 494000 effective tok/s MFU 40.1% ...`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerTime {
    /// Through `torch.compile`, or eager.
    pub compiled: bool,
    /// Milliseconds per step.
    pub step_ms: f64,
    /// Non-padding tokens per second.
    pub tokens_per_sec: f64,
    /// Percentage of the device's peak; NaN if the peak is unknown.
    pub mfu_percent: f64,
    /// Peak memory in GiB: of the device; on the CPU, of the process.
    pub peak_gib: f64,
}

/// An operator as the baseline reports it: `matmul nt 16384x768x50304 1.780 ms 711 TFLOP/s`.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerOperator {
    /// The part of the line before the time.
    pub(crate) name: String,
    /// Milliseconds per call.
    pub(crate) ms: f64,
}

/// A search as another program reports it.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerDecoding {
    /// The program, with its settings.
    pub program: String,
    /// Seconds, and tokens per second; or why there are none.
    pub found: std::result::Result<[f64; 2], String>,
}

impl Peer {
    /// The baseline that the binary carries, in a temporary folder.
    ///
    /// # Errors
    /// If Python cannot be started, has no PyTorch, or the folder cannot be written.
    pub fn carried() -> Result<Self> {
        let python = python();
        check_torch(&python)?;

        let folder = tempfile::Builder::new().prefix("kiln-pytorch-").tempdir();
        let folder = folder.context("making a temporary folder for the PyTorch baseline")?;
        for (name, text) in CARRIED {
            let path = folder.path().join(name);
            fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(Self { python, script: folder.path().join(SCRIPT), folder: Some(folder) })
    }

    /// Another program with the same protocol.
    ///
    /// # Errors
    /// If there is no such file.
    pub fn script(script: &Path) -> Result<Self> {
        // A pipe exists too, but is not a file.
        ensure!(script.exists(), "--peer {}: there is no such file", script.display());
        Ok(Self { python: python(), script: script.into(), folder: None })
    }

    /// Measures `workload`, eager and compiled. `machine` adds what [`Workload::as_json`] leaves out: device, precision, peak,
    /// steps. Returns `None` for a workload that another program than the carried one does not have.
    ///
    /// # Errors
    /// If Python or the script fails, or if it prints no figures for a workload that it has.
    pub fn step_times(&self, workload: &Workload, machine: &Value) -> Result<Option<Vec<PeerTime>>> {
        let folder = tempfile::tempdir().context("making a temporary folder for a workload")?;
        let path = folder.path().join("workload.json");
        let described = path.to_string_lossy();
        // The headline workloads have a program of their own, which other programs know, too.
        let headline = match workload.name.as_str() {
            "gpt" => Some(vec!["gpt", "--batch", "16"]),
            "gpt64" => Some(vec!["gpt", "--batch", "64"]),
            "mt" => Some(vec!["mt"]),
            _ => None,
        };
        let is_headline = workload.is_as_named() && machine["device"] == "cuda" && machine["dtype"] == "bf16";
        let headline = headline.filter(|_| is_headline);
        let is_headline = headline.is_some();
        if !is_headline {
            let mut all = workload.as_json();
            let fields = machine.as_object().into_iter().flatten();
            fields.for_each(|(key, value)| all[key] = value.clone());
            fs::write(&path, all.to_string()).with_context(|| format!("writing {}", path.display()))?;
        }

        let output = self.output(&headline.unwrap_or_else(|| vec!["model", &described]))?;
        let times: Vec<PeerTime> = output.lines().filter_map(parse_step).collect();
        if times.is_empty() && !is_headline && self.folder.is_none() {
            return Ok(None);
        }
        ensure!(!times.is_empty(), "{} printed no figures for {}", self.script.display(), workload.name);
        Ok(Some(times))
    }

    /// Measures the baseline's operators.
    ///
    /// # Errors
    /// As [`Peer::step_times`].
    pub fn operators(&self) -> Result<Vec<PeerOperator>> {
        let operators: Vec<PeerOperator> = self.output(&["ops"])?.lines().filter_map(parse_operator).collect();
        ensure!(!operators.is_empty(), "{} printed no operators", self.script.display());
        Ok(operators)
    }

    /// Measures the same searches by other programs. Returns the lines of each: a program, and its seconds and tokens per second, or why
    /// it has none.
    ///
    /// # Errors
    /// If the baseline is not the carried one, which alone can decode; if Python or the script fails.
    pub fn decodings(&self, decodings: &[Decoding], machine: &Value) -> Result<Vec<Vec<PeerDecoding>>> {
        ensure!(self.folder.is_some(), "--peer {} does not decode: give --peer alone", self.script.display());
        let folder = tempfile::tempdir().context("making a temporary folder for the searches")?;
        let path = folder.path().join("cases.json");
        let cases: Vec<Value> = decodings
            .iter()
            .map(|decoding| {
                let mut case = serde_json::to_value(decoding.task).expect("names and numbers");
                case["model"] = decoding.model.into();
                ["device", "dtype"].into_iter().for_each(|key| case[key] = machine[key].clone());
                case
            })
            .collect();
        fs::write(&path, serde_json::to_string(&cases)?).with_context(|| format!("writing {}", path.display()))?;
        let output = self.output_of(&self.script.with_file_name(DECODING), &[&path.to_string_lossy()])?;
        let of = |number| output.lines().filter_map(|line| parse_decoding(line, number)).collect();
        Ok((0..decodings.len()).map(of).collect())
    }

    /// Runs the script and returns its stdout.
    fn output(&self, arguments: &[&str]) -> Result<String> {
        self.output_of(&self.script, arguments)
    }

    fn output_of(&self, script: &Path, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.python);
        // With this variable, Python would not find the modules next to the script.
        command.arg(script).args(arguments).env_remove("PYTHONSAFEPATH");
        let output = command.output().with_context(|| cannot_start(&self.python))?;

        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "{} {} ended with {}: {}",
            script.display(),
            arguments.join(" "),
            output.status,
            errors.lines().last().unwrap_or_default()
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn python() -> OsString {
    std::env::var_os("KILN_PYTHON").unwrap_or_else(|| "python3".into())
}

fn cannot_start(python: &OsString) -> String {
    format!(
        "--peer: cannot start {}, which runs the PyTorch baseline; set KILN_PYTHON to a Python with PyTorch",
        python.display()
    )
}

/// Reads `decode 3 PROGRAM 1.234 s 567 tok/s` or `decode 3 PROGRAM failed: REASON` of search `number`.
fn parse_decoding(line: &str, number: usize) -> Option<PeerDecoding> {
    let rest = line.strip_prefix("decode ")?.strip_prefix(&format!("{number} "))?;
    let (program, rest) = rest.split_once(' ')?;
    let found = match rest.strip_prefix("failed: ") {
        Some(reason) => Err(reason.to_owned()),
        None => {
            let words: Vec<&str> = rest.split(' ').collect();
            let [seconds, "s", rate, "tok/s"] = words[..] else { return None };
            Ok([seconds.parse().ok()?, rate.parse().ok()?])
        }
    };
    Some(PeerDecoding { program: program.to_owned(), found })
}

/// Before anything is timed: a missing PyTorch would otherwise be noticed after minutes.
fn check_torch(python: &OsString) -> Result<()> {
    let output = Command::new(python).args(["-c", HAS_TORCH]).output().with_context(|| cannot_start(python))?;
    if output.status.success() {
        return Ok(());
    }

    let errors = String::from_utf8_lossy(&output.stderr);
    let reason = errors.lines().last().map(|line| format!(" ({line})")).unwrap_or_default();
    bail!(
        "--peer: {} has no PyTorch{reason}; install it with `{0} -m pip install 'torch==2.11.*'`, or set KILN_PYTHON to a \
         Python that has it",
        python.display()
    )
}

fn parse_operator(line: &str) -> Option<PeerOperator> {
    let (before, after) = line.split_once(" ms")?;
    if !(after.is_empty() || after.starts_with(' ')) {
        return None;
    }
    let (name, ms) = before.rsplit_once(' ')?;
    Some(PeerOperator { name: name.into(), ms: ms.parse().ok()? })
}

fn parse_step(line: &str) -> Option<PeerTime> {
    let (name, figures) = line.split_once(": ")?;
    let words: Vec<&str> = figures.split_whitespace().collect();
    let before = |unit: &str| -> Option<f64> {
        let at = words.iter().position(|word| *word == unit)?;
        words.get(at.checked_sub(1)?)?.parse().ok()
    };
    let after = |label: &str| -> Option<f64> {
        let at = words.iter().position(|word| *word == label)?;
        words.get(at + 1)?.trim_end_matches('%').parse().ok()
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
    use serde_json::json;

    use super::*;

    const README: &str = include_str!("../../../benches/pytorch/README.md");

    /// A program that stands in for Python: `sh`, which runs the script it is given.
    fn shell(script: &Path) -> Peer {
        Peer { python: "sh".into(), ..Peer::script(script).expect("the script exists") }
    }

    #[test]
    fn a_line_of_a_training_step_is_read() {
        let line = "gpt124m B16 T1024 compile=True: 33.20 ms/step 493494 effective tok/s MFU 40.1% peak 8.60 GiB warmup 18.0s loss 10.9";
        let expected =
            PeerTime { compiled: true, step_ms: 33.2, tokens_per_sec: 493_494.0, mfu_percent: 40.1, peak_gib: 8.6 };
        assert_eq!(parse_step(line), Some(expected));
        assert_eq!(parse_step("attention fwd causal=True 0.088 ms 293 TFLOP/s"), None);
        assert_eq!(parse_step("Traceback (most recent call last): 1"), None);
        assert_eq!(parse_step("NAME compile=True: ms/step effective MFU peak"), None, "labels without figures");
    }

    #[test]
    fn a_line_of_an_operator_is_read() {
        let found = parse_operator("attention fwd+bwd causal=True 0.376 ms 959 TFLOP/s");
        assert_eq!(found, Some(PeerOperator { name: "attention fwd+bwd causal=True".into(), ms: 0.376 }));
        assert_eq!(parse_operator("gpt124m B16 T1024 compile=True: 33.20 ms/step"), None);
        assert_eq!(parse_operator("Traceback ms"), None);
    }

    #[test]
    fn the_example_lines_of_the_readme_follow_the_protocol() {
        let protocol = README.split("## Line protocol").nth(1).expect("the README describes the protocol");
        let blocks: Vec<&str> =
            protocol.split("```text\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).collect();
        let [steps, operators] = blocks[..] else { panic!("one block of steps, one of operators: {blocks:?}") };

        let steps: Vec<PeerTime> =
            steps.lines().map(|line| parse_step(line).unwrap_or_else(|| panic!("not a step: {line}"))).collect();
        assert!(steps.iter().any(|step| step.compiled) && steps.iter().any(|step| !step.compiled), "{steps:?}");
        assert!(steps.iter().all(|step| step.step_ms > 1.0 && step.peak_gib > 1.0), "{steps:?}");

        for line in operators.lines() {
            let operator = parse_operator(line).unwrap_or_else(|| panic!("not an operator: {line}"));
            assert!(crate::diagnose::operators::is_known(&operator.name), "Kiln has no {}", operator.name);
        }
    }

    #[test]
    fn a_script_that_fails_is_an_error_with_its_last_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let script = folder.path().join("peer.sh");
        fs::write(&script, "echo first >&2\necho the device is gone >&2\nexit 3\n").expect("writable");
        let measure = |name: &str| {
            let workload = Workload::named(name).expect("a listed name");
            shell(&script).step_times(&workload, &json!({ "device": "cuda", "dtype": "bf16" }))
        };
        let error = measure("mt").expect_err("it fails").to_string();
        assert!(error.ends_with("the device is gone") && error.contains("peer.sh mt"), "{error}");

        fs::write(&script, "echo nothing of use\n").expect("writable");
        let error = measure("gpt").expect_err("no figures").to_string();
        assert!(error.contains("printed no figures for gpt"), "{error}");
        assert_eq!(measure("tiny").expect("a workload that the program lacks"), None);
    }

    #[test]
    fn a_missing_python_and_a_missing_pytorch_are_named() {
        let missing = OsString::from("/nowhere/python3");
        let error = format!("{:#}", check_torch(&missing).expect_err("there is no such Python"));
        assert!(error.contains("cannot start /nowhere/python3") && error.contains("KILN_PYTHON"), "{error}");

        // `false` exits with 1, as a Python without PyTorch does; `true` with 0.
        let error = check_torch(&"false".into()).expect_err("no PyTorch").to_string();
        assert!(error.contains("false has no PyTorch;") && error.contains("KILN_PYTHON"), "{error}");
        check_torch(&"true".into()).expect("PyTorch is found");
    }

    #[test]
    fn the_carried_scripts_are_python() {
        let check = "import ast, sys; ast.parse(sys.argv[1])";
        for (name, text) in CARRIED {
            let Ok(output) = Command::new("python3").args(["-c", check, text]).output() else {
                println!("skipped: there is no python3");
                return;
            };
            assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}
