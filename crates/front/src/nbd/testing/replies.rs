//! Replies as a client reads them, written from the document alone.

/// What is left of the bytes of a server.
pub struct Replies<'a>(pub &'a [u8]);

pub use super::stream::Check;

/// Which messages were agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Simple,
    Structured,
    Extended,
}

/// A reply to a request, its chunks put together.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reply {
    pub cookie: u64,
    pub error: u32,
    pub error_offset: Option<u64>,
    /// Offset, bytes, and whether it came as a hole.
    pub content: Vec<(u64, Vec<u8>, bool)>,
    pub extents: Vec<(u64, u64)>,
}

impl<'a> Replies<'a> {
    pub fn bytes(&mut self, count: usize) -> Check<&'a [u8]> {
        let left = self.0.len();
        let (bytes, rest) = self.0.split_at_checked(count).ok_or(format!("{count} bytes wanted, {left} there"))?;
        self.0 = rest;
        Ok(bytes)
    }

    pub fn number(&mut self, bytes: usize) -> Check<u64> {
        Ok(self.bytes(bytes)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    pub fn expect(&mut self, bytes: usize, value: u64, what: &str) -> Check<()> {
        let found = self.number(bytes)?;
        if found == value { Ok(()) } else { Err(format!("{what} is {found:#x} and should be {value:#x}")) }
    }

    pub fn greeting(&mut self) -> Check<()> {
        self.expect(8, 0x4e42444d41474943, "NBDMAGIC")?;
        self.expect(8, 0x49484156454F5054, "IHAVEOPT")?;
        self.expect(2, 3, "the handshake flags")
    }

    /// The type and the data of a reply to an option.
    pub fn option(&mut self, option: u32) -> Check<(u32, &'a [u8])> {
        self.expect(8, 0x3e889045565a9, "the magic of an option's reply")?;
        self.expect(4, option.into(), "the option")?;
        let kind = self.number(4)? as u32;
        let length = self.number(4)? as usize;
        Ok((kind, self.bytes(length)?))
    }

    /// The next reply in full. `read` is the length of the read that it answers, if it does.
    pub fn reply(&mut self, style: Style, offset: u64, read: Option<u64>) -> Check<Reply> {
        let mut reply = Reply::default();
        if style != Style::Extended && self.0.starts_with(&0x67446698_u32.to_be_bytes()) {
            self.bytes(4)?;
            reply.error = self.number(4)? as u32;
            reply.cookie = self.number(8)?;
            match read {
                Some(_) if style == Style::Structured => return Err("a simple reply to a read".to_owned()),
                Some(length) if reply.error == 0 && length > 0 => {
                    reply.content.push((offset, self.bytes(length as usize)?.to_vec(), false));
                }
                _ => {}
            }
            return Ok(reply);
        }
        if style == Style::Simple {
            return Err("no simple reply".to_owned());
        }
        let mut is_first = true;
        loop {
            self.expect(4, if style == Style::Extended { 0x6e8a278c } else { 0x668e33ef }, "the magic of a chunk")?;
            let flags = self.number(2)?;
            let kind = self.number(2)?;
            let cookie = self.number(8)?;
            if !is_first && cookie != reply.cookie {
                return Err("the chunks of two replies are mixed".to_owned());
            }
            (reply.cookie, is_first) = (cookie, false);
            let length = if style == Style::Extended {
                self.expect(8, offset, "the offset of the request")?;
                self.number(8)?
            } else {
                self.number(4)?
            };
            let mut payload = Replies(self.bytes(length as usize)?);
            payload.chunk(kind, style, &mut reply)?;
            if !payload.0.is_empty() {
                return Err(format!("{} bytes too many in a chunk of type {kind}", payload.0.len()));
            }
            match flags {
                0 if kind != 0 => {}
                1 => return Ok(reply),
                _ => return Err(format!("flags {flags} on a chunk of type {kind}")),
            }
        }
    }

    fn chunk(&mut self, kind: u64, style: Style, reply: &mut Reply) -> Check<()> {
        match kind {
            0 => {}
            1 => {
                let offset = self.number(8)?;
                let data = std::mem::take(&mut self.0).to_vec();
                if data.is_empty() {
                    return Err("a data chunk without data".to_owned());
                }
                reply.content.push((offset, data, false));
            }
            2 => {
                let (offset, length) = (self.number(8)?, self.number(4)?);
                reply.content.push((offset, vec![0; length as usize], true));
            }
            5 if style == Style::Structured => {
                self.expect(4, 1, "the context")?;
                while !self.0.is_empty() {
                    reply.extents.push((self.number(4)?, self.number(4)?));
                }
            }
            6 if style == Style::Extended => {
                self.expect(4, 1, "the context")?;
                for _ in 0..self.number(4)? {
                    reply.extents.push((self.number(8)?, self.number(8)?));
                }
            }
            0x8001 | 0x8002 => {
                reply.error = self.number(4)? as u32;
                let text = self.number(2)? as usize;
                std::str::from_utf8(self.bytes(text)?).map_err(|error| error.to_string())?;
                reply.error_offset = if kind == 0x8002 { Some(self.number(8)?) } else { None };
                if reply.error == 0 {
                    return Err("an error chunk without an error".to_owned());
                }
            }
            _ => return Err(format!("a chunk of type {kind}")),
        }
        Ok(())
    }
}

impl Reply {
    /// The bytes that were read, which are each to come once.
    pub fn data(&mut self, offset: u64, length: u64) -> Check<Vec<u8>> {
        self.content.sort_by_key(|(offset, ..)| *offset);
        let mut data = Vec::new();
        for (at, bytes, _) in &self.content {
            if *at != offset + data.len() as u64 {
                return Err(format!("content at {at}, and {} is next", offset + data.len() as u64));
            }
            data.extend_from_slice(bytes);
        }
        if data.len() as u64 == length { Ok(data) } else { Err(format!("{} bytes for {length}", data.len())) }
    }
}
