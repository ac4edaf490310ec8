//! Holds the source tree to its structure: no two files import each other, directly or through others, and rooms import
//! only from the rooms below them.
//!
//! Imports are read as text from `use` declarations. A name that a `mod.rs` re-exports counts for the file that it is
//! re-exported from.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// What each room of the program may import from, as the diagram in ARCHITECTURE.md shows it: the rooms that stand
/// below it.
const LAYERS: [&[&str]; 12] = [
    &["wakeup"],
    &["net", "proto", "runtime", "spelling", "tls"],
    &["clock", "grpc_client", "observe"],
    &["otlp"],
    &["config", "store", "trace"],
    &["limiter", "xds"],
    &["client", "server", "simulate"],
    &["settings"],
    &["app", "command", "fuzz"],
    &["lib"],
    &["cli"],
    &["main"],
];

/// A module's path from the crate's root, such as `store::redis::link`.
type Module = Vec<String>;

/// The modules of the crate, each with the file that it is written in.
struct Tree {
    files: BTreeMap<Module, PathBuf>,
    /// What a module re-exports: the name, and the path that it stands for.
    exports: BTreeMap<Module, BTreeMap<String, Module>>,
}

// === impl Tree ===

impl Tree {
    /// Reads the files below the folder `root`.
    fn read(root: &Path) -> Self {
        let mut files = BTreeMap::new();
        for file in rust_files(root) {
            files.insert(module_of(file.strip_prefix(root).expect("it is below")), file);
        }
        let mut tree = Self { files, exports: BTreeMap::new() };
        for (module, file) in &tree.files {
            let text = fs::read_to_string(file).expect("the file can be read");
            let names = uses(&text, true)
                .into_iter()
                .filter_map(|path| Some((path.last()?.clone(), absolute(module, path))))
                .collect();
            tree.exports.insert(module.clone(), names);
        }
        tree
    }

    /// The module whose file defines what `path` names; none if that is outside of the crate.
    fn defining(&self, path: &[String]) -> Option<Module> {
        let mut path = path.to_vec();
        let at_the_root = path.first().and_then(|name| self.exports[["lib".to_owned()].as_slice()].get(name));
        if let Some(target) = at_the_root {
            path = target.clone();
        }
        // each step follows one re-export
        for _ in 0..8 {
            let known = (1..=path.len()).rev().find(|n| self.files.contains_key(&path[..*n]))?;
            let (module, rest) = path.split_at(known);
            let target = rest.first().and_then(|name| self.exports[module].get(name));
            match target {
                Some(target) if *target != path => path = [target.as_slice(), &rest[1..]].concat(),
                _ => return Some(module.to_vec()),
            }
        }
        None
    }

    /// What each module imports from others.
    fn imports(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        let mut all = BTreeMap::new();
        for (module, file) in &self.files {
            let text = fs::read_to_string(file).expect("the file can be read");
            let exported = uses(&text, true);
            let imported = uses(&text, false)
                .into_iter()
                .filter(|path| !exported.contains(path))
                .filter_map(|path| self.defining(&absolute(module, path)))
                .filter(|imported| imported != module)
                .collect();
            all.insert(module.clone(), imported);
        }
        all
    }
}

fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).expect("the directory can be read") {
        let path = entry.expect("the entry can be read").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// The module that is written in `file`. The root is called `lib`.
fn module_of(file: &Path) -> Module {
    let mut module: Module =
        file.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if module.last().is_some_and(|last| last == "mod") {
        module.pop();
    }
    module
}

/// The paths of all `use` declarations at the beginning of a line, or of those that re-export, each written out. Unit
/// tests in the same file may import whatever they like: theirs are indented.
fn uses(text: &str, only_exports: bool) -> Vec<Module> {
    let mut paths = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("use ") {
        let line = &rest[..at].rsplit('\n').next().unwrap_or_default();
        let is_use = line.is_empty() || (line.starts_with("pub") && !line.contains("//"));
        let end = rest[at..].find(';').map_or(rest.len(), |end| at + end);
        if is_use && (!only_exports || line.starts_with("pub")) {
            let declaration: String = rest[at + 4..end].split_whitespace().collect::<Vec<_>>().join(" ");
            expand(&mut Vec::new(), &declaration, &mut paths);
        }
        rest = &rest[if is_use { end } else { at + 4 }..];
    }
    paths
}

/// Writes out a tree of imports, such as `a::{b, c::{self, d}}`.
fn expand(prefix: &mut Module, tree: &str, paths: &mut Vec<Module>) {
    let tree = tree.trim();
    let depth = prefix.len();
    if let Some((head, group)) = tree.split_once('{').filter(|_| tree.ends_with('}')) {
        prefix.extend(head.split("::").filter(|part| !part.is_empty()).map(str::to_owned));
        let (mut level, mut start) = (0, 0);
        let group = &group[..group.len() - 1];
        for (i, c) in group.char_indices().chain([(group.len(), ',')]) {
            match c {
                '{' => level += 1,
                '}' => level -= 1,
                ',' if level == 0 => {
                    if !group[start..i].trim().is_empty() {
                        expand(prefix, &group[start..i], paths);
                    }
                    start = i + 1;
                }
                _ => {}
            }
        }
    } else {
        // whatever it is called here, it is the same thing
        let name = tree.split(" as ").next().unwrap_or_default();
        prefix.extend(name.split("::").filter(|part| *part != "self").map(str::to_owned));
        if name.starts_with("self::") && depth == 0 {
            prefix.insert(0, "self".into());
        }
        paths.push(prefix.clone());
    }
    prefix.truncate(depth);
}

/// `path` from the crate's root, as `module` names it.
fn absolute(module: &Module, mut path: Module) -> Module {
    let mut at = if *module == ["lib"] { Module::new() } else { module.clone() };
    match path.first().map(String::as_str) {
        // the program names the library by its name
        Some("crate" | "weir") => return path.split_off(1),
        Some("self") => {
            path.remove(0);
        }
        Some("super") => {
            while path.first().is_some_and(|part| part == "super") {
                path.remove(0);
                at.pop();
            }
        }
        _ => {}
    }
    at.extend(path);
    at
}

/// Whether `from` imports `to`, directly or through others.
fn reaches(imports: &BTreeMap<Module, BTreeSet<Module>>, from: &Module, to: &Module) -> bool {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        if module == to {
            return true;
        }
        if seen.insert(module) {
            next.extend(&imports[module]);
        }
    }
    false
}

/// The folder with the sources of the program.
fn program() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Those of all crates.
fn crates() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates");
    let entries = fs::read_dir(folder).expect("the directory can be read");
    entries.map(|entry| entry.expect("the entry can be read").path().join("src")).chain([program()]).collect()
}

#[test]
fn no_files_import_each_other() {
    for root in crates() {
        let imports = Tree::read(&root).imports();
        let circles: Vec<String> = imports
            .iter()
            .flat_map(|(module, imported)| imported.iter().map(move |other| (module, other)))
            .filter(|(module, other)| reaches(&imports, other, module))
            .map(|(module, other)| format!("{} -> {}", module.join("::"), other.join("::")))
            .collect();
        assert!(circles.is_empty(), "files of {} import each other:\n{}", root.display(), circles.join("\n"));
    }
}

#[test]
fn rooms_import_from_rooms_below_them() {
    let layer = |room: &str| {
        LAYERS.iter().position(|rooms| rooms.contains(&room)).unwrap_or_else(|| panic!("{room} has no layer"))
    };
    let mut wrong = BTreeSet::new();
    for (module, imported) in Tree::read(&program()).imports() {
        for other in imported.iter().filter(|other| other[0] != module[0]) {
            if layer(&other[0]) >= layer(&module[0]) {
                wrong.insert(format!("{} -> {}", module.join("::"), other.join("::")));
            }
        }
    }
    assert!(wrong.is_empty(), "rooms import from rooms that are not below them:\n{wrong:#?}");
}
