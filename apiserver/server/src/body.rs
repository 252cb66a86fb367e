//! Bodies: those of requests are read within limits and decoded to JSON values.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use apiserver_schema::error::ApiError;
use apiserver_schema::protobuf;
use apiserver_schema::protobuf::Malformed;
use apiserver_schema::schema::go_kind;
use apiserver_schema::{numbers, schema};
use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use serde_json::{Map, Value};
use serde_saphyr::DuplicateKeyPolicy;
use tower::BoxError;

use crate::errors::Refused;
use crate::{limits, lossy_text, syntax};

/// The body of requests and answers.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// Returns a body that is there at once.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// No body.
pub fn empty() -> Body {
    full(Bytes::new())
}

/// Returns a body that reports at its end how many bytes it had, and holds on to a value until then.
pub fn counted<G: Send + Unpin + 'static>(
    body: Body,
    done: impl FnOnce(u64) + Send + 'static,
    guard: G,
) -> Body {
    Counted { body, bytes: 0, done: Some(Box::new(done)), _guard: guard }.boxed_unsync()
}

struct Counted<G> {
    body: Body,
    bytes: u64,
    done: Option<Box<dyn FnOnce(u64) + Send>>,
    _guard: G,
}

impl<G> Drop for Counted<G> {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            done(self.bytes);
        }
    }
}

impl<G: Unpin> http_body::Body for Counted<G> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame {
            self.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A body that is handed back if it is not read to its end: some clients do not see the answer if their data
/// is refused unread.
struct Lent {
    body: Option<Body>,
    back: Arc<Mutex<Option<Body>>>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(body) = self.body.take().filter(|body| !http_body::Body::is_end_stream(body)) {
            *self.back.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
        }
    }
}

impl http_body::Body for Lent {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(body).poll_frame(context));
        if !matches!(frame, Some(Ok(_))) {
            self.body = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), http_body::Body::size_hint)
    }
}

/// The remainder of a body that was lent.
pub struct Rest(Option<Arc<Mutex<Option<Body>>>>);

/// Lends a body; with `back`, its unread rest is returned. An empty one costs nothing.
pub fn lend(body: Body, back: bool) -> (Body, Rest) {
    if !back || http_body::Body::is_end_stream(&body) {
        return (body, Rest(None));
    }
    let back = Arc::new(Mutex::new(None));
    let lent = Lent { body: Some(body), back: Arc::clone(&back) };
    (lent.boxed_unsync(), Rest(Some(back)))
}

impl Rest {
    /// Reads what came back and forgets it, within limits of time and size.
    pub async fn drain(self) {
        let left = self.0.and_then(|back| back.lock().unwrap_or_else(PoisonError::into_inner).take());
        let Some(mut body) = left else { return };
        let read = async {
            let mut seen = 0;
            while let Some(Ok(frame)) = body.frame().await {
                seen += frame.data_ref().map_or(0, Bytes::len);
                if seen > limits::DRAINED_BODY {
                    break;
                }
            }
        };
        // A slower client may miss the answer.
        let _ = tokio::time::timeout(limits::DRAIN, read).await;
    }
}

/// Returns the whole body, within the limit. A body that is too large is read to its end and forgotten, up
/// to another limit: a client that is still sending would not see the answer.
pub async fn read(mut body: Body) -> Result<Bytes, ApiError> {
    // Most bodies come in one piece, which is not copied.
    let (mut whole, mut kept, mut seen) = (Bytes::new(), BytesMut::new(), 0);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(unreadable)?;
        let Ok(data) = frame.into_data() else { continue };
        seen += data.len();
        if seen > limits::DRAINED_BODY {
            break;
        }
        if seen > limits::BODY {
            continue;
        }
        if whole.is_empty() && kept.is_empty() {
            whole = data;
        } else {
            kept.extend_from_slice(&std::mem::take(&mut whole));
            kept.extend_from_slice(&data);
        }
    }
    if seen > limits::BODY {
        return Err(too_large(format!("limit is {}", limits::BODY)));
    }
    Ok(if kept.is_empty() { whole } else { kept.freeze() })
}

fn unreadable(error: BoxError) -> ApiError {
    match error.downcast_ref::<Refused>() {
        Some(refused) => ApiError::from(*refused),
        None => ApiError::bad_request(format!("the request's body cannot be read: {error}")),
    }
}

/// The text that a body was decoded from, for the search for repeated fields.
pub enum Source {
    /// JSON that is known to repeat a field.
    Json(Bytes),
    Yaml(Bytes),
    /// A text in which no field is repeated, or a form that cannot repeat one without meaning it.
    Once,
}

/// A decoded body.
pub struct Decoded {
    pub value: Value,
    pub source: Source,
}

impl Decoded {
    /// Returns the warnings about fields that the body repeats, in Kubernetes' words.
    pub fn repeated(&self) -> Vec<String> {
        match &self.source {
            Source::Json(text) => schema::duplicate_fields(text),
            Source::Yaml(text) => {
                let told = |line: String| format!("{YAML_FAULTS}{line}");
                repeated_in_yaml(text).into_iter().map(told).collect()
            }
            Source::Once => Vec::new(),
        }
    }
}

/// The prefix of the faults of a YAML text in an error; a warning has each fault alone.
pub const YAML_FAULTS: &str = "yaml: unmarshal errors:\n  ";

/// The media types that bodies of objects may have.
const OBJECTS: [&str; 3] = ["application/json", "application/yaml", protobuf::MEDIA_TYPE];

/// Decodes an object by its media type; 400, and 415 for media types that are not served. `kind` is the
/// expected kind, for the text of an error; empty for an error without it.
pub fn decode(content_type: &str, bytes: Bytes, kind: &str) -> Result<Decoded, ApiError> {
    let refused = |why: String| unrecognized(kind, &why, &bytes);
    match content_type {
        "" | "application/json" => {
            let (value, repeats) = parse(&bytes).map_err(refused)?;
            let value = object_of(value).map_err(refused)?;
            let bytes = if repeats { lossy_text::replaced(&bytes).map_or(bytes, Bytes::from) } else { bytes };
            Ok(Decoded { value, source: if repeats { Source::Json(bytes) } else { Source::Once } })
        }
        "application/yaml" => {
            let value = read_yaml(&bytes, DuplicateKeyPolicy::LastWins);
            let value = value.map_err(|why| refused(format!("yaml: {why}")))?;
            Ok(Decoded { value: object_of(value).map_err(refused)?, source: Source::Yaml(bytes) })
        }
        protobuf::MEDIA_TYPE => Ok(Decoded { value: from_protobuf(&bytes)?, source: Source::Once }),
        _ => Err(unsupported(&OBJECTS)),
    }
}

/// Returns 400 for a body without a kind.
fn unrecognized(kind: &str, why: &str, bytes: &[u8]) -> ApiError {
    ApiError::bad_request(match kind {
        "" => why.to_owned(),
        _ => {
            format!("the object provided is unrecognized (must be of type {kind}): {why} ({})", shown(bytes))
        }
    })
}

/// The struct from which Kubernetes reads the type of an object, as Go prints it.
const HEAD: &str = "struct { APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; \
    Kind string \"json:\\\"kind,omitempty\\\"\" }";

/// Returns the value, if it can be an object: nothing is one without fields. Else Go's words.
fn object_of(value: Value) -> Result<Value, String> {
    let refused = |what: &str, place: &str| {
        format!("couldn't get version/kind; json parse error: json: cannot unmarshal {what} into Go {place}")
    };
    match &value {
        Value::Null => return Ok(Value::Object(Map::new())),
        Value::Object(object) => {
            for field in ["apiVersion", "kind"] {
                if let Some(other) = object.get(field).filter(|value| !value.is_string() && !value.is_null())
                {
                    return Err(refused(go_kind(other), &format!("struct field .{field} of type string")));
                }
            }
        }
        other => return Err(refused(go_kind(other), &format!("value of type {HEAD}"))),
    }
    Ok(value)
}

/// Decodes an object of a built-in kind in its envelope. Other kinds have no such form, which is 415.
fn from_protobuf(bytes: &[u8]) -> Result<Value, ApiError> {
    protobuf::from_envelope(bytes).map_err(|error| match error {
        Malformed::Kind { api_version, .. } if is_foreign(&api_version) => unsupported(&OBJECTS[..2]),
        error => {
            ApiError::bad_request(format!("the body of the request cannot be decoded from protobuf: {error}"))
        }
    })
}

/// Returns `true` if the apiVersion has a group and no built-in kinds are in it.
fn is_foreign(api_version: &str) -> bool {
    let group = |version: &str| version.split_once('/').map(|(group, _)| group.to_owned());
    let asked = group(api_version);
    asked.is_some() && !protobuf::kinds().any(|(version, ..)| group(version) == asked)
}

/// 415.
pub fn unsupported(accepted: &[&str]) -> ApiError {
    let list = accepted.join(", ");
    let text =
        format!("the body of the request was in an unknown format - accepted media types include: {list}");
    ApiError::new(415, "UnsupportedMediaType", text)
}

/// Returns 413. `what` names the limit.
/// 413. `what` says which limit it is.
pub fn too_large(what: impl std::fmt::Display) -> ApiError {
    ApiError::new(413, "RequestEntityTooLarge", format!("Request entity too large: {what}"))
}

/// The number of bytes of a body that is not JSON that are shown to its sender.
const SHOWN: usize = 30;

/// JSON, and whether a field is repeated in it; nesting is limited by the parser. 400.
pub fn json(bytes: &[u8]) -> Result<(Value, bool), ApiError> {
    parse(bytes).map_err(ApiError::bad_request)
}

fn parse(bytes: &[u8]) -> Result<(Value, bool), String> {
    noting(bytes)
        .map_err(|error| format!("couldn't get version/kind; json parse error: {}", misread(bytes, &error)))
}

/// Decodes a JSON value and notes whether a field is repeated in it; bytes that are not Unicode are replaced
/// as Go does it.
pub fn noting(bytes: &[u8]) -> Result<(Value, bool), serde_json::Error> {
    schema::parse_noting(bytes).or_else(|error| match lossy_text::replaced(bytes) {
        Some(text) => schema::parse_noting(&text),
        None => Err(error),
    })
}

/// Returns the error about a text that could not be read as JSON.
pub fn misread(text: &[u8], error: &serde_json::Error) -> String {
    // The parser's own words are for what follows the grammar and is too much for it.
    let words = || match error.to_string() {
        why if why.starts_with("recursion limit exceeded") => "exceeded max depth".to_owned(),
        why => why,
    };
    syntax::fault(text).unwrap_or_else(words)
}

/// Returns the beginning of a body, as hexadecimal digits where it does not look like an object.
fn shown(bytes: &[u8]) -> String {
    let head = &bytes[..bytes.len().min(SHOWN)];
    let more = if bytes.len() > SHOWN { " ..." } else { "" };
    match head.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(head)),
        Some(_) => format!("{}{more}", head.iter().map(|byte| format!("{byte:02x}")).collect::<String>()),
    }
}

/// YAML, with the parser's budget for aliases, nodes and nesting.
pub fn yaml(bytes: &[u8], duplicate_keys: DuplicateKeyPolicy) -> Result<Value, ApiError> {
    read_yaml(bytes, duplicate_keys)
        .map_err(|error| ApiError::bad_request(format!("error converting YAML to JSON: yaml: {error}")))
}

/// Reads a text. The parser recurses and takes several KiB a level, more than the stack of a task
/// holds for the deepest text that is allowed: such a text is read once more on a stack of its own.
fn read_yaml(bytes: &[u8], duplicate_keys: DuplicateKeyPolicy) -> Result<Value, String> {
    let text = lossy_text::of_yaml(bytes)?;
    let text = first_document(text);
    match yaml_within(text, limits::YAML_SHALLOW, duplicate_keys) {
        Err(Misread::TooDeep) => {}
        Err(Misread::Other(why)) => return Err(why),
        Ok(value) => return Ok(value),
    }
    let deep = || yaml_within(text, limits::YAML_DEPTH, duplicate_keys);
    #[expect(clippy::disallowed_methods, reason = "joined at once: a stack that is large enough")]
    let read = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(limits::YAML_STACK);
        thread
            .spawn_scoped(scope, deep)
            .map_err(|error| error.to_string())?
            .join()
            .map_err(|_| "it cannot be read".to_owned())
    })?;
    read.map_err(|why| match why {
        Misread::TooDeep => "exceeded max depth".to_owned(),
        Misread::Other(why) => why,
    })
}

/// Returns the first of the documents in a text: Kubernetes reads no further.
fn first_document(text: &str) -> &str {
    let marks = |line: &str, mark: &str| {
        line.strip_prefix(mark)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
    };
    let (mut begun, mut at) = (false, 0);
    for line in text.split_inclusive('\n') {
        let begins = marks(line, "---");
        if begun && (begins || marks(line, "...")) {
            return &text[..at];
        }
        let content = line.trim_start();
        // Comments and directives may precede a document.
        begun |= begins || !(content.is_empty() || content.starts_with('#') || line.starts_with('%'));
        at += line.len();
    }
    text
}

/// The reason why a YAML text was not read.
enum Misread {
    /// It is nested deeper than was allowed this time.
    TooDeep,
    Other(String),
}

fn yaml_within(text: &str, depth: usize, duplicate_keys: DuplicateKeyPolicy) -> Result<Value, Misread> {
    use serde_saphyr::Error;
    use serde_saphyr::budget::BudgetBreach;
    let budget = serde_saphyr::budget! {
        max_depth: depth,
        max_documents: 1,
        max_total_scalar_bytes: 2 * limits::BODY,
    };
    let options = serde_saphyr::options! {
        budget: budget,
        duplicate_keys: duplicate_keys,
        with_snippet: false,
    };
    let read = serde_saphyr::from_str_with_options(text, options).map(|mut value| {
        // Kubernetes turns YAML into JSON first, and Go writes no fraction where there is none.
        numbers::normalize_numbers(&mut value);
        value
    });
    read.map_err(|error| match beneath(&error) {
        Error::Budget { breach: BudgetBreach::Depth { .. }, .. } => Misread::TooDeep,
        Error::DuplicateMappingKey { key, location } => Misread::Other(format!(
            "unmarshal errors:\n  line {}: key \"{}\" already set in map",
            location.line(),
            key.as_deref().unwrap_or_default()
        )),
        _ => Misread::Other(yaml_reason(&error)),
    })
}

/// Returns the underlying error, without the places that an alias and the text around it add.
fn beneath(mut error: &serde_saphyr::Error) -> &serde_saphyr::Error {
    use serde_saphyr::Error;
    while let Error::AliasError { error: inner, .. } | Error::WithSnippet { error: inner, .. } = error {
        error = inner;
    }
    error
}

/// The error of Go's YAML reader for a text whose aliases expand to too much.
const EXCESSIVE_ALIASING: &str = "document contains excessive aliasing";

/// Returns the fault of a YAML text, in words for its sender: some of the parser's own messages are meant for
/// programmers who use it.
fn yaml_reason(error: &serde_saphyr::Error) -> String {
    use serde_saphyr::Error;
    use serde_saphyr::budget::BudgetBreach;
    let at = |location: &serde_saphyr::Location, why: &str| format!("line {}: {why}", location.line());
    let aliased = matches!(error.without_snippet(), Error::AliasError { .. });
    match beneath(error) {
        Error::AliasReplayCounterOverflow { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => EXCESSIVE_ALIASING.to_owned(),
        Error::Budget { breach, .. } => {
            use BudgetBreach::{AliasAnchorRatio, Aliases, Anchors};
            let aliases = matches!(breach, Aliases { .. } | Anchors { .. } | AliasAnchorRatio { .. });
            if aliased || aliases { EXCESSIVE_ALIASING } else { "document is too large" }.to_owned()
        }
        Error::RecursiveReferencesRequireWeakTypes { location } => {
            at(location, "anchor value contains itself")
        }
        Error::NullIntoString { location } => at(location, "a key of a map is null"),
        _ => error.without_snippet().to_string(),
    }
}

/// Returns the first repeated key of a YAML text, as `line 3: key "a" already set in map`; nothing if the
/// text is not YAML.
pub fn repeated_in_yaml(bytes: &[u8]) -> Vec<String> {
    let found = read_yaml(bytes, DuplicateKeyPolicy::Error).err();
    let line = |why: String| Some(why.strip_prefix("unmarshal errors:\n  ")?.to_owned());
    found.filter(|why| why.ends_with("already set in map")).and_then(line).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use http_body_util::StreamBody;

    use super::*;

    /// Frames that come after a while, and how many have been taken.
    fn slow(frames: usize) -> (Body, Arc<Mutex<usize>>) {
        let taken = Arc::new(Mutex::new(0));
        let count = Arc::clone(&taken);
        let frames = stream::unfold(0, move |at| {
            let count = Arc::clone(&count);
            async move {
                tokio::time::sleep(limits::DRAIN * 2 / 7).await;
                *count.lock().unwrap() += usize::from(at < frames);
                (at < frames).then(|| (Ok(Frame::data(Bytes::from_static(b"x"))), at + 1))
            }
        });
        (StreamBody::new(frames).boxed_unsync(), taken)
    }

    #[tokio::test(start_paused = true)]
    async fn unread_bodies_are_drained_within_limits() {
        for (frames, read) in [(2, 2), (1000, 3)] {
            let (body, taken) = slow(frames);
            let (body, rest) = lend(body, true);
            drop(body);
            rest.drain().await;
            assert_eq!(*taken.lock().unwrap(), read);
        }
        // A body that was read, or must not be read, is left alone.
        let (body, taken) = slow(2);
        let (body, rest) = lend(body, true);
        assert_eq!(read(body).await.unwrap(), "xx");
        rest.drain().await;
        let (body, unread) = slow(2);
        let (body, rest) = lend(body, false);
        drop(body);
        rest.drain().await;
        assert_eq!((*taken.lock().unwrap(), *unread.lock().unwrap()), (2, 0));
    }

    #[test]
    fn yaml_and_json_give_the_same_and_bombs_are_refused() {
        let yaml =
            decode("application/yaml", Bytes::from_static(b"a: 1\nb: [x, \"1\", true]\n"), "").unwrap();
        let json =
            decode("application/json", Bytes::from_static(br#"{"a":1,"b":["x","1",true]}"#), "").unwrap();
        assert_eq!(yaml.value, json.value);
        let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n\
            d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n\
            g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\nh: [*g,*g,*g,*g,*g,*g,*g,*g,*g]\n";
        assert_eq!(decode("application/yaml", Bytes::from(bomb), "").map(|d| d.value).unwrap_err().code, 400);
        assert_eq!(
            decode("application/json", Bytes::from("[".repeat(100_000)), "")
                .map(|d| d.value)
                .unwrap_err()
                .code,
            400
        );
        let cbor = decode("application/cbor", Bytes::from_static(b"\xa0"), "");
        assert_eq!(cbor.map(|d| d.value).unwrap_err().code, 415);
    }

    #[test]
    fn first_of_several_documents_is_read() {
        for (text, first) in [
            ("a: 1\n---\nb: 2\n", "a: 1\n"),
            ("# x\n%YAML 1.2\n---\na: 1\n...\nb: 2", "# x\n%YAML 1.2\n---\na: 1\n"),
            ("--- {a: 1}\n---", "--- {a: 1}\n"),
            ("---\n---\na: 1\n", "---\n"),
            ("a: |\n  ---\n  b\n---x: 1\n", "a: |\n  ---\n  b\n---x: 1\n"),
        ] {
            assert_eq!(first_document(text), first);
        }
    }

    /// Regression: a YAML text of some 200 levels, well within the limit, took more stack than a task has and
    /// ended the whole process. YAML may nest as deep as JSON, on the smallest of stacks.
    #[test]
    fn deep_yaml_takes_no_stack_of_the_caller() {
        let flow = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let block = |depth: usize| format!("{}x", "- ".repeat(depth));
        let read = |text: String| yaml(text.as_bytes(), DuplicateKeyPolicy::LastWins);
        let test = move || {
            for text in [flow(limits::YAML_DEPTH), block(limits::YAML_DEPTH)] {
                assert!(read(text).is_ok());
            }
            for text in
                [flow(limits::YAML_DEPTH + 1), block(limits::YAML_DEPTH + 1), flow(200), block(50_000)]
            {
                assert_eq!(read(text).unwrap_err().code, 400);
            }
        };
        // Half of what the tasks of the runtime have.
        std::thread::Builder::new().stack_size(1 << 20).spawn(test).unwrap().join().unwrap();
    }
}
