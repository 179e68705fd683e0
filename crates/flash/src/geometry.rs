//! The shape of the NAND array, and where on it a byte of the media lies.
//!
//! The media is a flat range of bytes, cut into superblocks of equal size. A *superblock* is one
//! block from every plane of every die, so that a sequential write is spread over all of them:
//! consecutive pages go over the channels first, then over the planes of a die, then over the dies
//! of a channel. The planes of a die come before its neighbours so that the pages of one
//! multi-plane program arrive one soon after the other.
//!
//! `address = superblock * superblock_bytes + page * page_bytes + byte`

use crate::codec::EXTENT_HEADER_BYTES;

/// Dimensions of the NAND array. Check with [`Geometry::validate`] before use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Independent channels, each with a bus of its own: 1 to 64.
    pub channels: u32,
    /// Dies that share one channel: 1 to 64.
    pub dies_per_channel: u32,
    /// Planes of one die, which program and erase together: 1 to 8.
    pub planes_per_die: u32,
    /// Blocks of one plane, which is also the number of superblocks: 16 to 65,536.
    pub blocks_per_plane: u32,
    /// Pages of one block: 4 to 4,096.
    pub pages_per_block: u32,
    /// Bytes of one page, without the out-of-band area: a power of two from 4,096 to 65,536.
    pub page_bytes: u32,
}

/// A dimension that cannot be built, with the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// The value is outside of the range that the layout supports.
    #[error("geometry: {name} is {value}, which is outside {min}..={max}; choose a value inside")]
    OutOfRange {
        /// The field of [`Geometry`].
        name: &'static str,
        /// What it was.
        value: u32,
        /// Smallest value that works.
        min: u32,
        /// Largest value that works.
        max: u32,
    },
    /// Pages must halve evenly down to the alignment of extents.
    #[error("geometry: page_bytes is {value}, which is not a power of two; choose 4096, 8192, 16384, 32768 or 65536")]
    PageNotPowerOfTwo {
        /// What it was.
        value: u32,
    },
    /// A superblock must hold several extents, and offsets inside of it must fit their field.
    #[error(
        "geometry: a superblock would hold {bytes} bytes (channels x dies x planes x pages x page bytes), \
         outside {min}..={max}; change pages_per_block or the number of planes"
    )]
    SuperblockSize {
        /// Bytes of one superblock.
        bytes: u64,
        /// Fewest bytes that work.
        min: u64,
        /// Most bytes that work.
        max: u64,
    },
}

/// Smallest superblock: room for four of the smallest useful extents and for padding.
pub const SUPERBLOCK_BYTES_MIN: u64 = 64 << 10;
/// Largest superblock: an offset inside of it is kept as a `u32` count of 16 bytes.
pub const SUPERBLOCK_BYTES_MAX: u64 = (u32::MAX as u64 + 1) * 16;
/// Most bytes that one extent stores when the superblock is large enough: a unit of 64 KiB and what
/// an expanding stage may add to it (an authentication tag, the bookkeeping of a compressor).
pub const STORED_BYTES_MAX: u32 = (64 << 10) + 4096;

/// Where one page of a superblock lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PagePlace {
    /// Channel, from 0.
    pub channel: u32,
    /// Die, numbered over the whole device: `channel * dies_per_channel + die of the channel`.
    pub die: u32,
    /// Plane of the die, from 0.
    pub plane: u32,
    /// Page within the block, from 0.
    pub row: u32,
}

impl Geometry {
    /// Checks every dimension.
    ///
    /// # Errors
    /// Names the first value that cannot work, and what would.
    pub fn validate(&self) -> Result<(), GeometryError> {
        let ranges = [
            ("channels", self.channels, 1, 64),
            ("dies_per_channel", self.dies_per_channel, 1, 64),
            ("planes_per_die", self.planes_per_die, 1, 8),
            ("blocks_per_plane", self.blocks_per_plane, 16, 65_536),
            ("pages_per_block", self.pages_per_block, 4, 4_096),
            ("page_bytes", self.page_bytes, 4_096, 65_536),
        ];
        for (name, value, min, max) in ranges {
            if value < min || value > max {
                return Err(GeometryError::OutOfRange { name, value, min, max });
            }
        }
        if !self.page_bytes.is_power_of_two() {
            return Err(GeometryError::PageNotPowerOfTwo { value: self.page_bytes });
        }
        let (bytes, min, max) = (self.superblock_bytes(), SUPERBLOCK_BYTES_MIN, SUPERBLOCK_BYTES_MAX);
        if bytes < min || bytes > max {
            return Err(GeometryError::SuperblockSize { bytes, min, max });
        }
        Ok(())
    }

    /// Dies of the whole device.
    #[must_use]
    pub const fn dies(&self) -> u32 {
        self.channels * self.dies_per_channel
    }

    /// Planes of the whole device.
    #[must_use]
    pub const fn planes(&self) -> u32 {
        self.dies() * self.planes_per_die
    }

    /// Superblocks of the device.
    #[must_use]
    pub const fn superblocks(&self) -> u32 {
        self.blocks_per_plane
    }

    /// Pages of one superblock.
    #[must_use]
    pub const fn pages_per_superblock(&self) -> u32 {
        self.planes() * self.pages_per_block
    }

    /// Bytes of one superblock.
    #[must_use]
    pub const fn superblock_bytes(&self) -> u64 {
        self.planes() as u64 * self.pages_per_block as u64 * self.page_bytes as u64
    }

    /// Bytes of the whole media.
    #[must_use]
    pub const fn media_bytes(&self) -> u64 {
        self.superblock_bytes() * self.blocks_per_plane as u64
    }

    /// Most bytes that one extent may store on this geometry: at most a quarter of a superblock, so
    /// that what stays unused at the end of one is bounded.
    #[must_use]
    pub const fn stored_bytes_max(&self) -> u32 {
        let quarter = self.superblock_bytes() / 4;
        if quarter >= (STORED_BYTES_MAX + EXTENT_HEADER_BYTES) as u64 {
            STORED_BYTES_MAX
        } else {
            // The cast cannot lose bits: this branch is below STORED_BYTES_MAX.
            quarter as u32 - EXTENT_HEADER_BYTES
        }
    }

    /// Where page `page` of any superblock lies.
    #[must_use]
    pub const fn place(&self, page: u32) -> PagePlace {
        let stripe = page % self.planes();
        let channel = stripe % self.channels;
        let rest = stripe / self.channels;
        PagePlace {
            channel,
            die: channel * self.dies_per_channel + rest / self.planes_per_die,
            plane: rest % self.planes_per_die,
            row: page / self.planes(),
        }
    }

    /// A number that differs, with near certainty, between two geometries; kept in every superblock
    /// header so that media of another shape is refused instead of misread.
    #[must_use]
    pub fn fingerprint(&self) -> u32 {
        let fields = [
            self.channels,
            self.dies_per_channel,
            self.planes_per_die,
            self.blocks_per_plane,
            self.pages_per_block,
            self.page_bytes,
        ];
        fields.iter().fold(0, |crc, field| crc32c::crc32c_append(crc, &field.to_le_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Geometry = Geometry {
        channels: 2,
        dies_per_channel: 2,
        planes_per_die: 2,
        blocks_per_plane: 16,
        pages_per_block: 4,
        page_bytes: 4096,
    };

    #[test]
    fn sixteen_blocks_a_plane_are_accepted_and_fifteen_are_named() {
        assert_eq!(SMALL.validate(), Ok(()));
        let error = Geometry { blocks_per_plane: 15, ..SMALL }.validate().unwrap_err();
        assert!(error.to_string().contains("blocks_per_plane is 15"), "{error}");
    }

    #[test]
    fn impossible_shapes_are_refused() {
        let odd_page = Geometry { page_bytes: 12_288, ..SMALL };
        assert_eq!(odd_page.validate(), Err(GeometryError::PageNotPowerOfTwo { value: 12_288 }));
        let tiny = Geometry { channels: 1, dies_per_channel: 1, planes_per_die: 1, ..SMALL };
        assert!(matches!(tiny.validate(), Err(GeometryError::SuperblockSize { bytes: 16_384, .. })));
        let huge = Geometry { channels: 64, dies_per_channel: 64, planes_per_die: 8, ..SMALL };
        let huge = Geometry { pages_per_block: 4096, page_bytes: 65_536, ..huge };
        assert!(matches!(huge.validate(), Err(GeometryError::SuperblockSize { .. })));
        assert!(matches!(
            Geometry { channels: 0, ..SMALL }.validate(),
            Err(GeometryError::OutOfRange { name: "channels", .. })
        ));
    }

    #[test]
    fn every_plane_gets_one_page_of_each_row_and_channels_alternate() {
        for row in 0..SMALL.pages_per_block {
            let mut seen = std::collections::BTreeSet::new();
            for stripe in 0..SMALL.planes() {
                let place = SMALL.place(row * SMALL.planes() + stripe);
                assert_eq!(place.row, row);
                assert_eq!(place.channel, stripe % SMALL.channels);
                assert_eq!(place.die / SMALL.dies_per_channel, place.channel);
                assert!(seen.insert((place.die, place.plane)));
            }
            assert_eq!(seen.len() as u32, SMALL.planes());
        }
    }

    #[test]
    fn the_largest_extent_leaves_room_for_four_in_a_small_superblock() {
        assert_eq!(SMALL.superblock_bytes(), 128 << 10);
        assert_eq!(SMALL.stored_bytes_max(), (32 << 10) - EXTENT_HEADER_BYTES);
        let large = Geometry { pages_per_block: 64, ..SMALL };
        assert_eq!(large.stored_bytes_max(), STORED_BYTES_MAX);
    }

    #[test]
    fn another_shape_has_another_fingerprint() {
        let swapped = Geometry { channels: 4, dies_per_channel: 1, ..SMALL };
        assert_ne!(SMALL.fingerprint(), swapped.fingerprint());
        assert_eq!(SMALL.media_bytes(), swapped.media_bytes());
    }
}
