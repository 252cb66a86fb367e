//! The logs of the machine: the files below `/var/log`, as `/logs/` of a kubelet serves them.
//!
//! Containers may write there, by volumes of the host's directories, and the kubelet reads as root: a file is found by
//! descriptors below the directory, links lead to files in it alone, and nothing but regular files and directories is
//! opened.

use std::{
    ffi::{OsStr, OsString},
    fmt::Write as _,
    fs::File,
    io,
    os::unix::{ffi::OsStrExt, fs::FileExt},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::{Frame, Incoming};
use rustix::{
    fs::{FileType, OFlags},
    io::Errno,
};
use tokio::{io::AsyncReadExt, sync::mpsc, time::Instant};

use super::{Body, admission::NodeLogPermit, pieces, query::Query, text, typed};
use crate::{
    limits,
    machine::beneath::{Dir, Links},
};

/// Bytes that are read at once.
const CHUNK: usize = 64 * 1024;
/// Chunks of an answer that are queued for a slow reader.
const QUEUE: usize = 4;
/// Bytes at the beginning of a file by which its type is told.
const HEAD: usize = 512;

/// The file or directory that a request is for.
enum Found {
    /// The names in a directory, those of directories with a slash, and whether there are more.
    Directory(Vec<OsString>, bool),
    File {
        file: File,
        /// Its size when it was opened: what is added while it is sent is left out.
        size: u64,
        kind: &'static str,
    },
}

/// Answers a request for a path below the directory of logs.
pub(super) async fn serve(
    root: &Path,
    request: &Request<Incoming>,
    encoded: &[&str],
    permit: Option<NodeLogPermit>,
) -> Response<Body> {
    if request.method() != Method::GET {
        return text(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed");
    }
    let query = Query::parse(request.uri().query());
    if query.get("query").or_else(|| query.get("unit")).is_some() {
        let why = "queries of the journal are not served; ask for files, such as /logs/messages";
        return text(StatusCode::NOT_IMPLEMENTED, why);
    }
    let Some(path) = decoded(encoded) else { return text(StatusCode::BAD_REQUEST, "invalid URL path") };
    let Some(permit) = permit else {
        return text(StatusCode::TOO_MANY_REQUESTS, "too many logs of this node are read, try again later");
    };
    let root = root.to_owned();
    match tokio::task::spawn_blocking(move || find(&root, &path, limits::NODE_LOG_NAMES)).await {
        Ok(Ok(Found::Directory(names, more))) => {
            nosniff(typed(StatusCode::OK, "text/html; charset=utf-8", listing(&names, more)))
        }
        Ok(Ok(Found::File { file, size, kind })) => {
            let mut response = typed(StatusCode::OK, kind, String::new());
            // The connection of an answer that ends early is cut off, so that the log does not look complete.
            response.headers_mut().insert(header::CONTENT_LENGTH, size.into());
            *response.body_mut() = contents(file, size, permit);
            nosniff(response)
        }
        Ok(Err(error)) => refusal(&error),
        Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "cannot read the logs of this node"),
    }
}

/// Keeps browsers from taking what a program has logged for a page of the API server.
fn nosniff(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn refusal(error: &io::Error) -> Response<Body> {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    match (error.kind(), errno) {
        (io::ErrorKind::NotFound | io::ErrorKind::NotADirectory, _) => super::not_found(),
        (_, Some(Errno::XDEV | Errno::LOOP)) => {
            text(StatusCode::FORBIDDEN, "403 Forbidden: the link leads out of the directory of logs")
        }
        (io::ErrorKind::InvalidInput, None) => {
            text(StatusCode::FORBIDDEN, "403 Forbidden: neither a regular file nor a directory")
        }
        (io::ErrorKind::PermissionDenied, _) => text(StatusCode::FORBIDDEN, "403 Forbidden"),
        _ => text(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot read the log: {error}")),
    }
}

/// Decodes the components of a path, once; `None` if it would leave its directory or cannot be a path.
fn decoded(encoded: &[&str]) -> Option<PathBuf> {
    let mut path = PathBuf::new();
    for part in encoded {
        let name = percent_decoded(part)?;
        match name.as_slice() {
            b"" | b"." => {}
            b".." => return None,
            name if name.iter().any(|byte| matches!(byte, b'/' | 0)) => return None,
            name => path.push(OsStr::from_bytes(name)),
        }
    }
    Some(path)
}

fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        let digit = |byte: u8| char::from(byte).to_digit(16);
        decoded.push(match byte {
            b'%' => u8::try_from(digit(bytes.next()?)? * 16 + digit(bytes.next()?)?).ok()?,
            byte => byte,
        });
    }
    Some(decoded)
}

/// Finds the file at a path, or the first `most` names in the directory there.
fn find(root: &Path, path: &Path, most: usize) -> io::Result<Found> {
    let root = Dir::open_trusted(root)?;
    let node = root.node(path, Links::Inside)?;
    if node.kind() == FileType::Directory {
        let dir = node.open_dir()?;
        let mut names = dir.names(most + 1)?;
        let more = names.len() > most;
        names.truncate(most);
        names.sort();
        for name in &mut names {
            // One that is gone is listed as a file.
            if dir.node(&*name, Links::Refused).is_ok_and(|node| node.kind() == FileType::Directory) {
                name.push("/");
            }
        }
        return Ok(Found::Directory(names, more));
    }
    let file = node.open_regular(OFlags::RDONLY)?;
    let mut head = [0; HEAD];
    let length = file.read_at(&mut head, 0)?;
    Ok(Found::File { file, size: node.size(), kind: kind(&head[..length]) })
}

/// Returns the media type of a file that begins with these bytes: that of text, unless some of them are never in text.
fn kind(head: &[u8]) -> &'static str {
    let binary = |byte: &u8| matches!(byte, 0..=8 | 0x0b | 0x0e..=0x1a | 0x1c..=0x1f);
    if head.iter().any(binary) { "application/octet-stream" } else { "text/plain; charset=utf-8" }
}

/// Returns a page with links to the entries of a directory.
fn listing(names: &[OsString], more: bool) -> String {
    let mut page =
        "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n".to_owned();
    for name in names {
        let shown = name.to_string_lossy();
        let shown = shown.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let shown = shown.replace('"', "&#34;").replace('\'', "&#39;");
        page.push_str("<a href=\"");
        for byte in name.as_bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                    page.push(char::from(*byte));
                }
                // Writing to a text cannot fail.
                byte => drop(write!(page, "%{byte:02X}")),
            }
        }
        page.push_str("\">");
        page.push_str(&shown);
        page.push_str("</a>\n");
    }
    if more {
        page.push_str("…\n");
    }
    page.push_str("</pre>\n");
    page
}

/// Returns the first `size` bytes of a file, piece by piece. A reader that takes none for too long, or
/// reads for too long, is left. The permit is dropped when nothing more is read.
fn contents<P: Send + 'static>(file: File, size: u64, permit: P) -> Body {
    let (sender, receiver) = mpsc::channel(QUEUE);
    tokio::spawn(async move {
        let mut file = tokio::fs::File::from_std(file).take(size);
        let end = Instant::now() + limits::NODE_LOG_TIME;
        loop {
            let mut chunk = Vec::with_capacity(CHUNK);
            let piece = match (&mut file).take(CHUNK as u64).read_to_end(&mut chunk).await {
                Ok(0) => break,
                Ok(_) => Ok(Frame::data(Bytes::from(chunk))),
                Err(error) => Err(error),
            };
            let failed = piece.is_err();
            let left = (Instant::now() + limits::NODE_LOG_STALL).min(end);
            let sent = tokio::time::timeout_at(left, sender.send(piece)).await;
            if failed || !matches!(sent, Ok(Ok(()))) {
                break;
            }
        }
        drop(permit);
    });
    pieces(receiver)
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::Arc, time::Duration};

    use http_body_util::BodyExt;
    use tokio::{sync::Semaphore, task::JoinHandle};

    use super::*;

    #[test]
    fn path_is_decoded_once_and_does_not_leave_its_directory() {
        let path = |text: &str| decoded(&text.split('/').collect::<Vec<_>>());
        for (given, expected) in [
            ("", ""),
            ("a//./b", "a/b"),
            ("a%20b", "a b"),
            ("a+b", "a+b"),
            ("%252e%252e/a", "%2e%2e/a"),
            ("...", "..."),
        ] {
            assert_eq!(path(given), Some(PathBuf::from(expected)), "{given}");
        }
        for given in
            ["..", "a/../b", "%2e%2e", "%2E.", ".%2e/etc", "..%2fetc", "a%2fb", "a%00", "%", "%2", "%zz"]
        {
            assert_eq!(path(given), None, "{given}");
        }
    }

    #[test]
    fn listing_escapes_markup_in_names() {
        let names = ["pods/", "<script>.log", "a b", "javascript:x", "q\"'&"].map(OsString::from);
        let page = listing(&names, true);
        for line in [
            "<a href=\"pods/\">pods/</a>\n",
            "<a href=\"%3Cscript%3E.log\">&lt;script&gt;.log</a>\n",
            "<a href=\"a%20b\">a b</a>\n",
            "<a href=\"javascript%3Ax\">javascript:x</a>\n",
            "<a href=\"q%22%27%26\">q&#34;&#39;&amp;</a>\n…\n</pre>\n",
        ] {
            assert!(page.contains(line), "{line} is not in {page}");
        }
        assert!(!listing(&[], false).contains('…'));
    }

    #[test]
    fn file_with_bytes_that_are_not_text_is_not_shown_as_text() {
        assert!(kind("täglich\t\u{1b}[0m\r\n".as_bytes()).starts_with("text/plain"));
        assert!(kind(b"").starts_with("text/plain"));
        assert_eq!(kind(b"\x1f\x8b\x08"), "application/octet-stream");
        assert_eq!(kind(b"a\0b"), "application/octet-stream");
    }

    #[test]
    fn directory_with_more_names_than_are_listed_says_so() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        fs::create_dir(dir.path().join("c")).unwrap();
        for (most, listed, expected) in [(2, 2, true), (3, 3, false), (4, 3, false)] {
            let Found::Directory(names, more) = find(dir.path(), Path::new(""), most).unwrap() else {
                panic!("it is a directory")
            };
            assert_eq!((names.len(), more), (listed, expected));
            assert!(names.iter().all(|name| ["a", "b", "c/"].iter().any(|known| name == known)), "{names:?}");
        }
    }

    /// The size of a log that has more than is queued.
    const SIZE: u64 = 64 << 20;

    /// Begins to read such a log; returns its body, and a task that tells after which time the permit is free again.
    fn reading() -> (Body, JoinHandle<Duration>) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(SIZE).unwrap();
        let (permits, began) = (Arc::new(Semaphore::new(1)), Instant::now());
        let body = contents(file, SIZE, Arc::clone(&permits).try_acquire_owned().unwrap());
        let freed = tokio::spawn(async move {
            let _permit = permits.acquire().await.unwrap();
            began.elapsed()
        });
        (body, freed)
    }

    /// Reads the rest of a body, with a pause before each piece.
    async fn slowly(mut body: Body, pause: Duration) -> u64 {
        let mut read = 0;
        loop {
            tokio::time::sleep(pause).await;
            let Some(frame) = body.frame().await else { return read };
            read += frame.unwrap().into_data().unwrap().len() as u64;
        }
    }

    fn is_at(time: Duration, expected: Duration) -> bool {
        // Timers are due at whole milliseconds.
        (expected..expected + Duration::from_millis(10)).contains(&time)
    }

    #[tokio::test(start_paused = true)]
    async fn reader_that_takes_nothing_frees_its_permit_after_the_stall() {
        let (body, freed) = reading();
        let freed = freed.await.unwrap();
        assert!(is_at(freed, limits::NODE_LOG_STALL), "{freed:?}");
        assert!(slowly(body, Duration::ZERO).await < SIZE, "it ends early");
    }

    #[tokio::test(start_paused = true)]
    async fn slow_reader_frees_its_permit_when_its_time_is_over() {
        let (body, freed) = reading();
        let read = slowly(body, limits::NODE_LOG_STALL / 2).await;
        let freed = freed.await.unwrap();
        assert!(is_at(freed, limits::NODE_LOG_TIME), "{freed:?}");
        assert!(read > 0 && read < SIZE, "{read}");
    }

    #[tokio::test(start_paused = true)]
    async fn reader_that_keeps_up_gets_the_whole_log() {
        let (body, freed) = reading();
        assert_eq!(slowly(body, Duration::ZERO).await, SIZE);
        freed.await.unwrap();
    }
}
