//! Parsers of untrusted bytes without the rest of the controllers, for fuzz targets.

/// Reads a certificate request (PKCS #10, DER) as the signers do, whatever its signature. Returns the names in the
/// certificate that it asks for.
pub fn signing_request(der: &[u8]) -> Option<Vec<String>> {
    crate::certificates::names(der)
}
