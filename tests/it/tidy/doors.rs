//! Doors: how many files an addition touches, as its guide says.

use super::scan::words;
use super::tree::{read, sources};

const GUIDE: &str = "docs/guides/add-an-activation.md";
const ENUM: &str = "model/kernels/src/activation/mod.rs";

/// The first cells of the guide's first table.
pub(super) fn files_of_the_guide() -> Vec<String> {
    let guide = read(GUIDE);
    let rows = guide.lines().skip_while(|line| *line != "|---|---|").skip(1);
    let cells = rows.take_while(|line| line.starts_with("| `")).filter_map(|line| line.split('`').nth(1));
    cells.map(str::to_owned).collect()
}

/// A new activation must be added wherever all of today's are named.
#[test]
fn an_activation_touches_the_files_of_its_guide_and_no_other() {
    let code = read(ENUM);
    let (_, all) = code.split_once("pub const ALL: ").expect("the list of activations");
    let (_, all) = all.split_once("= [").expect("a list");
    let (all, _) = all.split_once(']').expect("the end of the list");
    let variants: Vec<&str> = all.split(", ").map(|variant| variant.trim_start_matches("Self::")).collect();
    assert!(variants.len() >= 4, "{variants:?}");

    let names_all = |code: &str| variants.iter().all(|name| words(code, name).next().is_some());
    let found: Vec<String> = sources()
        .into_iter()
        .filter(|source| !source.is_test && names_all(&source.scanned.code))
        .map(|source| source.path)
        .collect();
    let guide = files_of_the_guide();
    let mut listed: Vec<String> = guide.iter().filter(|path| path.ends_with(".rs")).cloned().collect();
    listed.sort();
    assert_eq!(found, listed, "files that name every activation, and the ones that {GUIDE} lists");
    assert!(guide.len() <= 4, "an activation touches {} files", guide.len());
}

/// The row of the key names every activation of the enum.
#[test]
fn the_row_of_the_key_names_every_activation() {
    let page = read("docs/configuration.md");
    let row = page.lines().find(|line| line.starts_with("| `model.activation` |")).expect("the row of the key");
    let code = read(ENUM);
    let (_, names) = code.split_once("pub fn name(self)").expect("the names");
    let (names, _) = names.split_once("\n    }\n").expect("the end of the function");
    let names: Vec<&str> = names.split('"').skip(1).step_by(2).collect();
    assert!(names.contains(&"gelu_tanh"), "{names:?}");
    for name in names {
        assert!(row.contains(&format!("`{name}`")), "{name} is missing in {row}");
    }
}
