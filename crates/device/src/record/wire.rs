//! How the fields of a record are written: whole numbers in groups of seven bits, the least first, the top bit of each
//! byte but the last set; signed ones folded first (0, -1, 1, -2 are 0, 1, 2, 3); bytes and lists behind their number.

use osier_flash::{Geometry, MediaError, Nanos};

use crate::core::DeviceParams;
use crate::predict::Crossing;
use crate::profile::Engine;

/// Most elements of a list: beyond all that a command can have, so that a damaged number asks for no memory.
const LIST_MAX: u64 = 1 << 20;

/// Something that a record has as a field.
pub(crate) trait Wire: Sized {
    /// Appends it.
    fn put(&self, out: &mut Vec<u8>);
    /// Takes it off the front of what is left; `None` if the bytes are no such thing.
    fn take(from: &mut Reader<'_>) -> Option<Self>;
}

/// What is left to take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }
}

/// Folds a signed number.
pub(crate) fn fold(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The inverse of [`fold`].
pub(crate) fn unfold(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

impl Wire for u64 {
    fn put(&self, out: &mut Vec<u8>) {
        let mut rest = *self;
        while rest >= 0x80 {
            out.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        out.push(rest as u8);
    }

    fn take(from: &mut Reader<'_>) -> Option<u64> {
        let mut value = 0;
        for group in 0..10 {
            let [byte] = from.array()?;
            let bits = u64::from(byte & 0x7f);
            // The tenth group has one bit left.
            if group == 9 && bits > 1 {
                return None;
            }
            value |= bits << (7 * group);
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

macro_rules! wire_of_smaller_numbers {
    ($($number:ty),*) => {$(
        impl Wire for $number {
            fn put(&self, out: &mut Vec<u8>) {
                u64::from(*self).put(out);
            }
            fn take(from: &mut Reader<'_>) -> Option<$number> {
                u64::take(from)?.try_into().ok()
            }
        }
    )*};
}

wire_of_smaller_numbers!(u8, u16, u32);

impl Wire for i32 {
    fn put(&self, out: &mut Vec<u8>) {
        fold(i64::from(*self)).put(out);
    }

    fn take(from: &mut Reader<'_>) -> Option<i32> {
        unfold(u64::take(from)?).try_into().ok()
    }
}

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn take(from: &mut Reader<'_>) -> Option<bool> {
        match u8::take(from)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl Wire for Nanos {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn take(from: &mut Reader<'_>) -> Option<Nanos> {
        u64::take(from).map(Nanos)
    }
}

/// Bytes, of a record that keeps them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Blob(pub Vec<u8>);

impl Wire for Blob {
    fn put(&self, out: &mut Vec<u8>) {
        (self.0.len() as u64).put(out);
        out.extend_from_slice(&self.0);
    }

    fn take(from: &mut Reader<'_>) -> Option<Blob> {
        let count = usize::try_from(u64::take(from)?).ok()?;
        from.bytes(count).map(|bytes| Blob(bytes.to_vec()))
    }
}

impl Wire for String {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        out.extend_from_slice(self.as_bytes());
    }

    fn take(from: &mut Reader<'_>) -> Option<String> {
        String::from_utf8(Blob::take(from)?.0).ok()
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(from: &mut Reader<'_>) -> Option<Option<T>> {
        if bool::take(from)? { T::take(from).map(Some) } else { Some(None) }
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        self.iter().for_each(|each| each.put(out));
    }

    fn take(from: &mut Reader<'_>) -> Option<Vec<T>> {
        let count = Some(u64::take(from)?).filter(|count| *count <= LIST_MAX)?;
        (0..count).map(|_| T::take(from)).collect()
    }
}

/// A struct is its fields, one after the other.
macro_rules! wire_of_struct {
    ($name:ident { $($field:ident),* $(,)? }) => {
        impl $crate::record::wire::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::record::wire::Wire::put(&self.$field, out);)*
            }
            fn take(from: &mut $crate::record::wire::Reader<'_>) -> Option<$name> {
                Some($name { $($field: $crate::record::wire::Wire::take(from)?),* })
            }
        }
    };
}

/// An enumeration without fields is a number of its own.
macro_rules! wire_of_words {
    ($name:ident { $($word:ident = $number:literal),* $(,)? }) => {
        impl Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                let number: u8 = match self { $($name::$word => $number),* };
                number.put(out);
            }
            fn take(from: &mut Reader<'_>) -> Option<$name> {
                match u8::take(from)? {
                    $($number => Some($name::$word),)*
                    _ => None,
                }
            }
        }
    };
}

pub(crate) use wire_of_struct;

wire_of_words!(Crossing { Raw = 0, Stored = 1 });
wire_of_words!(Engine { Lz4 = 0, Aes = 1, Crc32c = 2, Wasm = 3 });
wire_of_words!(MediaError { Io = 0, NoSpace = 1, OutOfRange = 2 });
wire_of_struct!(Geometry { channels, dies_per_channel, planes_per_die, blocks_per_plane, pages_per_block, page_bytes });
wire_of_struct!(DeviceParams { geometry, logical_blocks, with_data, thin, verify, streams, salt });

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<T: Wire + PartialEq + std::fmt::Debug>(value: T, bytes: &[u8]) {
        let mut out = Vec::new();
        value.put(&mut out);
        assert_eq!(out, bytes, "{value:?}");
        let mut reader = Reader::new(&out);
        assert_eq!(T::take(&mut reader), Some(value));
        assert!(reader.is_empty());
        // Cut anywhere, it is nothing.
        (0..out.len()).for_each(|length| assert_eq!(T::take(&mut Reader::new(&out[..length])), None));
    }

    #[test]
    fn numbers_are_groups_of_seven_bits() {
        round_trip(0_u64, &[0]);
        round_trip(127_u64, &[0x7f]);
        round_trip(128_u64, &[0x80, 1]);
        round_trip(u64::MAX, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]);
        round_trip(300_u16, &[0xac, 2]);
        round_trip(-1_i32, &[1]);
        round_trip(i32::MIN, &[0xff, 0xff, 0xff, 0xff, 0x0f]);
        round_trip(Some(vec![1_u8, 200]), &[1, 2, 1, 200, 1]);
        round_trip("ab".to_owned(), &[2, b'a', b'b']);
        for value in [0, 1, -1, i64::MAX, i64::MIN] {
            assert_eq!(unfold(fold(value)), value);
        }
    }

    #[test]
    fn bytes_that_are_no_such_thing_are_refused() {
        assert_eq!(u64::take(&mut Reader::new(&[0xff; 10])), None, "more than 64 bits");
        assert_eq!(u8::take(&mut Reader::new(&[0x80, 2])), None, "256");
        assert_eq!(bool::take(&mut Reader::new(&[2])), None);
        assert_eq!(Crossing::take(&mut Reader::new(&[9])), None);
        assert_eq!(<Vec<u8>>::take(&mut Reader::new(&[0xff, 0xff, 0xff, 0xff, 0x7f])), None, "a list of 2^35");
    }
}
