//! A client of few words, for what well-behaved ones never do.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;

pub struct Raw(pub UnixStream);

impl Raw {
    /// Connected, and greeted.
    pub fn connect(socket: &Path) -> Raw {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        stream.write_all(&3_u32.to_be_bytes()).unwrap();
        Raw(stream)
    }

    /// Sends an option; the type and the data of the first reply.
    pub fn option(&mut self, option: u32, data: &[u8]) -> (u32, Vec<u8>) {
        let length = (data.len() as u32).to_be_bytes();
        self.0.write_all(&[b"IHAVEOPT", &option.to_be_bytes()[..], &length, data].concat()).unwrap();
        self.option_reply()
    }

    pub fn option_reply(&mut self) -> (u32, Vec<u8>) {
        let mut head = [0; 20];
        self.0.read_exact(&mut head).unwrap();
        let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        let mut data = vec![0; number(16) as usize];
        self.0.read_exact(&mut data).unwrap();
        (number(12), data)
    }

    /// Into the transmission, with simple replies.
    pub fn go(&mut self) {
        assert_eq!(self.option(7, &[0; 6]).0, 3);
        assert_eq!(self.option_reply().0, 1);
    }

    pub fn request(command: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
        let parts: [&[u8]; 6] = [
            &0x2560_9513_u32.to_be_bytes(),
            &0_u16.to_be_bytes(),
            &command.to_be_bytes(),
            &cookie.to_be_bytes(),
            &offset.to_be_bytes(),
            &length.to_be_bytes(),
        ];
        parts.concat()
    }

    /// The error and the cookie of a simple reply.
    pub fn reply(&mut self) -> (u32, u64) {
        let mut head = [0; 16];
        self.0.read_exact(&mut head).unwrap();
        assert_eq!(head[..4], 0x6744_6698_u32.to_be_bytes());
        (u32::from_be_bytes(head[4..8].try_into().unwrap()), u64::from_be_bytes(head[8..].try_into().unwrap()))
    }

    /// Whether the server has closed the connection, after whatever it still sends.
    pub fn is_closed(&mut self) -> bool {
        self.0.read_to_end(&mut Vec::new()).is_ok()
    }
}
