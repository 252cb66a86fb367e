//! Texts side by side: the lines that differ, with three around them, as `diff -u` shows them but
//! without the names of files.

/// Lines shown around a change.
const AROUND: usize = 3;

/// The most pairs of lines that are compared to find one stretch; a thousand lines by a thousand.
const CELLS: usize = 1 << 20;

/// The most pairs that are compared in all: stretches of one line each would be looked for in all the rest
/// again and again.
const ALL: usize = 8 * CELLS;

/// A stretch of lines: of the old text from `.1` to `.2`, of the new from `.3` to `.4`; the same in
/// both if `.0`.
type Run = (bool, usize, usize, usize, usize);

/// What differs from `old` to `new`; nothing if nothing does.
pub(crate) fn unified(old: &str, new: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let runs = runs(&old, &new);
    let mut text = String::new();
    for group in groups(&runs) {
        let (first, last) = (group[0], group[group.len() - 1]);
        text += &format!("@@ -{} +{} @@\n", span(first.1, last.2), span(first.3, last.4));
        for (equal, from, to, new_from, new_to) in group {
            if equal {
                text.extend(old[from..to].iter().map(|line| format!(" {line}\n")));
                continue;
            }
            text.extend(old[from..to].iter().map(|line| format!("-{line}\n")));
            text.extend(new[new_from..new_to].iter().map(|line| format!("+{line}\n")));
        }
    }
    text
}

/// Lines as the head of a group counts them: from one, and without a length of one.
fn span(from: usize, to: usize) -> String {
    match to - from {
        1 => (from + 1).to_string(),
        0 => format!("{from},0"),
        length => format!("{},{length}", from + 1),
    }
}

fn runs(old: &[&str], new: &[&str]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let (mut i, mut j) = (0, 0);
    let (mut same, mut left) = (Vec::new(), ALL);
    matches(old, new, (0, 0), &mut left, &mut same);
    same.push((old.len(), new.len(), 0));
    for (a, b, length) in same {
        if i < a || j < b {
            runs.push((false, i, a, j, b));
        }
        (i, j) = (a + length, b + length);
        match runs.last_mut() {
            Some(last) if last.0 && length > 0 && last.2 == a && last.4 == b => (last.2, last.4) = (i, j),
            _ if length > 0 => runs.push((true, a, i, b, j)),
            _ => {}
        }
    }
    runs
}

/// The longest stretch that is the same, and what is the same before and after it (Ratcliff and
/// Obershelp). `base` is where the slices begin; `left` is how many pairs may be compared.
fn matches(
    old: &[&str],
    new: &[&str],
    base: (usize, usize),
    left: &mut usize,
    found: &mut Vec<(usize, usize, usize)>,
) {
    let cells = old.len().saturating_mul(new.len());
    if cells > CELLS.min(*left) {
        return ends(old, new, base, left, found);
    }
    *left -= cells;
    let Some((i, j, length)) = longest(old, new) else { return };
    matches(&old[..i], &new[..j], base, left, found);
    found.push((base.0 + i, base.1 + j, length));
    let (i, j) = (i + length, j + length);
    matches(&old[i..], &new[j..], (base.0 + i, base.1 + j), left, found);
}

/// What is the same at the beginning and at the end of long texts; what lies between, unless it is
/// short, counts as different.
fn ends(
    old: &[&str],
    new: &[&str],
    base: (usize, usize),
    left: &mut usize,
    found: &mut Vec<(usize, usize, usize)>,
) {
    let before = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let (old, new) = (&old[before..], &new[before..]);
    let after = old.iter().rev().zip(new.iter().rev()).take_while(|(a, b)| a == b).count();
    let (old, new) = (&old[..old.len() - after], &new[..new.len() - after]);
    if before > 0 {
        found.push((base.0, base.1, before));
    }
    let base = (base.0 + before, base.1 + before);
    if old.len().saturating_mul(new.len()) <= CELLS.min(*left) {
        matches(old, new, base, left, found);
    }
    if after > 0 {
        found.push((base.0 + old.len(), base.1 + new.len(), after));
    }
}

/// The first of the longest common stretches.
fn longest(old: &[&str], new: &[&str]) -> Option<(usize, usize, usize)> {
    let mut best: Option<(usize, usize, usize)> = None;
    // Length of the common stretch that ends before each line of the new text.
    let mut before = vec![0usize; new.len() + 1];
    for (i, line) in old.iter().enumerate() {
        let mut now = vec![0usize; new.len() + 1];
        for (j, other) in new.iter().enumerate() {
            if line == other {
                let length = before[j] + 1;
                now[j + 1] = length;
                if best.is_none_or(|(_, _, most)| length > most) {
                    best = Some((i + 1 - length, j + 1 - length, length));
                }
            }
        }
        before = now;
    }
    best
}

/// Changes that are near each other, with the lines around them.
fn groups(runs: &[Run]) -> Vec<Vec<Run>> {
    let mut groups: Vec<Vec<Run>> = Vec::new();
    let mut group: Vec<Run> = Vec::new();
    for (index, &(equal, mut from, mut to, mut new_from, mut new_to)) in runs.iter().enumerate() {
        if equal && index == 0 {
            from = from.max(to.saturating_sub(AROUND));
            new_from = new_from.max(new_to.saturating_sub(AROUND));
        }
        if equal && index + 1 == runs.len() {
            to = to.min(from + AROUND);
            new_to = new_to.min(new_from + AROUND);
        }
        if equal && to - from > 2 * AROUND {
            group.push((true, from, from + AROUND, new_from, new_from + AROUND));
            groups.push(std::mem::take(&mut group));
            from = to - AROUND;
            new_from = new_to - AROUND;
        }
        group.push((equal, from, to, new_from, new_to));
    }
    groups.push(group);
    groups.retain(|group| group.iter().any(|run| !run.0));
    groups
}

#[cfg(test)]
mod tests {
    use super::unified;

    #[test]
    fn changes_stand_among_three_lines_of_context() {
        let old = "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk\nl\nm\nn\no";
        let new = "a\nb\nc\nd\nE\nf\ng\nh\ni\nj\nk\nl\nm\nn\no\np";
        assert_eq!(
            unified(old, new),
            "@@ -2,7 +2,7 @@\n b\n c\n d\n-e\n+E\n f\n g\n h\n@@ -13,3 +13,4 @@\n m\n n\n o\n+p\n"
        );
        assert_eq!(unified(old, old), "");
        assert_eq!(unified("a", "b"), "@@ -1 +1 @@\n-a\n+b\n");
        assert_eq!(unified("", "b\nc"), "@@ -0,0 +1,2 @@\n+b\n+c\n");
    }

    #[test]
    fn lines_that_are_the_same_one_by_one_are_not_all_looked_for() {
        let lines = |other: &str| (0..500).map(|n| format!("{other}{n}\nsame {n}\n")).collect::<String>();
        let text = unified(&lines("old "), &lines("new "));
        assert!(text.starts_with("@@ -1,1000 +1,1000 @@\n-old 0\n+new 0\n same 0\n-old 1\n"));
        assert_eq!(text.lines().filter(|line| line.starts_with("-old ")).count(), 500);
        assert!(text.ends_with("\n same 499\n"));
    }

    #[test]
    fn long_texts_are_compared_from_their_ends() {
        let lines = |changed: &[usize]| {
            let line = |i| if changed.contains(&i) { format!("new {i}") } else { format!("line {i}") };
            (0..200_000).map(line).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(
            unified(&lines(&[]), &lines(&[7, 9])),
            "@@ -5,9 +5,9 @@\n line 4\n line 5\n line 6\n-line 7\n+new 7\n line 8\n-line 9\n+new 9\n line 10\n \
             line 11\n line 12\n"
        );
        let far = unified(&lines(&[]), &lines(&[7, 199_990]));
        assert!(far.starts_with("@@ -5,199990 +5,199990 @@\n line 4\n"), "{}", &far[..60]);
        assert!(far.ends_with("+new 199990\n line 199991\n line 199992\n line 199993\n"));
    }
}
