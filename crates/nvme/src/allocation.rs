//! Get LBA Status: which blocks take space (NVM Command Set Specification 1.1, "Get LBA Status command", Action Type
//! 02h, Return Allocated LBAs). Offsets are those of libnvme's `struct nvme_lba_status` and `nvme_lba_status_desc`.

use crate::command::Command;
use crate::controller::Namespace;
use crate::io::BlockRange;
use crate::{Status, TRANSFER_BYTES_MAX};

/// Bytes before the descriptors.
const HEADER_BYTES: usize = 8;
/// Bytes of a descriptor.
const DESCRIPTOR_BYTES: usize = 16;
/// Most blocks that a descriptor says.
pub const RANGE_BLOCKS_MAX: u64 = u32::MAX as u64;
/// CMPC: the answer's length ended it.
const CUT: u8 = 1;
/// CMPC: the whole range was looked at.
const WHOLE: u8 = 2;
/// Action Type: allocated blocks. The others ask for blocks that might not be readable, of which nothing is known.
const ALLOCATED: u32 = 0x02;

/// What a Get LBA Status command asks for, its blocks in the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationQuery {
    /// The blocks.
    pub range: BlockRange,
    /// Bytes that the client takes.
    pub bytes: u64,
}

impl AllocationQuery {
    /// A command that asks which of a namespace's blocks take space; at most 65,535 of them, answered in `bytes`,
    /// which are whole dwords.
    #[must_use]
    pub fn command(nsid: u32, block: u64, blocks: u16, bytes: u64) -> Command {
        let cdw = [
            block as u32,
            (block >> 32) as u32,
            (bytes / 4).saturating_sub(1) as u32,
            ALLOCATED << 24 | u32::from(blocks),
            0,
            0,
        ];
        Command { cdw, ..Command::new(crate::admin::GET_LBA_STATUS, nsid) }
    }

    /// Bytes that a command asks for: MNDW, dword 12, counts dwords from zero.
    pub(crate) fn bytes(command: &Command) -> Result<u64, Status> {
        let bytes = (u64::from(command.cdw[2]) + 1) * 4;
        if bytes <= TRANSFER_BYTES_MAX { Ok(bytes) } else { Err(Status::INVALID_FIELD) }
    }

    /// What a command asks of a namespace.
    pub(crate) fn decode(command: &Command, namespace: &Namespace) -> Result<AllocationQuery, Status> {
        // ATYPE in bits 31:24 of dword 13, RL in 15:0; a range of length zero goes to the end.
        let (action, length) = (command.cdw[3] >> 24, u64::from(command.cdw[3] & 0xFFFF));
        if action != ALLOCATED {
            return Err(Status::INVALID_FIELD);
        }
        let slba = command.slba();
        let left = namespace.blocks.checked_sub(slba).filter(|left| *left > 0).ok_or(Status::LBA_OUT_OF_RANGE)?;
        let blocks = if length == 0 { left } else { length };
        if blocks > left {
            return Err(Status::LBA_OUT_OF_RANGE);
        }
        Ok(AllocationQuery { range: BlockRange { slba, blocks }, bytes: AllocationQuery::bytes(command)? })
    }

    /// Ranges that the answer has room for.
    #[must_use]
    pub fn ranges_max(&self) -> usize {
        (self.bytes as usize).saturating_sub(HEADER_BYTES) / DESCRIPTOR_BYTES
    }

    /// The answer: the ranges that take space, in ascending order; `is_cut` says that there were more than fit.
    ///
    /// # Panics
    /// When they are more than [`AllocationQuery::ranges_max`], or one is longer than a descriptor can say.
    #[must_use]
    pub fn answer(&self, ranges: &[BlockRange], is_cut: bool) -> Vec<u8> {
        assert!(ranges.len() <= self.ranges_max() && ranges.iter().all(|range| range.blocks <= RANGE_BLOCKS_MAX));
        let mut list = vec![0; HEADER_BYTES];
        list[..4].copy_from_slice(&(ranges.len() as u32).to_le_bytes());
        list[4] = if is_cut { CUT } else { WHOLE };
        for range in ranges {
            list.extend(range.slba.to_le_bytes());
            list.extend((range.blocks as u32).to_le_bytes());
            list.extend([0; 4]);
        }
        // Less than a header has room for nothing else.
        list.truncate(self.bytes as usize);
        list
    }
}

/// The ranges that take space in an answer, and whether there were more than it has room for.
#[must_use]
pub fn allocated(answer: &[u8]) -> (Vec<BlockRange>, bool) {
    let Some((header, list)) = answer.split_at_checked(HEADER_BYTES) else { return (Vec::new(), true) };
    let count = u32::from_le_bytes(header[..4].try_into().expect("four bytes")) as usize;
    let range = |descriptor: &[u8]| BlockRange {
        slba: u64::from_le_bytes(descriptor[..8].try_into().expect("eight bytes")),
        blocks: u64::from(u32::from_le_bytes(descriptor[8..12].try_into().expect("four bytes"))),
    };
    (list.chunks_exact(DESCRIPTOR_BYTES).take(count).map(range).collect(), header[4] != WHOLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace() -> Namespace {
        Namespace { nsid: 1, blocks: 1000, used_blocks: 0, is_thin: true, is_read_only: false, nguid: [0; 16] }
    }

    #[test]
    fn a_query_is_within_its_namespace_and_asks_for_what_is_allocated() {
        let ask =
            |block, blocks| AllocationQuery::decode(&AllocationQuery::command(1, block, blocks, 88), &namespace());
        let found = |slba, blocks| Ok(AllocationQuery { range: BlockRange { slba, blocks }, bytes: 88 });
        assert_eq!(ask(0, 1000), found(0, 1000));
        assert_eq!(ask(7, 0), found(7, 993), "no length: to the end");
        for (block, blocks) in [(1000, 0), (1000, 1), (999, 2), (u64::MAX, 2), (u64::MAX, 0)] {
            assert_eq!(ask(block, blocks), Err(Status::LBA_OUT_OF_RANGE), "{block} {blocks}");
        }
        for action in [0x00, 0x01, 0x10, 0x11, 0xFF] {
            let mut command = AllocationQuery::command(1, 0, 1, 88);
            command.cdw[3] = action << 24 | 1;
            assert_eq!(AllocationQuery::decode(&command, &namespace()), Err(Status::INVALID_FIELD));
        }
        let mut long = AllocationQuery::command(1, 0, 1, TRANSFER_BYTES_MAX);
        assert!(AllocationQuery::decode(&long, &namespace()).is_ok());
        long.cdw[2] += 1;
        assert_eq!(AllocationQuery::decode(&long, &namespace()), Err(Status::INVALID_FIELD));
    }

    #[test]
    fn an_answer_has_as_much_as_the_client_takes() {
        let ranges = [(3, 4), (900, 1), (901, 99)].map(|(slba, blocks)| BlockRange { slba, blocks });
        for (bytes, room) in [(4, 0), (8, 0), (20, 0), (24, 1), (56, 3), (4096, 255)] {
            let query = AllocationQuery { range: BlockRange { slba: 0, blocks: 1000 }, bytes };
            assert_eq!(query.ranges_max(), room, "{bytes}");
            let given = &ranges[..room.min(3)];
            let answer = query.answer(given, room < 3);
            assert!(answer.len() as u64 <= bytes);
            if bytes >= 8 {
                assert_eq!(allocated(&answer), (given.to_vec(), room < 3), "{bytes}");
            }
        }
        assert_eq!(allocated(&[0xFF; 30]).0.len(), 1, "a count beyond the answer's end is no reason to look there");
        assert_eq!(allocated(&[1, 2]), (Vec::new(), true));
    }
}
