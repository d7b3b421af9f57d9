//! The modules of one crate and which of them import which, read from paths in the source.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::scan::{closing, is_word, test_modules, word_at, words};

/// A module's names below the crate's root, outermost first.
pub(super) type ModulePath = Vec<String>;

/// A source file of a crate.
pub(super) struct Module {
    pub(super) path: ModulePath,
    pub(super) code: String,
}

/// The files of a crate that are compiled outside tests.
pub(super) struct Crate {
    modules: BTreeMap<ModulePath, String>,
    /// What a module's `use` statements call by which name.
    imports: BTreeMap<ModulePath, BTreeMap<String, ModulePath>>,
}

/// Imports between the children of one module: from whom to whom, each with one file that does it.
pub(super) type Room = BTreeMap<(String, String), String>;

/// The path of the module in `file`, which is named from the crate's source folder.
pub(super) fn module_path(file: &str) -> ModulePath {
    let mut path: ModulePath = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if path.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        path.pop();
    }
    path
}

impl Crate {
    pub(super) fn new(files: Vec<Module>) -> Self {
        let mut tests: BTreeSet<ModulePath> = BTreeSet::new();
        for file in &files {
            let in_files = test_modules(&file.code).into_iter().filter(|module| module.body.is_none());
            tests.extend(in_files.map(|module| [file.path.as_slice(), &[module.name]].concat()));
        }
        let is_test = |path: &ModulePath| (0..=path.len()).any(|end| tests.contains(&path[..end]));

        let kept = files.into_iter().filter(|file| !is_test(&file.path));
        let modules = kept.map(|file| (file.path, without_tests(file.code))).collect();
        let mut this = Self { modules, imports: BTreeMap::new() };
        this.imports = this.modules.keys().map(|path| (path.clone(), this.imports_of(path))).collect();
        this
    }

    /// The children of the crate's root.
    pub(super) fn top(&self) -> BTreeSet<&str> {
        self.modules.keys().filter_map(|path| path.first()).map(String::as_str).collect()
    }

    /// For every module with children, the imports between these. A module and its own children may name each other.
    pub(super) fn rooms(&self) -> BTreeMap<ModulePath, Room> {
        let mut rooms: BTreeMap<ModulePath, Room> = BTreeMap::new();
        for (from, code) in &self.modules {
            for (_, target) in paths(code).into_iter().flat_map(|path| self.absolute(from, code, path)) {
                let to = self.home(target);
                let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
                if shared < from.len() && shared < to.len() {
                    let arrow = (from[shared].clone(), to[shared].clone());
                    rooms.entry(from[..shared].to_vec()).or_default().entry(arrow).or_insert_with(|| from.join("::"));
                }
            }
        }
        rooms
    }

    /// A path as it is written in `from` becomes one below the crate's root, with the name it gets there.
    fn absolute(&self, from: &ModulePath, code: &str, path: Written) -> Option<(String, ModulePath)> {
        let mut base = from.clone();
        base.extend(inline_modules(code, path.at));
        let mut names = path.names.into_iter().peekable();
        match names.next()?.as_str() {
            "crate" => base.clear(),
            "self" => {}
            "super" => drop(base.pop()),
            child => {
                base.push(child.to_owned());
                if !self.modules.contains_key(&base) {
                    return None;
                }
            }
        }

        while names.next_if(|name| name == "super").is_some() {
            base.pop();
        }
        base.extend(names.filter(|name| name != "self"));
        Some((path.alias.or_else(|| base.last().cloned())?, base))
    }

    fn imports_of(&self, module: &ModulePath) -> BTreeMap<String, ModulePath> {
        let code = &self.modules[module];
        let uses = words(code, "use").filter(|&at| inline_modules(code, at).is_empty() && depth(code, at) == 0);
        let written = uses.flat_map(|at| tree(code, at + "use".len(), &[]));
        written.filter_map(|path| self.absolute(module, code, path)).collect()
    }

    /// The module that defines what `path` names, found through re-exports.
    fn home(&self, path: ModulePath) -> ModulePath {
        let mut path = path;
        for _ in 0..8 {
            let known = (0..=path.len()).rev().find(|&end| self.modules.contains_key(&path[..end])).unwrap_or(0);
            let Some(item) = path.get(known) else { return path };
            let Some(target) = self.imports.get(&path[..known]).and_then(|imports| imports.get(item)) else {
                path.truncate(known);
                return path;
            };
            path = [target.as_slice(), &path[known + 1..]].concat();
        }
        path
    }
}

/// The circles of a room: groups of children that all reach each other.
pub(super) fn circles(room: &Room) -> Vec<Vec<String>> {
    let children: BTreeSet<&String> = room.keys().flat_map(|(from, to)| [from, to]).collect();
    let reach: BTreeMap<_, _> = children.iter().map(|&child| (child, reachable(room, child))).collect();
    let mut found: Vec<Vec<String>> = Vec::new();
    for &child in &children {
        let group: Vec<String> =
            reach[child].iter().filter(|&&other| reach[other].contains(child)).map(|&other| other.clone()).collect();
        if !group.is_empty() && !found.contains(&group) {
            found.push(group);
        }
    }
    found
}

fn reachable<'a>(room: &'a Room, from: &str) -> BTreeSet<&'a String> {
    let mut seen = BTreeSet::new();
    let mut open: Vec<&str> = vec![from];
    while let Some(here) = open.pop() {
        for (_, to) in room.keys().filter(|(source, _)| source == here) {
            if seen.insert(to) {
                open.push(to);
            }
        }
    }
    seen
}

/// Layer and module, in the order of a table such as `| 0 | [`config`] what a run is |` in a crate's documentation.
pub(super) fn layer_table(lib: &str, modules: &BTreeSet<&str>) -> Vec<(usize, String)> {
    let mut table = Vec::new();
    for row in lib.lines().filter_map(|line| line.strip_prefix("//! |")) {
        let mut cells = row.split('|').map(str::trim);
        let Some(layer) = cells.next().and_then(|cell| cell.parse().ok()) else { continue };
        let names = cells.next().unwrap_or_default().split('`').skip(1).step_by(2);
        table.extend(names.filter(|name| modules.contains(name)).map(|name| (layer, name.to_owned())));
    }
    table
}

/// A path in the source, with the position where it starts.
#[derive(Debug)]
struct Written {
    at: usize,
    names: Vec<String>,
    alias: Option<String>,
}

/// Every path that starts with `crate`, `self` or `super`.
fn paths(code: &str) -> Vec<Written> {
    let starts = ["crate", "self", "super"].into_iter().flat_map(|start| words(code, start));
    starts.filter(|&at| !code[..at].trim_end().ends_with("::")).flat_map(|at| tree(code, at, &[])).collect()
}

/// The paths of the `use` tree at `at`, or the single path of an expression.
fn tree(code: &str, at: usize, prefix: &[String]) -> Vec<Written> {
    let after_space = |at: usize| at + code[at..].len() - code[at..].trim_start().len();
    let mut names = prefix.to_vec();
    let mut here = after_space(at);
    let start = here;
    while let Some((word_start, word)) = word_at(code, here).filter(|&(word_start, _)| word_start == here) {
        names.push(word.to_owned());
        let end = after_space(word_start + word.len());
        match code[end..].strip_prefix("::") {
            Some(_) => here = after_space(end + 2),
            None => {
                let alias = code[end..].strip_prefix("as ").and_then(|_| word_at(code, end + 2));
                let alias = alias.map(|(_, alias)| alias.to_owned());
                return vec![Written { at: start, names, alias }];
            }
        }
    }

    if !code[here..].starts_with('{') {
        // `*`, or the arguments of a generic item.
        return vec![Written { at: start, names, alias: None }];
    }
    let Some(end) = closing(code, here) else { return Vec::new() };
    branches(code, here + 1..end - 1).flat_map(|branch| tree(code, branch, &names)).collect()
}

/// Where the parts of a list between braces start.
fn branches(code: &str, list: Range<usize>) -> impl Iterator<Item = usize> {
    let mut starts = Vec::new();
    let mut depth = 0;
    let mut start = list.start;
    for at in list.clone() {
        match code.as_bytes()[at] {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                starts.push(start);
                start = at + 1;
            }
            _ => {}
        }
    }
    if code[start..list.end].bytes().any(is_word) {
        starts.push(start);
    }
    starts.into_iter()
}

fn depth(code: &str, at: usize) -> usize {
    code[..at].bytes().fold(0, |depth: usize, byte| match byte {
        b'{' => depth + 1,
        b'}' => depth.saturating_sub(1),
        _ => depth,
    })
}

/// The names of the modules written out in this file around `at`, outermost first.
fn inline_modules(code: &str, at: usize) -> ModulePath {
    let named = words(&code[..at], "mod").filter_map(|keyword| {
        let (start, name) = word_at(code, keyword + "mod".len())?;
        let open = start + name.len() + code[start + name.len()..].find(|c: char| !c.is_whitespace())?;
        let around = code[open..].starts_with('{') && closing(code, open)? > at && open < at;
        around.then(|| name.to_owned())
    });
    named.collect()
}

/// The code with the bodies of test modules replaced by spaces.
pub(super) fn without_tests(mut code: String) -> String {
    for body in test_modules(&code).into_iter().filter_map(|module| module.body) {
        let blank: String = code[body.clone()].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
        code.replace_range(body, &blank);
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crate_of(files: &[(&str, &str)]) -> Crate {
        let files = files.iter().map(|(file, code)| Module { path: module_path(file), code: (*code).to_owned() });
        Crate::new(files.collect())
    }

    fn arrows(krate: &Crate, room: &[&str]) -> Vec<String> {
        let room: ModulePath = room.iter().map(|&name| name.to_owned()).collect();
        let rooms = krate.rooms();
        rooms.get(&room).into_iter().flat_map(|room| room.keys()).map(|(from, to)| format!("{from} > {to}")).collect()
    }

    #[test]
    fn imports_are_found_in_every_form() {
        let krate = crate_of(&[
            ("lib.rs", "mod a; mod b; mod c; mod d; pub use c::{deep::Thing, Other as Renamed};"),
            ("a.rs", "use crate::{b::B, d}; fn f(x: crate::Thing) -> super::Renamed {}"),
            ("b.rs", "use std::fmt; use crate::d::{self, D};"),
            ("c/mod.rs", "mod deep;"),
            ("c/deep.rs", "struct Thing;"),
            ("d.rs", "mod inner { use super::super::b::B; }"),
        ]);
        assert_eq!(arrows(&krate, &[]), ["a > b", "a > c", "a > d", "b > d", "d > b"]);
        assert_eq!(circles(&krate.rooms()[&Vec::new()]), [["b", "d"]]);
    }

    #[test]
    fn circles_inside_a_room_are_found_through_re_exports() {
        let krate = crate_of(&[
            ("lib.rs", "mod a;"),
            ("a/mod.rs", "mod x; mod y; mod z; use x::X; pub(crate) use y::Y; struct Hub;"),
            ("a/x.rs", "use super::Y;"),
            ("a/y.rs", "use super::{Hub, X};"),
            ("a/z.rs", "use super::x::X; use crate::a::Hub;"),
        ]);
        assert_eq!(arrows(&krate, &["a"]), ["x > y", "y > x", "z > x"]);
        assert_eq!(circles(&krate.rooms()[&vec!["a".to_owned()]]), [["x", "y"]]);
    }

    #[test]
    fn tests_may_import_anything() {
        let krate = crate_of(&[
            ("lib.rs", "mod a; mod b; #[cfg(test)] mod fixtures;"),
            ("a.rs", "#[cfg(test)] mod tests; #[cfg(test)] mod more { use crate::b; }"),
            ("a/tests.rs", "use crate::b;"),
            ("b.rs", "use crate::a;"),
            ("fixtures.rs", "use crate::b;"),
        ]);
        assert_eq!(arrows(&krate, &[]), ["b > a"]);
        assert_eq!(krate.top().into_iter().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn the_table_of_layers_is_read_from_the_documentation() {
        let lib = "//! | layer | modules |\n//! |---|---|\n//! | 0 | [`a`] what · [`b`] like `other` |\n//! | 1 | `c` |\n//! | x | `d` |\n";
        let modules = BTreeSet::from(["a", "b", "c", "d"]);
        let table = layer_table(lib, &modules);
        assert_eq!(table, [(0, "a".to_owned()), (0, "b".to_owned()), (1, "c".to_owned())]);
    }
}
