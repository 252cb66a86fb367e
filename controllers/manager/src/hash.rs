//! Short names for contents: 32-bit FNV-1a, spelled in the alphabet of generated names.

/// 27 characters without vowels and look-alikes, so that no word arises.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

const OFFSET: u32 = 0x811c_9dc5;
const PRIME: u32 = 0x0100_0193;

/// FNV-1a over the parts, one after the other.
pub(crate) fn fnv32(parts: &[&[u8]]) -> u32 {
    parts
        .iter()
        .flat_map(|part| part.iter())
        .fold(OFFSET, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(PRIME))
}

/// The decimal digits of `hash`, each replaced by a safe character.
pub(crate) fn safe(hash: u32) -> String {
    hash.to_string().bytes().map(|digit| char::from(ALPHABET[usize::from(digit) % ALPHABET.len()])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_published_one_and_its_spelling_is_stable() {
        // Vectors of the FNV reference.
        assert_eq!(fnv32(&[b""]), 0x811c_9dc5);
        assert_eq!(fnv32(&[b"a"]), 0xe40c_292c);
        assert_eq!(fnv32(&[b"foo", b"bar"]), 0xbf9c_f968);
        assert_eq!(safe(1_234_567_890), safe(1_234_567_890));
        assert!(safe(u32::MAX).bytes().all(|c| ALPHABET.contains(&c)));
    }
}
