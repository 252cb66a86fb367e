//! The functions that rules may call, and what is known of their results.

/// What a function gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gives {
    Bool,
    Int,
    Text,
    Double,
    Timestamp,
    Duration,
    /// Something that is not followed further.
    Unknown,
}

/// How its cost grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grows {
    /// Not at all.
    Constant,
    /// With the sizes of what it is given, a tenth of a unit a character or item.
    Linear,
    /// With the product of the sizes: expressions of its own.
    Regex,
    /// With every item.
    Items,
}

/// The functions of the language and of Kubernetes' libraries.
pub fn function(name: &str) -> Option<(Gives, Grows)> {
    use Gives::{Bool, Double, Duration, Int, Text, Timestamp, Unknown};
    use Grows::{Constant, Items, Linear, Regex};
    Some(match name {
        "size" | "indexOf" | "lastIndexOf" | "compareTo" | "asInteger" | "sign" | "major" | "minor"
        | "patch" | "family" | "prefixLength" | "int" | "uint" => {
            (Int, if name == "size" { Constant } else { Linear })
        }
        "getFullYear" | "getMonth" | "getDayOfYear" | "getDayOfMonth" | "getDate" | "getDayOfWeek"
        | "getHours" | "getMinutes" | "getSeconds" | "getMilliseconds" => (Int, Constant),
        "contains"
        | "startsWith"
        | "endsWith"
        | "isURL"
        | "isIP"
        | "isCIDR"
        | "isQuantity"
        | "isSemver"
        | "isInteger"
        | "isGreaterThan"
        | "isLessThan"
        | "containsIP"
        | "containsCIDR"
        | "ip.isCanonical"
        | "isUnspecified"
        | "isLoopback"
        | "isLinkLocalMulticast"
        | "isLinkLocalUnicast"
        | "isGlobalUnicast"
        | "bool" => (Bool, Linear),
        "isSorted" | "sets.contains" | "sets.equivalent" | "sets.intersects" => (Bool, Items),
        "hasValue" | "math.isFinite" | "math.isInf" | "math.isNaN" => (Bool, Constant),
        "matches" => (Bool, Regex),
        "find" => (Text, Regex),
        "findAll" => (Unknown, Regex),
        "string"
        | "lowerAscii"
        | "upperAscii"
        | "trim"
        | "replace"
        | "substring"
        | "charAt"
        | "join"
        | "format"
        | "getScheme"
        | "getHost"
        | "getHostname"
        | "getPort"
        | "getEscapedPath"
        | "strings.quote"
        | "base64.encode"
        | "jsonpatch.escapeKey" => (Text, Linear),
        "split" | "reverse" | "getQuery" | "url" | "ip" | "cidr" | "quantity" | "semver" | "masked"
        | "base64.decode" | "bytes" | "asApproximateFloat" | "validate" | "type" | "dyn" => (Unknown, Linear),
        "sum" | "min" | "max" | "distinct" | "flatten" | "first" | "last" | "slice" | "sort"
        | "lists.range" => (Unknown, Items),
        "add"
        | "sub"
        | "value"
        | "or"
        | "orValue"
        | "optional.none"
        | "optional.of"
        | "optional.ofNonZeroValue"
        | "isIPv4"
        | "isIPv6"
        | "isCIDRv4"
        | "isCIDRv6" => (Unknown, Constant),
        "double" => (Double, Constant),
        "timestamp" => (Timestamp, Constant),
        "duration" => (Duration, Constant),
        "math.abs" | "math.bitAnd" | "math.bitNot" | "math.bitOr" | "math.bitShiftLeft"
        | "math.bitShiftRight" | "math.bitXor" | "math.ceil" | "math.floor" | "math.greatest"
        | "math.least" | "math.round" | "math.sign" | "math.sqrt" | "math.trunc" => (Unknown, Constant),
        "format.byte"
        | "format.date"
        | "format.datetime"
        | "format.dns1035Label"
        | "format.dns1035LabelPrefix"
        | "format.dns1123Label"
        | "format.dns1123LabelPrefix"
        | "format.dns1123Subdomain"
        | "format.dns1123SubdomainPrefix"
        | "format.labelValue"
        | "format.named"
        | "format.qualifiedName"
        | "format.uri"
        | "format.uuid" => (Unknown, Constant),
        _ => return None,
    })
}
