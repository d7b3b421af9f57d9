//! Rules that no compiler checks: layers inside a crate, sizes, who prints, wording. They read the tree's files and run nothing.
//!
//! What breaks a rule today is listed in `tidy/allowed.txt` and may only become less. `KILN_TIDY=write cargo test --test it
//! tidy` writes that list anew; `KILN_TIDY=table cargo test --test it tidy -- --nocapture` prints the tree in numbers.

mod counts;
mod documents;
mod doors;
mod files;
mod keys;
mod lists;
mod locks;
mod measured;
mod modules;
mod packages;
mod phrases;
mod printing;
mod scan;
mod sentences;
mod step_path;
pub(crate) mod tree;

use std::collections::BTreeMap;
use std::{env, fs};

use lists::{Difference, Offence};
use modules::{Crate, Module, circles, layer_table, module_path};
use scan::words;
use tree::Source;

/// Past this many lines a file usually has a second concept inside.
const FILE_LINES: usize = 400;
const FUNCTION_LINES: usize = 80;
const PARAMETERS: usize = 8;
/// A function longer than this has phases, so it has blank lines between them.
const PARAGRAPH_LINES: usize = 25;

const ALLOWED: &str = "tests/it/tidy/allowed.txt";
const HEADING: &str = "\
What breaks a rule of tests/it/tidy.rs today: rule, number, what. The list may only become shorter and its numbers smaller.
Write it anew after an improvement: KILN_TIDY=write cargo test --test it tidy

arrow       imports from a module of the same layer or a higher one        both        files that name HostBatch and Batch
circle      modules that import each other                                 file        lines of a file over 400
function    lines of a function over 80                                    parameters  parameters of a function over 8
paragraph   lines of a function over 25 without a blank line               phrase      phrases of tidy/phrases.rs in a file
measured    tuned constants of a kernel without the file of their measurement
sentence    sentences of a document over 25 words
print       printing outside the command line and the console              read        reads of tensors that no `host_sync::waiting` counts";

/// The crates and their source folders.
const CRATES: [(&str, &str); 9] = [
    ("kiln", "src"),
    ("kiln-lab", "lab/src"),
    ("kiln-train", "train/src"),
    ("kiln-metrics", "metrics/src"),
    ("kiln-ranks", "ranks/src"),
    ("kiln-interchange", "interchange/src"),
    ("kiln-data", "data/src"),
    ("kiln-model", "model/src"),
    ("kiln-kernels", "model/kernels/src"),
];
/// The folders of the program's own sources: the command and what Kiln trains with, without the model and its kernels.
pub(crate) const PROGRAM: [&str; 6] =
    ["src/", "lab/src/", "train/src/", "metrics/src/", "ranks/src/", "interchange/src/"];

#[test]
fn what_breaks_a_rule_is_listed_and_only_becomes_less() {
    let sources = tree::sources();
    let mode = env::var("KILN_TIDY").unwrap_or_default();
    if mode == "table" {
        print_table(&sources);
    }

    let found = lists::named(
        [
            sizes(&sources),
            imports(&sources),
            printing(&sources),
            both_batches(&sources),
            uncounted_reads(&sources),
            phrases::count(&sources),
            measured::count(&sources),
            sentences::count(),
        ]
        .concat(),
    );
    if mode == "write" {
        return fs::write(tree::root().join(ALLOWED), lists::write(HEADING, &found)).expect("the list is written");
    }

    let Difference { new, mended } = lists::compare(&found, &lists::read(&tree::read(ALLOWED)));
    let lines = |offences: &[Offence]| offences.iter().map(|offence| format!("\n  {offence}")).collect::<String>();
    let remedy = "KILN_TIDY=write cargo test --test it tidy";
    assert!(new.is_empty(), "these break a rule, or more than {ALLOWED} allows:{}", lines(&new));
    assert!(mended.is_empty(), "better than {ALLOWED} says, so shorten it ({remedy}):{}", lines(&mended));
}

#[test]
fn every_module_has_one_layer() {
    let sources = tree::sources();
    for (name, folder) in CRATES {
        let krate = crate_in(&sources, folder);
        let table = layer_table(&tree::read(&format!("{folder}/lib.rs")), &krate.top());
        if table.is_empty() && name != "kiln-train" {
            println!("{name} has no table of layers: only circles are looked for");
            continue;
        }
        for module in krate.top() {
            let rows = table.iter().filter(|(_, listed)| listed == module).count();
            assert_eq!(rows, 1, "{folder}/lib.rs: `{module}` must stand in one row of the table of layers");
        }
    }
}

fn crate_in(sources: &[Source], folder: &str) -> Crate {
    let inside = sources.iter().filter_map(|source| {
        let file = source.path.strip_prefix(folder)?.strip_prefix('/')?;
        let is_program = file == "main.rs" || file.starts_with("bin/");
        (!is_program).then(|| Module { path: module_path(file), code: source.scanned.code.clone() })
    });
    Crate::new(inside.collect())
}

/// Files and functions that are too long, have too many parameters or no paragraphs.
fn sizes(sources: &[Source]) -> Vec<Offence> {
    let mut found = Vec::new();
    for source in sources {
        let lines = source.text.lines().count();
        if lines > FILE_LINES {
            found.push(Offence::new("file", lines, source.path.clone()));
        }

        for (function, _) in source.functions() {
            let what = format!("{} {}", source.path, function.name);
            if function.lines > FUNCTION_LINES {
                found.push(Offence::new("function", function.lines, what.clone()));
            }
            if function.parameters > PARAMETERS {
                found.push(Offence::new("parameters", function.parameters, what.clone()));
            }
            if function.lines > PARAGRAPH_LINES && !function.has_blank_line {
                found.push(Offence::new("paragraph", function.lines, what));
            }
        }
    }
    found
}

/// Imports against the layers of a crate, and circles in every room.
fn imports(sources: &[Source]) -> Vec<Offence> {
    let mut found = Vec::new();
    for (_, folder) in CRATES {
        let krate = crate_in(sources, folder);
        let layers: BTreeMap<String, usize> = layer_table(&tree::read(&format!("{folder}/lib.rs")), &krate.top())
            .into_iter()
            .map(|(layer, module)| (module, layer))
            .collect();
        for (room, arrows) in krate.rooms() {
            let place = [&[folder.to_owned()], room.as_slice()].concat().join("/");
            for circle in circles(&arrows) {
                found.push(Offence::new("circle", circle.len(), format!("{place}: {}", circle.join(" "))));
            }

            let upwards =
                |from: &String, to: &String| layers.get(from).zip(layers.get(to)).is_some_and(|(a, b)| a <= b);
            for ((from, to), file) in arrows.iter().filter(|((from, to), _)| room.is_empty() && upwards(from, to)) {
                found.push(Offence::new("arrow", 1, format!("{place}: {from} -> {to}, in {file}")));
            }
        }
    }
    found
}

/// Results and progress are printed in two places; everything else returns what it has to say.
fn printing(sources: &[Source]) -> Vec<Offence> {
    let may = |path: &str| path.starts_with("src/cli/") || path == "metrics/src/logging/console.rs";
    count_in(sources, "print", |path, code| {
        if may(path) {
            return 0;
        }
        let macros = ["print", "println", "eprint", "eprintln", "dbg"];
        macros.iter().map(|name| words(code, name).filter(|at| code[at + name.len()..].starts_with('!')).count()).sum()
    })
}

/// The border between the loader's batches and the model's: `train/src/device/upload.rs`.
fn both_batches(sources: &[Source]) -> Vec<Offence> {
    let is_named = |code: &str, names: &[&str]| names.iter().any(|name| words(code, name).next().is_some());
    count_in(sources, "both", |path, code| {
        let both = is_named(code, &["HostBatch"]) && is_named(code, &["Batch", "PairBatch", "TextBatch"]);
        usize::from(
            both && PROGRAM.iter().any(|folder| path.starts_with(folder)) && path != "train/src/device/upload.rs",
        )
    })
}

/// Reads of tensors in a run that [`kiln::metrics::host_sync`] does not count: each statement with a read names `waiting`.
fn uncounted_reads(sources: &[Source]) -> Vec<Offence> {
    const FOLDERS: [&str; 6] = [
        "train/src/train/",
        "train/src/eval/",
        "train/src/generate/",
        "train/src/optim/",
        "train/src/metrics/",
        "ranks/src/",
    ];
    const READS: [&str; 9] = [
        "into_data",
        "try_into_data",
        "to_data",
        "into_scalar",
        "try_into_scalar",
        "try_execute",
        "execute",
        "try_into_vec_as",
        "sync",
    ];

    count_in(sources, "read", |path, code| {
        if !FOLDERS.iter().any(|folder| path.starts_with(folder)) {
            return 0;
        }
        let is_counted = |at: usize| {
            let start = code[..at].rfind([';', '{', '}']).map_or(0, |at| at + 1);
            words(&code[start..at], "waiting").next().is_some()
        };
        let is_call =
            |at: usize, name: &str| code[..at].ends_with('.') && code[at + name.len()..].starts_with(['(', ':']);
        READS.iter().map(|name| words(code, name).filter(|at| is_call(*at, name) && !is_counted(*at)).count()).sum()
    })
}

/// Counts something in the code of the crates that is compiled outside tests.
fn count_in(sources: &[Source], rule: &str, count: impl Fn(&str, &str) -> usize) -> Vec<Offence> {
    let mut found = Vec::new();
    for source in sources.iter().filter(|source| !source.is_test) {
        if CRATES.iter().any(|(_, folder)| source.path.starts_with(&format!("{folder}/"))) {
            let number = count(&source.path, &modules::without_tests(source.scanned.code.clone()));
            if number > 0 {
                found.push(Offence::new(rule, number, source.path.clone()));
            }
        }
    }
    found
}

/// Prints the sizes of the tree, with and without tests.
fn print_table(sources: &[Source]) {
    print_crates(sources);
    let functions: Vec<_> = sources
        .iter()
        .flat_map(|source| source.functions().into_iter().map(move |(function, test)| (source, function, test)))
        .collect();
    for (heading, with_tests) in [("with tests", true), ("without tests", false)] {
        let files: Vec<_> = sources.iter().filter(|source| with_tests || !source.is_test).collect();
        let counted: Vec<_> = functions.iter().filter(|(_, _, test)| with_tests || !test).collect();
        let name =
            |(source, function, _): &(&Source, scan::Function, bool)| format!("{} {}", source.path, function.name);
        let longest = counted.iter().max_by_key(|(_, function, _)| function.lines).expect("functions");
        let widest = counted.iter().max_by_key(|(_, function, _)| function.parameters).expect("functions");
        let long: Vec<_> = counted.iter().filter(|(_, function, _)| function.lines > PARAGRAPH_LINES).collect();
        let dense = long.iter().filter(|(_, function, _)| !function.has_blank_line).count();

        println!("\n| {heading} | |\n|---|---|");
        println!("| files | {} |", files.len());
        println!(
            "| files over {FILE_LINES} lines | {} |",
            files.iter().filter(|source| source.text.lines().count() > FILE_LINES).count()
        );
        println!("| functions | {} |", counted.len());
        println!("| longest function | {} lines, `{}` |", longest.1.lines, name(longest));
        println!(
            "| functions over {FUNCTION_LINES} lines | {} |",
            counted.iter().filter(|(_, f, _)| f.lines > FUNCTION_LINES).count()
        );
        println!("| most parameters | {}, `{}` |", widest.1.parameters, name(widest));
        println!(
            "| functions with more than {PARAMETERS} parameters | {} |",
            counted.iter().filter(|(_, f, _)| f.parameters > PARAMETERS).count()
        );
        let share = 100.0 * dense as f64 / long.len() as f64;
        println!(
            "| functions over {PARAGRAPH_LINES} lines without a blank line | {dense} of {} ({share:.0} %) |",
            long.len()
        );
    }
    counts::print(sources);
}

/// Prints files and lines of each crate, without tests.
fn print_crates(sources: &[Source]) {
    println!("\n| crate, without tests | files | lines |\n|---|---|---|");
    for (name, folder) in CRATES {
        let is_inside = |source: &&Source| !source.is_test && source.path.starts_with(&format!("{folder}/"));
        let files: Vec<_> = sources.iter().filter(is_inside).collect();
        let lines: usize = files.iter().map(|source| source.lines_without_tests()).sum();
        println!("| `{name}` | {} | {lines} |", files.len());
    }
}
