//! Functions of texts, formats, lists and durations, where CEL's own differ from what comes to mind.

use super::*;

#[test]
fn texts_are_searched_and_cut_by_characters() {
    all_hold(&[
        "'äöü'.charAt(1) == 'ö' && 'ab'.charAt(2) == ''",
        "'äöüä'.indexOf('ä', 1) == 3 && 'äb'.indexOf('b') == 1",
        "'abc'.indexOf('') == 0 && 'abc'.indexOf('', 9) == 3 && 'abc'.indexOf('a', 9) == -1",
        "'abcabc'.lastIndexOf('bc') == 4 && 'abcabc'.lastIndexOf('bc', 3) == 1",
        "'äbäb'.lastIndexOf('b', 3) == 3 && 'ab'.lastIndexOf('') == 2 && 'ab'.lastIndexOf('a', 2) == -1",
        "'äöü'.substring(1, 2) == 'ö' && 'äöü'.substring(3) == ''",
        // An empty separator splits between characters, and not around them.
        "'abc'.split('') == ['a', 'b', 'c'] && ''.split('') == [] && ''.split(',') == ['']",
        "'abc'.split('', 2) == ['a', 'bc'] && 'a,b,c'.split(',', 0) == [] && 'a,b'.split(',', -1) == ['a', 'b']",
        "',a,'.split(',') == ['', 'a', ''] && 'a--b'.split('--', 1) == ['a--b']",
        // A negative number means no limit.
        "'aaa'.replace('a', 'b', -1) == 'bbb' && 'aaa'.replace('a', 'b', 2) == 'bba' && 'aa'.replace('a', 'b', 0) == 'aa'",
        "['a', 'b'].join() == 'ab' && ['a', 'b'].join('--') == 'a--b' && [].join(',') == ''",
    ]);
    all_fail(&[
        ("'abc'.charAt(4)", "index out of range: 4"),
        ("'abc'.substring(-1)", "index out of range: -1"),
        ("'abc'.substring(2, 1)", "invalid substring range. start: 2, end: 1"),
        ("'abc'.substring(1, 4)", "index out of range: 4"),
        ("'abc'.indexOf('a', -1)", "index out of range: -1"),
        ("'abc'.lastIndexOf('a', -1)", "index out of range: -1"),
    ]);
}

#[test]
fn formats_are_those_of_the_locale() {
    for (template, args, wanted) in [
        ("%s", "['a']", "a"),
        ("100%%, %d", "[5]", "100%, 5"),
        ("%f", "[1234567.891]", "1,234,567.891000"),
        ("%.0f", "[-1234.5]", "-1,234"),
        ("%f", "['Infinity']", "∞"),
        // The precision of this one is none.
        ("%.2e", "[1052.032911275]", "1.052033×10⁰³"),
        ("%e", "[0.002]", "2.000000×10⁻⁰³"),
        ("%s", "[2.71]", "2.71"),
        ("%s", "[123456789.0]", "1.23456789e+08"),
        ("%s", "[0.000000002]", "2e-09"),
        (
            "%s",
            "[[dyn(2.71), dyn('a\"b'), dyn(b'x'), dyn(true), null]]",
            "[2.710000, \"a\\\"b\", b\"x\", true, null]",
        ),
        ("%s", "[{'b': dyn(1), 'a': dyn({'z': 'x'})}]", "{\"a\":{\"z\":\"x\"}, \"b\":1}"),
        ("%s", "[[duration('1h45m47s')]]", "[duration(\"6347s\")]"),
        ("%s", "[timestamp('2023-02-03T23:31:20+00:00')]", "2023-02-03T23:31:20Z"),
        ("%s", "[type('a')]", "string"),
        ("%x %X %x", "[26, 'hello', -30]", "1a 68656C6C6F -1e"),
        ("%b %b %o", "[-5, true, 8]", "-101 1 10"),
    ] {
        let source = format!("{template:?}.format({args})");
        assert_eq!(gives(&source), Ok(functions::text(wanted)), "{source}");
    }
    // Literal arguments are checked before, all others at the call.
    for (template, args, at, error) in [
        ("%d", "[]", 12, "index 0 out of range"),
        ("%", "[1]", 11, "unexpected end of string"),
        ("%z", "[1]", 12, "could not parse formatting clause: unrecognized formatting clause \"z\""),
        (
            "%d",
            "['a']",
            14,
            "error during formatting: decimal clause can only be used on integers, was given string",
        ),
        (
            "%f",
            "[1]",
            14,
            "error during formatting: fixed-point clause can only be used on doubles, was given int",
        ),
    ] {
        let known = fault(&format!("'{template}'.format({args})"));
        assert!(known.starts_with(&format!("ERROR: <input>:1:{at}: {error}\n")), "{known}");
        let source = format!("dyn('{template}').format(dyn({args}))");
        assert_eq!(gives(&source), Err(Fail::Error(error.to_owned())), "{source}");
    }
    assert!(
        fault("'%s'.format(['a', 'b'])")
            .contains("too many arguments supplied to string.format (expected 1, got 2)")
    );
    assert!(fault("'%s'.format([[quantity('1')]])").contains("was given kubernetes.Quantity"));
}

#[test]
fn numbers_become_texts_as_in_go() {
    all_hold(&[
        "string(1.0) == '1' && string(0.5) == '0.5' && string(1e5) == '100000' && string(1e6) == '1e+06'",
        "string(0.0001) == '0.0001' && string(0.00001) == '1e-05' && string(-1.5e20) == '-1.5e+20'",
        "string(1.0 / 0.0) == '+Inf' && string(0.0 / 0.0) == 'NaN'",
    ]);
}

#[test]
fn durations_are_exact_and_bounded() {
    all_hold(&[
        "duration('2400h0m0.000000001s') - duration('2400h') == duration('1ns')",
        "duration('-1.5h') == duration('-90m') && duration('1µs') == duration('1us') && duration('.5s') == duration('500ms')",
        "int(duration('9223372036s')) == 9223372036000000000 && duration(9223372036854775807) > duration('1h')",
    ]);
    for bad in ["", "1", "1e5s", "h", "1d", "infs", "2562048h", "1h 1m", "--1h"] {
        assert!(gives(&format!("duration(s + '{bad}') == duration('0')")).is_err());
        assert!(
            fault(&format!("duration('{bad}') == duration('0')")).contains("invalid duration argument"),
            "{bad}"
        );
    }
}

#[test]
fn overflows_name_their_operation() {
    all_fail(&[
        ("[9223372036854775807, i].sum() > 0", "integer overflow"),
        ("[1u, 18446744073709551615u].sum() > 0u", "unsigned integer overflow"),
        ("1u - 2u == 0u", "unsigned integer overflow"),
        ("timestamp('9999-12-31T23:59:59Z') + duration('1h') == timestamp(0)", "timestamp overflow"),
        ("duration('2562047h') + duration('2562047h') == duration('0')", "integer overflow"),
    ]);
}

#[test]
fn lists_of_several_types_are_not_sorted() {
    let mixed = (0..40).map(|n| if n % 3 == 0 { format!("dyn('{n}')") } else { format!("dyn({})", 40 - n) });
    let mixed = mixed.collect::<Vec<_>>().join(", ");
    for source in [format!("[{mixed}].sort().size() == 40"), format!("[{mixed}].sortBy(x, x).size() == 40")] {
        assert_eq!(gives(&source), Err(Fail::Error("list elements must have the same type".to_owned())));
    }
    all_fail(&[
        ("l.slice(-1, 1)", "cannot slice(-1, 1), negative indexes not supported"),
        ("l.slice(2, 1)", "cannot slice(2, 1), start index must be less than or equal to end index"),
        ("l.slice(0, 9)", "cannot slice(0, 9), list is length 3"),
        ("[[1]].flatten(-1)", "level must be non-negative"),
        ("lists.range(-i)", "lists.range: size must be non-negative, got -3"),
        ("l.filter(x, x > 5).min()", "min called on empty list"),
        ("l[dyn(1.5)]", "unsupported index value 1.5 in list"),
        ("l[dyn('a')]", "unsupported index type 'string' in list"),
    ]);
    assert_eq!(gives("[[b'b'], [b'a']].sortBy(x, x[0])[0][0] == b'a'"), Ok(Cel::Bool(true)));
}

#[test]
fn addresses_urls_and_quantities_are_read_as_in_go() {
    all_hold(&[
        "!isCIDR('10.0.0.0/08') && !isURL('https://a/%zz') && isURL('https://a/%20')",
        "!quantity('9223372036854775807').add(1).isInteger() && quantity('1k').isInteger() && !isQuantity(' 1')",
        "timestamp('2024-03-10T10:30:05.5Z').getHours('') == 10",
        "optional.of(1) == optional.of(1) && {'a': 1, 'a': 2}.a == 2",
        "{'a b': 1}.`a b` == 1 && has(m.`a`)",
    ]);
    all_fail(&[
        (
            "ip(s).family() == 4",
            "IP Address \"text\" parse error during conversion from string: ParseAddr(\"text\"): unable to parse IP",
        ),
        (
            "url(s) == url(s)",
            "URL parse error during conversion from string: parse \"text\": invalid URI for request",
        ),
        ("quantity('1.5').asInteger() == 1", "cannot convert value to integer"),
        ("timestamp(s) == timestamp(0)", "invalid RFC 3339 timestamp \"text\""),
        ("timestamp(253402300799 + i) == timestamp(0)", "timestamp overflow"),
        ("duration(s) == duration('0')", "type conversion error from 'string' to 'google.protobuf.Duration'"),
    ]);
    for (source, wanted) in [
        ("timestamp(253402300800) == timestamp(0)", "1:11: invalid timestamp argument"),
        ("timestamp('2024-01-01 00:00:00Z') == timestamp(0)", "1:11: invalid timestamp argument"),
        (
            "quantity('1').sign() == 1",
            "found no matching overload for 'sign' applied to 'kubernetes.Quantity.()'",
        ),
        ("m.all(k, v, k)", "1:13: expected type 'bool' but found 'string'"),
        ("l[0", "1:4: Syntax error: missing ']' at '<EOF>'"),
        ("[1,2", "1:5: Syntax error: mismatched input '<EOF>' expecting {']', ','}"),
        ("&& true", "1:1: Syntax error: extraneous input '&&' expecting {'['"),
        ("-9223372036854775809 == 1", "1:1: invalid int literal"),
    ] {
        assert!(fault(source).contains(wanted), "{}", fault(source));
    }
}
