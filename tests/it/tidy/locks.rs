//! The project outside the workspace has a lock of its own, out of date as soon as a crate of ours takes a dependency, and a
//! profile of its own: where it differs from ours, CI compiles all of Burn once more.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::process::Command;

use serde_json::Value as Json;
use toml::{Table, Value};

use super::tree::read;

const LOCK: &str = "examples/burn-project/Cargo.lock";
const MANIFEST: &str = "examples/burn-project/Cargo.toml";

#[test]
fn the_outside_project_locks_every_dependency_of_our_crates() {
    let lock: Table = read(LOCK).parse().expect("a lock is TOML");
    let packages = lock["package"].as_array().expect("a lock has packages");

    let crates = ["data", "model/kernels", "model", "interchange", "ranks", "train"];
    for manifest in crates.map(|folder| format!("{folder}/Cargo.toml")) {
        let manifest: Table = read(&manifest).parse().expect("a manifest is TOML");
        let name = &manifest["package"]["name"];
        let package = packages.iter().find(|package| package["name"] == *name).expect("the project takes this crate");
        let locked: Vec<&str> = package["dependencies"].as_array().expect("a list").iter().map(crate_name).collect();

        // Those of one system, such as `[target.'cfg(unix)'.dependencies]`, are locked on every system.
        let targets = manifest.get("target").and_then(Value::as_table).into_iter().flatten();
        let of_targets = targets.filter_map(|(_, target)| target.get("dependencies")?.as_table());
        let of_all = manifest["dependencies"].as_table().expect("a table");
        for (dependency, how) in of_targets.chain([of_all]).flatten() {
            let optional = how.get("optional") == Some(&Value::Boolean(true));
            assert!(
                optional || locked.contains(&dependency.as_str()),
                "{LOCK} lacks {dependency} of {name}: run `cargo metadata --offline` in its folder"
            );
        }
    }
}

#[test]
fn the_outside_project_compiles_dependencies_as_we_do() {
    let lock: Table = read(LOCK).parse().expect("a lock is TOML");
    let packages = lock["package"].as_array().expect("a lock has packages");
    let is_locked = |name: &str| name == "*" || packages.iter().any(|package| package["name"].as_str() == Some(name));

    let profile = |path| read(path).parse::<Table>().expect("a manifest is TOML")["profile"]["dev"].clone();
    let (mut ours, theirs) = (profile("Cargo.toml"), profile(MANIFEST));
    ours["package"].as_table_mut().expect("a table").retain(|name, _| is_locked(name));
    assert_eq!(ours, theirs, "the profiles for development of Cargo.toml and {MANIFEST} differ");
}

/// Features and profiles of single crates decide, too: the `Learner` compiles what has its feature `dataset`.
#[test]
fn the_outside_project_shares_our_compiled_dependencies() {
    let project = Path::new(MANIFEST).parent().expect("a folder");
    let learner = ["build", "--features", "learner", "--bin", "learner"];
    let (ours, theirs, learners) =
        (units(Path::new("."), &["test"]), units(project, &["build"]), units(project, &learner));
    let (Some(ours), Some(theirs), Some(learners)) = (ours, theirs, learners) else {
        return println!("skipped: Cargo has not downloaded the packages of {}", project.display());
    };
    let only = |units: &BTreeMap<u64, String>| -> BTreeSet<String> {
        units.iter().filter(|(key, _)| !ours.contains_key(key)).map(|(_, name)| name.clone()).collect()
    };
    let of_program = only(&theirs);
    assert!(of_program.iter().all(|name| ["burn-project", "burn-optim"].contains(&name.as_str())), "{of_program:?}");
    let of_learner = only(&learners);
    for shared in ["burn-flex", "burn-tensor", "burn-autodiff", "gemm", "tokenizers", "macerator", "kiln-data"] {
        assert!(!of_learner.contains(shared), "the learner compiles {shared} once more: {of_learner:?}");
    }
}

/// Returns the packages that a command of Cargo compiles, by all that decides whether another command shares them. `None` if packages
/// are missing here.
fn units(folder: &Path, command: &[&str]) -> Option<BTreeMap<u64, String>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let flags = ["--unit-graph", "-Z", "unstable-options", "--locked", "--offline"];
    let mut cargo = Command::new("cargo");
    cargo.args(command).args(flags).current_dir(folder).env("RUSTC_BOOTSTRAP", "1");
    let output = cargo.output().expect("Cargo runs");
    let graph: Json = serde_json::from_slice(&output.stdout).ok()?;
    let all = graph["units"].as_array().expect("a list of units");

    let mut keys = vec![None; all.len()];
    let names = (0..all.len()).map(|at| {
        let package = all[at]["pkg_id"].as_str().expect("text");
        let name = package.rsplit(['/', '#']).find(|part| !part.starts_with(|c: char| c.is_ascii_digit()));
        let name = name.unwrap_or(package).split('@').next().unwrap_or(package);
        (key_of(at, all, &mut keys), name.to_owned())
    });
    Some(names.collect())
}

/// Returns the key of a unit: package, target, features, profile and the keys of its dependencies.
fn key_of(at: usize, all: &[Json], keys: &mut Vec<Option<u64>>) -> u64 {
    if let Some(key) = keys[at] {
        return key;
    }
    let unit = &all[at];
    let dependencies = unit["dependencies"].as_array().expect("a list").iter();
    let indices = dependencies.map(|dependency| dependency["index"].as_u64().expect("a number") as usize);
    let mut of_dependencies: Vec<u64> = indices.map(|index| key_of(index, all, keys)).collect();
    of_dependencies.sort_unstable();

    let mut profile = unit["profile"].clone();
    profile["name"] = Json::Null;
    let mut hasher = DefaultHasher::new();
    for part in
        [&unit["pkg_id"], &unit["target"]["kind"], &unit["target"]["name"], &unit["mode"], &unit["features"], &profile]
    {
        part.to_string().hash(&mut hasher);
    }
    of_dependencies.hash(&mut hasher);
    let key = hasher.finish();
    keys[at] = Some(key);
    key
}

/// Of `name`, `name version` and `name version (source)`.
fn crate_name(locked: &Value) -> &str {
    let text = locked.as_str().expect("dependencies of a lock are text");
    text.split(' ').next().unwrap_or(text)
}
