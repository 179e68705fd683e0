//! Compressed traces, recognized by their first bytes.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// How a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// It is not.
    None,
    /// gzip (RFC 1952), also several members one after the other.
    Gzip,
    /// Zstandard (RFC 8878), also several frames one after the other.
    Zstd,
}

impl Compression {
    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
        }
    }
}

/// RFC 1952, 2.3.1.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// RFC 8878, 3.1.1, as it lies in the file.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Bytes that are read from a compressed file at once.
const BUFFER_BYTES: usize = 64 << 10;

/// The bytes of a file as they were before it was compressed, if it was. They are decompressed as they are read; what
/// is damaged or cut off is an error of that read, never an end.
///
/// # Errors
/// If the first bytes cannot be read, or a zstd header is damaged.
pub fn unpack<'a>(mut file: impl Read + 'a) -> io::Result<(Compression, Box<dyn Read + 'a>)> {
    let mut magic = Vec::with_capacity(ZSTD_MAGIC.len());
    file.by_ref().take(ZSTD_MAGIC.len() as u64).read_to_end(&mut magic)?;
    let (is_gzip, is_zstd) = (magic.starts_with(&GZIP_MAGIC), magic == ZSTD_MAGIC);
    let whole = io::Cursor::new(magic).chain(file);
    if is_gzip {
        let file = BufReader::with_capacity(BUFFER_BYTES, whole);
        return Ok((Compression::Gzip, Box::new(Gzip(MultiGzDecoder::new(file)))));
    }
    if is_zstd {
        let file = BufReader::with_capacity(BUFFER_BYTES, whole);
        return Ok((Compression::Zstd, Box::new(Zstd::new(file)?)));
    }
    Ok((Compression::None, Box::new(whole)))
}

/// Says of an error what it means.
struct Gzip<R>(R);

impl<R: Read> Read for Gzip<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into).map_err(|cause| match cause.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
                io::Error::new(cause.kind(), format!("gzip: {cause}; the file is damaged or cut off"))
            }
            _ => cause,
        })
    }
}

/// Every frame of a file, one after the other, each checked against its checksum if it has one.
struct Zstd<R> {
    file: R,
    decoder: FrameDecoder,
    /// Whether a frame has begun and not ended.
    in_frame: bool,
}

impl<R: BufRead> Zstd<R> {
    fn new(file: R) -> io::Result<Self> {
        let mut zstd = Zstd { file, decoder: FrameDecoder::new(), in_frame: false };
        zstd.begin()?;
        Ok(zstd)
    }

    /// Begins the next frame that has data, if there is one.
    fn begin(&mut self) -> io::Result<()> {
        while !self.in_frame && !self.file.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.file) {
                Ok(()) => self.in_frame = true,
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let skipped = io::copy(&mut self.file.by_ref().take(length.into()), &mut io::sink())?;
                    if skipped < length.into() {
                        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "zstd: the file is cut off"));
                    }
                }
                Err(cause) => return Err(broken(&cause)),
            }
        }
        Ok(())
    }

    /// Ends a frame of which every byte has been handed on.
    fn end(&mut self) -> io::Result<()> {
        self.in_frame = false;
        let (said, is) = (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum());
        if said.is_some() && said != is {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "zstd: the checksum is wrong; the file is damaged"));
        }
        self.begin()
    }
}

fn broken(cause: &FrameDecoderError) -> io::Error {
    let remedy = match cause {
        FrameDecoderError::WindowSizeTooBig { .. } => "; decompress it with `zstd -dc --long=31` and read that",
        _ => "; the file is damaged or cut off",
    };
    io::Error::new(io::ErrorKind::InvalidData, format!("zstd: {cause}{remedy}"))
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.in_frame && !into.is_empty() {
            if !self.decoder.is_finished() && self.decoder.can_collect() < into.len() {
                let wanted = BlockDecodingStrategy::UptoBytes(into.len());
                self.decoder.decode_blocks(&mut self.file, wanted).map_err(|cause| broken(&cause))?;
            }
            let read = self.decoder.read(into)?;
            if read > 0 {
                return Ok(read);
            }
            if self.decoder.is_finished() {
                self.end()?;
            }
        }
        Ok(0)
    }
}
