//! Bounds on what CEL's costs do not count: short expressions that would make large values, or iterate over
//! them for hours.

use super::*;

/// Evaluates an expression with a text of `bytes` bytes as `s`, and a list of `items` items as `l`.
fn with_large(source: &str, bytes: usize, items: i64) -> Result<Cel, Fail> {
    let (node, _) = compile(source, &env()).unwrap_or_else(|error| panic!("{source}\n{error}"));
    let list = (0..items).map(Cel::Int).collect::<Vec<_>>();
    let values =
        [("s", functions::text(&"a".repeat(bytes))), ("l", Cel::List(list.into())), ("i", Cel::Int(3))];
    evaluate(&node, &values, PLENTY).0
}

fn is_stopped(source: &str, bytes: usize, items: i64) {
    match with_large(source, bytes, items) {
        Err(Fail::Limit) => {}
        Err(Fail::Error(error)) if error.ends_with("the result is too large") => {}
        other => {
            panic!("{source}: {}", if other.is_ok() { "a value".to_owned() } else { format!("{other:?}") })
        }
    }
}

#[test]
fn lists_that_double_are_stopped() {
    // Each step costs 1 and doubles the memory.
    let doubling = (0..60).fold("[[1, 2]]".to_owned(), |source, _| source + ".map(a, a + a)");
    is_stopped(&format!("{doubling}.size() == 1"), 0, 0);
    is_stopped("l.map(a, l + l).size() == 1", 0, 50_000);
    is_stopped("l.map(a, l.map(b, optional.of(b)).unwrapOpt()).size() == 1", 0, 50_000);
    // Lists that are at hand may be concatenated.
    assert_eq!(with_large("(l + l + [i]).size() == 200001", 0, 100_000), Ok(Cel::Bool(true)));
}

#[test]
fn texts_that_grow_are_stopped() {
    is_stopped("l.map(a, '%s%s'.format([s, s])).size() == 1", 1_000_000, 1_000);
    is_stopped("'%s'.format([l.map(a, s)]) == ''", 1_000_000, 1_000);
    is_stopped("l.map(a, s).join() == ''", 1_000_000, 1_000);
    is_stopped("s.split('').size() == 1", 3_000_000, 0);
    is_stopped("s.findAll('').size() == 1", 3_000_000, 0);
    is_stopped("s.replace('a', s) == ''", 100_000, 0);
    assert_eq!(with_large("'%s'.format([s]).size() == 1000000", 1_000_000, 0), Ok(Cel::Bool(true)));
    assert_eq!(with_large("s.split('').size() == 100000", 100_000, 0), Ok(Cel::Bool(true)));
}

#[test]
fn patterns_that_objects_bring_are_paid_for() {
    let call = |source: &str, items: i64| {
        let (node, _) = compile(source, &env()).unwrap();
        let list = (0..items).map(Cel::Int).collect::<Vec<_>>();
        evaluate(
            &node,
            &[("s", functions::text("(a{1,50}){1,50}")), ("l", Cel::List(list.into()))],
            1_000_000,
        )
        .0
    };
    // Each is another, and takes longer to compile than all that costs count.
    assert_eq!(call("l.all(a, !'x'.matches(s + string(a)))", 1_000), Err(Fail::Limit));
    assert_eq!(call("l.all(a, !'x'.matches(s + string(a)))", 5), Ok(Cel::Bool(true)));
    assert_eq!(call("l.all(a, !'x'.matches(s))", 1_000), Ok(Cel::Bool(true)));
}

#[test]
fn constants_are_made_once() {
    let constants = (0..3_000).map(|i| i.to_string()).collect::<Vec<_>>().join(",");
    let source = format!("l.all(a, !(a in [{constants}]) || a < 3000)");
    assert_eq!(with_large(&source, 0, 15_000), Ok(Cel::Bool(true)));
    // A list with something else in it is made each time.
    is_stopped(&format!("l.map(a, [{constants}, i]).size() == 1"), 0, 50_000);
}

#[test]
fn values_are_not_gone_through_without_end() {
    // Each comparison costs 1, for a list with one item.
    is_stopped("[[l]].all(a, l.all(b, a == a))", 0, 100_000);
    is_stopped("sets.contains(l, l.map(a, -a))", 0, 30_000);
    is_stopped("l.all(a, s.size() > 0)", 3_000_000, 50_000);
    // A loop that its first item decides does not copy the rest.
    assert_eq!(with_large("l.all(a, l.exists(b, true))", 0, 40_000), Ok(Cel::Bool(true)));
}

#[test]
fn types_that_double_are_refused() {
    let doubling = (0..60).fold("[{0: 0}]".to_owned(), |source, _| source + ".map(a, {a: a})");
    assert!(fault(&doubling).contains("too many parts"));
    // A variable is bound after its use.
    let learnt = (0..40).fold((String::new(), "d".to_owned()), |(before, outer), i| {
        (format!("{before}[].all(x{i}, {outer} == {{x{i}: x{i}}} && "), format!("x{i}"))
    });
    let source = format!("{}true{}", learnt.0, ")".repeat(40));
    assert!(fault(&source).contains("too many parts"));
}

#[test]
fn deep_texts_are_refused_where_stacks_are_small() {
    let chains = [
        format!("d{}", ".a".repeat(8_000)),
        format!("d{}", "[0]".repeat(5_000)),
        format!("1{}", "+1".repeat(8_000)),
        format!("d{}", ".a()".repeat(4_000)),
        format!("{}true", "!".repeat(16_000)),
    ];
    // The same stack size as the threads that serve requests.
    let small = std::thread::Builder::new()
        .stack_size(2 << 20)
        .spawn(move || chains.map(|source| compile(&source, &env()).is_err()));
    assert_eq!(small.unwrap().join().unwrap(), [true, true, true, true, false]);
}

/// Each fault shows the whole line: thousands of one expression would be megabytes.
#[test]
fn the_faults_of_an_expression_are_told_within_bounds() {
    let told = |source: &str| shown(source, &parse(source).unwrap_err());
    assert_eq!(told(&"$".repeat(200)).matches("ERROR").count(), FAULTS);
    for source in
        ["$".repeat(10_240), "é$".repeat(3_000), "😀".repeat(2_560), " ".repeat(10_090) + &"$".repeat(100)]
    {
        let text = told(&source);
        assert!(text.len() < REPORT + 8 * source.len(), "{} of {}", text.len(), source.len());
    }
}
