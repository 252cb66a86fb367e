//! Log files of containers. Pods that mount the node's log directory can place anything there, so only
//! regular files are opened and no link is followed.

use std::{
    fs::File,
    io::{self, Read, Seek},
};

use rustix::fs::{FileType, OFlags};

use super::beneath::{Dir, Links};
use crate::{
    cri_log,
    limits::{LOG_FILES, LOG_ROTATE_BYTES},
};

/// Log of one attempt of a container, in the directory of the container's logs.
pub(super) struct Log {
    directory: Dir,
    /// Name of the file, such as `0.log`.
    name: String,
}

impl Log {
    /// Finds the directory of a log; `path` is the path of the log below `directory`.
    pub fn find(directory: &Dir, path: &str) -> io::Result<Self> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok(Self { directory: directory.dir(parent)?, name: name.to_owned() })
    }

    /// Opens the file that the runtime currently writes.
    pub fn open(&self) -> io::Result<File> {
        self.directory.open_regular(&self.name, OFlags::RDONLY)
    }

    fn rotated(&self, index: usize) -> String {
        format!("{}.{index}", self.name)
    }

    /// Returns the size of a regular file; `None` if there is no such file.
    fn size(&self, name: &str) -> Option<u64> {
        let node = self.directory.node(name, Links::Refused).ok()?;
        (node.kind() == FileType::RegularFile).then(|| node.size())
    }

    /// Rotates the log if it has grown too large; returns whether the runtime must reopen it.
    pub fn rotate(&self) -> io::Result<bool> {
        match self.size(&self.name) {
            Some(size) if size > LOG_ROTATE_BYTES => {}
            Some(_) => return Ok(false),
            // The file was rotated before, but the runtime has not reopened it.
            None => return Ok(self.size(&self.rotated(1)).is_some()),
        }
        for index in (1..LOG_FILES - 1).rev() {
            if self.size(&self.rotated(index)).is_some() {
                self.directory.rename(self.rotated(index), self.rotated(index + 1))?;
            }
        }
        self.directory.rename(&self.name, self.rotated(1))?;
        Ok(true)
    }

    /// Trims a file that is no longer being written, keeping its end, in case a container wrote more between
    /// two checks than a log may hold.
    pub fn trim(&self, current: bool) -> io::Result<()> {
        let name = if current { self.name.clone() } else { self.rotated(1) };
        let most = if current { LOG_FILES as u64 * LOG_ROTATE_BYTES } else { 2 * LOG_ROTATE_BYTES };
        let Some(size) = self.size(&name).filter(|size| *size > most) else { return Ok(()) };
        let mut file = self.directory.open_regular(&name, OFlags::RDONLY)?;
        file.seek(io::SeekFrom::Start(size - LOG_ROTATE_BYTES))?;
        let shorter = format!("{}.tmp", self.name);
        self.directory.remove_tree(&shorter)?;
        let mut written = self.directory.create_file(&shorter, 0o640)?;
        let mut reader = io::BufReader::new(file.take(LOG_ROTATE_BYTES));
        // The rest may begin in the middle of a line.
        io::BufRead::skip_until(&mut reader, b'\n')?;
        io::copy(&mut reader, &mut written)?;
        self.directory.rename(shorter, name)
    }

    /// Removes the log and its rotated files.
    pub fn remove(&self) -> io::Result<()> {
        for index in 1..LOG_FILES {
            self.directory.remove_file(self.rotated(index))?;
        }
        self.directory.remove_file(&self.name)
    }

    /// Returns the end of the log, without timestamps.
    pub fn tail(&self, lines: usize, bytes: usize) -> io::Result<String> {
        let mut file = self.open()?;
        // Each record contains a timestamp and a stream in addition to its text.
        let window = (bytes * 2 + lines * 64) as u64;
        let length = file.metadata()?.len();
        file.seek(io::SeekFrom::Start(length.saturating_sub(window)))?;
        let mut content = Vec::new();
        file.take(window).read_to_end(&mut content)?;
        let mut renderer = cri_log::Renderer::default();
        let mut output = Vec::new();
        let offset = cri_log::tail_offset(&content, lines);
        for line in content[offset..].split_inclusive(|byte| *byte == b'\n') {
            renderer.render(line, &mut output);
        }
        let start = output.len().saturating_sub(bytes);
        Ok(String::from_utf8_lossy(&output[start..]).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, path::Path};

    use super::*;

    fn log(place: &Path) -> Log {
        Log::find(&Dir::open_trusted(place).unwrap(), "c/0.log").unwrap()
    }

    fn make(place: &Path, name: &str, size: u64) {
        fs::create_dir_all(place.join("c")).unwrap();
        fs::File::create(place.join("c").join(name)).unwrap().set_len(size).unwrap();
    }

    fn sizes(place: &Path) -> Vec<(String, u64)> {
        let mut sizes: Vec<_> = fs::read_dir(place.join("c"))
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len()))
            .collect();
        sizes.sort();
        sizes
    }

    #[test]
    fn a_log_that_is_a_link_is_not_read() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("c")).unwrap();
        symlink("/etc/passwd", place.path().join("c/0.log")).unwrap();
        let log = log(place.path());
        assert!(log.open().is_err() && log.tail(10, 1000).is_err());
        fs::remove_file(place.path().join("c/0.log")).unwrap();
        let mode = nix::sys::stat::Mode::from_bits_truncate(0o600);
        nix::unistd::mkfifo(&place.path().join("c/0.log"), mode).unwrap();
        assert!(log.open().is_err());
        fs::rename(place.path().join("c"), place.path().join("real")).unwrap();
        symlink("real", place.path().join("c")).unwrap();
        assert!(Log::find(&Dir::open_trusted(place.path()).unwrap(), "c/0.log").is_err());
    }

    #[test]
    fn log_size_is_bounded_however_fast_it_is_written() {
        let place = tempfile::tempdir().unwrap();
        for _ in 0..2 * LOG_FILES {
            make(place.path(), "0.log", 30 * LOG_ROTATE_BYTES);
            let log = log(place.path());
            assert!(log.rotate().unwrap());
            log.trim(false).unwrap();
            assert!(log.rotate().unwrap(), "the runtime has not opened a new one yet");
        }
        let found = sizes(place.path());
        assert_eq!(found.len(), LOG_FILES - 1, "{found:?}");
        assert!(found.iter().all(|(_, size)| *size <= 2 * LOG_ROTATE_BYTES), "{found:?}");
        // The final output of a container that has ended.
        make(place.path(), "0.log", 30 * LOG_ROTATE_BYTES);
        log(place.path()).trim(true).unwrap();
        assert!(sizes(place.path())[0].1 <= LOG_ROTATE_BYTES);
        log(place.path()).remove().unwrap();
        assert_eq!(sizes(place.path()), []);
    }

    #[test]
    fn a_trimmed_log_begins_with_a_whole_line() {
        let place = tempfile::tempdir().unwrap();
        let line = format!("2026-01-01T00:00:00.000000001Z stdout F {}\n", "x".repeat(100));
        let lines = usize::try_from(3 * LOG_ROTATE_BYTES).unwrap() / line.len();
        fs::create_dir(place.path().join("c")).unwrap();
        fs::write(place.path().join("c/0.log.1"), line.repeat(lines)).unwrap();
        log(place.path()).trim(false).unwrap();
        let left = fs::read_to_string(place.path().join("c/0.log.1")).unwrap();
        assert!(left.starts_with("2026") && left.ends_with(&line) && left.len() > line.len());
    }
}
