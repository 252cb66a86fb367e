//! Rows of what extends and governs the API: admission, aggregation, flow control, storage versions,
//! certificates, events.

use super::table::{API_EXTENSIONS, DEFAULT_ROW, Row};

const ADMISSION: Row =
    Row { group: "admissionregistration.k8s.io", category: API_EXTENSIONS, generation: true, ..DEFAULT_ROW };

pub(super) static ROWS: &[Row] = &[Row { plural: "mutatingwebhookconfigurations", ..ADMISSION }];
