//! Runs the command in a folder of its own.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A model so small that a step takes milliseconds.
pub(crate) const SMALL: [&str; 12] = [
    "model.d_model=32",
    "model.n_heads=2",
    "model.d_ff=64",
    "model.n_encoder_layers=1",
    "model.n_decoder_layers=1",
    "loader.batch_tokens=256",
    "loader.num_workers=1",
    "optim.warmup_steps=5",
    "train.log_every=2",
    "train.validate_every=0",
    "train.save_every=0",
    "model.dropout=0.1",
];

/// A folder to run in.
pub(crate) struct Workplace {
    folder: TempDir,
}

/// What a run of the command left behind.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Workplace {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("writable");
        fs::write(&path, content).expect("writable");
        path
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// The command with these arguments, here and on the CPU, not yet started.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
        command.args(arguments).current_dir(self.folder.path()).env("RUST_BACKTRACE", "0");
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        self.run_with_input(arguments, "")
    }

    pub(crate) fn run_with_input(&self, arguments: &[&str], input: impl AsRef<[u8]>) -> Ran {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        // A command that fails early closes its stdin: no matter.
        let _ = child.stdin.take().expect("piped").write_all(input.as_ref());
        let output = child.wait_with_output().expect("it ends");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        Ran {
            code: output.status.code().expect("not killed"),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    /// `kiln train` with [`SMALL`] and further arguments.
    pub(crate) fn train(&self, arguments: &[&str]) -> Ran {
        let mut all = vec!["train", "--device", "cpu"];
        all.extend(SMALL.iter().flat_map(|set| ["--set", *set]));
        all.extend(arguments);
        self.run(&all)
    }
}

impl Ran {
    /// Fails the test unless the command succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{self:#?}");
        self
    }

    /// Fails the test unless the command failed with `code` and a message with all of `parts`, and printed no result.
    #[track_caller]
    pub(crate) fn refused(self, code: i32, parts: &[&str]) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        for part in parts {
            assert!(self.stderr.contains(part), "{part:?} is missing in {self:#?}");
        }
        assert_eq!(self.stdout, "", "a refusal is no result: {self:#?}");
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
        self
    }
}

/// The first browser that is installed; `KILN_BROWSER` names another one.
pub(crate) fn browser() -> Option<PathBuf> {
    let named = std::env::var_os("KILN_BROWSER").map(PathBuf::from);
    let names = ["chromium", "chromium-browser", "google-chrome-stable", "google-chrome"].map(PathBuf::from);
    named
        .into_iter()
        .chain(names)
        .find(|program| Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success()))
}

/// A folder with everything in it, elsewhere.
pub(crate) fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("writable");
    for entry in fs::read_dir(from).expect("there") {
        let entry = entry.expect("readable");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("known").is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("copied");
        }
    }
}
