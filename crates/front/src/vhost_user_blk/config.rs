//! What a driver learns of the disk: feature bits and the configuration space (Virtual I/O Device 1.2, 5.2.3 and
//! 5.2.4). Pure.

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO,
    VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_SIZE_MAX, VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES, VIRTIO_BLK_ID_BYTES,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

use crate::volume::{BLOCK_BYTES, RANGE_BLOCKS_MAX, Volume};

/// Bytes of a sector, the unit of requests whatever `blk_size` is (5.2.6).
pub const SECTOR_BYTES: u64 = 512;
/// Sectors of a block.
pub const BLOCK_SECTORS: u64 = BLOCK_BYTES as u64 / SECTOR_BYTES;
/// `seg_max`: with a header and a status a request fits into a queue of 128, which is what QEMU makes.
pub const SEGMENTS_MAX: u32 = 126;
/// `size_max`: so a request, and what is kept for it, is bounded.
pub const SEGMENT_BYTES_MAX: u32 = 64 << 10;
/// Bytes of data of a request.
pub const REQUEST_BYTES_MAX: u64 = SEGMENTS_MAX as u64 * SEGMENT_BYTES_MAX as u64;
/// `max_discard_seg` and `max_write_zeroes_seg`.
pub const RANGES_MAX: u32 = 32;
/// `max_discard_sectors` and `max_write_zeroes_sectors`.
pub const RANGE_SECTORS_MAX: u32 = (RANGE_BLOCKS_MAX * BLOCK_SECTORS) as u32;
/// What the protocol's messages can name of the configuration space (vhost-user, "Virtio device config space").
pub const SPACE_BYTES: usize = 256;
/// Bytes of a device's name.
pub const ID_BYTES: usize = VIRTIO_BLK_ID_BYTES as usize;

/// What a disk is. Does not change while it is served.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Blocks of 4096 bytes.
    pub blocks: u64,
    /// It takes no writes.
    pub is_read_only: bool,
    /// What was answered may be lost with the power before a flush.
    pub has_volatile_cache: bool,
    /// What the volume takes at a time.
    pub transfer_blocks_max: u32,
    /// Virtqueues that a driver may use.
    pub queues: u16,
    /// What `VIRTIO_BLK_T_GET_ID` is answered with.
    pub id: [u8; ID_BYTES],
}

impl Shape {
    /// Of a volume, under a name that is cut where it is too long.
    pub fn of(volume: &dyn Volume, name: &str, queues: u16) -> Shape {
        let mut id = [0; ID_BYTES];
        let shown = name.len().min(ID_BYTES);
        id[..shown].copy_from_slice(&name.as_bytes()[..shown]);
        Shape {
            blocks: volume.blocks(),
            is_read_only: volume.is_read_only(),
            has_volatile_cache: volume.about().has_volatile_cache,
            transfer_blocks_max: volume.transfer_blocks_max(),
            queues,
            id,
        }
    }

    /// The feature bits that are offered. Not `CONFIG_WCE`: a front end does not say again, to a process that comes
    /// after a killed one, what the driver had chosen, and writes that the driver takes for persistent would not be.
    pub fn features(&self) -> u64 {
        let mut bits = vec![
            VIRTIO_F_VERSION_1,
            VIRTIO_RING_F_INDIRECT_DESC,
            VIRTIO_RING_F_EVENT_IDX,
            VIRTIO_BLK_F_SIZE_MAX,
            VIRTIO_BLK_F_SEG_MAX,
            VIRTIO_BLK_F_BLK_SIZE,
            VIRTIO_BLK_F_TOPOLOGY,
            VIRTIO_BLK_F_MQ,
        ];
        if self.is_read_only {
            bits.push(VIRTIO_BLK_F_RO);
        } else {
            bits.extend([VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_WRITE_ZEROES]);
        }
        if self.has_volatile_cache {
            bits.push(VIRTIO_BLK_F_FLUSH);
        }
        bits.iter().fold(0, |all, bit| all | 1 << bit)
    }

    /// Whether each write has to be persistent when it is answered: without `FLUSH` the cache is writethrough (5.2.6.2).
    pub fn is_writethrough(&self, features: u64) -> bool {
        self.has_volatile_cache && features & 1 << VIRTIO_BLK_F_FLUSH == 0
    }

    /// The configuration space (5.2.4), little-endian; what is not defined is zero.
    pub fn space(&self) -> [u8; SPACE_BYTES] {
        let mut space = [0; SPACE_BYTES];
        let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
        let block = BLOCK_BYTES as u32;
        put(0, &(self.blocks * BLOCK_SECTORS).to_le_bytes()); // capacity
        put(8, &SEGMENT_BYTES_MAX.to_le_bytes()); // size_max
        put(12, &SEGMENTS_MAX.to_le_bytes()); // seg_max
        put(20, &block.to_le_bytes()); // blk_size
        // topology: physical blocks are logical ones, from the first on.
        put(26, &1_u16.to_le_bytes()); // min_io_size, in blocks
        put(28, &self.transfer_blocks_max.to_le_bytes()); // opt_io_size, in blocks
        put(34, &self.queues.to_le_bytes()); // num_queues
        put(36, &RANGE_SECTORS_MAX.to_le_bytes()); // max_discard_sectors
        put(40, &RANGES_MAX.to_le_bytes()); // max_discard_seg
        put(44, &(BLOCK_SECTORS as u32).to_le_bytes()); // discard_sector_alignment
        put(48, &RANGE_SECTORS_MAX.to_le_bytes()); // max_write_zeroes_sectors
        put(52, &RANGES_MAX.to_le_bytes()); // max_write_zeroes_seg
        put(56, &[1]); // write_zeroes_may_unmap
        space
    }
}
