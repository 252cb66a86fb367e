//! Log format of CRI runtimes: `TIME stream TAG text`, where tag `P` marks a partial line that continues in
//! the next record.

use jiff::Timestamp;

/// One record of a log file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Time as written, with nanoseconds.
    pub time: &'a str,
    /// `stdout` or `stderr`
    pub stream: &'a str,
    /// True if the line continues in the next record.
    pub partial: bool,
    pub text: &'a [u8],
}

/// Parses a record, with or without its newline; returns `None` if it is not in this format.
pub fn parse(line: &[u8]) -> Option<Line<'_>> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let time = std::str::from_utf8(parts.next()?).ok()?;
    let stream = std::str::from_utf8(parts.next()?).ok()?;
    let tags = parts.next()?;
    let partial = tags.split(|byte| *byte == b':').next() == Some(b"P".as_slice());
    matches!(stream, "stdout" | "stderr").then_some(Line {
        time,
        stream,
        partial,
        text: parts.next().unwrap_or_default(),
    })
}

/// Options of a log request: which records are wanted, and how they are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Records before this time are skipped.
    pub since: Option<Timestamp>,
    /// If set, each line is prefixed with its time.
    pub timestamps: bool,
    /// Maximum number of bytes to return.
    pub limit: Option<u64>,
}

/// Converts records of a log file to the output that a client sees.
#[derive(Clone, Debug, Default)]
pub struct Renderer {
    selection: Selection,
    written: u64,
    in_partial: bool,
}

impl Renderer {
    /// Creates a renderer for the beginning of a log.
    pub fn new(selection: Selection) -> Self {
        Self { selection, ..Self::default() }
    }

    /// Returns `true` if the limit is reached.
    pub fn is_full(&self) -> bool {
        self.selection.limit.is_some_and(|limit| self.written >= limit)
    }

    /// Appends the output for one record.
    pub fn render(&mut self, line: &[u8], output: &mut Vec<u8>) {
        let Some(line) = parse(line) else { return };
        if let Some(since) = self.selection.since
            && line.time.parse::<Timestamp>().is_ok_and(|time| time < since)
        {
            return;
        }
        let begin = output.len();
        if self.selection.timestamps && !self.in_partial {
            output.extend_from_slice(line.time.as_bytes());
            output.push(b' ');
        }
        output.extend_from_slice(line.text);
        if !line.partial {
            output.push(b'\n');
        }
        self.in_partial = line.partial;
        if let Some(limit) = self.selection.limit {
            let left = usize::try_from(limit - self.written.min(limit)).unwrap_or(usize::MAX);
            output.truncate(begin.saturating_add(left));
        }
        self.written += (output.len() - begin) as u64;
    }
}

/// Returns the offset at which the last `lines` complete lines of `content` begin. Partial records count as
/// part of the line that they belong to.
pub fn tail_offset(content: &[u8], lines: usize) -> usize {
    if lines == 0 {
        return content.len();
    }
    let body = content.strip_suffix(b"\n").unwrap_or(content);
    let mut starts = 0;
    let mut end = body.len();
    loop {
        let start = body[..end].iter().rposition(|byte| *byte == b'\n').map_or(0, |index| index + 1);
        let continues = start > 0 && {
            let before =
                body[..start - 1].iter().rposition(|byte| *byte == b'\n').map_or(0, |index| index + 1);
            parse(&body[before..start]).is_some_and(|line| line.partial)
        };
        if !continues {
            starts += 1;
            if starts == lines {
                return start;
            }
        }
        if start == 0 {
            return 0;
        }
        end = start - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &[u8] = b"2026-01-01T00:00:00.000000001Z stdout F one\n\
2026-01-01T00:00:01.000000001Z stderr P tw\n\
2026-01-01T00:00:01.000000002Z stderr F o\n\
2026-01-01T00:00:02.000000001Z stdout F \n";

    fn rendered(content: &[u8], selection: Selection) -> String {
        let mut renderer = Renderer::new(selection);
        let mut output = Vec::new();
        for line in content.split_inclusive(|byte| *byte == b'\n') {
            renderer.render(line, &mut output);
        }
        String::from_utf8(output).unwrap()
    }

    #[test]
    fn partial_lines_are_joined_and_times_shown() {
        assert_eq!(rendered(LOG, Selection::default()), "one\ntwo\n\n");
        let text = rendered(LOG, Selection { timestamps: true, ..Selection::default() });
        assert_eq!(text.lines().nth(1), Some("2026-01-01T00:00:01.000000001Z two"));
    }

    #[test]
    fn since_and_limit_bound_the_output() {
        let since = Some("2026-01-01T00:00:01Z".parse().unwrap());
        assert_eq!(rendered(LOG, Selection { since, ..Selection::default() }), "two\n\n");
        assert_eq!(rendered(LOG, Selection { limit: Some(6), ..Selection::default() }), "one\ntw");
    }

    #[test]
    fn tails_count_joined_lines() {
        for (lines, expected) in
            [(0, ""), (1, "\n"), (2, "two\n\n"), (3, "one\ntwo\n\n"), (9, "one\ntwo\n\n")]
        {
            assert_eq!(rendered(&LOG[tail_offset(LOG, lines)..], Selection::default()), expected, "{lines}");
        }
        assert_eq!(tail_offset(b"", 3), 0);
    }

    #[test]
    fn malformed_lines_are_skipped() {
        assert_eq!(parse(b"nonsense"), None);
        assert_eq!(parse(b"2026 stdin F x"), None);
        assert_eq!(parse(b"2026 stdout F").unwrap().text, b"");
    }
}
