//! The functions of the environment that Kubernetes 1.36 gives to every expression: the language's
//! own, and the libraries of `k8s.io/apiserver/pkg/cel/environment`.
//!
//! A line is `name | receiver.(arguments) result`; without a receiver it is a function, else a
//! method. `A`, `B` are variables.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use super::schema::{Object, named};
use super::{Bindings, Ty};

/// One overload of a function.
#[derive(Clone, Debug)]
pub struct Overload {
    /// True for a method; the receiver is its first argument.
    pub member: bool,
    pub args: Vec<Written>,
    pub gives: Written,
    /// The overload's text in the table.
    pub text: &'static str,
}

/// A type as it is written in the table.
#[derive(Clone, Debug)]
pub enum Written {
    Plain(Ty<'static>),
    /// A variable by its place in the alphabet.
    Variable(usize),
    List(Arc<Written>),
    Map(Arc<Written>, Arc<Written>),
    Optional(Arc<Written>),
}

impl Written {
    /// The type, its variables replaced by `variables`.
    pub fn instance<'s>(&self, variables: &[Ty<'s>; 2]) -> Ty<'s> {
        match self {
            Self::Plain(ty) => ty.clone(),
            Self::Variable(index) => variables[*index].clone(),
            Self::List(items) => Ty::list(items.instance(variables)),
            Self::Map(keys, values) => Ty::map(keys.instance(variables), values.instance(variables)),
            Self::Optional(inner) => Ty::Optional(Arc::new(inner.instance(variables))),
        }
    }
}

/// Two new variables.
pub fn variables<'s>(bindings: &mut Bindings<'s>) -> [Ty<'s>; 2] {
    [bindings.fresh(), bindings.fresh()]
}

/// Operators.
const OPERATORS: &str = "
_&&_ | (bool, bool) bool
_||_ | (bool, bool) bool
!_ | (bool) bool
_?_:_ | (bool, A, A) A
_==_ | (A, A) bool
_!=_ | (A, A) bool
_+_ | (bytes, bytes) bytes
_+_ | (double, double) double
_+_ | (duration, duration) duration
_+_ | (duration, timestamp) timestamp
_+_ | (timestamp, duration) timestamp
_+_ | (int, int) int
_+_ | (list(A), list(A)) list(A)
_+_ | (string, string) string
_+_ | (uint, uint) uint
_-_ | (double, double) double
_-_ | (duration, duration) duration
_-_ | (int, int) int
_-_ | (timestamp, duration) timestamp
_-_ | (timestamp, timestamp) duration
_-_ | (uint, uint) uint
_*_ | (double, double) double
_*_ | (int, int) int
_*_ | (uint, uint) uint
_/_ | (double, double) double
_/_ | (int, int) int
_/_ | (uint, uint) uint
_%_ | (int, int) int
_%_ | (uint, uint) uint
-_ | (double) double
-_ | (int) int
@in | (A, list(A)) bool
@in | (A, map(A, B)) bool
_[_] | (list(A), int) A
_[_] | (map(A, B), A) B
_[_] | (optional(list(A)), int) optional(A)
_[_] | (optional(map(A, B)), A) optional(B)
_[?_] | (list(A), int) optional(A)
_[?_] | (map(A, B), A) optional(B)
_[?_] | (optional(list(A)), int) optional(A)
_[?_] | (optional(map(A, B)), A) optional(B)
";

/// Types of which any two compare; numbers compare across types too.
const ORDERED: [&str; 14] = [
    "bool, bool",
    "int, int",
    "int, double",
    "int, uint",
    "uint, uint",
    "uint, double",
    "uint, int",
    "double, double",
    "double, int",
    "double, uint",
    "string, string",
    "bytes, bytes",
    "timestamp, timestamp",
    "duration, duration",
];

/// The language's functions, and optionals.
const STANDARD: &str = "
size | (bytes) int
size | bytes.() int
size | (list(A)) int
size | list(A).() int
size | (map(A, B)) int
size | map(A, B).() int
size | (string) int
size | string.() int
bool | (bool) bool
bool | (string) bool
bytes | (bytes) bytes
bytes | (string) bytes
double | (double) double
double | (int) double
double | (string) double
double | (uint) double
duration | (duration) duration
duration | (int) duration
duration | (string) duration
dyn | (A) dyn
int | (int) int
int | (double) int
int | (duration) int
int | (string) int
int | (timestamp) int
int | (uint) int
string | (string) string
string | (bool) string
string | (bytes) string
string | (double) string
string | (duration) string
string | (int) string
string | (timestamp) string
string | (uint) string
timestamp | (timestamp) timestamp
timestamp | (int) timestamp
timestamp | (string) timestamp
type | (A) type
uint | (uint) uint
uint | (double) uint
uint | (int) uint
uint | (string) uint
contains | string.(string) bool
endsWith | string.(string) bool
startsWith | string.(string) bool
matches | (string, string) bool
matches | string.(string) bool
optional.of | (A) optional(A)
optional.ofNonZeroValue | (A) optional(A)
optional.none | () optional(A)
optional.unwrap | (list(optional(A))) list(A)
unwrapOpt | list(optional(A)).() list(A)
value | optional(A).() A
hasValue | optional(A).() bool
or | optional(A).(optional(A)) optional(A)
orValue | optional(A).(A) A
";

/// Parts of a time; with a time zone or without.
const PARTS: [&str; 10] = [
    "getFullYear",
    "getMonth",
    "getDayOfYear",
    "getDayOfMonth",
    "getDate",
    "getDayOfWeek",
    "getHours",
    "getMinutes",
    "getSeconds",
    "getMilliseconds",
];

/// `ext.Strings` 2, `ext.Sets`, `ext.Lists` 3.
const EXTENSIONS: &str = "
charAt | string.(int) string
indexOf | string.(string) int
indexOf | string.(string, int) int
join | list(string).() string
join | list(string).(string) string
lastIndexOf | string.(string) int
lastIndexOf | string.(string, int) int
lowerAscii | string.() string
replace | string.(string, string) string
replace | string.(string, string, int) string
split | string.(string) list(string)
split | string.(string, int) list(string)
substring | string.(int) string
substring | string.(int, int) string
trim | string.() string
upperAscii | string.() string
format | string.(list(dyn)) string
strings.quote | (string) string
sets.contains | (list(A), list(A)) bool
sets.equivalent | (list(A), list(A)) bool
sets.intersects | (list(A), list(A)) bool
slice | list(A).(int, int) list(A)
flatten | list(list(A)).() list(A)
flatten | list(dyn).() list(dyn)
flatten | list(dyn).(int) list(dyn)
distinct | list(A).() list(A)
lists.range | (int) list(int)
reverse | list(A).() list(A)
first | list(A).() optional(A)
last | list(A).() optional(A)
";

/// Kubernetes' own.
const KUBERNETES: &str = "
indexOf | list(A).(A) int
lastIndexOf | list(A).(A) int
find | string.(string) string
findAll | string.(string) list(string)
findAll | string.(string, int) list(string)
url | (string) kubernetes.URL
isURL | (string) bool
getScheme | kubernetes.URL.() string
getHost | kubernetes.URL.() string
getHostname | kubernetes.URL.() string
getPort | kubernetes.URL.() string
getEscapedPath | kubernetes.URL.() string
getQuery | kubernetes.URL.() map(string, list(string))
quantity | (string) kubernetes.Quantity
isQuantity | (string) bool
sign | (kubernetes.Quantity) int
isGreaterThan | kubernetes.Quantity.(kubernetes.Quantity) bool
isLessThan | kubernetes.Quantity.(kubernetes.Quantity) bool
compareTo | kubernetes.Quantity.(kubernetes.Quantity) int
asApproximateFloat | kubernetes.Quantity.() double
asInteger | kubernetes.Quantity.() int
isInteger | kubernetes.Quantity.() bool
add | kubernetes.Quantity.(kubernetes.Quantity) kubernetes.Quantity
add | kubernetes.Quantity.(int) kubernetes.Quantity
sub | kubernetes.Quantity.(kubernetes.Quantity) kubernetes.Quantity
sub | kubernetes.Quantity.(int) kubernetes.Quantity
ip | (string) net.IP
isIP | (string) bool
ip.isCanonical | (string) bool
family | net.IP.() int
isUnspecified | net.IP.() bool
isLoopback | net.IP.() bool
isLinkLocalMulticast | net.IP.() bool
isLinkLocalUnicast | net.IP.() bool
isGlobalUnicast | net.IP.() bool
string | (net.IP) string
cidr | (string) net.CIDR
isCIDR | (string) bool
containsIP | net.CIDR.(string) bool
containsIP | net.CIDR.(net.IP) bool
containsCIDR | net.CIDR.(string) bool
containsCIDR | net.CIDR.(net.CIDR) bool
ip | net.CIDR.() net.IP
prefixLength | net.CIDR.() int
masked | net.CIDR.() net.CIDR
string | (net.CIDR) string
semver | (string) kubernetes.Semver
semver | (string, bool) kubernetes.Semver
isSemver | (string) bool
isSemver | (string, bool) bool
isGreaterThan | kubernetes.Semver.(kubernetes.Semver) bool
isLessThan | kubernetes.Semver.(kubernetes.Semver) bool
compareTo | kubernetes.Semver.(kubernetes.Semver) int
major | kubernetes.Semver.() int
minor | kubernetes.Semver.() int
patch | kubernetes.Semver.() int
format.named | (string) optional(kubernetes.NamedFormat)
validate | kubernetes.NamedFormat.(string) optional(list(string))
path | kubernetes.authorization.Authorizer.(string) kubernetes.authorization.PathCheck
group | kubernetes.authorization.Authorizer.(string) kubernetes.authorization.GroupCheck
serviceAccount | kubernetes.authorization.Authorizer.(string, string) kubernetes.authorization.Authorizer
resource | kubernetes.authorization.GroupCheck.(string) kubernetes.authorization.ResourceCheck
subresource | kubernetes.authorization.ResourceCheck.(string) kubernetes.authorization.ResourceCheck
namespace | kubernetes.authorization.ResourceCheck.(string) kubernetes.authorization.ResourceCheck
name | kubernetes.authorization.ResourceCheck.(string) kubernetes.authorization.ResourceCheck
fieldSelector | kubernetes.authorization.ResourceCheck.(string) kubernetes.authorization.ResourceCheck
labelSelector | kubernetes.authorization.ResourceCheck.(string) kubernetes.authorization.ResourceCheck
check | kubernetes.authorization.PathCheck.(string) kubernetes.authorization.Decision
check | kubernetes.authorization.ResourceCheck.(string) kubernetes.authorization.Decision
errored | kubernetes.authorization.Decision.() bool
error | kubernetes.authorization.Decision.() string
allowed | kubernetes.authorization.Decision.() bool
reason | kubernetes.authorization.Decision.() string
";

/// Formats that `format.named` knows, each a function too.
pub const FORMATS: [&str; 13] = [
    "dns1123Label",
    "dns1123Subdomain",
    "dns1035Label",
    "qualifiedName",
    "dns1123LabelPrefix",
    "dns1123SubdomainPrefix",
    "dns1035LabelPrefix",
    "labelValue",
    "uri",
    "uuid",
    "byte",
    "date",
    "datetime",
];

/// Types whose lists can be sorted, and have a largest item.
const COMPARABLE: [&str; 8] = ["int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes"];

/// Functions available only to mutations.
const PATCHES: &str = "
jsonpatch.escapeKey | (string) string
";

static TABLE: LazyLock<BTreeMap<&'static str, Vec<Overload>>> = LazyLock::new(|| {
    let mut table: BTreeMap<&'static str, Vec<Overload>> = BTreeMap::new();
    let texts = [OPERATORS, STANDARD, EXTENSIONS, KUBERNETES, PATCHES].into_iter().map(str::to_owned);
    for text in texts.chain([generated()]) {
        // Once for the life of the process.
        for line in text.leak().lines().filter(|line| !line.is_empty()) {
            let (name, overload) = read(line);
            table.entry(name).or_default().push(overload);
        }
    }
    table
});

/// Overloads that differ in types only.
fn generated() -> String {
    let mut lines = Vec::new();
    for operator in ["_<_", "_<=_", "_>_", "_>=_"] {
        lines.extend(ORDERED.iter().map(|types| format!("{operator} | ({types}) bool")));
    }
    for part in PARTS {
        lines.push(format!("{part} | timestamp.() int"));
        lines.push(format!("{part} | timestamp.(string) int"));
    }
    for part in ["getHours", "getMinutes", "getSeconds", "getMilliseconds"] {
        lines.push(format!("{part} | duration.() int"));
    }
    for ty in COMPARABLE {
        lines.push(format!("isSorted | list({ty}).() bool"));
        lines.push(format!("min | list({ty}).() {ty}"));
        lines.push(format!("max | list({ty}).() {ty}"));
        lines.push(format!("sort | list({ty}).() list({ty})"));
    }
    for ty in ["int", "uint", "double", "duration"] {
        lines.push(format!("sum | list({ty}).() {ty}"));
    }
    for format in FORMATS {
        lines.push(format!("format.{format} | () kubernetes.NamedFormat"));
    }
    lines.join("\n")
}

/// Returns the overloads of a function; none if there is no function of that name.
pub fn overloads(name: &str) -> &'static [Overload] {
    TABLE.get(name).map_or(&[], Vec::as_slice)
}

/// Every function, by name.
#[cfg(test)]
pub fn all() -> impl Iterator<Item = (&'static str, &'static [Overload])> {
    TABLE.iter().map(|(name, overloads)| (*name, overloads.as_slice()))
}

fn read(line: &'static str) -> (&'static str, Overload) {
    let (name, text) = line.split_once(" | ").expect("every line has a bar");
    let mut reader = Reader { rest: text };
    let mut args = Vec::new();
    let member = !text.starts_with('(');
    if member {
        args.push(reader.ty());
        reader.skip(".");
    }
    reader.skip("(");
    while !reader.rest.starts_with(')') {
        args.push(reader.ty());
        if reader.rest.starts_with(", ") {
            reader.skip(", ");
        }
    }
    reader.skip(") ");
    (name, Overload { member, args, gives: reader.ty(), text })
}

/// Reads a type as the table and [`super::schema`] write it.
pub fn written(text: &'static str) -> Written {
    Reader { rest: text }.ty()
}

struct Reader {
    rest: &'static str,
}

impl Reader {
    fn skip(&mut self, text: &str) {
        self.rest = self.rest.strip_prefix(text).expect("the tables are constants");
    }

    fn ty(&mut self) -> Written {
        let length =
            self.rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '.').unwrap_or(self.rest.len());
        // A receiver is followed by a point.
        let name = self.rest[..length].trim_end_matches('.');
        self.rest = &self.rest[name.len()..];
        let inner = |reader: &mut Self| {
            reader.skip("(");
            let inner = Arc::new(reader.ty());
            reader.skip(")");
            inner
        };
        match name {
            "A" => Written::Variable(0),
            "B" => Written::Variable(1),
            "list" => Written::List(inner(self)),
            "optional" => Written::Optional(inner(self)),
            "map" => {
                self.skip("(");
                let keys = Arc::new(self.ty());
                self.skip(", ");
                let values = Arc::new(self.ty());
                self.skip(")");
                Written::Map(keys, values)
            }
            other => Written::Plain(plain(other)),
        }
    }
}

fn plain(name: &'static str) -> Ty<'static> {
    match name {
        "bool" => Ty::Bool,
        "int" => Ty::Int,
        "uint" => Ty::Uint,
        "double" => Ty::Double,
        "string" => Ty::Text,
        "bytes" => Ty::Bytes,
        "timestamp" => Ty::Timestamp,
        "duration" => Ty::Duration,
        "null" => Ty::Null,
        "type" => Ty::Type,
        "dyn" => Ty::Dyn,
        other => match named(other) {
            Some(object) => Ty::Object(Object::Named(object)),
            None => Ty::Opaque(other),
        },
    }
}
