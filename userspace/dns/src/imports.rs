//! The files that lines `import` name.

use std::path::Path;

use crate::limits;

/// Returns the files that a pattern stands for, with their paths and texts, in the order of their names. `*` and `?`
/// stand for characters in the last part of a path. Paths are relative to `directory`.
pub fn find(
    directory: &Path,
    pattern: &str,
    read: &dyn Fn(&Path) -> std::io::Result<String>,
) -> Result<Vec<(String, String)>, String> {
    let text = |path: &Path| {
        let shown = path.display().to_string();
        match read(path) {
            Ok(text) => Ok((shown, text)),
            Err(error) => Err(format!("cannot read {shown}: {error}")),
        }
    };
    let path = directory.join(pattern);
    if !is_pattern(pattern) {
        return Ok(vec![text(&path)?]);
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Err(format!("{pattern:?} is no pattern of files"));
    };
    if parent.to_str().is_none_or(is_pattern) {
        return Err(format!("{pattern:?}: * and ? stand in the last part of a path alone"));
    }
    let entries = match std::fs::read_dir(parent) {
        Ok(entries) => entries,
        // A pattern may match nothing.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(format!("cannot list {}: {error}", parent.display())),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| format!("cannot list {}: {error}", parent.display()))?;
        let matches = entry.file_name().to_str().is_some_and(|own| matches(name.as_bytes(), own.as_bytes()));
        // The files of a mounted ConfigMap are symbolic links.
        if matches && std::fs::metadata(entry.path()).is_ok_and(|metadata| metadata.is_file()) {
            found.push(entry.path());
        }
        if found.len() > limits::IMPORTED_FILES {
            return Err(format!("{pattern:?} stands for more than {} files", limits::IMPORTED_FILES));
        }
    }
    found.sort();
    found.iter().map(|path| text(path)).collect()
}

fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?'])
}

/// Compares a name with a pattern. The last `*` alone is tried again, so that the time is at most the product of the
/// lengths.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut own, mut star) = (0, 0, None);
    while own < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, own));
                at += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[own] => (at, own) = (at + 1, own + 1),
            _ => {
                let Some((behind, taken)) = star else { return false };
                star = Some((behind, taken + 1));
                (at, own) = (behind + 1, taken + 1);
            }
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks_stand_for_characters() {
        let yes = [("*", "a"), ("*.conf", "a.conf"), ("a*b?c", "axxbbyc"), ("**", ""), ("a?", "ab")];
        let no = [("*.conf", "conf"), ("a?", "a"), ("a*b", "abc"), ("", "a")];
        for (pattern, name) in yes {
            assert!(matches(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
        for (pattern, name) in no {
            assert!(!matches(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
        // A pattern that would take exponential time, if every star were tried again.
        assert!(!matches("*a".repeat(100).as_bytes(), "a".repeat(99).as_bytes()));
    }

    #[test]
    fn files_are_found_in_order_and_directories_are_not() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["b.conf", "a.conf", "c.txt"] {
            std::fs::write(directory.path().join(name), name).unwrap();
        }
        std::fs::create_dir(directory.path().join("d.conf")).unwrap();
        let read = |path: &Path| std::fs::read_to_string(path);
        let find = |pattern: &str| find(directory.path(), pattern, &read);
        let texts =
            |found: Vec<(String, String)>| found.into_iter().map(|(_, text)| text).collect::<Vec<_>>();
        assert_eq!(texts(find("*.conf").unwrap()), ["a.conf", "b.conf"]);
        assert_eq!(texts(find("./c.txt").unwrap()), ["c.txt"]);
        assert_eq!(find("*.none").unwrap(), []);
        assert_eq!(find("none/*").unwrap(), []);
        assert!(find("none").unwrap_err().contains("cannot read"));
        assert!(find("*/c.txt").unwrap_err().contains("last part"));
        for number in 0..=limits::IMPORTED_FILES {
            std::fs::write(directory.path().join(format!("{number}.many")), "").unwrap();
        }
        assert!(find("*.many").unwrap_err().contains("more than"));
    }
}
