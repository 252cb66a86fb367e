//! The bodies of HTML pages, whose links are rewritten as they pass: a page is never held as a whole, and
//! one that is compressed is unpacked and packed again a few KiB at a time.

use std::io::{self, Write};

use bytes::{Buf, Bytes};
use flate2::Compression;
use flate2::write::{DeflateDecoder, DeflateEncoder, GzEncoder, MultiGzDecoder};
use futures::stream;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE};
use http::{HeaderMap, Method};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tower::BoxError;

use super::Body;
use super::html::Rewriter;
use super::links::Links;
use crate::limits;

/// The content coding of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    Plain,
    Gzip,
    /// DEFLATE without the zlib header, which is what Kubernetes reads.
    Deflate,
}

impl Coding {
    /// The coding of the page that an answer has, or `None` if it has none whose links can be rewritten.
    pub fn of(method: &Method, headers: &HeaderMap) -> Option<Self> {
        let text = |name| headers.get(name).map_or(Ok(""), http::HeaderValue::to_str).ok();
        let media = text(CONTENT_TYPE)?.split(';').next().unwrap_or_default().trim();
        if media != "text/html" || method == Method::HEAD || headers.contains_key(CONTENT_RANGE) {
            return None;
        }
        match text(CONTENT_ENCODING)? {
            "" => Some(Self::Plain),
            "gzip" => Some(Self::Gzip),
            "deflate" => Some(Self::Deflate),
            _ => None,
        }
    }
}

/// Rewrites the links of a page, and drops the length, which changes with them.
pub fn rewritten(coding: Coding, headers: &mut HeaderMap, body: Body, links: Links) -> Body {
    headers.remove(CONTENT_LENGTH);
    let page = Page { coder: Coder::new(coding), rewriter: Rewriter::new(links), plain: Bytes::new() };
    let pieces = stream::unfold(Some((body, Bytes::new(), page)), |state| async move {
        let (mut body, mut packed, mut page) = state?;
        loop {
            let piece = if page.plain.is_empty() && packed.is_empty() {
                match body.frame().await {
                    Some(Ok(frame)) => {
                        packed = frame.into_data().unwrap_or_default();
                        continue;
                    }
                    Some(Err(error)) => return Some((Err(error), None)),
                    None => {
                        let rest = page.finish().map(|rest| Frame::data(Bytes::from(rest)));
                        return Some((rest.map_err(BoxError::from), None));
                    }
                }
            } else {
                page.step(&mut packed)
            };
            match piece {
                Ok(piece) if piece.is_empty() => tokio::task::yield_now().await,
                Ok(piece) => {
                    return Some((Ok(Frame::data(Bytes::from(piece))), Some((body, packed, page))));
                }
                Err(error) => return Some((Err(error.into()), None)),
            }
        }
    });
    StreamBody::new(pieces).boxed_unsync()
}

/// A page on its way.
struct Page {
    coder: Coder,
    rewriter: Rewriter,
    /// The bytes that are unpacked and not rewritten yet.
    plain: Bytes,
}

impl Page {
    /// Rewrites some more of the page, and takes it from `packed` if nothing is unpacked yet.
    fn step(&mut self, packed: &mut Bytes) -> io::Result<Vec<u8>> {
        if self.plain.is_empty() {
            self.plain = self.coder.unpack(packed)?;
        }
        let part = self.plain.split_to(self.plain.len().min(limits::HTML_STEP));
        let mut new = Vec::with_capacity(part.len());
        self.rewriter.feed(&part, &mut new);
        self.coder.pack(new, self.plain.is_empty() && packed.is_empty())
    }

    /// Returns the end of the page. What the decoder still held is rewritten too.
    fn finish(mut self) -> io::Result<Vec<u8>> {
        let rest = self.coder.unpack_rest()?;
        let mut new = Vec::new();
        self.rewriter.feed(&rest, &mut new);
        self.rewriter.finish(&mut new);
        self.coder.finish(new)
    }
}

type Buffer = Vec<u8>;

/// Unpacks pages and packs them again.
enum Coder {
    Plain,
    Gzip(Box<Both<MultiGzDecoder<Buffer>, GzEncoder<Buffer>>>),
    Deflate(Box<Both<DeflateDecoder<Buffer>, DeflateEncoder<Buffer>>>),
}

struct Both<D, E> {
    decoder: D,
    encoder: E,
}

impl Coder {
    fn new(coding: Coding) -> Self {
        let fast = Compression::fast();
        match coding {
            Coding::Plain => Self::Plain,
            Coding::Gzip => Self::Gzip(Box::new(Both {
                decoder: MultiGzDecoder::new(Vec::new()),
                encoder: GzEncoder::new(Vec::new(), fast),
            })),
            Coding::Deflate => Self::Deflate(Box::new(Both {
                decoder: DeflateDecoder::new(Vec::new()),
                encoder: DeflateEncoder::new(Vec::new(), fast),
            })),
        }
    }

    /// Unpacks some of `packed`: no more at a time than the decoder's buffer holds, 32 KiB.
    fn unpack(&mut self, packed: &mut Bytes) -> io::Result<Bytes> {
        let (read, plain) = match self {
            Self::Plain => return Ok(std::mem::take(packed)),
            Self::Gzip(both) => (both.decoder.write(packed)?, std::mem::take(both.decoder.get_mut())),
            Self::Deflate(both) => (both.decoder.write(packed)?, std::mem::take(both.decoder.get_mut())),
        };
        if read == 0 && plain.is_empty() {
            // Nothing belongs to the page behind the end of its stream.
            packed.clear();
        }
        packed.advance(read.min(packed.len()));
        if packed.is_empty() {
            return Ok([plain, self.unpack_rest()?].concat().into());
        }
        Ok(plain.into())
    }

    /// Returns the bytes that the decoder has read and not returned yet.
    fn unpack_rest(&mut self) -> io::Result<Vec<u8>> {
        Ok(match self {
            Self::Plain => Vec::new(),
            Self::Gzip(both) => {
                both.decoder.flush()?;
                std::mem::take(both.decoder.get_mut())
            }
            Self::Deflate(both) => {
                both.decoder.flush()?;
                std::mem::take(both.decoder.get_mut())
            }
        })
    }

    /// Packs a part of the new page; with `flush` all of it, as nothing else is there yet.
    fn pack(&mut self, new: Vec<u8>, flush: bool) -> io::Result<Vec<u8>> {
        fn through<W: Write>(encoder: &mut W, new: &[u8], flush: bool) -> io::Result<()> {
            encoder.write_all(new)?;
            if flush { encoder.flush() } else { Ok(()) }
        }
        Ok(match self {
            Self::Plain => new,
            Self::Gzip(both) => {
                through(&mut both.encoder, &new, flush)?;
                std::mem::take(both.encoder.get_mut())
            }
            Self::Deflate(both) => {
                through(&mut both.encoder, &new, flush)?;
                std::mem::take(both.encoder.get_mut())
            }
        })
    }

    fn finish(self, new: Vec<u8>) -> io::Result<Vec<u8>> {
        match self {
            Self::Plain => Ok(new),
            Self::Gzip(mut both) => {
                both.encoder.write_all(&new)?;
                both.encoder.finish()
            }
            Self::Deflate(mut both) => {
                both.encoder.write_all(&new)?;
                both.encoder.finish()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::{DeflateDecoder as UnpackDeflate, GzDecoder as UnpackGzip};
    use futures::StreamExt as _;
    use http::HeaderValue;

    use super::*;

    fn links() -> Links {
        Links { prefix: "/proxy".to_owned(), backend: "10.0.0.1:80".to_owned(), asked: "api".to_owned() }
    }

    fn body(packed: &[u8], piece: usize) -> Body {
        let pieces: Vec<Result<Frame<Bytes>, BoxError>> =
            packed.chunks(piece).map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece)))).collect();
        StreamBody::new(stream::iter(pieces)).boxed_unsync()
    }

    fn headers(of: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("7"));
        for (name, value) in of {
            headers.insert(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn packed(coding: &str, page: &[u8]) -> Vec<u8> {
        let fast = Compression::fast();
        match coding {
            "gzip" => {
                let mut encoder = GzEncoder::new(Vec::new(), fast);
                encoder.write_all(page).unwrap();
                encoder.finish().unwrap()
            }
            "deflate" => {
                let mut encoder = DeflateEncoder::new(Vec::new(), fast);
                encoder.write_all(page).unwrap();
                encoder.finish().unwrap()
            }
            _ => page.to_vec(),
        }
    }

    fn unpacked(coding: &str, packed: &[u8]) -> Vec<u8> {
        let mut page = Vec::new();
        match coding {
            "gzip" => UnpackGzip::new(packed).read_to_end(&mut page).unwrap(),
            "deflate" => UnpackDeflate::new(packed).read_to_end(&mut page).unwrap(),
            _ => return packed.to_vec(),
        };
        page
    }

    #[tokio::test]
    async fn pages_are_rewritten_in_the_coding_that_they_come_in() {
        let page = format!("{}<a href=\"/x\">{}", "short ".repeat(3), "<a href='/long'>text".repeat(20_000));
        let expected = page.replace("\"/x", "\"/proxy/x").replace("'/long", "'/proxy/long");
        for coding in ["", "gzip", "deflate"] {
            for piece in [1_000, 65_536, 10_000_000] {
                let mut headers = headers(&[("content-type", "text/html; charset=utf-8")]);
                if !coding.is_empty() {
                    headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding));
                }
                let body = body(&packed(coding, page.as_bytes()), piece);
                let body =
                    rewritten(Coding::of(&Method::GET, &headers).unwrap(), &mut headers, body, links());
                assert!(!headers.contains_key(CONTENT_LENGTH), "it is another one");
                let new = body.collect().await.unwrap().to_bytes();
                let new = String::from_utf8(unpacked(coding, &new)).unwrap();
                assert!(new == expected, "{coding} in pieces of {piece}: {} bytes", new.len());
            }
        }
    }

    #[test]
    fn only_whole_pages_in_a_known_coding_are_rewritten() {
        let html = ("content-type", "text/html");
        for (method, of) in [
            (Method::GET, vec![("content-type", "text/plain")]),
            (Method::GET, vec![("content-type", "text/html-sandboxed")]),
            (Method::GET, vec![]),
            (Method::GET, vec![html, ("content-encoding", "br")]),
            (Method::GET, vec![html, ("content-range", "bytes 0-1/2")]),
            (Method::HEAD, vec![html]),
        ] {
            assert_eq!(Coding::of(&method, &headers(&of)), None, "{method} {of:?}");
        }
        assert_eq!(Coding::of(&Method::POST, &headers(&[html])), Some(Coding::Plain));
    }

    #[tokio::test]
    async fn a_page_that_is_flushed_goes_on_at_once() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(b"<a href=/x>").unwrap();
        encoder.flush().unwrap();
        let first = Bytes::from(std::mem::take(encoder.get_mut()));
        let pieces = stream::iter([Ok(Frame::data(first))]).chain(stream::pending());
        let body = StreamBody::new(pieces).boxed_unsync();
        let mut headers = headers(&[("content-type", "text/html"), ("content-encoding", "gzip")]);
        let mut passed = rewritten(Coding::of(&Method::GET, &headers).unwrap(), &mut headers, body, links());
        let mut new = Vec::new();
        while !String::from_utf8_lossy(&new).contains("<a href=\"/proxy/x\">") {
            let piece = passed.frame().await.unwrap().unwrap().into_data().unwrap();
            let mut decoder = MultiGzDecoder::new(Vec::new());
            decoder.write_all(&piece).unwrap();
            decoder.flush().unwrap();
            new = decoder.get_ref().clone();
        }
    }

    /// A page that unpacks to a thousand times its size is never there as a whole.
    #[tokio::test]
    async fn a_bomb_comes_in_small_pieces() {
        let bomb = packed("gzip", &vec![b' '; 64 << 20]);
        let mut headers = headers(&[("content-type", "text/html"), ("content-encoding", "gzip")]);
        let page =
            Page { coder: Coder::new(Coding::Gzip), rewriter: Rewriter::new(links()), plain: Bytes::new() };
        let (mut page, mut rest) = (page, Bytes::from(bomb.clone()));
        while !rest.is_empty() {
            page.step(&mut rest).unwrap();
            assert!(page.plain.len() <= 128 * 1024, "{}", page.plain.len());
        }
        let mut passed = rewritten(
            Coding::of(&Method::GET, &headers).unwrap(),
            &mut headers,
            body(&bomb, 1 << 20),
            links(),
        );
        let first = passed.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(first.len() < 64 * 1024);
    }

    #[tokio::test]
    async fn a_page_that_is_packed_badly_breaks_off() {
        let mut headers = headers(&[("content-type", "text/html"), ("content-encoding", "gzip")]);
        let passed = rewritten(
            Coding::of(&Method::GET, &headers).unwrap(),
            &mut headers,
            body(b"<a href=/x> is not gzip", 5),
            links(),
        );
        assert!(passed.collect().await.is_err());
    }
}
