//! Recovery: rebuilds the map from what is on the media, whatever a crash left there.
//!
//! 1. Superblock headers say which superblocks are blank, in which order the others were written, and
//!    what was synced when (*trust*).
//! 2. Every superblock is scanned along its chain of extents. In those that may hold bytes that were
//!    never synced, payloads are checked too. Where the chain breaks, the scan goes on at the next
//!    sound header.
//! 3. The newest sequence wins each block.
//!
//! A payload that does not fit its checksum has one of two reasons, and they need opposite answers. A
//! write that was *torn* by the loss of power was never promised: it is forgotten, and the older
//! version stands. A write that was synced and has *rotted* since must not be forgotten, or stale data
//! would come back in silence: it stays mapped, and reads of it fail. The trusted sequence, which
//! every header carries, tells one from the other.
//!
//! Nothing is written by recovery, so that it may itself be cut short any number of times. Superblocks
//! that were open are not written on: what follows a torn page is not known to be erased. Blank ones
//! are erased before use, since an interrupted erase may look complete.

use crate::codec::{
    Decoded, EXTENT_ALIGN, EXTENT_HEADER_BYTES, ExtentHeader, FORMAT_VERSION, HeaderBytes, HeaderFault, HeaderPlace,
    SUPERBLOCK_HEADER_BYTES, StreamKind, SuperblockHeader, extent_footprint, first_extent_offset, header_offsets,
};
use crate::directory::{NO_SLOT, Record};
use crate::error::FtlError;
use crate::ftl::{Ftl, FtlParams, SuperblockState, Trust};
use crate::look::{LOOKED_BYTES_MIN, Looked, Purview};
use crate::media::MediaError;
use crate::nand::Timing;
use crate::planted::Bug;
use crate::shadow::Shadows;
use crate::{AppendId, ExtentKind, Geometry, Lba};

/// What recovery found. Counts are of this recovery alone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecoveryReport {
    /// Superblocks whose first two pages are blank.
    pub superblocks_blank: u32,
    /// Superblocks with a sound header.
    pub superblocks_written: u32,
    /// Of those, the ones that were wholly synced: their payloads were not read.
    pub superblocks_trusted: u32,
    /// Superblocks with bytes but no sound header; nothing of them counts.
    pub superblocks_headless: u32,
    /// Superblocks in which anything was torn or damaged; they are collected first.
    pub superblocks_suspect: u32,
    /// Sound extent headers, dead extents included.
    pub extents_seen: u64,
    /// Extents that at least one block reads from, trim records included.
    pub extents_live: u64,
    /// Extents, or copies of them, that were being written when the device stopped, and are forgotten.
    pub extents_torn: u64,
    /// Extents that were synced and do not fit their checksum: reads of them fail.
    pub extents_damaged: u64,
    /// Headers in which one flipped bit was put right.
    pub headers_repaired: u64,
    /// Superblocks with one sound header of two.
    pub headers_lost: u64,
    /// Stretches between extents that are neither padding nor blank.
    pub gaps: u64,
    /// Bytes of those.
    pub gap_bytes: u64,
    /// Blank pages before written ones: pages that were lost.
    pub holes: u64,
    /// Payload bytes that were read and compared with their checksum.
    pub payload_bytes_checked: u64,
    /// Highest sequence on the media, torn records included; new ones must be higher.
    pub sequence_max: u64,
    /// Every record up to this sequence is known to have been synced.
    pub trusted_sequence: u64,
    /// Superblocks whose erase count was on no header, and is the mean of the others'.
    pub erase_counts_estimated: u32,
    /// The first damages in detail, [`RecoveryReport::FINDINGS_MAX`] at most.
    pub findings: Vec<Finding>,
}

/// One damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finding {
    /// Superblock that it lies in.
    pub superblock: u32,
    /// First byte of it in the superblock.
    pub offset_bytes: u64,
    /// What it is.
    pub damage: Damage,
    /// Its superblock was wholly programmed and synced, so that no stop of the device explains it.
    pub was_synced: bool,
}

/// What a damage is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// The payload does not fit; it was never promised, and is forgotten.
    Torn {
        /// First block of the extent.
        slba: Lba,
        /// Its sequence.
        sequence: u64,
    },
    /// The payload does not fit although it was synced; reads fail.
    Rotten {
        /// First block of the extent.
        slba: Lba,
        /// Its sequence.
        sequence: u64,
    },
    /// A header had one wrong bit.
    HeaderRepaired,
    /// One of the superblock's two headers is not there.
    HeaderLost,
    /// Bytes that belong to no extent.
    Gap {
        /// How many.
        bytes: u64,
    },
    /// A blank page begins here, and written ones follow.
    Hole,
    /// The superblock has bytes, but no sound header.
    Headless,
}

impl RecoveryReport {
    /// Most entries of [`RecoveryReport::findings`].
    pub const FINDINGS_MAX: usize = 16;

    /// Whether the media holds nothing that a clean stop would not leave.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.superblocks_suspect == 0 && self.superblocks_headless == 0
    }

    fn note(&mut self, superblock: u32, offset_bytes: u64, damage: Damage) {
        if self.findings.len() < RecoveryReport::FINDINGS_MAX {
            self.findings.push(Finding { superblock, offset_bytes, damage, was_synced: false });
        }
    }
}

/// Is told what was looked at.
type Watch<'a> = dyn FnMut(Looked<'_>) + 'a;
/// Reads media bytes: address, and where to put them.
type ReadMedia<'a> = dyn FnMut(u64, &mut [u8]) -> Result<(), MediaError> + 'a;

/// Bytes read at once along a chain of small extents.
const WINDOW_BYTES: usize = 128 << 10;
/// Bytes read at once where the last extent was longer than this: the chain hops over payloads.
const HOP_BYTES: usize = 4 << 10;

const _: () = assert!(HOP_BYTES >= EXTENT_HEADER_BYTES as usize);

impl Ftl {
    /// Rebuilds an FTL from the media. Nothing is written.
    ///
    /// # Errors
    /// As [`Ftl::new`]; the media cannot be read; it is of another geometry, capacity or a newer
    /// format; or it holds bytes that are not of this format at all.
    pub fn recover(
        geometry: Geometry,
        timing: Timing,
        params: FtlParams,
        logical_blocks: u64,
        read: &mut ReadMedia<'_>,
    ) -> Result<(Ftl, RecoveryReport), FtlError> {
        Ftl::recover_watched(geometry, timing, params, logical_blocks, read, &mut |_| {})
    }

    /// As [`Ftl::recover`], and tells `watch` what it looks at.
    ///
    /// # Errors
    /// As [`Ftl::recover`].
    pub fn recover_watched(
        geometry: Geometry,
        timing: Timing,
        params: FtlParams,
        logical_blocks: u64,
        read: &mut ReadMedia<'_>,
        watch: &mut Watch<'_>,
    ) -> Result<(Ftl, RecoveryReport), FtlError> {
        let ftl = Ftl::new(geometry, timing, params, logical_blocks)?;
        ftl.recover_from(read, watch)
    }

    /// As [`Ftl::recover`], with a known bug planted from the start.
    ///
    /// # Errors
    /// As [`Ftl::recover`].
    #[cfg(any(test, feature = "planted"))]
    pub fn recover_planted(
        geometry: Geometry,
        timing: Timing,
        params: FtlParams,
        logical_blocks: u64,
        read: &mut ReadMedia<'_>,
        bug: Option<Bug>,
    ) -> Result<(Ftl, RecoveryReport), FtlError> {
        let mut ftl = Ftl::new(geometry, timing, params, logical_blocks)?;
        ftl.bug = bug;
        ftl.recover_from(read, &mut |_| {})
    }

    fn recover_from(
        mut self,
        read: &mut ReadMedia<'_>,
        watch: &mut Watch<'_>,
    ) -> Result<(Ftl, RecoveryReport), FtlError> {
        if !self.params.with_data {
            return Err(FtlError::NoData);
        }
        let mut recovery = Recovery {
            window: Window { read, bytes: Vec::with_capacity(WINDOW_BYTES), start: 0, hop: false },
            headers: Vec::with_capacity(self.superblocks.len()),
            report: RecoveryReport::default(),
            trust: Trust::default(),
            life_max: 0,
            unsound: Vec::new(),
            seen_bytes: 0,
            twins: Vec::new(),
            ftl: &mut self,
            watch,
        };
        recovery.read_headers()?;
        recovery.scan()?;
        recovery.keep_rotten();
        recovery.settle_twins()?;
        recovery.restore_erase_counts();
        let report = recovery.finish();
        Ok((self, report))
    }
}

/// First page of a superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Front {
    Blank,
    Header(SuperblockHeader),
    Headless,
}

/// An extent that has two copies: collection was interrupted.
#[derive(Debug, Clone, Copy)]
struct Twin {
    slot: u32,
    record: Record,
}

struct Recovery<'a> {
    window: Window<'a>,
    headers: Vec<Front>,
    report: RecoveryReport,
    trust: Trust,
    /// Youngest life of a superblock that any sound header names.
    life_max: u64,
    /// Extents whose payload does not fit, until it is known which of them were synced.
    unsound: Vec<Record>,
    /// What all extents take that were seen, dead ones included.
    seen_bytes: u64,
    /// Originals that gave way to copies.
    twins: Vec<Twin>,
    ftl: &'a mut Ftl,
    watch: &'a mut Watch<'a>,
}

/// Where a scan is.
#[derive(Debug, Clone, Copy)]
struct Scan {
    superblock: u32,
    /// Sequence and salt of the superblock's life.
    life: (u64, u32),
    /// Wholly synced: payloads need no check.
    is_trusted: bool,
    offset: u64,
    /// Start of the bytes that belong to nothing, if the chain is broken here.
    gap: Option<u64>,
    /// Start of a blank page: if anything follows, a page before it was lost.
    blank: Option<u64>,
    /// The last extent of the chain.
    last: Option<Record>,
}

impl Recovery<'_> {
    fn read_headers(&mut self) -> Result<(), FtlError> {
        let mut headless = 0;
        for index in 0..self.ftl.geometry.superblocks() {
            let front = self.read_front(index)?;
            match &front {
                Front::Blank => self.report.superblocks_blank += 1,
                Front::Headless => {
                    headless += 1;
                    self.report.note(index, 0, Damage::Headless);
                    self.ftl.superblocks[index as usize].suspect = true;
                }
                Front::Header(header) => {
                    self.report.superblocks_written += 1;
                    self.trust.sequence = self.trust.sequence.max(header.trusted_sequence);
                    for (known, said) in self.trust.superblocks.iter_mut().zip(header.trusted_superblocks) {
                        *known = said.max(*known);
                    }
                    self.life_max = self.life_max.max(header.sequence);
                    self.ftl.salt = crc32c::crc32c_append(self.ftl.salt, &header.encode());
                }
            }
            self.headers.push(front);
        }
        self.report.superblocks_headless = headless;
        // Two superblocks can be torn at their first pages before anything was ever synced.
        if self.report.superblocks_written == 0 && headless > StreamKind::ALL.len() as u32 {
            return Err(FtlError::Foreign { superblocks: headless });
        }
        Ok(())
    }

    /// The header from the first page of a superblock or its copy from the second. If both are sound and
    /// differ, an erase was undone for one of them: the younger counts.
    fn read_front(&mut self, index: u32) -> Result<Front, FtlError> {
        let (mut is_blank_so_far, mut younger, mut copies) = (true, None::<SuperblockHeader>, 0);
        for offset in header_offsets(&self.ftl.geometry) {
            let page = self.bytes(index, offset, self.ftl.geometry.page_bytes as usize, Purview::Front)?;
            is_blank_so_far &= is_blank(page);
            let mut image: HeaderBytes = [0; 64];
            image.copy_from_slice(&page[..SUPERBLOCK_HEADER_BYTES as usize]);
            let Decoded { header, repaired } = match SuperblockHeader::decode_repairing(&image) {
                Ok(decoded) => decoded,
                Err(HeaderFault::Version(version)) => return Err(newer(index, version)),
                Err(HeaderFault::Invalid) => continue,
            };
            let expected = self.ftl.geometry.fingerprint();
            if header.geometry != expected {
                return Err(FtlError::OtherGeometry { superblock: index, found: header.geometry, expected });
            }
            if repaired {
                self.repaired(index, offset);
            }
            if header.index != index {
                continue;
            }
            if younger.is_none_or(|other| other.sequence < header.sequence) {
                (younger, copies) = (Some(header), 0);
            }
            copies += usize::from(younger == Some(header));
        }
        if younger.is_some() && copies < header_offsets(&self.ftl.geometry).len() {
            self.report.headers_lost += 1;
            self.report.note(index, 0, Damage::HeaderLost);
            self.ftl.superblocks[index as usize].suspect = true;
        }
        Ok(match younger {
            Some(header) => Front::Header(header),
            None if is_blank_so_far => Front::Blank,
            None => Front::Headless,
        })
    }

    /// Scans the host's superblocks first, then those that collection filled, each in order of life:
    /// so a copy is met after its original. (Life alone does not tell: the superblock that collection
    /// fills may have been opened before its victim was.)
    fn scan(&mut self) -> Result<(), FtlError> {
        let mut order: Vec<((usize, u64), Scan)> = Vec::new();
        for (index, front) in self.headers.iter().enumerate() {
            // Without a header nothing counts: pages of a superblock that lost its header with the power
            // were never synced, and what is left out now must not be found by a later recovery, either.
            let Front::Header(header) = front else { continue };
            let stream = header.stream.index();
            let scan = Scan {
                superblock: index as u32,
                life: (header.sequence, header.salt),
                is_trusted: header.sequence < self.trust.superblocks[stream],
                offset: first_extent_offset(&self.ftl.geometry),
                gap: None,
                blank: None,
                last: None,
            };
            order.push(((stream, header.sequence), scan));
        }
        order.sort_by_key(|(key, scan)| (*key, scan.superblock));
        for (_, mut scan) in order {
            self.report.superblocks_trusted += u32::from(scan.is_trusted);
            self.scan_superblock(&mut scan)?;
        }
        Ok(())
    }

    fn scan_superblock(&mut self, scan: &mut Scan) -> Result<(), FtlError> {
        let end = self.ftl.limits.superblock_bytes;
        self.window.hop = false;
        while scan.offset + u64::from(EXTENT_HEADER_BYTES) <= end {
            match self.header_at(scan)? {
                Some(header) => self.take_extent(scan, &header)?,
                None if !self.skip(scan)? => break,
                None => {}
            }
        }
        scan.offset = scan.offset.min(end);
        self.end_gap(scan);
        let entry = &mut self.ftl.superblocks[scan.superblock as usize];
        (entry.sequence, _) = scan.life;
        Ok(())
    }

    /// The header at the scan's offset, if there is one that belongs here.
    fn header_at(&mut self, scan: &Scan) -> Result<Option<ExtentHeader>, FtlError> {
        let superblock = scan.superblock;
        let place = HeaderPlace { superblock, offset16: (scan.offset / u64::from(EXTENT_ALIGN)) as u32 };
        let purview = if scan.gap.is_some() { Purview::Search } else { Purview::All };
        let bytes = self.bytes(superblock, scan.offset, EXTENT_HEADER_BYTES as usize, purview)?;
        // Off the chain only what is sound as it is counts: a search with repairs would find too much.
        if scan.gap.is_some() && !ExtentHeader::looks_like(bytes) {
            return Ok(None);
        }
        let mut image: HeaderBytes = [0; 64];
        image.copy_from_slice(bytes);
        let decoded = if scan.gap.is_some() {
            ExtentHeader::decode(&image, place).map(|header| Decoded { header, repaired: false })
        } else {
            ExtentHeader::decode_repairing(&image, place)
        };
        let Decoded { header, repaired } = match decoded {
            Ok(decoded) => decoded,
            Err(HeaderFault::Version(version)) => return Err(newer(superblock, version)),
            Err(HeaderFault::Invalid) => return Ok(None),
        };
        self.life_max = self.life_max.max(header.life);
        if !self.belongs(scan, &header) {
            return Ok(None);
        }
        let end = header.slba.0.saturating_add(u64::from(header.blocks));
        let logical_blocks = self.ftl.logical_blocks();
        if end > logical_blocks {
            return Err(FtlError::LogicalCapacity { end, logical_blocks });
        }
        if repaired {
            self.repaired(superblock, scan.offset);
        }
        Ok(Some(header))
    }

    /// Whether a sound header is of the superblock's present life, and could have been written.
    fn belongs(&self, scan: &Scan, header: &ExtentHeader) -> bool {
        let blocks_max = match header.kind {
            ExtentKind::Data => u32::from(u16::MAX),
            ExtentKind::Trim => u32::MAX,
        };
        scan.life == (header.life, header.salt)
            && (1..=blocks_max).contains(&header.blocks)
            && header.stored_bytes <= self.ftl.limits.stored_bytes_max
            && (header.kind == ExtentKind::Data || header.stored_bytes == 0)
            && scan.offset + u64::from(extent_footprint(header.stored_bytes)) <= self.ftl.limits.superblock_bytes
    }

    fn take_extent(&mut self, scan: &mut Scan, header: &ExtentHeader) -> Result<(), FtlError> {
        self.end_gap(scan);
        if let Some(start) = scan.blank.take() {
            self.report.holes += 1;
            self.report.note(scan.superblock, start, Damage::Hole);
            self.ftl.superblocks[scan.superblock as usize].suspect = true;
        }
        self.report.extents_seen += 1;
        self.seen_bytes += u64::from(extent_footprint(header.stored_bytes));
        self.report.sequence_max = self.report.sequence_max.max(header.sequence);
        self.trust.sequence = self.trust.sequence.max(header.trusted_sequence.unwrap_or(0));
        let footprint = extent_footprint(header.stored_bytes);
        let record = Record {
            kind: header.kind,
            damaged: header.damaged,
            slba: header.slba,
            blocks: header.blocks,
            raw_bytes: header.raw_bytes,
            stored_bytes: header.stored_bytes,
            tag: header.tag,
            checksum: header.checksum,
            sequence: header.sequence,
            superblock: scan.superblock,
            offset16: (scan.offset / u64::from(EXTENT_ALIGN)) as u32,
        };
        let is_sound = scan.is_trusted
            || header.damaged
            || self.ftl.has_bug(Bug::AcceptTornPayloads)
            || self.is_payload_sound(&record)?;
        if is_sound {
            self.enter(record)?;
        } else {
            self.unsound.push(record);
        }
        scan.last = Some(record);
        scan.offset += u64::from(footprint);
        self.window.hop = scan.is_trusted && footprint as usize > HOP_BYTES;
        Ok(())
    }

    fn is_payload_sound(&mut self, record: &Record) -> Result<bool, FtlError> {
        let crc = self.payload_checksum(record, Purview::Nothing)?;
        self.report.payload_bytes_checked += u64::from(record.stored_bytes);
        if crc == record.checksum && record.stored_bytes >= LOOKED_BYTES_MIN {
            let address = self.ftl.address(record.superblock, payload_offset(record));
            let (bytes, checksum) = (record.stored_bytes, record.checksum);
            (self.watch)(Looked::Payload { address, bytes, checksum });
        } else {
            self.payload_checksum(record, Purview::All)?;
        }
        Ok(record.kind == ExtentKind::Trim || crc == record.checksum)
    }

    fn payload_checksum(&mut self, record: &Record, purview: Purview) -> Result<u32, FtlError> {
        let (mut crc, mut done) = (0, 0);
        while done < record.stored_bytes {
            let part = (record.stored_bytes - done).min(WINDOW_BYTES as u32 / 2);
            let offset = payload_offset(record) + u64::from(done);
            let bytes = self.bytes(record.superblock, offset, part as usize, purview)?;
            crc = crc32c::crc32c_append(crc, bytes);
            done += part;
        }
        Ok(crc)
    }

    fn enter(&mut self, mut record: Record) -> Result<(), FtlError> {
        if self.ftl.has_bug(Bug::IgnoreSequence) {
            record.sequence = self.report.extents_seen;
        }
        let Some(slot) = self.ftl.directory.twin(&record) else {
            self.ftl.directory.insert(&record, AppendId(0));
            return Ok(());
        };
        let original = *self.ftl.directory.slot(slot);
        let original = Record {
            superblock: original.superblock,
            offset16: original.offset16,
            damaged: original.damaged,
            ..record
        };
        // The copy stands unless `settle_twins` finds a reason against it: an erase of the original's
        // superblock may already have begun.
        if original.damaged || self.is_payload_sound(&record)? {
            self.ftl.directory.use_copy(slot, record.superblock, record.offset16, record.damaged);
            self.twins.push(Twin { slot, record: original });
        }
        Ok(())
    }

    /// No header here: over blank bytes and padding to the next page, over anything else to the next
    /// place where a header could be. False at the end of what was written.
    fn skip(&mut self, scan: &mut Scan) -> Result<bool, FtlError> {
        let page_bytes = u64::from(self.ftl.geometry.page_bytes);
        let in_page = scan.offset % page_bytes;
        let rest = (page_bytes - in_page) as usize;
        if scan.gap.is_none() || in_page == 0 {
            self.window.hop = false;
            if is_blank(self.bytes(scan.superblock, scan.offset, rest, Purview::Blank)?) {
                self.end_gap(scan);
                if in_page == 0 {
                    scan.blank.get_or_insert(scan.offset);
                } else if scan.is_trusted {
                    self.check_padding(scan)?;
                }
                scan.offset += rest as u64;
                return Ok(true);
            }
            if scan.gap.is_none() {
                scan.gap = Some(scan.offset);
            }
        }
        scan.offset += u64::from(EXTENT_ALIGN);
        Ok(true)
    }

    /// Padding, or a page that was dropped behind the payload that ends in it? If all of the page is blank, the
    /// payload tells.
    fn check_padding(&mut self, scan: &Scan) -> Result<(), FtlError> {
        let page_bytes = u64::from(self.ftl.geometry.page_bytes);
        let start = scan.offset - scan.offset % page_bytes;
        let Some(last) = scan.last else { return Ok(()) };
        let page = self.bytes(scan.superblock, start, page_bytes as usize, Purview::Blank)?;
        if is_blank(page) && !self.is_payload_sound(&last)? {
            self.report.holes += 1;
            self.report.note(scan.superblock, start, Damage::Hole);
            self.ftl.superblocks[scan.superblock as usize].suspect = true;
        }
        Ok(())
    }

    fn end_gap(&mut self, scan: &mut Scan) {
        if let Some(start) = scan.gap.take() {
            let bytes = scan.offset - start;
            self.report.gaps += 1;
            self.report.gap_bytes += bytes;
            self.report.note(scan.superblock, start, Damage::Gap { bytes });
            self.ftl.superblocks[scan.superblock as usize].suspect = true;
        }
    }

    fn repaired(&mut self, superblock: u32, offset_bytes: u64) {
        self.report.headers_repaired += 1;
        self.report.note(superblock, offset_bytes, Damage::HeaderRepaired);
        self.ftl.superblocks[superblock as usize].suspect = true;
    }

    /// What was synced and does not fit stays mapped, where no sound record is as new.
    fn keep_rotten(&mut self) {
        for mut record in core::mem::take(&mut self.unsound) {
            let offset_bytes = u64::from(record.offset16) * u64::from(EXTENT_ALIGN);
            let (slba, sequence) = (record.slba, record.sequence);
            self.ftl.superblocks[record.superblock as usize].suspect = true;
            record.damaged = sequence <= self.trust.sequence;
            // A copy that collection had not finished is torn as well, whatever its sequence: the
            // original stands, or something newer.
            if record.damaged && self.ftl.directory.insert(&record, AppendId(0)) != NO_SLOT {
                self.report.extents_damaged += 1;
                self.report.note(record.superblock, offset_bytes, Damage::Rotten { slba, sequence });
            } else {
                self.report.extents_torn += 1;
                self.report.note(record.superblock, offset_bytes, Damage::Torn { slba, sequence });
            }
        }
    }

    /// Collection was interrupted and left two copies of some extents. If the victim has extents that
    /// were not copied yet, its erase has not begun, and its copies stand: then the superblock that was
    /// being filled from it is empty, and can be erased at once. Otherwise a device that is cut off
    /// again and again during collection would be left with many half-emptied superblocks and no free
    /// one to empty them into.
    fn settle_twins(&mut self) -> Result<(), FtlError> {
        let residents = |index| self.ftl.directory.residents(index).live_bytes > 0;
        let has_singles: Vec<bool> = (0..self.ftl.geometry.superblocks()).map(residents).collect();
        // From the last copy to the first original, which has the last word.
        for Twin { slot, record } in core::mem::take(&mut self.twins).into_iter().rev() {
            let entry = self.ftl.directory.slot(slot);
            let is_alive = entry.live > 0 && entry.sequence == record.sequence && entry.slba == record.slba.0 as u32;
            let is_intact = has_singles[record.superblock as usize] && self.is_payload_sound(&record)?;
            let stands = match self.ftl.bug {
                Some(Bug::OriginalStands) => true,
                Some(Bug::CopyStands) => false,
                _ => is_intact,
            };
            if is_alive && stands {
                self.ftl.directory.use_copy(slot, record.superblock, record.offset16, record.damaged);
            }
        }
        Ok(())
    }

    /// Erase counts from the superblocks' own headers, else from the notes in others'.
    fn restore_erase_counts(&mut self) {
        let mut counts: Vec<Option<u32>> = vec![None; self.headers.len()];
        for front in &self.headers {
            if let Front::Header(SuperblockHeader { note: Some((index, count)), .. }) = front
                && let Some(known) = counts.get_mut(*index as usize)
            {
                *known = Some(known.unwrap_or(0).max(*count));
            }
        }
        for (count, front) in counts.iter_mut().zip(&self.headers) {
            if let Front::Header(header) = front {
                *count = Some(header.erase_count);
            }
        }
        let known: Vec<u64> = counts.iter().flatten().map(|count| u64::from(*count)).collect();
        let mean = known.iter().sum::<u64>().checked_div(known.len() as u64).unwrap_or(0);
        for (superblock, count) in self.ftl.superblocks.iter_mut().zip(counts) {
            superblock.erase_count = count.unwrap_or(mean as u32);
            self.report.erase_counts_estimated += u32::from(count.is_none());
        }
    }

    /// Every superblock is closed; those without live extents are the first that collection erases.
    fn finish(mut self) -> RecoveryReport {
        for superblock in &mut self.ftl.superblocks {
            superblock.state = SuperblockState::Closed;
            superblock.next_page = self.ftl.geometry.pages_per_superblock();
        }
        for finding in &mut self.report.findings {
            let Front::Header(header) = &self.headers[finding.superblock as usize] else { continue };
            finding.was_synced = header.sequence < self.trust.superblocks[header.stream.index()];
        }
        self.ftl.superblocks_free = 0;
        self.ftl.suspects = self.ftl.superblocks.iter().filter(|superblock| superblock.suspect).count() as u32;
        self.ftl.next_superblock_sequence = self.life_max + 1;
        self.ftl.trust = self.trust;
        self.report.sequence_max = self.report.sequence_max.max(self.trust.sequence);
        self.report.trusted_sequence = self.trust.sequence;
        self.ftl.replays_through = self.report.sequence_max;
        self.ftl.shadows = Shadows::recovered(self.seen_bytes.saturating_sub(self.ftl.directory.live_bytes));
        self.report.superblocks_suspect = self.ftl.suspects;
        self.report.extents_live = self.ftl.directory.live_extents;
        self.report
    }

    fn bytes(
        &mut self,
        superblock: u32,
        offset_bytes: u64,
        length: usize,
        purview: Purview,
    ) -> Result<&[u8], FtlError> {
        let address = self.ftl.address(superblock, offset_bytes);
        let left = self.ftl.limits.superblock_bytes - offset_bytes;
        let found = self.window.get(address, length, left)?;
        let bytes = purview.of(found);
        if !bytes.is_empty() {
            (self.watch)(Looked::Bytes { address, bytes });
        }
        Ok(found)
    }
}

fn payload_offset(record: &Record) -> u64 {
    u64::from(record.offset16) * u64::from(EXTENT_ALIGN) + u64::from(EXTENT_HEADER_BYTES)
}

/// A stretch of the media in memory.
struct Window<'a> {
    read: &'a mut ReadMedia<'a>,
    bytes: Vec<u8>,
    start: u64,
    /// Whether to read no more than a header's surroundings.
    hop: bool,
}

impl Window<'_> {
    /// `length` bytes at `address`; `left` bound what may be read from there on.
    fn get(&mut self, address: u64, length: usize, left: u64) -> Result<&[u8], FtlError> {
        let end = address + length as u64;
        if address < self.start || end > self.start + self.bytes.len() as u64 {
            let ahead = if self.hop { HOP_BYTES } else { WINDOW_BYTES };
            let bytes = length.max(ahead.min(usize::try_from(left).unwrap_or(usize::MAX)));
            self.bytes.resize(bytes, 0);
            self.start = address;
            (self.read)(address, &mut self.bytes).map_err(|source| FtlError::Read {
                address,
                bytes: bytes as u32,
                source,
            })?;
        }
        let from = (address - self.start) as usize;
        Ok(&self.bytes[from..from + length])
    }
}

/// Erased media reads as ones or as zeroes; padding is zeroes.
fn is_blank(bytes: &[u8]) -> bool {
    let first = bytes.first().copied().unwrap_or(0);
    (first == 0 || first == 0xff) && bytes.iter().all(|&byte| byte == first)
}

fn newer(superblock: u32, version: u16) -> FtlError {
    FtlError::NewerVersion { superblock, version, known: FORMAT_VERSION }
}
