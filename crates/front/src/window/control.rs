//! The device's half of the control socket: a request is a line, and so is its answer.
//!
//! Invariants:
//! - a connection has one request under way, and as many bytes as a request and an answer have;
//! - who does not read its answers, or sends what is no line, loses its connection and nothing else.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use osier_device::window::request::{Answer, REQUEST_MAX, Request};

/// Connections at a time.
const CONNECTIONS_MAX: usize = 64;
/// Connections let in at one look.
const ACCEPTS_PER_LOOK: usize = 8;
/// Bytes read from a connection at one look.
const READ_MAX: usize = REQUEST_MAX + 1;

/// One who asks.
struct Connection {
    /// Names it in the core's answers.
    tag: u32,
    socket: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
    /// A command of it is under way.
    waits: bool,
    /// Nothing more is read: it is closed once its answer is out.
    is_ending: bool,
    has_failed: bool,
}

/// See the module.
pub(super) struct Controls {
    listener: UnixListener,
    path: PathBuf,
    connections: Vec<Connection>,
    next_tag: u32,
}

impl Controls {
    pub fn new(listener: UnixListener, path: PathBuf) -> Controls {
        Controls { listener, path, connections: Vec::new(), next_tag: 0 }
    }

    /// Lets connections in and out, and takes requests: one of each connection at most.
    pub fn look(&mut self) -> Vec<(u32, Request)> {
        for _ in 0..ACCEPTS_PER_LOOK {
            // What the system refuses, such as more descriptors, is tried again at the next look.
            let Ok((socket, _)) = self.listener.accept() else { break };
            self.let_in(socket);
        }
        let mut requests = Vec::new();
        for connection in &mut self.connections {
            requests.extend(connection.look().map(|request| (connection.tag, request)));
        }
        self.connections.retain(|connection| !connection.is_over());
        requests
    }

    fn let_in(&mut self, socket: UnixStream) {
        if socket.set_nonblocking(true).is_err() {
            return;
        }
        let tag = self.next_tag;
        self.next_tag = tag.wrapping_add(1);
        let (input, output) = (Vec::new(), Vec::new());
        let mut connection =
            Connection { tag, socket, input, output, waits: false, is_ending: false, has_failed: false };
        if self.connections.len() >= CONNECTIONS_MAX {
            connection.refuse(format!("{CONNECTIONS_MAX} connections are open, the most that may; close one"));
        } else {
            self.connections.push(connection);
        }
    }

    /// Answers a request, unless who asked has gone.
    pub fn answer(&mut self, tag: u32, answer: &Answer) {
        if let Some(connection) = self.connections.iter_mut().find(|connection| connection.tag == tag) {
            connection.answer(answer);
        }
    }
}

impl Drop for Controls {
    fn drop(&mut self) {
        // Nobody can ask any more; a failure leaves a socket that refuses.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Connection {
    /// Its next request, once its answers are out.
    fn look(&mut self) -> Option<Request> {
        self.flush();
        if self.waits || self.is_ending || !self.output.is_empty() {
            return None;
        }
        let mut room = [0; READ_MAX];
        // What has come is enough for a request, or one has to be refused.
        if self.input.len() <= REQUEST_MAX && !self.input.contains(&b'\n') {
            match self.socket.read(&mut room) {
                Ok(0) => self.has_failed = true,
                Ok(got) => self.input.extend_from_slice(&room[..got]),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(_) => self.has_failed = true,
            }
        }
        let Some(end) = self.input.iter().position(|byte| *byte == b'\n').filter(|end| *end <= REQUEST_MAX) else {
            if self.input.len() > REQUEST_MAX {
                self.refuse(format!("a request is a line of at most {REQUEST_MAX} bytes, and this is none"));
            }
            return None;
        };
        let line: Vec<u8> = self.input.drain(..=end).collect();
        match Request::parse(&String::from_utf8_lossy(&line[..end])) {
            Ok(request) => {
                self.waits = true;
                Some(request)
            }
            Err(error) => {
                self.answer(&Answer::Error(error.to_string()));
                None
            }
        }
    }

    fn answer(&mut self, answer: &Answer) {
        self.waits = false;
        self.output.extend_from_slice(format!("{answer}\n").as_bytes());
        self.flush();
    }

    /// What it sends cannot be told apart into requests any more.
    fn refuse(&mut self, why: String) {
        self.answer(&Answer::Error(why));
        self.is_ending = true;
    }

    fn flush(&mut self) {
        while !self.output.is_empty() && !self.has_failed {
            match self.socket.write(&self.output) {
                Ok(sent) => _ = self.output.drain(..sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.has_failed = true,
            }
        }
    }

    fn is_over(&self) -> bool {
        self.has_failed || (self.is_ending && self.output.is_empty())
    }
}
