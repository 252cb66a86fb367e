//! The syntax of a Corefile: directives of words, with blocks in braces, and lines `import`, in whose place stand the
//! lines of other files and of snippets.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::limits::{self, BLOCKS};
use crate::name::Name;

/// A line of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Its number, from 1.
    pub number: usize,
    /// The file: 0 for the Corefile itself, then those that were imported, in their order.
    pub file: usize,
}

impl Line {
    /// The first line of the Corefile.
    pub const FIRST: Self = Self { number: 1, file: 0 };
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number.fmt(f)
    }
}

/// A directive, with the block that it opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directive {
    pub line: Line,
    pub words: Vec<String>,
    pub block: Vec<Self>,
}

impl Directive {
    /// Returns the first word.
    pub fn name(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    /// Returns the words after the first.
    pub fn arguments(&self) -> impl Iterator<Item = &str> {
        self.words.iter().skip(1).map(String::as_str)
    }
}

/// The text is no Corefile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyntaxError {
    #[error("line {0}: a closing brace without an opening one")]
    Unopened(Line),
    #[error("line {0}: the block is not closed")]
    Unclosed(Line),
    #[error("line {0}: blocks lie too deep within each other")]
    Depth(Line),
    #[error("line {0}: a quotation mark is not closed")]
    Quote(Line),
    #[error("line {line}: {what} is not supported")]
    Unsupported { line: Line, what: &'static str },
    #[error("line {line}: import: {what}")]
    Import { line: Line, what: String },
}

impl SyntaxError {
    /// Returns the line that is meant.
    pub fn line(&self) -> Line {
        match self {
            Self::Unopened(line) | Self::Unclosed(line) | Self::Depth(line) | Self::Quote(line) => *line,
            Self::Unsupported { line, .. } | Self::Import { line, .. } => *line,
        }
    }
}

/// A line that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct LineError {
    pub line: Line,
    pub what: String,
}

/// Refuses a line.
pub fn wrong<T, E: From<LineError>>(line: Line, what: impl Into<String>) -> Result<T, E> {
    Err(LineError { line, what: what.into() }.into())
}

/// Parses a domain name.
pub fn name(text: &str, line: Line) -> Result<Name, LineError> {
    Name::parse(text).or_else(|error| wrong(line, format!("{text:?} is not a domain name: {error}")))
}

/// Returns the zones that words name, or those of the block without any.
pub fn zones<'a>(
    words: impl Iterator<Item = &'a str>,
    line: Line,
    block: &[Name],
) -> Result<Vec<Name>, LineError> {
    let zones: Vec<Name> = words.map(|word| name(word, line)).collect::<Result<_, _>>()?;
    Ok(if zones.is_empty() { block.to_vec() } else { zones })
}

/// Returns the zones of a line `fallthrough`: all without one.
pub fn fallthrough(words: &[&str], line: Line) -> Result<Vec<Name>, LineError> {
    zones(words.iter().copied(), line, &[Name::ROOT])
}

/// The files that a pattern of a line `import` stands for, each with its path and text. The error says what is wrong.
pub type Find<'a> = &'a dyn Fn(&str) -> Result<Vec<(String, String)>, String>;

/// The paths and texts of the files that were imported, in their order.
pub type Imported = Vec<(String, String)>;

/// Parses the directives of a file. A file without braces is one block, as in CoreDNS. The files that were imported
/// are added to `imported`, also on failure.
pub fn parse(text: &str, find: Find<'_>, imported: &mut Imported) -> Result<Vec<Directive>, SyntaxError> {
    let mut parser = Parser {
        open: vec![Directive { line: Line::FIRST, words: Vec::new(), block: Vec::new() }],
        snippets: BTreeMap::new(),
        find,
        imported,
        active: Vec::new(),
        imports: 0,
        lines: 0,
    };
    parser.source(&lines(text, 0)?, &[])?;
    let root = parser.open.pop().map(|root| root.block);
    Ok(root.unwrap_or_default())
}

/// The words of a line.
type Words = (Line, Vec<String>);

fn lines(text: &str, file: usize) -> Result<Vec<Words>, SyntaxError> {
    let lines = text.lines().enumerate().map(|(at, text)| (Line { number: at + 1, file }, text));
    lines.map(|(line, text)| Ok((line, split(text, line)?))).collect()
}

struct Parser<'a> {
    /// The directives of open blocks, the outermost first.
    open: Vec<Directive>,
    snippets: BTreeMap<String, Arc<[Words]>>,
    find: Find<'a>,
    imported: &'a mut Imported,
    /// The snippets and files whose lines are being read, the outermost first.
    active: Vec<String>,
    /// Numbers of lines `import` and of all lines so far: what is imported may import in turn.
    imports: usize,
    lines: usize,
}

impl Parser<'_> {
    /// Adds the lines of a file or a snippet, whose braces match.
    fn source(&mut self, lines: &[Words], arguments: &[String]) -> Result<(), SyntaxError> {
        let depth = self.open.len();
        let mut lines = lines.iter();
        while let Some((line, words)) = lines.next() {
            let line = *line;
            self.lines += 1;
            if self.lines > limits::LINES {
                return import(
                    line,
                    format!("there are more than {} lines with what is imported", limits::LINES),
                );
            }
            let mut words: Vec<String> =
                words.iter().map(|word| substituted(word, arguments, line)).collect::<Result<_, _>>()?;
            if words.first().is_some_and(|word| word == "}") {
                words.remove(0);
                if self.open.len() <= depth {
                    return Err(SyntaxError::Unopened(line));
                }
                let done = self.open.pop().ok_or(SyntaxError::Unopened(line))?;
                self.add(done);
            }
            match words.first().map(String::as_str) {
                None => {}
                Some("import") => self.import(&words[1..], line)?,
                Some(word) if self.open.len() == 1 && word.starts_with('(') => {
                    let name = snippet_name(&words, line)?;
                    let body = snippet_body(&mut lines, line)?;
                    self.snippets.insert(name.to_owned(), body);
                }
                Some(_) => self.directive(words, line)?,
            }
        }
        match self.open.get(depth) {
            Some(unclosed) => Err(SyntaxError::Unclosed(unclosed.line)),
            None => Ok(()),
        }
    }

    fn directive(&mut self, mut words: Vec<String>, line: Line) -> Result<(), SyntaxError> {
        if words.iter().any(|word| word.contains("{$") || word.contains("{%")) {
            return Err(SyntaxError::Unsupported { line, what: "an environment variable" });
        }
        let opens = words.last().is_some_and(|word| word == "{");
        if opens {
            words.pop();
        }
        let directive = Directive { line, words, block: Vec::new() };
        if !opens {
            self.add(directive);
        } else if self.open.len() >= BLOCKS {
            return Err(SyntaxError::Depth(line));
        } else {
            self.open.push(directive);
        }
        Ok(())
    }

    fn add(&mut self, directive: Directive) {
        if let Some(parent) = self.open.last_mut() {
            parent.block.push(directive);
        }
    }

    fn import(&mut self, words: &[String], line: Line) -> Result<(), SyntaxError> {
        let Some((pattern, arguments)) = words.split_first() else {
            return import(line, "write import FILE or import SNIPPET");
        };
        self.imports += 1;
        if self.imports > limits::IMPORTS {
            return import(line, format!("there are more than {} such lines", limits::IMPORTS));
        }
        if let Some(snippet) = self.snippets.get(pattern) {
            let snippet = Arc::clone(snippet);
            return self.within(format!("({pattern})"), line, |parser| parser.source(&snippet, arguments));
        }
        for (path, text) in (self.find)(pattern).or_else(|what| import(line, what))? {
            let size: usize = self.imported.iter().map(|(_, text)| text.len()).sum();
            if size + text.len() > limits::CONFIGURATION as usize
                || self.imported.len() >= limits::IMPORTED_FILES
            {
                return import(
                    line,
                    format!(
                        "more than {} files or {} bytes are imported",
                        limits::IMPORTED_FILES,
                        limits::CONFIGURATION
                    ),
                );
            }
            self.imported.push((path.clone(), text.clone()));
            let lines = lines(&text, self.imported.len())?;
            self.within(path, line, |parser| parser.source(&lines, arguments))?;
        }
        Ok(())
    }

    /// Reads the lines of a source, which may not import itself.
    fn within(
        &mut self,
        source: String,
        line: Line,
        read: impl FnOnce(&mut Self) -> Result<(), SyntaxError>,
    ) -> Result<(), SyntaxError> {
        if self.active.contains(&source) {
            return import(line, format!("{source} imports itself"));
        }
        if self.active.len() >= limits::IMPORT_DEPTH {
            return import(
                line,
                format!("imports lie more than {} deep within each other", limits::IMPORT_DEPTH),
            );
        }
        self.active.push(source);
        read(self)?;
        self.active.pop();
        Ok(())
    }
}

fn import<T>(line: Line, what: impl Into<String>) -> Result<T, SyntaxError> {
    Err(SyntaxError::Import { line, what: what.into() })
}

fn snippet_name(words: &[String], line: Line) -> Result<&str, SyntaxError> {
    let name = match words {
        [label, brace] if brace == "{" => label.strip_prefix('(').and_then(|label| label.strip_suffix(')')),
        _ => None,
    };
    name.filter(|name| !name.is_empty())
        .ok_or_else(|| SyntaxError::Import { line, what: "a snippet begins with (NAME) {".to_owned() })
}

/// Takes the lines up to the brace that closes a snippet. They are read where they are imported.
fn snippet_body<'a>(
    lines: &mut impl Iterator<Item = &'a Words>,
    start: Line,
) -> Result<Arc<[Words]>, SyntaxError> {
    let (mut body, mut depth) = (Vec::new(), 1);
    for (line, words) in lines {
        if words.first().is_some_and(|word| word == "}") {
            depth -= 1;
        }
        if depth == 0 {
            return match &words[1..] {
                [] => Ok(body.into()),
                _ => import(*line, "nothing stands behind the brace that closes a snippet"),
            };
        }
        if words.last().is_some_and(|word| word == "{") {
            depth += 1;
        }
        body.push((*line, words.clone()));
    }
    Err(SyntaxError::Unclosed(start))
}

/// Returns a word with the arguments of the line `import` in place of `{args[0]}` and further ones.
fn substituted(word: &str, arguments: &[String], line: Line) -> Result<String, SyntaxError> {
    let (mut done, mut rest) = (String::new(), word);
    while let Some((before, after)) = rest.split_once("{args[") {
        let argument = after
            .split_once("]}")
            .and_then(|(number, after)| Some((arguments.get(number.parse::<usize>().ok()?)?, after)));
        let Some((argument, after)) = argument else {
            return import(line, format!("{word:?} names an argument that the line import does not have"));
        };
        done.push_str(before);
        done.push_str(argument);
        rest = after;
    }
    done.push_str(rest);
    Ok(done)
}

/// Splits a line into words; a comment begins with `#`, quotation marks hold words together.
fn split(line: &str, at: Line) -> Result<Vec<String>, SyntaxError> {
    let (mut words, mut word, mut quoted, mut begun) = (Vec::new(), String::new(), false, false);
    for c in line.chars() {
        match c {
            '"' => {
                quoted = !quoted;
                begun = true;
            }
            '#' if !quoted && !begun => break,
            c if c.is_whitespace() && !quoted => {
                if std::mem::take(&mut begun) {
                    words.push(std::mem::take(&mut word));
                }
            }
            c => {
                word.push(c);
                begun = true;
            }
        }
    }
    if quoted {
        return Err(SyntaxError::Quote(at));
    }
    if begun {
        words.push(word);
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Directive>, SyntaxError> {
        let files = |pattern: &str| match pattern {
            "common" => Ok(vec![("common".to_owned(), "errors\nlog\n".to_owned())]),
            "all/*" => {
                Ok(["a", "b"].map(|name| (name.to_owned(), format!("{name} {{\n cache\n}}\n"))).into())
            }
            "self" => Ok(vec![("self".to_owned(), "\nimport self\n".to_owned())]),
            "open" => Ok(vec![("open".to_owned(), "x {\n".to_owned())]),
            "close" => Ok(vec![("close".to_owned(), "}\n".to_owned())]),
            "big" => Ok(vec![("big".to_owned(), "x\n".repeat(limits::LINES))]),
            deep if deep.starts_with("deep") => Ok(vec![(deep.to_owned(), format!("import {deep}x"))]),
            other => Err(format!("cannot read {other}")),
        };
        parse(text, &files, &mut Vec::new())
    }

    fn line(number: usize) -> Line {
        Line { number, file: 0 }
    }

    fn words(directives: &[Directive]) -> Vec<String> {
        directives.iter().map(|directive| directive.words.join(" ")).collect()
    }

    #[test]
    fn blocks_and_words_are_read() {
        let text = "# comment\n.:53 {\n  forward . 8.8.8.8 { # more\n    policy \"round_robin\"\n  }\n\n  loop\n}\nother {\n}\n";
        let found = read(text).unwrap();
        assert_eq!(found.len(), 2);
        let forward = &found[0].block[0];
        assert_eq!((forward.line, forward.name()), (line(3), "forward"));
        assert_eq!(forward.arguments().collect::<Vec<_>>(), [".", "8.8.8.8"]);
        assert_eq!(forward.block[0].words, ["policy", "round_robin"]);
        assert_eq!(found[0].block[1].name(), "loop");
        assert_eq!(read("").unwrap(), []);
    }

    #[test]
    fn malformed_corefiles_are_refused_with_the_line() {
        assert_eq!(read("a {\n}\n}\n"), Err(SyntaxError::Unopened(line(3))));
        assert_eq!(read("a {\n b {\n }\n"), Err(SyntaxError::Unclosed(line(1))));
        assert_eq!(read("a {\n b {\n c {\n d {\n"), Err(SyntaxError::Depth(line(4))));
        assert_eq!(read("a \"b\n"), Err(SyntaxError::Quote(line(1))));
        assert!(matches!(read("a {$X}\n"), Err(SyntaxError::Unsupported { line: at, .. }) if at == line(1)));
    }

    #[test]
    fn imported_lines_stand_in_the_place_of_the_line_import() {
        let found = read(". {\n import common\n cache\n}\nimport all/*\n").unwrap();
        assert_eq!(words(&found), [".", "a", "b"]);
        assert_eq!(words(&found[0].block), ["errors", "log", "cache"]);
        assert_eq!(found[0].block[1].line, Line { number: 2, file: 1 });
        assert_eq!(words(&found[2].block), ["cache"]);
    }

    #[test]
    fn snippets_have_arguments_and_may_import_others() {
        let text = "(to) {\n forward {args[0]} {args[1]}:53 {\n  max_fails 3\n }\n}\n(both) {\n log\n import to . {args[0]}\n}\n\
                    a {\n import both 192.0.2.1\n}\n";
        let found = read(text).unwrap();
        assert_eq!(words(&found), ["a"]);
        assert_eq!(words(&found[0].block), ["log", "forward . 192.0.2.1:53"]);
        assert_eq!(
            (words(&found[0].block[1].block), found[0].block[1].line),
            (vec!["max_fails 3".to_owned()], line(2))
        );
    }

    #[test]
    fn imports_that_do_not_end_are_refused_with_the_line() {
        let error = |text: &str| read(text).unwrap_err();
        let cases = [
            ("\nimport\n", line(2), "write import"),
            ("import none\n", line(1), "cannot read none"),
            ("import self\n", Line { number: 2, file: 1 }, "self imports itself"),
            ("(a) {\n import b\n}\n(b) {\n import a\n}\nimport a\n", line(5), "(a) imports itself"),
            ("import deep\n", Line { number: 1, file: limits::IMPORT_DEPTH }, "deep within"),
            ("x\nimport big\n", Line { number: limits::LINES - 1, file: 1 }, "lines"),
            ("(a) {\n log {args[1]}\n}\nimport a b\n", line(2), "argument"),
            ("() {\n}\n", line(1), "begins with"),
            ("(a) {\n log\n", line(1), "not closed"),
            ("(a) {\n} x\n", line(2), "behind the brace"),
            ("import open\n}\n", Line { number: 1, file: 1 }, "not closed"),
            ("x {\nimport close\n", Line { number: 1, file: 1 }, "without an opening"),
            (&"import common\n".repeat(limits::IMPORTS + 1), line(limits::IMPORTED_FILES + 1), "files"),
            (
                &format!("(a) {{\n}}\n{}", "import a\n".repeat(limits::IMPORTS + 1)),
                line(limits::IMPORTS + 3),
                "such lines",
            ),
        ];
        for (text, at, what) in cases {
            let found = error(text);
            assert_eq!(found.line(), at, "{found}");
            assert!(found.to_string().contains(what), "{found}");
        }
        // Snippets that import others twice would make a billion lines.
        let bomb: String =
            (1..30).map(|at| format!("(s{at}) {{\n import s{0}\n import s{0}\n}}\n", at - 1)).collect();
        let found = error(&format!(
            "(s0) {{\n log\n}}\n{bomb}import s7\nimport s7\nimport s7\nimport s7\nimport s7\n"
        ));
        assert!(found.to_string().contains("such lines"), "{found}");
    }
}
