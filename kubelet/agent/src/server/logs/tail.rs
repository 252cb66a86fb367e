//! Finds where the last lines of a log begin, using little memory however long the log and its lines are.

use std::io;

use tokio::{
    fs::File,
    io::{AsyncReadExt, AsyncSeekExt},
};

use super::CHUNK;
use crate::{
    cri_log::{parse, tail_offset},
    limits,
};

/// Seeks to the beginning of the last `lines` lines: searches a window at the end of the file first, and, if
/// that is too small, counts the lines from the beginning.
pub(super) async fn seek(file: &mut File, lines: usize) -> io::Result<()> {
    let length = file.metadata().await?.len();
    let mut window = CHUNK as u64;
    while window <= limits::LOG_TAIL_WINDOW {
        let start = length.saturating_sub(window);
        file.seek(io::SeekFrom::Start(start)).await?;
        let mut content = Vec::new();
        (&mut *file).take(length - start).read_to_end(&mut content).await?;
        // The window may begin in the middle of a line.
        let first = if start == 0 {
            0
        } else {
            content.iter().position(|byte| *byte == b'\n').map_or(content.len(), |index| index + 1)
        };
        let offset = tail_offset(&content[first..], lines);
        if start == 0 || offset > 0 {
            file.seek(io::SeekFrom::Start(start + (first + offset) as u64)).await?;
            return Ok(());
        }
        window *= 4;
    }
    seek_in_long(file, length, lines as u64).await
}

/// Counts the lines in a first pass and finds the wanted one in a second.
async fn seek_in_long(file: &mut File, length: u64, lines: u64) -> io::Result<()> {
    let mut all = 0;
    scan(file, length, |_| {
        all += 1;
        true
    })
    .await?;
    let (skipped, mut seen, mut target) = (u64::saturating_sub(all, lines), 0, length);
    scan(file, length, |offset| {
        if seen == skipped {
            target = offset;
            return false;
        }
        seen += 1;
        true
    })
    .await?;
    file.seek(io::SeekFrom::Start(target)).await?;
    Ok(())
}

/// Calls `found` with the offset of each line that does not continue another one, until it returns `false`.
async fn scan(file: &mut File, length: u64, mut found: impl FnMut(u64) -> bool) -> io::Result<()> {
    file.seek(io::SeekFrom::Start(0)).await?;
    let mut lines = Lines::default();
    let mut buffer = vec![0; CHUNK];
    let mut content = file.take(length);
    loop {
        let read = content.read(&mut buffer).await?;
        if read == 0 || !lines.feed(&buffer[..read], &mut found) {
            return Ok(());
        }
    }
}

/// Finds the beginnings of lines in consecutive pieces of a log.
#[derive(Default)]
struct Lines {
    /// Bytes processed so far.
    offset: u64,
    /// Beginning of the current line.
    head: Vec<u8>,
    /// True if the previous line continues in the current one.
    continues: bool,
}

impl Lines {
    /// Processes a piece; returns whether to go on.
    fn feed(&mut self, piece: &[u8], found: &mut impl FnMut(u64) -> bool) -> bool {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            if self.head.is_empty() && !self.continues && !found(self.offset) {
                return false;
            }
            let room = limits::LOG_LINE_HEAD - self.head.len();
            self.head.extend_from_slice(&part[..part.len().min(room)]);
            self.offset += part.len() as u64;
            if part.ends_with(b"\n") {
                self.continues = parse(&self.head).is_some_and(|line| line.partial);
                self.head.clear();
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(lines: usize) -> Vec<u8> {
        let mut log = Vec::new();
        for index in 0..lines {
            let tag = if index % 3 == 0 { "P" } else { "F" };
            let text = "x".repeat(index % 50);
            log.extend(format!("2026-01-01T00:00:00.000000001Z stdout {tag} {index} {text}\n").bytes());
        }
        log
    }

    #[tokio::test]
    async fn long_logs_are_counted_as_short_ones_are() {
        let content = log(500);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &content).unwrap();
        let mut file = File::open(file.path()).await.unwrap();
        for lines in [0, 1, 2, 3, 100, 332, 333, 334, 1_000_000] {
            let expected = tail_offset(&content, lines) as u64;
            seek_in_long(&mut file, content.len() as u64, lines as u64).await.unwrap();
            assert_eq!(file.stream_position().await.unwrap(), expected, "{lines}");
            seek(&mut file, lines).await.unwrap();
            assert_eq!(file.stream_position().await.unwrap(), expected, "{lines}");
        }
    }

    #[tokio::test]
    async fn the_tail_of_a_log_larger_than_its_window_is_found() {
        let content = log(20_000);
        assert!(content.len() as u64 > 2 * limits::LOG_TAIL_WINDOW);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &content).unwrap();
        let mut file = File::open(file.path()).await.unwrap();
        for lines in [1, 12_000, 1_000_000] {
            seek(&mut file, lines).await.unwrap();
            let expected = tail_offset(&content, lines) as u64;
            assert_eq!(file.stream_position().await.unwrap(), expected, "{lines}");
        }
    }

    proptest::proptest! {
        #[test]
        fn lines_are_the_same_in_any_pieces(count in 0_usize..60, size in 1_usize..100) {
            let content = log(count);
            let starts = |size: usize| {
                let (mut starts, mut lines) = (Vec::new(), Lines::default());
                for piece in content.chunks(size) {
                    lines.feed(piece, &mut |offset| { starts.push(offset); true });
                }
                starts
            };
            proptest::prop_assert_eq!(starts(size), starts(usize::MAX));
        }
    }
}
