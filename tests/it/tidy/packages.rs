//! What a user gets from a registry: dependency lines of the documents that resolve, and packages with every file that they include.

use toml::{Table, Value};

use super::CRATES;
use super::documents::normal;
use super::modules::without_tests;
use super::scan::words;
use super::tree::{documents, read, sources};

/// The macros that compile a file into the program.
const FILE_MACROS: [&str; 2] = ["include_str", "include_bytes"];

/// The manifest of the crate in a folder.
fn manifest(folder: &str) -> Table {
    read(&normal(&format!("{folder}/Cargo.toml"))).parse().expect("a manifest is TOML")
}

/// The folders of the crates, without `src`.
fn folders() -> impl Iterator<Item = (&'static str, &'static str)> {
    CRATES.into_iter().map(|(name, sources)| (name, sources.trim_end_matches("src").trim_end_matches('/')))
}

/// The dependencies in a document's blocks of TOML, by name.
fn dependencies(document: &str) -> Vec<(String, Value)> {
    let blocks = document.split("```toml\n").skip(1).filter_map(|rest| rest.split_once("```"));
    let tables = blocks.filter_map(|(block, _)| block.parse::<Table>().ok());
    let listed = tables.filter_map(|table| table.get("dependencies")?.as_table().cloned());
    listed.flatten().collect()
}

/// The dependencies that a document's `cargo add` takes, as lines of a manifest.
fn added(document: &str, workspace: &Table) -> Vec<(String, Value)> {
    let commands = document.split("cargo add ").skip(1).filter_map(|rest| rest.split(['\n', '#', '`']).next());
    let lines = commands.filter_map(|command| {
        let words: Vec<&str> = command.split_whitespace().collect();
        let behind = |flag: &str| words.iter().position(|word| *word == flag).and_then(|at| words.get(at + 1));
        let mut line = Table::new();
        if let Some(features) = behind("--features") {
            line.insert("features".into(), features.split(',').collect::<Vec<_>>().into());
        }
        if let Some((name, version)) = words.first()?.split_once('@') {
            line.insert("version".into(), version.into());
            return Some((name.to_owned(), Value::Table(line)));
        }
        let path = *behind("--path")?;
        let found = folders().find(|(_, folder)| path.strip_prefix("../kiln/") == Some(folder));
        let name = found.map_or(path, |(name, _)| name);
        line.insert("path".into(), path.into());
        line.insert("version".into(), workspace["workspace"]["package"]["version"].clone());
        Some((name.to_owned(), Value::Table(line)))
    });
    lines.collect()
}

/// Why a dependency of a document does not lead to what this workspace has, if so.
fn unresolved(name: &str, line: &Value, workspace: &Table) -> Option<String> {
    let field = |key: &str| line.get(key).and_then(Value::as_str);
    let version = line.as_str().or(field("version")).unwrap_or("none");
    let known = &workspace["workspace"]["dependencies"];
    let Some(ours) = known.get(name) else { return Some(format!("{name} is not a dependency of the workspace")) };
    let wanted = ours.as_str().or(ours.get("version").and_then(Value::as_str)).unwrap_or("none");

    let Some((_, folder)) = folders().find(|(crate_name, _)| *crate_name == name) else {
        // Two versions of Burn do not share tensors.
        return (version != wanted).then(|| format!("{name} is {version}, and the workspace has {wanted}"));
    };
    if !format!("{wanted}.").starts_with(&format!("{version}.")) {
        return Some(format!("{name} is {version}, and the workspace has {wanted}"));
    }
    let path = format!("../kiln/{folder}");
    if field("path").is_some_and(|found| found != path) {
        return Some(format!("{name} is at {path} from a project next to a clone"));
    }
    let features = manifest(folder);
    let features = features.get("features").and_then(Value::as_table);
    let taken = line.get("features").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let unknown = taken.filter(|feature| features.is_none_or(|all| !all.contains_key(*feature)));
    unknown.map(|feature| format!("{name} lacks the feature {feature}")).next()
}

#[test]
fn every_dependency_line_of_the_documents_resolves() {
    let workspace = manifest("");
    let mut found = 0;
    let mut broken = String::new();
    for document in documents().into_iter().filter(|path| path != "CHANGELOG.md") {
        let text = read(&document);
        for (name, line) in dependencies(&text).into_iter().chain(added(&text, &workspace)) {
            found += 1;
            if let Some(reason) = unresolved(&name, &line, &workspace) {
                broken.push_str(&format!("\n  {document}: {reason}"));
            }
        }
    }
    assert!(broken.is_empty(), "these dependency lines do not resolve:{broken}");
    assert!(found >= 9, "the documents show how to depend on the libraries: found {found} lines");
}

#[test]
fn wrong_dependency_lines_are_found() {
    let workspace = manifest("");
    let reason = |lines: &str| {
        let document = format!("text\n\n```toml\n[dependencies]\n{lines}\n```\n");
        let (name, line) = dependencies(&document).pop().expect("a dependency");
        unresolved(&name, &line, &workspace)
    };
    let full = workspace["workspace"]["package"]["version"].as_str().expect("a version");
    let (version, _) = full.rsplit_once('.').expect("three numbers");

    assert_eq!(reason(&format!("kiln-data = \"{version}\"")), None);
    assert_eq!(reason(&format!("kiln-data = {{ version = \"{version}\", features = [\"arrow\"] }}")), None);
    for wrong in [
        "kiln-data = \"9.9\"".to_owned(),
        "kiln-data = { path = \"../kiln/data\" }".to_owned(),
        format!("kiln-data = {{ version = \"{version}\", path = \"../data\" }}"),
        format!("kiln-data = {{ version = \"{version}\", features = [\"cuda\"] }}"),
        "burn = \"0.20\"".to_owned(),
        "kiln-nothing = \"0.1\"".to_owned(),
    ] {
        assert!(reason(&wrong).is_some(), "{wrong}");
    }

    let reason = |command: &str| {
        let (name, line) = added(&format!("```sh\n{command}\n```\n"), &workspace).pop().expect("a dependency");
        unresolved(&name, &line, &workspace)
    };
    assert_eq!(reason(&format!("cargo add kiln-train@{version} --features burn-traits # of Burn")), None);
    assert_eq!(reason("cargo add --path ../kiln/model/kernels"), None);
    for wrong in ["kiln-data@9.9", "burn@0.20", "--path ../kiln/kernels", "--path ../kiln/data --features cuda"] {
        assert!(reason(&format!("cargo add {wrong}")).is_some(), "{wrong}");
    }
}

/// A package holds the files of its folder alone, so a file of another one comes in by a symbolic link.
#[test]
fn what_a_crate_includes_is_in_its_package() {
    let mut found = 0;
    let mut outside = String::new();
    for source in sources().into_iter().filter(|source| !source.is_test) {
        let Some((_, folder)) = CRATES.iter().find(|(_, folder)| source.path.starts_with(&format!("{folder}/"))) else {
            continue;
        };
        let page = format!("{}README.md", folder.trim_end_matches("src"));
        let code = without_tests(source.scanned.code.clone());
        for at in FILE_MACROS.iter().flat_map(|name| words(&code, name).collect::<Vec<_>>()) {
            let Some(path) = source.text[at..].split('"').nth(1) else { continue };
            let here = source.path.rsplit_once('/').map_or("", |(here, _)| here);
            let target = normal(&format!("{here}/{path}"));
            found += 1;
            if target != page && !target.starts_with(&format!("{folder}/")) {
                outside.push_str(&format!("\n  {}: {path}", source.path));
            }
        }
    }
    assert!(outside.is_empty(), "these files are not in the package of their crate:{outside}");
    assert!(found >= 8, "some crates include files: found {found}");
}

#[test]
fn every_package_says_what_a_registry_shows() {
    for (name, folder) in folders() {
        let package = manifest(folder);
        let package = package["package"].as_table().expect("a table");
        assert_eq!(package["name"].as_str(), Some(name));
        for field in [
            "description",
            "version",
            "license",
            "repository",
            "rust-version",
            "readme",
            "keywords",
            "categories",
            "include",
        ] {
            assert!(package.contains_key(field), "{name} lacks {field}");
        }
        for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
            assert!(!read(&normal(&format!("{folder}/{file}"))).is_empty(), "{name} has an empty {file}");
        }
    }
}
