//! The recording of the device core as a file: a thread that writes blocks, and a bounded queue before it.
//!
//! The firmware's thread never waits for the disk while the device serves, unless the user says that it shall: where
//! the queue is full or the disk refuses, the recording ends there and says so, and the device runs on. The
//! scheduler's samples are another file (`sampler`).

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use osier_device::record::{
    self, BLOCK_HEADER_BYTES, BlockHeader, Next, RecordingError, Sink, Urgency, read_block, stopped_block,
};

use crate::error::RuntimeError;

/// Blocks that wait for the disk: some 16 MiB.
const QUEUE_BLOCKS: usize = 256;

/// Where a recording goes.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordCore {
    /// The file.
    pub path: PathBuf,
    /// The device waits for the disk where the recording would end.
    pub wait: bool,
}

/// Refuses a file that is something else, before it is written to.
///
/// # Errors
/// What it is, or what the system refused.
pub fn check(path: &Path) -> Result<(), RuntimeError> {
    let failed = |source| RuntimeError::Recording { path: path.to_owned(), source };
    // For its owner alone: of torn pages it may hold what users wrote.
    let file = File::options().read(true).append(true).create(true).mode(0o600).open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(failed(std::io::Error::other("it is no file that can be read again")));
    }
    let mut head = Vec::new();
    (&file).take(record::MAGIC.len() as u64).read_to_end(&mut head).map_err(failed)?;
    if record::MAGIC.starts_with(&head) {
        return Ok(());
    }
    Err(failed(std::io::Error::other("it holds something that is no recording, and is kept")))
}

/// The queue's end at the firmware.
pub struct FileSink {
    path: PathBuf,
    wait: bool,
    sender: Option<SyncSender<Vec<u8>>>,
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// Blocks in the queue.
    waiting: AtomicUsize,
    /// Why the writer takes no more.
    failed: Mutex<Option<String>>,
}

impl FileSink {
    /// The sink of a life of the core, and which life that is: the first of a session takes the place of an older
    /// recording, a later one goes on behind what is whole. The file is this sink's alone until the sink or its process
    /// ends.
    ///
    /// # Errors
    /// What the system refused, another device that records to the file, or damage in it.
    pub fn open(to: &RecordCore, goes_on: bool) -> Result<(FileSink, u32), RuntimeError> {
        let failed = |source| RuntimeError::Recording { path: to.path.clone(), source };
        let mut how = File::options();
        let opened = how.read(true).write(true).create(true).truncate(false).open(&to.path);
        let mut file = opened.map_err(failed)?;
        lock(&file).map_err(failed)?;
        if !goes_on {
            file.set_len(0).map_err(failed)?;
        }
        let (end, life) = whole_blocks(&mut file).map_err(failed)?;
        file.set_len(end).and_then(|()| file.seek(SeekFrom::Start(end))).map_err(failed)?;
        Ok((FileSink::spawn(to, file, end).map_err(failed)?, life))
    }

    fn spawn(to: &RecordCore, file: File, end: u64) -> std::io::Result<FileSink> {
        // One more than is let in: the block that ends a recording always fits.
        let (sender, blocks) = sync_channel(QUEUE_BLOCKS + 1);
        let shared = Arc::new(Shared::default());
        let mut writer = Writer { path: to.path.clone(), file, end, shared: shared.clone() };
        let writer = std::thread::Builder::new().name("recording".to_owned()).spawn(move || writer.run(&blocks))?;
        Ok(FileSink { path: to.path.clone(), wait: to.wait, sender: Some(sender), shared, writer: Some(writer) })
    }
}

/// Two devices that write to one file would destroy both recordings.
fn lock(file: &File) -> std::io::Result<()> {
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => std::io::Error::other(
            "another device that runs records to it; end that one, or name another file with --record-core",
        ),
        TryLockError::Error(error) => error,
    })
}

/// Where the last whole block of a file ends, and the number that the next life has.
fn whole_blocks(file: &mut File) -> std::io::Result<(u64, u32)> {
    let length = file.metadata()?.len();
    let (mut end, mut life) = (0, 0);
    loop {
        let mut header = [0; BLOCK_HEADER_BYTES];
        file.seek(SeekFrom::Start(end))?;
        if end + BLOCK_HEADER_BYTES as u64 > length {
            return is_torn(file, end).map(|()| (end, life));
        }
        file.read_exact(&mut header)?;
        let (header, _) = BlockHeader::decode(&header).map_err(std::io::Error::other)?;
        let next = end + BLOCK_HEADER_BYTES as u64 + u64::from(header.bytes);
        if next > length {
            file.seek(SeekFrom::Start(end))?;
            return is_torn(file, end).map(|()| (end, life));
        }
        (end, life) = (next, header.life + 1);
    }
}

/// Refuses to cut off what is more than the first part of a block.
fn is_torn(file: &mut File, at: u64) -> std::io::Result<()> {
    let kept = |what: &str| Err(std::io::Error::other(format!("it is damaged at byte {at}: {what}; it is kept")));
    match read_block(file, at) {
        Ok(Next::Torn(_) | Next::End) => Ok(()),
        Ok(Next::Block(..)) => kept("somebody else writes to it"),
        Err(RecordingError::Damaged { what, .. }) => kept(&what),
        Err(other) => Err(std::io::Error::other(other)),
    }
}

impl Sink for FileSink {
    fn block(&mut self, block: Vec<u8>, urgency: Urgency) -> Result<(), String> {
        if let Some(why) = self.shared.failure() {
            return Err(why);
        }
        let waits = self.wait || urgency == Urgency::MayWait;
        if !waits && urgency == Urgency::Now && self.shared.waiting.load(Ordering::Acquire) >= QUEUE_BLOCKS {
            let why = format!("the disk took less than the device gave: {QUEUE_BLOCKS} blocks waited for it");
            tracing::error!(
                path = %self.path.display(),
                "the recording of the core ends here: {why}. The device runs on; --record-core-wait lets it wait"
            );
            return Err(why);
        }
        self.shared.waiting.fetch_add(1, Ordering::AcqRel);
        let sent = self.sender.as_ref().map(|sender| sender.send(block));
        if matches!(sent, Some(Ok(()))) { Ok(()) } else { Err("its thread has ended".to_owned()) }
    }
}

impl Drop for FileSink {
    /// Waits until everything is in the file.
    fn drop(&mut self) {
        self.sender = None;
        if let Some(writer) = self.writer.take() {
            // A panic of the writer was printed where it happened.
            let _ = writer.join();
        }
    }
}

impl Shared {
    fn failure(&self) -> Option<String> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

struct Writer {
    path: PathBuf,
    file: File,
    /// Where the last whole block ends.
    end: u64,
    shared: Arc<Shared>,
}

impl Writer {
    fn run(&mut self, blocks: &Receiver<Vec<u8>>) {
        for block in blocks {
            // After a failure the queue is emptied, so that nobody waits for it.
            if self.shared.failure().is_none()
                && let Err(error) = self.write(&block)
            {
                self.give_up(&block, &error);
            }
            self.shared.waiting.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn write(&mut self, block: &[u8]) -> std::io::Result<()> {
        self.file.write_all(block)?;
        self.end += block.len() as u64;
        Ok(())
    }

    /// Cuts what was written of a block, and puts in its place why the recording ends, if there is room for that.
    fn give_up(&mut self, block: &[u8], error: &std::io::Error) {
        let why = format!("writing failed: {error}");
        tracing::error!(
            path = %self.path.display(),
            "the recording of the core ends here: {why}. The device runs on, and what is recorded can be replayed"
        );
        let end = self.end;
        let cut = |file: &mut File| file.set_len(end).and_then(|()| file.seek(SeekFrom::Start(end)));
        let stopped = stopped_block(block, &why);
        let put = cut(&mut self.file).and_then(|_| self.write(stopped.as_deref().unwrap_or_default()));
        if put.is_err() {
            // The replay finds a recording without an end; that a part of a block is left is no harm to it.
            let _ = cut(&mut self.file);
        }
        *self.shared.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(life: u32, number: u64, records: &[u8]) -> Vec<u8> {
        let header = BlockHeader { life, number, first_input: number, bytes: records.len() as u32 };
        [&header.encode(records)[..], records].concat()
    }

    fn to(path: &Path, wait: bool) -> RecordCore {
        RecordCore { path: path.to_owned(), wait }
    }

    #[test]
    fn a_life_goes_on_behind_the_last_whole_block_of_the_one_before() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("recording");
        std::fs::write(&path, block(4, 0, b"of another session")).unwrap();
        let (mut sink, life) = FileSink::open(&to(&path, false), false).unwrap();
        assert_eq!(life, 0);
        sink.block(block(0, 0, b"one"), Urgency::MayWait).unwrap();
        sink.block(block(0, 1, b"two"), Urgency::Now).unwrap();
        drop(sink);
        let whole = std::fs::read(&path).unwrap();
        assert_eq!(whole, [block(0, 0, b"one"), block(0, 1, b"two")].concat());
        let torn = block(0, 2, b"three");
        for cut in [1, BLOCK_HEADER_BYTES, torn.len() - 1] {
            std::fs::write(&path, [&whole[..], &torn[..cut]].concat()).unwrap();
            let (mut sink, life) = FileSink::open(&to(&path, false), true).unwrap();
            assert_eq!(life, 1);
            sink.block(block(1, 0, b"again"), Urgency::Now).unwrap();
            drop(sink);
            assert_eq!(std::fs::read(&path).unwrap(), [whole.clone(), block(1, 0, b"again")].concat());
        }
    }

    #[test]
    fn a_damaged_recording_is_kept_and_not_gone_on_with() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("recording");
        let whole = [block(0, 0, b"one"), block(0, 1, b"two"), block(0, 2, b"three")].concat();
        let rest = (whole.len() - BLOCK_HEADER_BYTES) as u32;
        // Longer than the file, longer than blocks are, and up to a few bytes before the file's end.
        for length in [rest + 1, 1 << 20, u32::MAX, rest - 1] {
            let mut damaged = whole.clone();
            damaged[32..36].copy_from_slice(&length.to_le_bytes());
            std::fs::write(&path, &damaged).unwrap();
            let error = FileSink::open(&to(&path, false), true).err().expect("refused").to_string();
            assert!(error.contains("damaged at byte") && error.contains("is kept"), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), damaged);
        }
    }

    #[test]
    fn two_devices_do_not_record_to_one_file() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("recording");
        let (mut first, _) = FileSink::open(&to(&path, false), false).unwrap();
        first.block(block(0, 0, b"one"), Urgency::Now).unwrap();
        for goes_on in [false, true] {
            let error = FileSink::open(&to(&path, false), goes_on).err().expect("refused").to_string();
            assert!(error.contains("another device that runs records to it"), "{error}");
        }
        // Before a session begins it looks at the file; that takes it from nobody.
        check(&path).unwrap();
        drop(first);
        assert_eq!(std::fs::read(&path).unwrap(), block(0, 0, b"one"));
        assert_eq!(FileSink::open(&to(&path, false), true).unwrap().1, 1);
    }

    #[test]
    fn a_disk_that_takes_nothing_ends_the_recording_with_its_reason() {
        let file = File::options().write(true).open("/dev/full").unwrap();
        // It waits: otherwise the queue could fill up before the writer's first try.
        let mut sink = FileSink::spawn(&to(Path::new("/dev/full"), true), file, 0).unwrap();
        let begun = std::time::Instant::now();
        let why = loop {
            match sink.block(block(0, 0, b"x"), Urgency::Now) {
                Ok(()) => assert!(begun.elapsed().as_secs() < 20, "the disk is full and nobody says so"),
                Err(why) => break why,
            }
        };
        assert!(why.contains("No space left"), "{why}");
    }

    /// A pipe that nobody reads is a disk that never is ready.
    #[test]
    fn a_slow_disk_does_not_hold_up_the_device_unless_it_is_to_wait() {
        let (reader, pipe) = std::io::pipe().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(pipe));
        let mut sink = FileSink::spawn(&to(Path::new("a pipe"), false), file, 0).unwrap();
        let records = vec![7; 64 << 10];
        let mut taken = 0;
        let why = loop {
            match sink.block(block(0, taken, &records), Urgency::Now) {
                Ok(()) => taken += 1,
                Err(why) => break why,
            }
        };
        assert!(why.contains("the disk took less"), "{why}");
        assert!((QUEUE_BLOCKS as u64..QUEUE_BLOCKS as u64 + 4).contains(&taken), "{taken}");
        // The block that says why is taken all the same.
        sink.block(block(0, taken, b"the end"), Urgency::Last).unwrap();
        drop(reader);
    }

    #[test]
    fn a_file_that_is_something_else_is_kept() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("thesis.tex");
        std::fs::write(&path, "three years of work").unwrap();
        let error = check(&path).unwrap_err().to_string();
        assert!(error.contains("thesis.tex") && error.contains("is kept"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"three years of work");
        std::fs::write(&path, block(0, 0, b"x")).unwrap();
        check(&path).unwrap();
        check(&home.path().join("new")).unwrap();
        assert!(check(Path::new("/dev/null")).is_err());
    }
}
