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

/// The functions of the language and of Kubernetes' libraries, by what they give and cost.
const FUNCTIONS: &[(Gives, Grows, &[&str])] = &[
    (Gives::Int, Grows::Constant, &["size"]),
    (
        Gives::Int,
        Grows::Linear,
        &[
            "indexOf",
            "lastIndexOf",
            "compareTo",
            "asInteger",
            "sign",
            "major",
            "minor",
            "patch",
            "family",
            "prefixLength",
            "int",
            "uint",
        ],
    ),
    (
        Gives::Int,
        Grows::Constant,
        &[
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
        ],
    ),
    (
        Gives::Bool,
        Grows::Linear,
        &[
            "contains",
            "startsWith",
            "endsWith",
            "isURL",
            "isIP",
            "isCIDR",
            "isQuantity",
            "isSemver",
            "isInteger",
            "isGreaterThan",
            "isLessThan",
            "containsIP",
            "containsCIDR",
            "ip.isCanonical",
            "isUnspecified",
            "isLoopback",
            "isLinkLocalMulticast",
            "isLinkLocalUnicast",
            "isGlobalUnicast",
        ],
    ),
    (Gives::Bool, Grows::Items, &["isSorted", "sets.contains", "sets.equivalent", "sets.intersects"]),
    (Gives::Bool, Grows::Constant, &["hasValue", "math.isFinite", "math.isInf", "math.isNaN"]),
    (Gives::Bool, Grows::Regex, &["matches"]),
    (Gives::Text, Grows::Regex, &["find"]),
    (Gives::Unknown, Grows::Regex, &["findAll"]),
    (
        Gives::Text,
        Grows::Linear,
        &[
            "string",
            "lowerAscii",
            "upperAscii",
            "trim",
            "replace",
            "substring",
            "charAt",
            "join",
            "format",
            "getScheme",
            "getHost",
            "getHostname",
            "getPort",
            "getEscapedPath",
            "strings.quote",
            "base64.encode",
            "jsonpatch.escapeKey",
        ],
    ),
    (
        Gives::Unknown,
        Grows::Linear,
        &[
            "split",
            "reverse",
            "getQuery",
            "url",
            "ip",
            "cidr",
            "quantity",
            "semver",
            "masked",
            "base64.decode",
            "bytes",
            "asApproximateFloat",
            "validate",
            "type",
            "dyn",
        ],
    ),
    (
        Gives::Unknown,
        Grows::Items,
        &["sum", "min", "max", "distinct", "flatten", "first", "last", "slice", "sort", "lists.range"],
    ),
    (
        Gives::Unknown,
        Grows::Constant,
        &[
            "add",
            "sub",
            "value",
            "or",
            "orValue",
            "optional.none",
            "optional.of",
            "optional.ofNonZeroValue",
            "isIPv4",
            "isIPv6",
            "isCIDRv4",
            "isCIDRv6",
        ],
    ),
    (Gives::Double, Grows::Constant, &["double"]),
    (Gives::Timestamp, Grows::Constant, &["timestamp"]),
    (Gives::Duration, Grows::Constant, &["duration"]),
    (
        Gives::Unknown,
        Grows::Constant,
        &[
            "math.abs",
            "math.bitAnd",
            "math.bitNot",
            "math.bitOr",
            "math.bitShiftLeft",
            "math.bitShiftRight",
            "math.bitXor",
            "math.ceil",
            "math.floor",
            "math.greatest",
            "math.least",
            "math.round",
            "math.sign",
            "math.sqrt",
            "math.trunc",
        ],
    ),
    (
        Gives::Unknown,
        Grows::Constant,
        &[
            "format.byte",
            "format.date",
            "format.datetime",
            "format.dns1035Label",
            "format.dns1035LabelPrefix",
            "format.dns1123Label",
            "format.dns1123LabelPrefix",
            "format.dns1123Subdomain",
            "format.dns1123SubdomainPrefix",
            "format.labelValue",
            "format.named",
            "format.qualifiedName",
            "format.uri",
            "format.uuid",
        ],
    ),
];

/// A function by its name; `None` if there is none of that name.
pub fn function(name: &str) -> Option<(Gives, Grows)> {
    FUNCTIONS.iter().find(|(_, _, names)| names.contains(&name)).map(|(gives, grows, _)| (*gives, *grows))
}
