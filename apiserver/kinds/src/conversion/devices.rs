//! Dynamic resources: `resource.k8s.io/v1` is stored. In `v1beta1` a request for one class of device has its
//! fields in the request itself and not in `exactly`, and a device has its properties in `basic`.

use serde_json::{Map, Value};

/// The fields of a device request that `exactly` holds.
const EXACTLY: [&str; 7] =
    ["deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations", "capacity"];

pub(super) fn claim_to_v1(claim: &mut Value) {
    requests(claim, "/spec/devices/requests", nest_request);
}

pub(super) fn claim_to_v1beta1(claim: &mut Value) {
    requests(claim, "/spec/devices/requests", flatten_request);
}

pub(super) fn template_to_v1(template: &mut Value) {
    requests(template, "/spec/spec/devices/requests", nest_request);
}

pub(super) fn template_to_v1beta1(template: &mut Value) {
    requests(template, "/spec/spec/devices/requests", flatten_request);
}

pub(super) fn slice_to_v1(slice: &mut Value) {
    requests(slice, "/spec/devices", |device| {
        if let Some(Value::Object(basic)) = device.remove("basic") {
            device.extend(basic);
        }
    });
}

pub(super) fn slice_to_v1beta1(slice: &mut Value) {
    requests(slice, "/spec/devices", |device| {
        let name = device.remove("name");
        let basic = std::mem::take(device);
        device.extend(name.map(|name| ("name".to_owned(), name)));
        device.insert("basic".to_owned(), Value::Object(basic));
    });
}

fn requests(object: &mut Value, pointer: &str, change: impl Fn(&mut Map<String, Value>)) {
    let list = object.pointer_mut(pointer).and_then(Value::as_array_mut);
    list.into_iter().flatten().filter_map(Value::as_object_mut).for_each(change);
}

fn nest_request(request: &mut Map<String, Value>) {
    let mut exactly = Map::new();
    for field in EXACTLY {
        exactly.extend(request.remove(field).map(|value| (field.to_owned(), value)));
    }
    // Fields that `v1beta1` leaves out if they are empty do not make a request for one class.
    let unset = |(field, value): (&String, &Value)| match field.as_str() {
        "deviceClassName" | "allocationMode" => matches!(value, Value::Null) || value == "",
        "count" => value.is_null() || value == 0,
        _ => value.is_null(),
    };
    if !exactly.iter().all(unset) {
        request.insert("exactly".to_owned(), Value::Object(exactly));
    }
}

fn flatten_request(request: &mut Map<String, Value>) {
    if let Some(Value::Object(exactly)) = request.remove("exactly") {
        request.extend(exactly);
    }
}
