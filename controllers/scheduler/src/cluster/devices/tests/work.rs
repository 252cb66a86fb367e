//! The work and the memory that searches take.

use serde_json::{Value, json};

use super::super::selectors::Selectors;
use super::{all, allocate_within, claim, devices, exactly, selector, slice, with};
use crate::limits;

/// Returns a slice with so many devices.
fn many(count: usize) -> Value {
    let devices: Vec<Value> = (0..count).map(|index| json!({"name": format!("d{index}")})).collect();
    slice("s", "n", json!(devices))
}

/// Returns a claim for one device, or for all of them, that these selectors select.
fn selecting(mut request: Value, expressions: &[String]) -> Value {
    let selectors = expressions.iter().map(|one| json!({"cel": {"expression": one}}));
    request["selectors"] = selectors.collect();
    claim("x", json!([{"name": "r", "exactly": request}]))
}

/// Returns a selector that takes about four thousand steps, and selects nothing.
fn costly() -> String {
    let tens = "[0,1,2,3,4,5,6,7,8,9].all(x, ".repeat(4);
    format!("!{tens}device.driver != ''{}", ")".repeat(4))
}

#[test]
fn evaluations_of_selectors_are_paid_for_in_steps() {
    for request in [exactly(1), all()] {
        let claims = [selecting(request, &[costly()])];
        let devices = devices(&[many(100)], &[]);
        let (found, left) = allocate_within(&devices, &claims, 20_000);
        assert_eq!((found, left), (Err("too long".to_owned()), 0));
        let answers = devices.slices.for_node("n").next().unwrap().answers();
        assert!(answers <= 10, "{answers} devices were looked at");
        // Some more devices are known each time, until all are.
        let (found, _) = allocate_within(&devices, &claims, 2_000_000);
        assert_eq!(found, Ok(None));
        let (found, left) = allocate_within(&devices, &claims, 1000);
        assert!(found == Ok(None) && left > 500, "{left} left");
    }
}

#[test]
fn search_without_steps_ends_before_it_begins() {
    let devices = devices(&[many(1)], &[]);
    for request in [exactly(1), all()] {
        let (found, _) = allocate_within(&devices, &[selecting(request, &[])], 0);
        assert_eq!(found, Err("too long".to_owned()));
    }
    let broken = [selecting(exactly(1), &["device.".to_owned()])];
    let (found, left) = allocate_within(&devices, &broken, 1000);
    assert!(found.unwrap_err().contains("CEL compile error") && left < 950, "{left} left");
}

#[test]
fn answers_are_remembered_of_more_selectors_than_a_request_and_its_class_have() {
    let expressions: Vec<String> = (0..33).map(|index| format!("device.driver != 'e{index}'")).collect();
    let claims = [selecting(all(), &expressions)];
    let devices = devices(&[many(20)], &[]);
    let (found, _) = allocate_within(&devices, &claims, 100_000);
    assert!(found.unwrap().is_some());
    let slice = devices.slices.for_node("n").next().unwrap();
    assert_eq!(slice.answers(), 33 * 20);
    // The first ones make room for those beyond the bound.
    for index in 0..100 {
        let one = with(exactly(1), json!({"selectors": selector(&format!("device.driver == 'f{index}'"))}));
        let one = [claim("x", json!([{"name": "r", "exactly": one}]))];
        assert_eq!(allocate_within(&devices, &one, 100_000).0, Ok(None));
    }
    assert_eq!(slice.answers(), limits::SLICE_ANSWERS * 20);
}

#[test]
fn errors_of_selectors_are_told_but_not_remembered() {
    let devices = devices(&[many(20)], &[]);
    let claims = [selecting(all(), &["device.attributes['d'].none == 1".to_owned()])];
    for _ in 0..2 {
        let (found, _) = allocate_within(&devices, &claims, 100_000);
        assert_eq!(found, Err("claim ns/x: selector #0: CEL runtime error: no such key: none".to_owned()));
    }
    assert_eq!(devices.slices.for_node("n").next().unwrap().answers(), 0);
}

#[test]
fn compiled_selectors_are_bounded_by_number_and_by_length() {
    let selectors = Selectors::default();
    let number = |text: &str| selectors.compiled(text).0.map(|compiled| compiled.number);
    for index in 0..limits::SELECTORS + 100 {
        number(&format!("device.driver == 'd{index}'")).unwrap();
    }
    assert_eq!(selectors.size().0, limits::SELECTORS);
    let last = format!("device.driver == 'd{}'", limits::SELECTORS + 99);
    assert_eq!(number(&last), number(&last), "it is kept");
    for index in 0..200 {
        number(&format!("device.driver == '{}{index}'", "x".repeat(9000))).unwrap();
    }
    let (count, bytes) = selectors.size();
    assert!(bytes <= limits::SELECTOR_BYTES && count > 100, "{count} of {bytes} bytes");
    assert!(number("device.").is_err());
}
