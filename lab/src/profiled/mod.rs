//! Profiles as files: of `kiln profile`, and of steps of runs that go on training (`train.profile_at`).

mod text;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use burn::tensor::Device;
use kiln_data::files::replace::replace_file;
use kiln_train::train::{ProfiledRun, Rehearsed, StepProfiler, Watched};

use crate::diagnose::profile::{Profile, StepRecorder, Trace, sums};
use crate::report::{memory_line, roofline};

pub use self::text::text;

/// The file with all rows of all tables.
pub use crate::report::profiles::PROFILE_FILE;

/// Writes a profile into `folder`, which exists. Returns the names of the files.
///
/// # Errors
/// If a picture cannot be drawn or a file cannot be written.
pub fn write(folder: &Path, profile: &Profile, trace: &Trace) -> Result<Vec<&'static str>> {
    let memory = profile.memory.as_ref().map(memory_line::file).transpose()?;
    let files = [
        ("trace.json", Some(serde_json::to_string(trace)?)),
        (PROFILE_FILE, Some(serde_json::to_string_pretty(profile)?)),
        ("roofline.svg", Some(roofline::file(profile)?)),
        ("memory.svg", memory),
    ];
    let mut names = Vec::new();
    for (name, content) in files.into_iter().filter_map(|(name, content)| Some((name, content?))) {
        write_file(folder, name, content.as_bytes())?;
        names.push(name);
    }
    Ok(names)
}

fn write_file(folder: &Path, name: &str, content: &[u8]) -> Result<()> {
    let path = folder.join(name);
    replace_file(&path, content).with_context(|| format!("writing {}", path.display()))
}

/// The measurement of `train.profile_at`.
#[derive(Debug, Default)]
pub struct RunProfiler(StepRecorder);

impl StepProfiler for RunProfiler {
    fn begin(&mut self, watched: Watched, device: &Device) {
        match watched {
            Watched::Times => self.0.begin_times(device),
            Watched::Memory => self.0.begin_memory(device),
        }
    }

    fn end(&mut self, watched: Watched, step: Rehearsed, run: &ProfiledRun<'_>) -> Result<()> {
        match watched {
            Watched::Times => self.0.end_times(step),
            Watched::Memory => self.0.end_memory(step, run),
        }
    }

    fn write(&mut self, run: &ProfiledRun<'_>, notes: &[String]) -> Result<String> {
        let (profile, trace) = self.0.finish(run, notes)?;
        // Files that cannot be written do not end a run, nor let other ranks wait.
        Ok(match write_all(run, &profile, &trace) {
            Ok(()) => sentence(run, &profile),
            Err(error) => format!("train.profile_at: the profile of step {} is lost: {error:#}", run.step),
        })
    }
}

/// Writes the profile of a run, with its tables as text.
fn write_all(run: &ProfiledRun<'_>, profile: &Profile, trace: &Trace) -> Result<()> {
    if !run.ranks.is_first() {
        return Ok(());
    }
    fs::create_dir_all(run.folder).with_context(|| format!("making the folder {}", run.folder.display()))?;
    write(run.folder, profile, trace)?;
    write_file(run.folder, "profile.txt", text(profile).as_bytes())
}

/// Says what was found in the step, and where the files are.
fn sentence(run: &ProfiledRun<'_>, profile: &Profile) -> String {
    let most = sums(&profile.operators).into_iter().next();
    let most = most.map_or(String::new(), |sum| format!(", {:.0} % of it {}", 100.0 * sum.share, sum.name));
    format!("profiled step {}: {:.2} ms{most}; written to {}", run.step, profile.step_ms(), run.folder.display())
}
