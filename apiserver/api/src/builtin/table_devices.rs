//! Rows of devices and of what is scheduled together.

use super::table::{DEFAULT_ROW, Row};

const DEVICES: Row = Row { group: "resource.k8s.io", ..DEFAULT_ROW };

pub(super) static ROWS: &[Row] = &[Row { plural: "deviceclasses", generation: true, ..DEVICES }];
