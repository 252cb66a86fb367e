//! FNV hashes (RFC 9923): short and stable across versions and machines, but not secure against chosen
//! inputs.

const OFFSET_32: u32 = 0x811c_9dc5;
const PRIME_32: u32 = 0x0100_0193;
const OFFSET_64: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME_64: u64 = 0x0100_0000_01b3;

/// Returns the 32-bit FNV-1a hash.
pub fn fnv1a_32(bytes: impl IntoIterator<Item = u8>) -> u32 {
    bytes.into_iter().fold(OFFSET_32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(PRIME_32))
}

/// Returns the 64-bit FNV-1a hash.
pub fn fnv1a_64(bytes: impl IntoIterator<Item = u8>) -> u64 {
    fnv1a_64_after(OFFSET_64, bytes)
}

/// Returns the 64-bit FNV-1a hash of bytes that follow those whose hash is `hash`.
pub fn fnv1a_64_after(hash: u64, bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(hash, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME_64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_match_the_published_vectors() {
        assert_eq!(fnv1a_32(*b""), 0x811c_9dc5);
        assert_eq!(fnv1a_32(*b"a"), 0xe40c_292c);
        assert_eq!(fnv1a_32(*b"foobar"), 0xbf9c_f968);
        assert_eq!(fnv1a_64(*b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a_64(*b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(fnv1a_64_after(fnv1a_64(*b"foo"), *b"bar"), fnv1a_64(*b"foobar"));
    }
}
