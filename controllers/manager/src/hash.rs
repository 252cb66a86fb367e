//! Short names for contents: 32-bit FNV-1a, spelled in the alphabet of generated names.

/// 27 characters without vowels and look-alikes, so that no word arises.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// The decimal digits of `hash`, each replaced by a safe character.
pub(crate) fn safe(hash: u32) -> String {
    hash.to_string().bytes().map(|digit| char::from(ALPHABET[usize::from(digit) % ALPHABET.len()])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spelling_of_a_hash_is_stable_and_safe() {
        assert_eq!(safe(1_234_567_890), safe(1_234_567_890));
        assert!(safe(u32::MAX).bytes().all(|c| ALPHABET.contains(&c)));
    }
}
