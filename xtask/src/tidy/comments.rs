//! Beginnings of doc comments and of the names of tests, and examples in comments.
//!
//! A doc comment says what its item is or does. One that begins with a question word or a relative clause
//! ("What …", "Whether …", "Of …"), or that only refers to another one ("The same for …", "See [`…`]"), leaves that to
//! the reader.

/// Words that a doc comment does not begin with.
const REFUSED: &[&str] = &[
    "As", "How", "Of", "That", "What", "Whatever", "When", "Where", "Whether", "Which", "Who", "Whoever",
    "Whom", "Whose", "Why",
];

/// Beginnings of doc comments that refer to others instead of saying what the item is.
const REFUSED_REFERENCES: &[&str] =
    &["the same as", "the same for", "the same of", "same as", "same for", "see ["];

/// Returns the line number and the refused beginning of each doc comment that has one, in upper or lower case. Only
/// the first line of a comment is checked.
pub fn openings(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut before = None;
    for (index, line) in text.lines().enumerate() {
        let marker = ["///", "//!"].into_iter().find(|marker| line.trim_start().starts_with(marker));
        if marker.is_some() && marker != before {
            let words = line.trim_start()[3..].trim_start();
            let end = words.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(words.len());
            let reference = REFUSED_REFERENCES.iter().find_map(|refused| {
                words.get(..refused.len()).filter(|beginning| beginning.eq_ignore_ascii_case(refused))
            });
            if REFUSED.iter().any(|word| word.eq_ignore_ascii_case(&words[..end])) {
                found.push((index + 1, &words[..end]));
            } else if let Some(reference) = reference {
                found.push((index + 1, reference));
            }
        }
        before = marker;
    }
    found
}

/// Returns the line number and the name of each test whose name begins with a refused word: a test is named
/// `subject_condition_outcome`.
pub fn test_names(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut test = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start();
        if line.starts_with("#[") {
            test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            continue;
        }
        let name = line.split_once("fn ").and_then(|(_, rest)| rest.split_once('(')).map(|(name, _)| name);
        if let (true, Some(name)) = (test, name) {
            let first = name.split('_').next().unwrap_or_default();
            if REFUSED.iter().any(|word| word.eq_ignore_ascii_case(first)) {
                found.push((index + 1, name));
            }
        }
        test &= name.is_none();
    }
    found
}

/// Returns the line numbers of the code blocks in doc comments that rustdoc would compile as tests.
pub fn examples(text: &str) -> Vec<usize> {
    let mut found = Vec::new();
    let mut inside = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let fence =
            ["///", "//!"].iter().find_map(|marker| line.strip_prefix(marker)?.trim().strip_prefix("```"));
        let Some(language) = fence else { continue };
        if !inside && language != "text" {
            found.push(index + 1);
        }
        inside = !inside;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{examples, openings, test_names};

    #[test]
    fn code_block_of_a_doc_comment_is_found_and_a_drawing_is_not() {
        let text = "//! ```text\n//! a -> b\n//! ```\n/// ```\n/// f();\n/// ```\nfn f() {}\n// ```\n";
        assert_eq!(examples(text), [4]);
    }

    #[test]
    fn tests_that_begin_with_a_question_word_are_found_and_other_functions_are_not() {
        let text = "#[test]\nfn what_is_read() {}\n#[tokio::test(start_paused = true)]\n#[ignore]\nasync fn who_pages() {}\n\
                    #[test]\nfn whatsoever() {}\nfn of_new() {}\n";
        assert_eq!(test_names(text), [(2, "what_is_read"), (5, "who_pages")]);
    }

    #[test]
    fn doc_comments_that_begin_with_a_question_word_are_found() {
        let text = "//! What this is.\n\n/// Whether it runs.\nfn a() {}\n    /// of a pod,\n    /// by name.\n    b: u8,\n";
        assert_eq!(openings(text), [(1, "What"), (3, "Whether"), (5, "of")]);
    }

    #[test]
    fn doc_comments_that_only_refer_to_others_are_found() {
        let text = "/// The same for v6.\na: u8,\n/// See [`f`].\nfn g() {}\n/// same as before\nb: u8,\n/// The same bytes.\nc: u8,\n";
        assert_eq!(openings(text), [(1, "The same for"), (3, "See ["), (5, "same as")]);
    }

    #[test]
    fn later_lines_longer_words_and_inline_comments_are_not_checked() {
        let text = "/// Returns the time\n/// When it ends.\nfn a() {}\n// What follows is fast.\n/// Whatsoever.\n/// `As` is a name.\n";
        assert!(openings(text).is_empty());
    }
}
