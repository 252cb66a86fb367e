//! Parsers of untrusted bytes without the rest of the controllers, for fuzz targets.

use std::collections::BTreeMap;

/// Reads a certificate request (PKCS #10, DER) as the signers do, whatever its signature. Returns the names in the
/// certificate that it asks for.
pub fn signing_request(der: &[u8]) -> Option<Vec<String>> {
    crate::certificates::names(der)
}

/// Reads the selector in the status of a scale. Returns whether it selects pods with these labels; `None` if the text is
/// not a selector.
pub fn scale_selector(text: &str, labels: &BTreeMap<String, String>) -> Option<bool> {
    crate::podautoscaler::selects(text, labels)
}
