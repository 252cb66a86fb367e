//! Import cycles among the top modules of a crate.
//!
//! Two modules that use each other, straight or by way of others, can only be understood together.
//! Paths are read from the tokens of the source: `crate::module`, `crate::{module, …}` and as many
//! `super::` as lead to the root of the crate. An item that the root re-exports counts as its module's. Code
//! for tests does not count, and neither do items that the root itself defines.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::str::FromStr;

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The top modules of a crate, each with the top modules that it uses.
pub type Graph = BTreeMap<String, BTreeSet<String>>;

/// Reads the graph of a crate from the paths below `src` and the texts of its files.
///
/// # Errors
///
/// Fails if a file is not valid Rust.
pub fn graph<'a>(files: impl IntoIterator<Item = (&'a Path, &'a str)>) -> Result<Graph> {
    let mut graph = Graph::new();
    let mut tests = BTreeSet::new();
    let mut exports = BTreeMap::new();
    for (path, text) in files {
        let place = place(path);
        let tokens = TokenStream::from_str(text)
            .map_err(|error| anyhow!("{} is not Rust: {error}", path.display()))?;
        let tokens = without_tests(tokens, &place, &mut tests);
        let Some(top) = place.first() else {
            exports.extend(re_exports(&tokens));
            continue;
        };
        let mut read = Reader { depth: place.len(), ..Reader::default() };
        read.tokens(&tokens);
        let last = place.last().map_or("", String::as_str);
        let names = if last == "tests" || last.ends_with("_tests") { BTreeSet::new() } else { read.names };
        graph.entry(top.clone()).or_default().extend(names);
    }
    graph.retain(|name, _| !tests.contains(name));
    let modules: BTreeSet<String> = graph.keys().cloned().collect();
    for (name, uses) in &mut graph {
        let owners = uses.iter().filter_map(|used| exports.get(used)).cloned().collect::<Vec<_>>();
        uses.extend(owners);
        uses.retain(|used| used != name && modules.contains(used));
    }
    Ok(graph)
}

/// Returns the items that a root re-exports (`pub use module::Item;`), each with its module.
fn re_exports(root: &[TokenTree]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (at, tree) in root.iter().enumerate() {
        let Some(TokenTree::Ident(module)) = root.get(at + 1) else { continue };
        if is_word(tree, "use") {
            let path: TokenStream =
                root[at + 2..].iter().take_while(|tree| !is(tree, ';')).cloned().collect();
            ends(path, &mut |item| found.push((item, module.to_string())));
        }
    }
    found
}

/// Calls `take` with the last name of every path, or its new one.
fn ends(path: TokenStream, take: &mut impl FnMut(String)) {
    let mut last = None;
    for tree in path {
        match tree {
            TokenTree::Ident(name) if name == "as" => {}
            TokenTree::Ident(name) => last = Some(name.to_string()),
            TokenTree::Group(group) => {
                last = None;
                ends(group.stream(), take);
            }
            TokenTree::Punct(punct) if punct.as_char() == ',' => last.take().into_iter().for_each(&mut *take),
            _ => {}
        }
    }
    last.into_iter().for_each(take);
}

/// Returns groups of modules of which each reaches every other, largest first.
pub fn cycles(graph: &Graph) -> Vec<BTreeSet<&str>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|name| (name.as_str(), reach(graph, name))).collect();
    let mut groups: BTreeSet<BTreeSet<&str>> = BTreeSet::new();
    for (name, there) in &reached {
        let group: BTreeSet<&str> =
            there.iter().copied().filter(|other| reached[other].contains(name)).collect();
        if group.len() > 1 {
            groups.insert(group);
        }
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.len()));
    groups
}

/// Returns everything that `from` uses, directly or indirectly.
fn reach<'a>(graph: &'a Graph, from: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&str> = graph[from].iter().map(String::as_str).collect();
    while let Some(name) = open.pop() {
        if reached.insert(name) {
            open.extend(graph[name].iter().map(String::as_str));
        }
    }
    reached
}

/// Returns the path of the module in a file below `src`; empty for the root.
fn place(path: &Path) -> Vec<String> {
    let mut parts: Vec<String> =
        path.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if parts.last().is_some_and(|last| last == "mod") || parts == ["lib"] || parts == ["main"] {
        parts.pop();
    }
    parts
}

/// Drops every item below `#[cfg(test)]`, and records the top modules that are test files.
fn without_tests(tokens: TokenStream, place: &[String], tests: &mut BTreeSet<String>) -> Vec<TokenTree> {
    let mut kept = Vec::new();
    let mut trees = tokens.into_iter().peekable();
    while let Some(tree) = trees.next() {
        let test = is(&tree, '#')
            && matches!(trees.peek(), Some(TokenTree::Group(group)) if group.to_string().replace(' ', "") == "[cfg(test)]");
        if !test {
            kept.push(tree);
            continue;
        }
        let mut words = Vec::new();
        for tree in trees.by_ref() {
            match &tree {
                TokenTree::Ident(word) => words.push(word.to_string()),
                TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => break,
                tree if is(tree, ';') => break,
                _ => {}
            }
        }
        if let (true, [.., key, name]) = (place.is_empty(), words.as_slice())
            && key == "mod"
        {
            tests.insert(name.clone());
        }
    }
    kept
}

/// Collects the top modules that tokens name.
#[derive(Default)]
struct Reader {
    /// Number of modules between the root of the crate and the code that is read.
    depth: usize,
    names: BTreeSet<String>,
}

impl Reader {
    fn tokens(&mut self, trees: &[TokenTree]) {
        let mut at = 0;
        while at < trees.len() {
            at += match self.path_from_root(&trees[at..]) {
                0 => 1,
                length => length,
            };
            if let Some(TokenTree::Group(group)) = trees.get(at) {
                let inline = at >= 2 && is_word(&trees[at - 2], "mod");
                self.depth += usize::from(inline);
                self.tokens(&group.stream().into_iter().collect::<Vec<_>>());
                self.depth -= usize::from(inline);
                at += 1;
            }
        }
    }

    /// Takes the names after `crate::` or enough `super::`; returns how many tokens lead to them.
    fn path_from_root(&mut self, trees: &[TokenTree]) -> usize {
        let steps = trees.chunks(3).take_while(|step| is_step(step, "super")).count();
        let length = match trees {
            [first, ..] if is_word(first, "crate") && is_step(&trees[..trees.len().min(3)], "crate") => 3,
            _ if steps > 0 && steps == self.depth => steps * 3,
            _ => return steps * 3,
        };
        match trees.get(length) {
            Some(TokenTree::Ident(name)) => {
                self.names.insert(name.to_string());
            }
            Some(TokenTree::Group(group)) => self.firsts(group.stream()),
            _ => {}
        }
        length
    }

    /// Takes the first name of every path in the braces of a `use`.
    fn firsts(&mut self, braces: TokenStream) {
        let mut first = true;
        for tree in braces {
            if let (true, TokenTree::Ident(name)) = (first, &tree) {
                self.names.insert(name.to_string());
            }
            first = is(&tree, ',');
        }
    }
}

fn is(tree: &TokenTree, mark: char) -> bool {
    matches!(tree, TokenTree::Punct(punct) if punct.as_char() == mark)
}

fn is_word(tree: &TokenTree, word: &str) -> bool {
    matches!(tree, TokenTree::Ident(ident) if ident == word)
}

/// Returns whether three tokens are `word::`.
fn is_step(trees: &[TokenTree], word: &str) -> bool {
    matches!(trees, [name, a, b] if is_word(name, word) && is(a, ':') && is(b, ':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &str)]) -> Graph {
        graph(files.iter().map(|(path, text)| (Path::new(*path), *text))).unwrap()
    }

    fn uses(graph: &Graph, name: &str) -> Vec<String> {
        graph[name].iter().cloned().collect()
    }

    #[test]
    fn item_that_the_root_re_exports_counts_as_its_modules() {
        let graph = of(&[
            ("lib.rs", "mod a; mod b; mod c; pub use a::{First, deep::Second as Other}; pub use b::Third;"),
            ("a.rs", "use crate::Third;"),
            ("b.rs", "use crate::{Other};"),
            ("c.rs", "use crate::First; use crate::Second;"),
        ]);
        assert_eq!(uses(&graph, "a"), ["b"]);
        assert_eq!(uses(&graph, "b"), ["a"]);
        assert_eq!(uses(&graph, "c"), ["a"]);
        assert_eq!(cycles(&graph), [BTreeSet::from(["a", "b"])]);
    }

    #[test]
    fn every_way_to_name_a_module_counts() {
        let graph = of(&[
            ("lib.rs", "pub mod a; pub mod b; mod c; mod d; mod e; mod f;"),
            (
                "a/mod.rs",
                "mod deep; use crate::b; use crate::{c::X, d}; fn f() -> super::e::T { f!(crate::f::g()) }",
            ),
            ("b.rs", "use super::c; mod own { use super::super::d::X; use super::e; }"),
            ("c/deep.rs", "use super::a; use super::super::b::X;"),
            ("d.rs", "use crate::Root; use other::crate_b; use self::e;"),
            ("e.rs", ""),
            ("f.rs", ""),
        ]);
        assert_eq!(uses(&graph, "a"), ["b", "c", "d", "e", "f"]);
        assert_eq!(uses(&graph, "b"), ["c", "d"]);
        assert_eq!(uses(&graph, "c"), ["b"]);
        assert!(uses(&graph, "d").is_empty());
    }

    #[test]
    fn code_for_tests_does_not_count() {
        let graph = of(&[
            ("lib.rs", "mod a; mod b; #[cfg(test)] mod fixtures;"),
            ("a.rs", "#[cfg(test)] use crate::b; #[cfg(test)] mod tests { use crate::b; }"),
            ("a/tests.rs", "use crate::b;"),
            ("b.rs", "use crate::a;"),
            ("fixtures.rs", "use crate::a;"),
        ]);
        assert!(uses(&graph, "a").is_empty());
        assert!(!graph.contains_key("fixtures"));
        assert!(cycles(&graph).is_empty());
    }

    #[test]
    fn modules_that_reach_each_other_are_one_cycle() {
        let graph = of(&[
            ("a.rs", "use crate::b::X;"),
            ("b.rs", "use crate::c;"),
            ("c.rs", "use crate::a;"),
            ("d.rs", "use crate::a;"),
            ("e.rs", "use crate::f;"),
            ("f.rs", "use crate::e;"),
        ]);
        let groups: Vec<Vec<&str>> =
            cycles(&graph).into_iter().map(|group| group.into_iter().collect()).collect();
        assert_eq!(groups, [vec!["a", "b", "c"], vec!["e", "f"]]);
    }
}
