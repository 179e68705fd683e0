//! The Diffie-Hellman exchange, in constant time.

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd, Resize};
use zeroize::Zeroizing;

use super::groups;
use super::planted::{self, Bug};

/// Bytes of a private exponent: for the largest group 400 bits are enough (RFC 7919, Appendix A.5).
pub const EXPONENT_BYTES: usize = 64;

const LARGEST_BITS: u32 = 8192;

/// A group, by its DHGID ("DH-HMAC-CHAP_Challenge message").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    Ffdhe2048 = 1,
    Ffdhe3072 = 2,
    Ffdhe4096 = 3,
    Ffdhe6144 = 4,
    Ffdhe8192 = 5,
}

impl Group {
    /// Those that a controller would rather have first: strong enough and quick, then stronger ones, then the weakest.
    pub const BY_PREFERENCE: [Group; 5] =
        [Group::Ffdhe3072, Group::Ffdhe4096, Group::Ffdhe6144, Group::Ffdhe8192, Group::Ffdhe2048];

    /// Bytes of a value.
    pub fn bytes(self) -> usize {
        self.bits() as usize / 8
    }

    fn bits(self) -> u32 {
        match self {
            Group::Ffdhe2048 => 2048,
            Group::Ffdhe3072 => 3072,
            Group::Ffdhe4096 => 4096,
            Group::Ffdhe6144 => 6144,
            Group::Ffdhe8192 => LARGEST_BITS,
        }
    }

    fn modulus(self) -> BoxedUint {
        let largest = Option::from(BoxedUint::from_be_hex(groups::FFDHE8192, LARGEST_BITS));
        let largest: BoxedUint = largest.expect("the digits of a group are hexadecimal");
        let x = |group: Group| BoxedUint::from(groups::X[group as usize - 1]).resize(LARGEST_BITS);
        let one = BoxedUint::one_with_precision(LARGEST_BITS);
        // Behind the 64 lowest bits: the digits of e, with X.
        let digits = largest.wrapping_add(&one).shr(64).wrapping_sub(x(Group::Ffdhe8192));
        let digits = digits.shr(LARGEST_BITS - self.bits()).wrapping_add(x(self));
        digits.shl(64).wrapping_sub(&one).resize(self.bits())
    }

    /// The public value of a private exponent.
    pub fn public(self, exponent: &[u8; EXPONENT_BYTES]) -> Vec<u8> {
        self.power(&BoxedUint::from(2_u8).resize(self.bits()), exponent).to_vec()
    }

    /// What two have in common who gave each other public values. `None`: the other one's is none of the group that
    /// keeps anything secret (RFC 7919, section 3: greater than one, less than the modulus less one).
    pub fn shared(self, public: &[u8], exponent: &[u8; EXPONENT_BYTES]) -> Option<Zeroizing<Vec<u8>>> {
        if public.len() != self.bytes() {
            return None;
        }
        let public = BoxedUint::from_be_slice(public, self.bits()).ok()?;
        let one = BoxedUint::one_with_precision(self.bits());
        let is_weak = public <= one || public >= self.modulus().wrapping_sub(&one);
        if is_weak && !planted::has(Bug::AnyPublic) {
            return None;
        }
        Some(self.power(&public, exponent))
    }

    fn power(self, base: &BoxedUint, exponent: &[u8; EXPONENT_BYTES]) -> Zeroizing<Vec<u8>> {
        let modulus = Option::from(Odd::new(self.modulus())).expect("the modulus of a group is odd");
        let params = BoxedMontyParams::new(modulus);
        let bits = EXPONENT_BYTES as u32 * 8;
        let exponent = BoxedUint::from_be_slice(exponent, bits).expect("an exponent has its length");
        let power = BoxedMontyForm::new(base.clone(), &params).pow_bounded_exp(&exponent, bits);
        Zeroizing::new(power.retrieve().to_be_bytes().into_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first and the last digits of each, as the RFC prints them.
    #[test]
    fn the_moduli_are_those_of_the_rfc() {
        for (group, last) in [
            (Group::Ffdhe2048, 0x886B_4238_6128_5C97_u64),
            (Group::Ffdhe3072, 0x25E4_1D2B_66C6_2E37),
            (Group::Ffdhe4096, 0xC68A_007E_5E65_5F6A),
            (Group::Ffdhe6144, 0xA40E_329C_D0E4_0E65),
            (Group::Ffdhe8192, 0xD68C_8BB7_C5C6_424C),
        ] {
            let digits = group.modulus().to_be_bytes();
            assert_eq!(digits.len(), group.bytes());
            assert_eq!(digits[..16], 0xFFFF_FFFF_FFFF_FFFF_ADF8_5458_A2BB_4A9A_u128.to_be_bytes(), "{group:?}");
            let end = &digits[digits.len() - 16..];
            assert!(end[8..].iter().all(|byte| *byte == 0xFF));
            assert_eq!(end[..8], last.to_be_bytes(), "{group:?}");
        }
    }

    #[test]
    fn two_have_the_same_in_common_and_no_weak_value_is_taken() {
        for group in Group::BY_PREFERENCE {
            let (one, other) = ([0x5A; EXPONENT_BYTES], [0xC3; EXPONENT_BYTES]);
            let (to_other, to_one) = (group.public(&one), group.public(&other));
            assert_eq!(to_other.len(), group.bytes());
            let shared = group.shared(&to_one, &one).unwrap();
            assert_eq!(shared, group.shared(&to_other, &other).unwrap());
            let modulus = group.modulus();
            let less = |by: u8| modulus.wrapping_sub(BoxedUint::from(by).resize(group.bits())).to_be_bytes().into_vec();
            let small = |value: u8| [vec![0; group.bytes() - 1], vec![value]].concat();
            for weak in [small(0), small(1), less(1), less(0), vec![0xFF; group.bytes()], to_one[1..].to_vec()] {
                assert!(group.shared(&weak, &one).is_none());
            }
            assert!(group.shared(&small(2), &one).is_some() && group.shared(&less(2), &one).is_some());
        }
    }
}
