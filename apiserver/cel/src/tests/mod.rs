//! Tests of single expressions: syntax, errors and their words, and results.

mod bounds;
mod environment;
mod kinds;
mod texts;

use kube_cel::cel::Value as Cel;

use super::cost::AUTHORIZATION;
use super::*;

/// Enough for any expression of these tests.
const PLENTY: u64 = 1_000_000;

fn env() -> Env<'static> {
    let variables = vec![
        ("i".to_owned(), Ty::Int),
        ("s".to_owned(), Ty::Text),
        ("l".to_owned(), Ty::list(Ty::Int)),
        ("m".to_owned(), Ty::map(Ty::Text, Ty::Int)),
        ("d".to_owned(), Ty::Dyn),
    ];
    Env { variables, ..Env::default() }
}

fn values() -> Vec<(&'static str, Cel)> {
    let cel = |source: &str| evaluate(&parse(source).unwrap(), &[], PLENTY).0.unwrap();
    vec![
        ("i", cel("3")),
        ("s", cel("'text'")),
        ("l", cel("[3, 1, 2]")),
        ("m", cel("{'a': 1, 'b': 2}")),
        ("d", cel("'any'")),
    ]
}

fn gives(source: &str) -> Result<Cel, Fail> {
    let (node, _) = compile(source, &env()).unwrap_or_else(|error| panic!("{source}\n{error}"));
    evaluate(&node, &values(), PLENTY).0
}

/// Each of these expressions holds.
fn all_hold(sources: &[&str]) {
    for source in sources {
        assert_eq!(gives(source), Ok(Cel::Bool(true)), "{source}");
    }
}

/// Each of these expressions ends with its error.
fn all_fail(cases: &[(&str, &str)]) {
    for (source, error) in cases {
        assert_eq!(gives(source), Err(Fail::Error((*error).to_owned())), "{source}");
    }
}

fn fault(source: &str) -> String {
    match compile(source, &env()) {
        Err(error) => error,
        Ok((_, checked)) => panic!("{source} is a {}", checked.ty),
    }
}

#[test]
fn macros() {
    for source in [
        "l.all(x, x > 0)",
        "!l.all(x, x > 1)",
        "l.exists(x, x == 2)",
        "l.exists_one(x, x == 2) && l.existsOne(x, x == 2)",
        "l.map(x, x * 2) == [6, 2, 4]",
        "l.map(x, x > 1, x * 2) == [6, 4]",
        "l.filter(x, x > 1) == [3, 2]",
        "m.all(k, k < 'c') && m.exists(k, m[k] == 2)",
        // With an index or key and a value.
        "l.all(i, v, i < 3 && v > 0)",
        "m.all(k, v, k != '' && v < 3)",
        "m.exists(k, v, k == 'b' && v == 2)",
        "m.existsOne(k, v, v > 1)",
        "!m.existsOne(k, v, v > 0)",
        "l.transformList(i, v, i * v) == [0, 1, 4]",
        "l.transformList(i, v, i > 0, i * v) == [1, 4]",
        "m.transformList(k, v, k + string(v)) == ['a1', 'b2']",
        "m.transformMap(k, v, v * 2) == {'a': 2, 'b': 4}",
        "l.transformMap(i, v, i > 0, v) == {1: 1, 2: 2}",
        "m.transformMapEntry(k, v, {v: k}) == {1: 'a', 2: 'b'}",
        "m.transformMapEntry(k, v, v > 1, {v: k}) == {2: 'b'}",
        "l.sortBy(x, -x) == [3, 2, 1]",
        "[{'n': 'b'}, {'n': 'a'}].sortBy(e, e.n).map(e, e.n) == ['a', 'b']",
        // Loops in loops, and names that hide others.
        "l.all(i, l.exists(i, i == 3) && i > 0)",
        "l.all(x, l.all(y, l.all(z, x + y + z < 10)))",
        "m.?a.optMap(v, v + 1).value() == 2",
        "!m.?z.optMap(v, v + 1).hasValue()",
        "m.?a.optFlatMap(v, optional.of(v)).value() == 1",
        "[?m.?a, ?m.?z, 7] == [1, 7]",
        "{?'x': m.?a, ?'y': m.?z} == {'x': 1}",
        "has(m.a) && !has(m.z)",
        // Optionals may be compared with null, and never are null.
        "optional.none() != null && timestamp(0) != null && quantity('1') != null",
        // An item that cannot be judged hides nothing that another decides.
        "l.exists(x, 1 / (x - 1) == 1)",
        "r'\\d' == '\\\\d' && '\\u00e4' == 'ä' && '''a'b''' == \"a'b\"",
        "1 + 2 * 3 - -1 == 8 && 0x10 == 16 && 1e3 == 1000.0 && .5 == 0.5 // a comment",
        "-9223372036854775808 < 0",
    ] {
        assert_eq!(gives(source), Ok(Cel::Bool(true)), "{source}");
    }
    // Functions that Kubernetes' environments do not have.
    for source in
        ["cel.bind(x, 1, x == 1)", "math.abs(-1) == 1", "'a'.reverse() == 'a'", "base64.encode(b'a') == ''"]
    {
        fault(source);
    }
}

#[test]
fn errors_of_evaluation_have_the_words_of_cel() {
    for (source, wanted) in [
        ("i / 0 == 1", "division by zero"),
        ("i % 0 == 1", "modulus by zero"),
        ("9223372036854775807 + i > 0", "integer overflow"),
        ("m['z'] == 1", "no such key: z"),
        ("m.z == 1", "no such key: z"),
        ("l[7] == 1", "index out of bounds: 7"),
        ("l[-1] == 1", "index out of bounds: -1"),
        ("d.field == 1", "no such overload"),
        ("d > 1", "no such overload"),
        ("optional.none().value() == 1", "optional.none() dereference"),
        ("int(s) == 1", "type conversion error from 'string' to 'int'"),
        ("l.all(x, 1 / (x - 1) > -9)", "division by zero"),
    ] {
        assert_eq!(gives(source), Err(Fail::Error(wanted.to_owned())), "{source}");
    }
}

#[test]
fn types_are_checked_and_told_in_the_words_of_cel() {
    for (source, wanted) in [
        ("i + s == 1", "1:3: found no matching overload for '_+_' applied to '(int, string)'"),
        ("i == s", "1:3: found no matching overload for '_==_' applied to '(int, string)'"),
        ("s == null", "1:3: found no matching overload for '_==_' applied to '(string, null)'"),
        ("s < i", "1:3: found no matching overload for '_<_' applied to '(string, int)'"),
        ("i in s", "1:3: found no matching overload for '@in' applied to '(int, string)'"),
        ("s in l", "1:3: found no matching overload for '@in' applied to '(string, list(int))'"),
        ("l['a'] == 1", "1:2: found no matching overload for '_[_]' applied to '(list(int), string)'"),
        ("m[1] == 1", "1:2: found no matching overload for '_[_]' applied to '(map(string, int), int)'"),
        (
            "(true ? 1 : 'a') == 1",
            "1:7: found no matching overload for '_?_:_' applied to '(bool, int, string)'",
        ),
        ("i ? true : false", "1:3: found no matching overload for '_?_:_' applied to '(int, bool, bool)'"),
        ("i && true", "1:1: expected type 'bool' but found 'int'"),
        ("true || i && s", "1:9: expected type 'bool' but found 'int'"),
        ("true || i && s", "1:14: expected type 'bool' but found 'string'"),
        ("l.exists(x, x + 1)", "1:15: expected type 'bool' but found 'int'"),
        ("!i", "1:1: found no matching overload for '!_' applied to '(int)'"),
        ("s.startsWith(1)", "1:13: found no matching overload for 'startsWith' applied to 'string.(int)'"),
        ("s.startsWith()", "1:13: found no matching overload for 'startsWith' applied to 'string.()'"),
        ("size(1) == 1", "1:5: found no matching overload for 'size' applied to '(int)'"),
        (
            "startsWith(s, 'a')",
            "1:11: found no matching overload for 'startsWith' applied to '(string, string)'",
        ),
        ("nothing(s)", "1:8: undeclared reference to 'nothing' (in container '')"),
        ("s.nothing()", "1:10: undeclared reference to 'nothing' (in container '')"),
        ("other == 1", "1:1: undeclared reference to 'other' (in container '')"),
        (
            "authorizer.path('/').check('get').allowed()",
            "1:1: undeclared reference to 'authorizer' (in container '')",
        ),
        ("has(i.x)", "1:4: type 'int' does not support field selection"),
        ("has(i)", "1:5: invalid argument to has() macro"),
        (
            "i.all(x, true)",
            "1:1: expression of type 'int' cannot be range of a comprehension (must be list, map, or dynamic)",
        ),
        ("l.all(x, x)", "1:10: expected type 'bool' but found 'int'"),
        ("l.all(1, true)", "1:7: argument is not an identifier"),
        ("[1, 'a'] == []", "1:5: expected type 'int' but found 'string'"),
        ("{'a': 1, 2: 1} == {}", "1:10: expected type 'string' but found 'int'"),
        ("l.sortBy(x, [x]) == l", "'@sortByAssociatedKeys'"),
        ("s.matches('(')", "1:11: invalid matches argument"),
        ("duration('x') == duration('1s')", "1:10: invalid duration argument"),
        ("timestamp('x') == timestamp(0)", "1:11: invalid timestamp argument"),
        (
            "i <",
            "1:4: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true'",
        ),
        ("(i", "1:3: Syntax error: missing ')' at '<EOF>'"),
        ("i )", "1:3: Syntax error: extraneous input ')' expecting <EOF>"),
        ("i @ 1", "1:3: Syntax error: token recognition error at: '@'"),
        ("'abc", "1:1: Syntax error: token recognition error at: ''abc'"),
        ("for == 1", "1:1: reserved identifier: for"),
        ("99999999999999999999 == 1", "1:1: invalid int literal"),
        ("9223372036854775808 == 1", "1:1: invalid int literal"),
    ] {
        let found = fault(source);
        assert!(found.contains(wanted) && found.starts_with("ERROR: <input>:"), "{source}\n{found}");
    }
    // All that is wrong, in the order of the text, each with a picture.
    assert_eq!(
        fault("i + 'ä' == 1 &&\n other"),
        "ERROR: <input>:1:3: found no matching overload for '_+_' applied to '(int, string)'\n | i + 'ä' == 1 &&\n | ..^\n\
         ERROR: <input>:2:2: undeclared reference to 'other' (in container '')\n |  other\n | .^"
    );
}

#[test]
fn reading_goes_on_after_what_cannot_be_read() {
    for (source, wanted) in [
        (
            "'",
            [
                "1:1: Syntax error: token recognition error at: '''",
                "1:2: Syntax error: mismatched input '<EOF>'",
            ],
        ),
        (
            "i # 1",
            ["1:3: Syntax error: token recognition error at: '#'", "1:5: Syntax error: extraneous input '1'"],
        ),
        ("*", ["1:1: Syntax error: mismatched input '*'", "1:2: Syntax error: mismatched input '<EOF>'"]),
    ] {
        let found = fault(source);
        assert!(wanted.iter().all(|wanted| found.contains(wanted)), "{source}\n{found}");
    }
    assert!(fault("9999999999999999999Gi").contains("1:20: Syntax error: extraneous input 'Gi'"));
    assert!(fault("é").starts_with(
        "ERROR: <input>:1:1: Syntax error: token recognition error at: 'é'\n | é\n | ＾\nERROR: <input>:1:2:"
    ));
    assert!(fault("é").ends_with("\n | é\n | ．^"));
    assert_eq!(fault("A{b: C{}}").matches("undeclared reference").count(), 1);
    for (source, wanted) in [
        ("i..b", "1:3: Syntax error: no viable alternative at input '..'\n | i..b\n | ..^"),
        ("..up", "1:2: Syntax error: no viable alternative at input '..'\n | ..up\n | .^"),
        ("i.", "1:3: Syntax error: no viable alternative at input '.'\n | i.\n | ..^"),
        ("i.(1)", "1:3: Syntax error: no viable alternative at input '.('\n | i.(1)\n | ..^"),
    ] {
        assert_eq!(fault(source), format!("ERROR: <input>:{wanted}"));
    }
    assert!(fault("").starts_with("ERROR: <input>:1:0: Syntax error: mismatched input '<EOF>'"));
    assert!(!fault("").contains('\n'));
}

#[test]
fn parser_input_is_bounded() {
    for source in [
        "(".repeat(500) + "true" + &")".repeat(500),
        "[".repeat(5000),
        "true ? ".repeat(500) + "true",
        "-".repeat(5000) + "!",
        vec!["1"; 2000].join("+") + " > 0",
        "i".repeat(20_000),
        "l.map(x, ".repeat(100),
    ] {
        fault(&source);
    }
    // The deepest nesting allowed, on the stack of a thread that serves requests.
    assert_eq!(gives(&(vec!["1"; 190].join(" + ") + " > 0")), Ok(Cel::Bool(true)));
    assert_eq!(gives(&format!("{}true{}", "(".repeat(60), ")".repeat(60))), Ok(Cel::Bool(true)));
    // Many terms of one operator stay flat.
    assert_eq!(gives(&vec!["true"; 2000].join(" && ")), Ok(Cel::Bool(true)));
    for source in [
        "", " ", ".", "..", "a.", "1.a", "\u{0}", "'\\", "b'\\xff'", "0x", "{", "a{b", "a.b{c:", "[?", "x.?",
        "x[?",
    ] {
        let _ = compile(source, &env());
    }
}

#[test]
fn an_evaluation_is_cut_off_where_its_limit_is_passed() {
    let spent = |source: &str| {
        let (node, _) = compile(source, &env()).unwrap();
        let (given, spent) = evaluate(&node, &values(), PLENTY);
        given.unwrap();
        let at_limit = evaluate(&node, &values(), spent);
        assert!(at_limit.0.is_ok(), "{source}");
        let below = evaluate(&node, &values(), spent - 1);
        assert_eq!(below.0, Err(Fail::Limit), "{source}");
        spent
    };
    // The same costs as in CEL's own tracker.
    assert_eq!(spent("i == 3"), 2);
    assert_eq!(spent("s.contains('ex')"), 2);
    assert_eq!(spent("m.a == 1"), 3);
    assert_eq!(spent("l.all(x, x > 0)"), 1 + 1 + 3 * (3 + 2));
    assert_eq!(spent("l.exists(x, x == 3)"), 1 + 1 + 4 + 2);
    assert_eq!(spent("l.map(x, x).size() == 3"), 1 + (1 + 3 * (12 + 1)) + 1 + 1);
    // Constants cost nothing.
    assert_eq!(spent("[1, 2].size() == 2"), 2);
    assert_eq!(spent("[i, 2].size() == 2"), 13);
    assert_eq!(spent("i in [1, 2, 3]"), 1);
    assert_eq!(spent("type(i) == int"), 3);
    assert_eq!(spent("lists.range(3).sortBy(e, -e) == [2, 1, 0]"), 89);
    assert_eq!(spent("[1, 2].reverse() == [2, 1]"), 14);
    assert_eq!(spent("2 in l"), 1 + 3);
}

/// Pieces that expressions are made of.
const PIECES: [&str; 72] = [
    "i",
    "s",
    "l",
    "m",
    "d",
    "x",
    "1",
    "2u",
    "-1",
    "0.5",
    "'a'",
    "b'a'",
    "true",
    "null",
    "[",
    "]",
    "(",
    ")",
    "{",
    "}",
    ",",
    ":",
    "?",
    ".",
    ".?",
    "[?",
    "+",
    "-",
    "*",
    "/",
    "%",
    "==",
    "!=",
    "<",
    ">=",
    "in",
    "&&",
    "||",
    "!",
    "has(",
    ".all(x, ",
    ".all(x, y, ",
    ".map(x, ",
    ".filter(x, ",
    ".sortBy(x, ",
    ".transformMap(x, y, ",
    ".transformMapEntry(x, y, ",
    ".exists_one(x, ",
    ".optMap(x, ",
    ".size()",
    ".orValue(",
    ".value()",
    ".first()",
    "optional.of(",
    "optional.none()",
    "size(",
    "string(",
    "int(",
    "dyn(",
    "type(",
    "duration(",
    "timestamp(",
    "duration('1h')",
    "timestamp(0)",
    ".getHours()",
    "lists.range(",
    "quantity('1')",
    "9223372036854775807",
    ".format([",
    "Object{",
    "int",
    "\"",
];

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 3_000, ..Default::default() })]

    #[test]
    fn nothing_that_is_written_stops_the_reader_or_the_run(pieces in proptest::collection::vec(0..PIECES.len(), 1..14)) {
        let source: String = pieces.into_iter().map(|piece| PIECES[piece]).collect::<Vec<_>>().join(" ");
        for source in [source.clone(), source.replace(' ', "")] {
            let Ok((node, checked)) = compile(&source, &env()) else { continue };
            let most = estimate(&node, &checked);
            let (_, spent) = evaluate(&node, &values(), 10_000);
            proptest::prop_assert!(spent <= most.max(10_000).saturating_add(AUTHORIZATION), "{source}: {spent} of {most}");
        }
    }
}

#[test]
fn small_expressions_make_no_large_values() {
    let ten = "[x, x, x, x, x, x, x, x, x, x]";
    let nested = "optional.of([1, 2])".to_owned() + &format!(".optMap(x, {ten})").repeat(12);
    for source in [
        "lists.range(1000000000000).size() == 1".to_owned(),
        format!("{nested} == {nested}"),
        format!("{nested}.value().flatten().size() == 1"),
        format!("sets.contains({nested}.value(), [])"),
        "lists.range(90000).map(x, 'aaaaaaaaaa').join(lists.range(90000).map(x, 'aaaaaaaaaa').join()) == ''"
            .to_owned(),
        "lists.range(50000).map(x, 'a').join().replace('', lists.range(50000).map(x, 'a').join()) == ''"
            .to_owned(),
        "'%.999999999f'.format([1.0]) == ''".to_owned(),
    ] {
        assert!(gives(&source).is_err(), "{source}");
    }
}

#[test]
fn expressions_of_admission_have_their_own_names() {
    let has = Admission { authorizer: true, ..Admission::default() };
    for source in [
        "object.metadata.name == 'x'",
        "!has(object.spec) || object.spec.replicas > 1",
        "request.operation == 'CREATE' && request.userInfo.groups.exists(g, g == 'x')",
        "namespaceObject.metadata.labels['a'] == 'b'",
        "authorizer.group('apps').resource('deployments').namespace('a').check('get').allowed()",
        "authorizer.requestResource.check('get').allowed()",
        "oldObject == null || oldObject.metadata.?labels.orValue({}).size() > 0",
        "request.resource.group != 'rbac.authorization.k8s.io'",
        "!('kubeadm:cluster-admins' in request.userInfo.groups)",
    ] {
        assert_eq!(expression(source, has, Expected::Bool), Ok(()), "{source}");
    }
    for (source, wanted) in [
        ("params.x == 1", "undeclared reference to 'params'"),
        ("request.other == 1", "undefined field 'other'"),
        ("variables.x == 1", "undeclared reference to 'variables'"),
        ("'text'", "must evaluate to bool but got string"),
        ("object.spec.flag", "must evaluate to bool but got dyn"),
        (
            "bad expression",
            "compilation failed: ERROR: <input>:1:5: Syntax error: extraneous input 'expression'",
        ),
    ] {
        let found = expression(source, has, Expected::Bool).unwrap_err();
        assert!(found.contains(wanted), "{source}\n{found}");
    }
    let params = Admission { params: true, authorizer: true, patches: false };
    let mut policy = Policy::new(true);
    assert_eq!(policy.variable("n", "object.spec.replicas + 1", params), Ok(()));
    assert_eq!(policy.variable("t", "string(variables.n) + 'x'", params), Ok(()));
    assert_eq!(policy.expression("variables.t.size() > params.min", params, Expected::Bool), Ok(()));
    assert_eq!(policy.expression("variables.t", params, Expected::TextOrNull), Ok(()));
    assert_eq!(policy.expression("null", params, Expected::TextOrNull), Ok(()));
    let found = policy.expression("variables.t > 1", params, Expected::Bool).unwrap_err();
    assert!(found.contains("found no matching overload for '_>_' applied to '(string, int)'"), "{found}");
    assert!(
        policy.expression("variables.z", params, Expected::Bool).unwrap_err().contains("undefined field 'z'")
    );
    assert_eq!(
        policy.expression("variables.t.size()", params, Expected::TextOrNull),
        Err("must evaluate to one of [string null_type] but got int".to_owned())
    );
    let plain = Policy::new(false).expression("variables.n == 1", params, Expected::Bool).unwrap_err();
    assert!(plain.contains("undeclared reference to 'variables'"), "{plain}");
    let patches = Admission { patches: true, ..params };
    let apply = "Object{metadata: Object.metadata{labels: {'a': 'b'}}, spec: Object.spec{replicas: 3}}";
    assert_eq!(policy.expression(apply, patches, Expected::ApplyConfiguration), Ok(()));
    let patch = "[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('a/b'), value: 'x'}]";
    assert_eq!(policy.expression(patch, patches, Expected::JsonPatch), Ok(()));
    assert!(policy.expression(apply, patches, Expected::JsonPatch).is_err());
    assert!(policy.expression("[JSONPatch{other: 'x'}]", patches, Expected::JsonPatch).is_err());
    assert!(
        policy.expression(apply, params, Expected::ApplyConfiguration).is_err(),
        "no mutation, no objects"
    );
}

#[test]
fn selectors_of_devices_know_devices() {
    for source in [
        "device.driver == 'dra.example.com'",
        "device.attributes['dra.example.com'].model == 'a' && device.capacity['dra.example.com'].memory.compareTo(quantity('1Gi')) >= 0",
        "device.attributes['dra.example.com'].flag",
        "device.attributes['x'].?version.orValue(semver('1.0.0')).isGreaterThan(semver('0.9.0'))",
    ] {
        assert_eq!(device(source), Ok(()), "{source}");
    }
    for (source, wanted) in [
        ("device.other == 1", "undefined field 'other'"),
        ("device.driver", "must evaluate to bool or the unknown type, not string"),
        ("object.x == 1", "undeclared reference to 'object'"),
        ("device.driver == 1", "found no matching overload for '_==_' applied to '(string, int)'"),
    ] {
        let Err(Unfit::Invalid(found)) = device(source) else { panic!("{source}") };
        assert!(found.contains(wanted), "{source}\n{found}");
    }
}

#[test]
fn selectors_of_devices_may_cost_so_much() {
    let nested = |depth: u8| {
        let names: Vec<char> = (b'a'..b'a' + depth).map(char::from).collect();
        let source = format!("{}", names[0]) + " == ''";
        names.iter().fold(source, |inner, name| format!("device.attributes.exists({name}, {inner})"))
    };
    assert_eq!(device(&nested(2)), Ok(()));
    assert_eq!(device(&nested(6)), Err(Unfit::TooComplex));
}
