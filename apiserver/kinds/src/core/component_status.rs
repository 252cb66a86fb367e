//! ComponentStatuses.

use apiserver_schema::meta;
use serde_json::json;

use crate::kind::Kind;
use crate::shared::cells;
use crate::shared::columns::{Columns, NAME};

pub(crate) static KIND: Kind =
    Kind { group: "", plural: "componentstatuses", short_names: &["cs"], columns: COLUMNS, ..Kind::DEFAULT };

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("Status", "string", 0, "Whether it is healthy"),
        ("Message", "string", 0, "What it says about itself"),
        ("Error", "string", 0, "Why it could not be asked"),
    ],
    cells: |object, _| {
        let healthy = meta::list(object, "/conditions").iter().find(|c| c["type"] == "Healthy");
        let status = match healthy {
            None => UNKNOWN_HEALTH,
            Some(condition) if condition["status"] == "True" => "Healthy",
            Some(_) => "Unhealthy",
        };
        let text = |field: &str| healthy.and_then(|c| c[field].as_str()).unwrap_or_default();
        vec![cells::name(object), json!(status), json!(text("message")), json!(text("error"))]
    },
};

/// The health shown for a component that does not report it.
const UNKNOWN_HEALTH: &str = "Unknown";
