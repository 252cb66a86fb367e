//! Secrets that are stored where others may read them: sealed with a key that its holder hands on by itself.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

const KEY_LEN: usize = 32;

/// A key of AES-256-GCM. Its text is that of kubeadm's `--certificate-key`: 64 hexadecimal digits.
#[derive(Clone, PartialEq, Eq)]
pub struct SealingKey([u8; KEY_LEN]);

/// A failure to seal or to open.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    #[error("the key does not have the form of 64 hexadecimal digits")]
    Form,
    #[error("the system gives no random numbers")]
    Entropy,
    #[error("what was sealed cannot be opened: the key or the purpose is another one, or it was changed")]
    Open,
}

impl std::fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SealingKey").finish_non_exhaustive()
    }
}

impl SealingKey {
    /// Makes a key.
    pub fn generate() -> Result<Self, SealError> {
        let mut bytes = [0; KEY_LEN];
        entropy().fill(&mut bytes).map_err(|_| SealError::Entropy)?;
        Ok(Self(bytes))
    }

    /// Parses the text of a key.
    pub fn parse(text: &str) -> Result<Self, SealError> {
        if text.len() != 2 * KEY_LEN || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(SealError::Form);
        }
        let mut bytes = [0; KEY_LEN];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).map_err(|_| SealError::Form)?;
        }
        Ok(Self(bytes))
    }

    /// Returns the text of the key.
    pub fn text(&self) -> String {
        self.0.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
    }

    /// Returns `plain` sealed for a purpose: nonce, ciphertext and tag.
    pub fn seal(&self, purpose: &str, plain: &[u8]) -> Result<Vec<u8>, SealError> {
        let mut nonce = [0; NONCE_LEN];
        entropy().fill(&mut nonce).map_err(|_| SealError::Entropy)?;
        let mut content = plain.to_vec();
        self.cipher()?
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(purpose.as_bytes()),
                &mut content,
            )
            .map_err(|_| SealError::Open)?;
        Ok([nonce.as_slice(), &content].concat())
    }

    /// Returns what was sealed with this key for this purpose.
    pub fn open(&self, purpose: &str, sealed: &[u8]) -> Result<Vec<u8>, SealError> {
        let (nonce, content) = sealed.split_first_chunk::<NONCE_LEN>().ok_or(SealError::Open)?;
        let mut content = content.to_vec();
        let plain = self
            .cipher()?
            .open_in_place(Nonce::assume_unique_for_key(*nonce), Aad::from(purpose.as_bytes()), &mut content)
            .map_err(|_| SealError::Open)?;
        Ok(plain.to_vec())
    }

    fn cipher(&self) -> Result<LessSafeKey, SealError> {
        UnboundKey::new(&AES_256_GCM, &self.0).map(LessSafeKey::new).map_err(|_| SealError::Form)
    }
}

#[expect(clippy::disallowed_methods, reason = "keys and their nonces are made from the system's entropy")]
fn entropy() -> SystemRandom {
    SystemRandom::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_secret_opens_with_its_key_for_its_purpose_alone() {
        let (key, other) = (SealingKey::generate().unwrap(), SealingKey::generate().unwrap());
        let sealed = key.seal("abcdef", b"the keys").unwrap();
        assert!(!sealed.windows(8).any(|part| part == b"the keys"));
        assert_eq!(SealingKey::parse(&key.text()).unwrap().open("abcdef", &sealed).unwrap(), b"the keys");
        assert!(other.open("abcdef", &sealed).is_err());
        assert!(key.open("ghijkl", &sealed).is_err());
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(key.open("abcdef", &changed).is_err(), "byte {at}");
            assert!(key.open("abcdef", &sealed[..at]).is_err(), "{at} bytes");
        }
        // No two seals have the same nonce.
        assert_ne!(key.seal("abcdef", b"the keys").unwrap(), sealed);
    }

    #[test]
    fn keys_of_another_form_are_refused() {
        let short = "0".repeat(63);
        let foreign = format!("{}é", "0".repeat(62));
        for text in ["", "0123", short.as_str(), foreign.as_str(), &"g".repeat(64)] {
            assert!(SealingKey::parse(text).is_err(), "{text}");
        }
        assert!(!format!("{:?}", SealingKey::generate().unwrap()).contains('['));
    }
}
