//! The syntax of a Corefile: directives of words, with blocks in braces.

use crate::limits::BLOCKS;

/// A line, with the block that it opens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directive {
    /// Number of the line, from 1.
    pub line: usize,
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
    Unopened(usize),
    #[error("line {0}: the block is not closed")]
    Unclosed(usize),
    #[error("line {0}: blocks lie too deep within each other")]
    Depth(usize),
    #[error("line {0}: a quotation mark is not closed")]
    Quote(usize),
    #[error("line {line}: {what} is not supported")]
    Unsupported { line: usize, what: &'static str },
}

/// Parses the directives of a file. A file without braces is one block, as in CoreDNS.
pub fn parse(text: &str) -> Result<Vec<Directive>, SyntaxError> {
    // The directives of open blocks, the outermost first.
    let mut open: Vec<Directive> = vec![Directive::default()];
    for (number, line) in text.lines().enumerate() {
        let line_number = number + 1;
        let mut words = split(line, line_number)?;
        let closes = words.first().is_some_and(|word| word == "}");
        if closes {
            words.remove(0);
            let done = open.pop().filter(|_| !open.is_empty()).ok_or(SyntaxError::Unopened(line_number))?;
            if let Some(parent) = open.last_mut() {
                parent.block.push(done);
            }
        }
        if words.is_empty() {
            continue;
        }
        refuse(&words, line_number)?;
        let opens = words.last().is_some_and(|word| word == "{");
        if opens {
            words.pop();
        }
        let directive = Directive { line: line_number, words, block: Vec::new() };
        if opens {
            if open.len() >= BLOCKS {
                return Err(SyntaxError::Depth(line_number));
            }
            open.push(directive);
        } else if let Some(parent) = open.last_mut() {
            parent.block.push(directive);
        }
    }
    match (open.pop(), open.is_empty()) {
        (Some(root), true) => Ok(root.block),
        (Some(last), false) => Err(SyntaxError::Unclosed(last.line)),
        (None, _) => Ok(Vec::new()),
    }
}

fn refuse(words: &[String], line: usize) -> Result<(), SyntaxError> {
    if words.iter().any(|word| word.contains("{$") || word.contains("{%")) {
        return Err(SyntaxError::Unsupported { line, what: "an environment variable" });
    }
    match words.first().map(String::as_str) {
        Some("import") => Err(SyntaxError::Unsupported { line, what: "import" }),
        Some(word) if word.starts_with('(') => Err(SyntaxError::Unsupported { line, what: "a snippet" }),
        _ => Ok(()),
    }
}

/// Splits a line into words; a comment begins with `#`, quotation marks hold words together.
fn split(line: &str, number: usize) -> Result<Vec<String>, SyntaxError> {
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
        return Err(SyntaxError::Quote(number));
    }
    if begun {
        words.push(word);
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_words_are_read() {
        let text = "# comment\n.:53 {\n  forward . 8.8.8.8 { # more\n    policy \"round_robin\"\n  }\n\n  loop\n}\nother {\n}\n";
        let found = parse(text).unwrap();
        assert_eq!(found.len(), 2);
        let forward = &found[0].block[0];
        assert_eq!((forward.line, forward.name()), (3, "forward"));
        assert_eq!(forward.arguments().collect::<Vec<_>>(), [".", "8.8.8.8"]);
        assert_eq!(forward.block[0].words, ["policy", "round_robin"]);
        assert_eq!(found[0].block[1].name(), "loop");
        assert_eq!(parse("").unwrap(), []);
    }

    #[test]
    fn malformed_corefiles_are_refused_with_the_line() {
        assert_eq!(parse("a {\n}\n}\n"), Err(SyntaxError::Unopened(3)));
        assert_eq!(parse("a {\n b {\n }\n"), Err(SyntaxError::Unclosed(1)));
        assert_eq!(parse("a {\n b {\n c {\n d {\n"), Err(SyntaxError::Depth(4)));
        assert_eq!(parse("a \"b\n"), Err(SyntaxError::Quote(1)));
        assert!(matches!(parse("\nimport x\n"), Err(SyntaxError::Unsupported { line: 2, .. })));
        assert!(matches!(parse("a {$X}\n"), Err(SyntaxError::Unsupported { line: 1, .. })));
    }
}
