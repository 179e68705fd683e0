//! A random identifier of an image (RFC 9562 version 4).

use std::fmt;

/// Sixteen bytes that no two images share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// An identifier from 16 random bytes, with the version and variant bits of RFC 9562 section 5.4.
    #[must_use]
    pub fn from_random(mut bytes: [u8; 16]) -> Self {
        bytes[6] = (bytes[6] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        Self(bytes)
    }

    /// # Panics
    /// When the slice is not 16 bytes long.
    pub(crate) fn from_slice(slice: &[u8]) -> Self {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(slice);
        Self(bytes)
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_five_groups_and_the_version_and_variant_of_the_rfc() {
        let text = Uuid::from_random([0xff; 16]).to_string();
        assert_eq!(text, "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }
}
