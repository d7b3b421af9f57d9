//! What ranks must have in common before they train, score or translate together.

use std::fs::File;
use std::sync::OnceLock;

use anyhow::Result;
use kiln_data::files::read_file;
use kiln_ranks::Ranks;

use super::trained_model::TrainedModel;
use crate::checkpoint::{MANIFEST_FILE, Resume, fields, is_within};
use crate::config::{Config, GenerateConfig};
use crate::dataset::RunData;

/// Keys that may differ from rank to rank: where a machine has its files, and how it reads them.
const OWN: [&str; 6] =
    ["data.train", "data.valid", "data.mix", "data.cache_dir", "loader.num_workers", "loader.prefetch_factor"];

/// Refuses ranks that would not compute the same: with another program, configuration, data or vocabulary, or another
/// checkpoint to continue from.
///
/// # Errors
/// If a rank differs; the error lists each difference.
pub(super) fn compare(ranks: &Ranks, config: &Config, data: &RunData, resume: Option<&Resume>) -> Result<()> {
    let Some(link) = ranks.link() else { return Ok(()) };
    let mut facts: Vec<(String, String)> =
        fields(config).into_iter().filter(|(key, _)| !OWN.iter().any(|own| is_within(key, own))).collect();
    let mut add = |name: &str, value: String| facts.push((name.to_owned(), value));

    add("program", program().to_owned());
    add("training data", data.train.fingerprint());
    add("validation data", data.valid.as_ref().map_or("none".into(), |valid| valid.fingerprint()));
    add("vocabulary", data.vocabulary.fingerprint());
    let step = resume.map_or("a new run".into(), |resume| format!("step {}", resume.snapshot.state.step));
    add("checkpoint", step);
    Ok(link.compare(&facts)?)
}

/// Refuses ranks that would not score or translate the same: with another program, checkpoint, text or way to generate.
///
/// # Errors
/// If a rank differs; the error lists each difference.
pub fn compare_use(ranks: &Ranks, run: &TrainedModel, generate: &GenerateConfig, text: &str) -> Result<()> {
    let Some(link) = ranks.link() else { return Ok(()) };
    // The manifest has the hashes of all files.
    let manifest = read_file(&run.path.join(MANIFEST_FILE)).unwrap_or_default();
    let facts = [
        ("program", program().to_owned()),
        ("checkpoint", format!("step {}, {}", run.step, short(&blake3::hash(&manifest)))),
        ("text", text.to_owned()),
        ("how to generate", format!("{generate:?}")),
    ];
    Ok(link.compare(&facts.map(|(name, value)| (name.to_owned(), value)))?)
}

fn short(hash: &blake3::Hash) -> String {
    hash.to_hex()[..12].to_owned()
}

/// Returns the version and the hash of this executable.
fn program() -> &'static str {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let hash = || -> std::io::Result<blake3::Hash> {
            let mut hasher = blake3::Hasher::new();
            hasher.update_reader(File::open(std::env::current_exe()?)?)?;
            Ok(hasher.finalize())
        };
        let hash = hash().map_or("unreadable".into(), |hash| short(&hash));
        format!("{} {hash}", env!("CARGO_PKG_VERSION"))
    })
}
