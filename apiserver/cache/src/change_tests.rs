//! Tests of the frames of watches that are not whole objects.

use super::*;
use crate::form::{Format, Shape};

fn form(shape: Shape, include: Option<Include>, second: i64) -> Form {
    let wanted = Wanted { format: Format::Json, shape, meta: "meta.k8s.io/v1" };
    Form { event: EventType::Added, wanted, include, columns: false, second }
}

#[tokio::test]
async fn a_frame_is_encoded_once_for_all_who_want_its_form() {
    let held = Arc::new(Ledger::new(&Arc::default()));
    let change = Change::new(1, None, None, Arc::clone(&held));
    let encoded = std::cell::Cell::new(0);
    let frame = |form: Form| {
        change.shaped(form, || {
            encoded.set(encoded.get() + 1);
            Bytes::from(encoded.get().to_string())
        })
    };
    let (metadata, rows) = (form(Shape::Metadata, None, 0), form(Shape::Table, Some(Include::Metadata), 5));
    let plain = form(Shape::Table, Some(Include::None), 5);
    let deleted = Form { event: EventType::Deleted, ..metadata };
    for _ in 0..3 {
        let frames = [metadata, rows, plain, deleted].map(frame);
        assert_eq!(frames, ["1", "2", "3", "4"]);
    }
    // A second later the ages are others, and those of before are forgotten.
    assert_eq!(frame(Form { second: 6, ..rows }), "5");
    assert_eq!((frame(metadata), frame(rows)), (Bytes::from("1"), Bytes::from("6")));
    for second in 10..100 {
        frame(form(Shape::Metadata, None, second));
        assert!(change.frames().shaped.lock().unwrap().len() <= limits::FRAME_FORMS);
    }
}
