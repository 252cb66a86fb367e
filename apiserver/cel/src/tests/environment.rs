//! The whole environment of Kubernetes 1.36, function by function.

use std::collections::BTreeSet;

use super::*;

/// One use of each overload, by function; every one is true.
const USES: &[(&str, &[&str])] = &[
    ("_&&_", &["true && !false", "!(false && i / 0 == 1)"]),
    ("_||_", &["false || true", "true || i / 0 == 1", "i / 0 == 1 || true"]),
    ("!_", &["!false"]),
    ("_?_:_", &["i > 2 ? true : false"]),
    (
        "_==_",
        &["i == 3", "[1, 2] == [1, 2]", "{'a': 1} == {'a': 1}", "dyn(1) == dyn(1.0)", "dyn('a') != dyn(1)"],
    ),
    ("_!=_", &["i != 4"]),
    (
        "_+_",
        &[
            "1 + 2 == 3",
            "1.5 + 1.5 == 3.0",
            "1u + 2u == 3u",
            "'a' + 'b' == 'ab'",
            "b'a' + b'b' == b'ab'",
            "[1] + [2] == [1, 2]",
            "duration('1m') + duration('1s') == duration('61s')",
            "timestamp('2024-01-01T00:00:00Z') + duration('1h') == timestamp('2024-01-01T01:00:00Z')",
            "duration('1h') + timestamp('2024-01-01T00:00:00Z') == timestamp('2024-01-01T01:00:00Z')",
        ],
    ),
    (
        "_-_",
        &[
            "3 - 1 == 2",
            "3.5 - 1.5 == 2.0",
            "3u - 1u == 2u",
            "duration('1m') - duration('1s') == duration('59s')",
            "timestamp('2024-01-01T01:00:00Z') - duration('1h') == timestamp('2024-01-01T00:00:00Z')",
            "timestamp('2024-01-01T01:00:00Z') - timestamp('2024-01-01T00:00:00Z') == duration('1h')",
        ],
    ),
    ("_*_", &["2 * 3 == 6", "2.0 * 1.5 == 3.0", "2u * 3u == 6u"]),
    ("_/_", &["7 / 2 == 3", "7.0 / 2.0 == 3.5", "7u / 2u == 3u"]),
    ("_%_", &["7 % 4 == 3", "7u % 4u == 3u", "-7 % 4 == -3"]),
    ("-_", &["-i == -3", "-(1.5) == -1.5", "--i == 3"]),
    (
        "_<_",
        &[
            "1 < 2",
            "1 < 1.5",
            "1u < 2",
            "false < true",
            "'a' < 'b'",
            "b'a' < b'b'",
            "duration('1s') < duration('1m')",
            "timestamp('2024-01-01T00:00:00Z') < timestamp('2024-01-01T00:00:01Z')",
        ],
    ),
    ("_<=_", &["2 <= 2"]),
    ("_>_", &["2 > 1", "2.5 > 2"]),
    ("_>=_", &["2 >= 2u"]),
    ("@in", &["2 in l", "!(7 in l)", "'a' in m", "!('z' in m)", "dyn(2.0) in {2: 'x'}"]),
    (
        "_[_]",
        &[
            "l[0] == 3",
            "m['a'] == 1",
            "optional.of([1])[0] == optional.of(1)",
            "optional.of({'a': 1})['a'].hasValue()",
        ],
    ),
    (
        "_[?_]",
        &[
            "l[?0].value() == 3",
            "!l[?9].hasValue()",
            "!m[?'z'].hasValue()",
            "optional.of({'a': 1})[?'z'].orValue(5) == 5",
        ],
    ),
    (
        "size",
        &[
            "size(l) == 3",
            "l.size() == 3",
            "size('äö') == 2",
            "'äö'.size() == 2",
            "size(b'abc') == 3",
            "b'abc'.size() == 3",
            "size(m) == 2",
            "m.size() == 2",
        ],
    ),
    ("bool", &["bool('true')", "bool(true)", "!bool('f')"]),
    ("bytes", &["bytes('abc') == b'abc'", "bytes(b'abc') == b'abc'"]),
    ("double", &["double(1) == 1.0", "double('1.5') == 1.5", "double(1u) == 1.0", "double(1.5) == 1.5"]),
    (
        "duration",
        &[
            "duration('1m') == duration('60s')",
            "duration(duration('1s')) == duration('1s')",
            "duration(1000000000) == duration('1s')",
        ],
    ),
    ("dyn", &["dyn(1) == 1"]),
    (
        "int",
        &[
            "int(1.9) == 1",
            "int('12') == 12",
            "int(1u) == 1",
            "int(7) == 7",
            "int(timestamp('1970-01-01T00:01:00Z')) == 60",
            "int(duration('1s')) == 1000000000",
        ],
    ),
    (
        "string",
        &[
            "string(1) == '1'",
            "string(true) == 'true'",
            "string(1.5) == '1.5'",
            "string('a') == 'a'",
            "string(1u) == '1'",
            "string(b'abc') == 'abc'",
            "string(duration('1h')) == '3600s'",
            "string(duration('1500ms')) == '1.5s'",
            "string(timestamp('2024-01-01T00:00:00Z')) == '2024-01-01T00:00:00Z'",
            "string(ip('::1')) == '::1'",
            "string(cidr('10.0.0.0/8')) == '10.0.0.0/8'",
        ],
    ),
    (
        "timestamp",
        &[
            "timestamp('2024-01-01T00:00:00Z') == timestamp(1704067200)",
            "timestamp(timestamp(0)) == timestamp(0)",
        ],
    ),
    (
        "type",
        &[
            "type(i) == int",
            "type(s) == string",
            "type(l) == list",
            "type(m) == map",
            "type(null) == null_type",
            "type(1.0) == double",
            "type(int) == type",
            "type(timestamp(0)) == google.protobuf.Timestamp",
            "type(i) != type(s)",
        ],
    ),
    ("uint", &["uint(1) == 1u", "uint(1.5) == 1u", "uint('7') == 7u", "uint(7u) == 7u"]),
    ("contains", &["s.contains('ex')"]),
    ("endsWith", &["s.endsWith('xt')"]),
    ("startsWith", &["s.startsWith('te')"]),
    ("matches", &["s.matches('^t.x')", "matches(s, 'ex')", "!s.matches('^ex')"]),
    ("optional.of", &["optional.of(1).value() == 1"]),
    (
        "optional.ofNonZeroValue",
        &["!optional.ofNonZeroValue(0).hasValue()", "optional.ofNonZeroValue(2).hasValue()"],
    ),
    ("optional.none", &["!optional.none().hasValue()"]),
    ("optional.unwrap", &["optional.unwrap([optional.of(1), optional.none()]) == [1]"]),
    ("unwrapOpt", &["[optional.of(1), optional.none()].unwrapOpt() == [1]"]),
    ("value", &["m.?a.value() == 1"]),
    ("hasValue", &["m.?a.hasValue() && !m.?z.hasValue()"]),
    ("or", &["m.?z.or(m.?b).value() == 2"]),
    ("orValue", &["m.?z.orValue(7) == 7"]),
    (
        "getFullYear",
        &[
            "timestamp('2024-02-03T04:05:06.007Z').getFullYear() == 2024",
            "timestamp('2024-01-01T00:00:00Z').getFullYear('-01:00') == 2023",
        ],
    ),
    (
        "getMonth",
        &[
            "timestamp('2024-02-03T04:05:06.007Z').getMonth() == 1",
            "timestamp('2024-02-01T00:00:00Z').getMonth('-01:00') == 0",
        ],
    ),
    (
        "getDayOfYear",
        &[
            "timestamp('2024-02-03T04:05:06.007Z').getDayOfYear() == 33",
            "timestamp('2024-01-01T00:00:00Z').getDayOfYear('UTC') == 0",
        ],
    ),
    (
        "getDayOfMonth",
        &[
            "timestamp('2024-02-03T04:05:06.007Z').getDayOfMonth() == 2",
            "timestamp(0).getDayOfMonth('UTC') == 0",
        ],
    ),
    (
        "getDate",
        &["timestamp('2024-02-03T04:05:06.007Z').getDate() == 3", "timestamp(0).getDate('UTC') == 1"],
    ),
    (
        "getDayOfWeek",
        &[
            "timestamp('2024-02-03T04:05:06.007Z').getDayOfWeek() == 6",
            "timestamp(0).getDayOfWeek('UTC') == 4",
        ],
    ),
    (
        "getHours",
        &[
            "timestamp('2024-02-03T04:05:06.007Z').getHours() == 4",
            "timestamp('2024-02-03T04:05:06Z').getHours('+02:30') == 6",
            "duration('90m').getHours() == 1",
        ],
    ),
    (
        "getMinutes",
        &[
            "timestamp('2024-02-03T04:05:06.007Z').getMinutes() == 5",
            "timestamp('2024-02-03T04:05:06Z').getMinutes('+02:30') == 35",
            "duration('90m').getMinutes() == 90",
        ],
    ),
    (
        "getSeconds",
        &[
            "timestamp('2024-02-03T04:05:06.007Z').getSeconds() == 6",
            "timestamp(0).getSeconds('UTC') == 0",
            "duration('90m').getSeconds() == 5400",
        ],
    ),
    (
        "getMilliseconds",
        &[
            "timestamp('2024-02-03T04:05:06.007Z').getMilliseconds() == 7",
            "timestamp(0).getMilliseconds('UTC') == 0",
            "duration('1.5s').getMilliseconds() == 1500",
        ],
    ),
    ("charAt", &["s.charAt(1) == 'e'"]),
    (
        "indexOf",
        &[
            "s.indexOf('x') == 2",
            "s.indexOf('t', 1) == 3",
            "[1, 2, 2].indexOf(2) == 1",
            "[1].indexOf(7) == -1",
        ],
    ),
    ("join", &["['a', 'b'].join() == 'ab'", "['a', 'b'].join('-') == 'a-b'"]),
    (
        "lastIndexOf",
        &["s.lastIndexOf('t') == 3", "s.lastIndexOf('t', 2) == 0", "[1, 2, 2].lastIndexOf(2) == 2"],
    ),
    ("lowerAscii", &["'AbC'.lowerAscii() == 'abc'"]),
    ("replace", &["s.replace('t', 'T') == 'TexT'", "s.replace('t', 'T', 1) == 'Text'"]),
    ("split", &["'a,b,c'.split(',') == ['a', 'b', 'c']", "'a,b,c'.split(',', 2) == ['a', 'b,c']"]),
    ("substring", &["s.substring(1) == 'ext'", "s.substring(1, 3) == 'ex'"]),
    ("trim", &["'  a '.trim() == 'a'"]),
    ("upperAscii", &["'AbC'.upperAscii() == 'ABC'"]),
    (
        "format",
        &[
            "'%s is %d'.format(['a', 1]) == 'a is 1'",
            "'%.2f'.format([1.234]) == '1.23'",
            "'%s'.format([[1, 2]]) == '[1, 2]'",
        ],
    ),
    ("strings.quote", &["strings.quote('a\"b') == '\"a\\\\\"b\"'"]),
    ("sets.contains", &["sets.contains([1, 2], [2])"]),
    ("sets.equivalent", &["sets.equivalent([1, 2], [2, 1, 1])"]),
    ("sets.intersects", &["sets.intersects([1, 2], [2, 3])"]),
    ("slice", &["[1, 2, 3].slice(1, 3) == [2, 3]"]),
    (
        "flatten",
        &[
            "[[1], [2, 3]].flatten() == [1, 2, 3]",
            "[dyn([dyn(1), dyn([2])])].flatten() == [dyn(1), dyn([2])]",
            "[dyn([dyn(1), dyn([2])])].flatten(2) == [1, 2]",
        ],
    ),
    ("distinct", &["[1, 2, 2].distinct() == [1, 2]"]),
    ("lists.range", &["lists.range(3) == [0, 1, 2]"]),
    ("reverse", &["l.reverse() == [2, 1, 3]"]),
    ("first", &["l.first().value() == 3"]),
    ("last", &["l.last().value() == 2"]),
    (
        "sort",
        &[
            "l.sort() == [1, 2, 3]",
            "['b', 'a'].sort() == ['a', 'b']",
            "[2.0, 1.0].sort() == [1.0, 2.0]",
            "[2u, 1u].sort() == [1u, 2u]",
            "[true, false].sort() == [false, true]",
            "[duration('2s'), duration('1s')].sort()[0] == duration('1s')",
        ],
    ),
    ("isSorted", &["[1, 2].isSorted()", "!['b', 'a'].isSorted()", "[1.0, 2.0].isSorted()"]),
    ("min", &["l.min() == 1", "['b', 'a'].min() == 'a'", "[2.5, 1.5].min() == 1.5"]),
    ("max", &["l.max() == 3", "[duration('1s'), duration('1m')].max() == duration('1m')"]),
    (
        "sum",
        &[
            "l.sum() == 6",
            "[1.5, 1.5].sum() == 3.0",
            "[1u, 2u].sum() == 3u",
            "[duration('1s'), duration('1m')].sum() == duration('61s')",
        ],
    ),
    ("find", &["'abc 123'.find('[0-9]+') == '123'", "'abc'.find('[0-9]+') == ''"]),
    (
        "findAll",
        &[
            "'1 22 333'.findAll('[0-9]+') == ['1', '22', '333']",
            "'1 22 333'.findAll('[0-9]+', 2) == ['1', '22']",
        ],
    ),
    ("url", &["url('https://a.b:80/c').getHost() == 'a.b:80'"]),
    ("isURL", &["isURL('https://a.b/c')", "!isURL('a b')"]),
    ("getScheme", &["url('https://a.b:80/c').getScheme() == 'https'"]),
    ("getHost", &["url('https://[::1]:80/').getHost() == '[::1]:80'"]),
    ("getHostname", &["url('https://a.b:80/c').getHostname() == 'a.b'"]),
    ("getPort", &["url('https://a.b:80/c').getPort() == '80'"]),
    ("getEscapedPath", &["url('https://a.b/c d').getEscapedPath() == '/c%20d'"]),
    ("getQuery", &["url('https://a.b/c?x=1&x=2').getQuery()['x'] == ['1', '2']"]),
    ("quantity", &["quantity('1Ki') == quantity('1024')"]),
    ("isQuantity", &["isQuantity('1.5Gi')", "!isQuantity('x')"]),
    ("sign", &["sign(quantity('-1')) == -1", "sign(quantity('5')) == 1"]),
    (
        "isGreaterThan",
        &["quantity('2').isGreaterThan(quantity('1'))", "semver('1.2.3').isGreaterThan(semver('1.2.2'))"],
    ),
    (
        "isLessThan",
        &["quantity('1').isLessThan(quantity('2'))", "semver('1.2.3').isLessThan(semver('2.0.0'))"],
    ),
    (
        "compareTo",
        &["quantity('1').compareTo(quantity('2')) == -1", "semver('1.2.3').compareTo(semver('1.2.3')) == 0"],
    ),
    ("asApproximateFloat", &["quantity('500m').asApproximateFloat() == 0.5"]),
    ("asInteger", &["quantity('1k').asInteger() == 1000"]),
    ("isInteger", &["quantity('1k').isInteger()", "!quantity('1500m').isInteger()"]),
    ("add", &["quantity('1').add(quantity('2')) == quantity('3')", "quantity('1').add(2) == quantity('3')"]),
    ("sub", &["quantity('3').sub(quantity('2')) == quantity('1')", "quantity('3').sub(2) == quantity('1')"]),
    ("ip", &["ip('10.0.0.1') == ip('10.0.0.1')", "cidr('10.1.0.0/16').ip() == ip('10.1.0.0')"]),
    ("isIP", &["isIP('::1')", "!isIP('x')"]),
    ("ip.isCanonical", &["ip.isCanonical('::1')", "!ip.isCanonical('0:0::1')"]),
    ("family", &["ip('::1').family() == 6"]),
    ("isUnspecified", &["ip('0.0.0.0').isUnspecified()"]),
    ("isLoopback", &["ip('127.0.0.1').isLoopback()"]),
    ("isLinkLocalMulticast", &["ip('224.0.0.1').isLinkLocalMulticast()"]),
    ("isLinkLocalUnicast", &["ip('169.254.0.1').isLinkLocalUnicast()"]),
    ("isGlobalUnicast", &["ip('10.0.0.1').isGlobalUnicast()"]),
    ("cidr", &["cidr('10.0.0.0/8') == cidr('10.0.0.0/8')"]),
    ("isCIDR", &["isCIDR('10.0.0.0/8')", "!isCIDR('10.0.0.0')"]),
    (
        "containsIP",
        &["cidr('10.0.0.0/8').containsIP('10.1.2.3')", "!cidr('10.0.0.0/8').containsIP(ip('11.0.0.0'))"],
    ),
    (
        "containsCIDR",
        &[
            "cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16')",
            "cidr('10.0.0.0/8').containsCIDR(cidr('10.0.0.0/9'))",
        ],
    ),
    ("prefixLength", &["cidr('10.0.0.0/8').prefixLength() == 8"]),
    ("masked", &["cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8')"]),
    ("semver", &["semver('1.2.3') == semver('1.2.3')", "semver('v1.2', true) == semver('1.2.0')"]),
    ("isSemver", &["isSemver('1.2.3')", "!isSemver('v1.2')", "isSemver('v1.2', true)"]),
    ("major", &["semver('1.2.3').major() == 1"]),
    ("minor", &["semver('1.2.3').minor() == 2"]),
    ("patch", &["semver('1.2.3').patch() == 3"]),
    ("format.named", &["format.named('dns1123Label').hasValue()", "!format.named('other').hasValue()"]),
    (
        "validate",
        &[
            "!format.dns1123Label().validate('abc').hasValue()",
            "format.dns1123Label().validate('A_b').hasValue()",
        ],
    ),
];

/// Functions of which only the types are checked here: nothing asks an authorizer yet, and patches are made
/// by mutations. Formats are walked below.
const TYPED: &[&str] = &[
    "allowed",
    "check",
    "error",
    "errored",
    "fieldSelector",
    "group",
    "jsonpatch.escapeKey",
    "labelSelector",
    "name",
    "namespace",
    "path",
    "reason",
    "resource",
    "serviceAccount",
    "subresource",
];

#[test]
fn the_environment_of_kubernetes_is_there_function_by_function() {
    let mut failed = Vec::new();
    let mut walked: BTreeSet<String> = TYPED.iter().map(|name| (*name).to_owned()).collect();
    for (name, uses) in USES {
        walked.insert((*name).to_owned());
        for source in *uses {
            match compile(source, &env()) {
                Err(error) => failed.push(format!("{source}\n{error}")),
                Ok((node, checked)) => {
                    assert!(checked.ty.same(&Ty::Bool), "{source}");
                    let given = evaluate(&node, &values(), PLENTY).0;
                    if given != Ok(Cel::Bool(true)) {
                        failed.push(format!("{source}: {given:?}"));
                    }
                }
            }
        }
    }
    for format in crate::types::declare::FORMATS {
        walked.insert(format!("format.{format}"));
        let source = format!(
            "format.{format}().validate('~ /').hasValue() == format.named('{format}').value().validate('~ /').hasValue()"
        );
        if gives(&source) != Ok(Cel::Bool(true)) {
            failed.push(source);
        }
    }
    let declared: BTreeSet<String> = crate::types::declare::all().map(|(name, _)| name.to_owned()).collect();
    assert_eq!(declared, walked, "each function has its row");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
