//! Short names derived from contents: 32-bit FNV-1a in the alphabet of generated names.

/// 27 characters without vowels and look-alikes, so that no words can occur.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// Encodes the decimal digits of `hash`, each as a character of the alphabet.
pub(crate) fn safe(hash: u32) -> String {
    hash.to_string().bytes().map(|digit| char::from(ALPHABET[usize::from(digit) % ALPHABET.len()])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_encoding_is_stable_and_safe() {
        assert_eq!(safe(1_234_567_890), safe(1_234_567_890));
        assert!(safe(u32::MAX).bytes().all(|c| ALPHABET.contains(&c)));
    }
}
