//! The project outside the workspace has a lock of its own, out of date as soon as a crate of ours takes a dependency, and a
//! profile of its own: where it differs from ours, CI compiles all of Burn once more.

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

/// Of `name`, `name version` and `name version (source)`.
fn crate_name(locked: &Value) -> &str {
    let text = locked.as_str().expect("dependencies of a lock are text");
    text.split(' ').next().unwrap_or(text)
}
