//! HTTP/1.1 as far as a page and its figures need it: GET and HEAD of a few paths, one request a connection.
//!
//! RFC 9110 and 9112. A request is bounded in bytes and in time, and so are the connections at a time.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::listen::{ListenError, Listening, Places, Remote, Service, Visitor};

/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Header lines of a request.
const HEADERS_MAX: usize = 64;
/// How long a client may take for its request, and for the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections at a time.
const CONNECTIONS_MAX: usize = 32;

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// RFC 9110, section 15.
    pub status: u16,
    /// Media type of the body.
    pub kind: &'static str,
    /// The body.
    pub body: Vec<u8>,
}

impl Response {
    /// Text of some kind, with the status 200.
    pub fn text(kind: &'static str, body: impl Into<Vec<u8>>) -> Response {
        Response { status: 200, kind, body: body.into() }
    }

    /// A line of plain text that says what is wrong.
    pub fn error(status: u16, text: &str) -> Response {
        Response { status, kind: PLAIN, body: format!("{text}\n").into_bytes() }
    }
}

/// Plain text.
pub const PLAIN: &str = "text/plain; charset=utf-8";

/// What answers for a path.
pub type Handler = dyn Fn(&str) -> Response + Send + Sync;

struct Pages {
    handler: Arc<Handler>,
    /// Nobody else's names lead here.
    is_loopback: bool,
}

impl Service for Pages {
    const NAME: &'static str = "http";

    fn serve(&self, visitor: Visitor<'_>) {
        // The connection of one too many closes, and a browser tries again.
        if visitor.is_too_many {
            return;
        }
        if let Err(error) = serve(visitor.socket, self.handler.as_ref(), self.is_loopback) {
            tracing::debug!(%error, "a reader has gone");
        }
    }
}

/// Listens until it is dropped.
pub struct HttpServer(Listening<Pages>);

impl HttpServer {
    /// Begins to listen; port 0 is any free one.
    ///
    /// # Errors
    /// When the address is one that other machines reach and nobody allowed it, or cannot be had.
    pub fn start(address: SocketAddr, allow_remote: bool, handler: Arc<Handler>) -> Result<HttpServer, ListenError> {
        let remote =
            if allow_remote { Remote::Allowed } else { Remote::Refused("put a proxy with a password before it") };
        let places = Places { tcp: Some(address), unix: None, remote, clients_max: CONNECTIONS_MAX };
        let is_loopback = address.ip().is_loopback();
        Ok(HttpServer(Listening::start(Pages { handler, is_loopback }, places)?))
    }

    /// Where it listens.
    #[must_use]
    pub fn tcp(&self) -> Option<SocketAddr> {
        self.0.tcp()
    }
}

fn serve(socket: &OwnedFd, handler: &Handler, is_loopback: bool) -> io::Result<()> {
    let mut stream = TcpStream::from(socket.try_clone()?);
    stream.set_write_timeout(Some(PATIENCE))?;
    let Some(head) = receive(&mut stream)? else { return Ok(()) };
    let (response, with_body) = answer(&head, handler, is_loopback);
    let length = response.body.len();
    let mut bytes = format!(
        "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {length}\r\nCache-Control: no-store\r\n\
         Content-Security-Policy: default-src 'self'; img-src data:; frame-ancestors 'none'\r\nX-Content-Type-Options: nosniff\r\n\
         Connection: close\r\n\r\n",
        response.status,
        reason(response.status),
        response.kind
    )
    .into_bytes();
    if with_body {
        bytes.extend_from_slice(&response.body);
    }
    stream.write_all(&bytes)
}

/// A request's bytes up to the end of its head, or as many as there may be; nothing when the client left or was slow.
fn receive(stream: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let began = Instant::now();
    let mut head = Vec::new();
    let mut chunk = [0; 1024];
    loop {
        let left = PATIENCE.saturating_sub(began.elapsed());
        if left.is_zero() {
            return Ok(None);
        }
        stream.set_read_timeout(Some(left))?;
        let count = stream.read(&mut chunk)?;
        if count == 0 {
            return Ok(None);
        }
        // The last bytes of what was there may be the first of the end.
        let from = head.len().saturating_sub(3);
        head.extend_from_slice(&chunk[..count]);
        if head[from..].windows(4).any(|four| four == b"\r\n\r\n") || head.len() >= HEAD_BYTES_MAX {
            return Ok(Some(head));
        }
    }
}

/// The answer to a request, and whether its body is sent.
fn answer(head: &[u8], handler: &Handler, is_loopback: bool) -> (Response, bool) {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return (Response::error(431, "the request's head is too long"), true);
        }
        Err(_) => return (Response::error(400, "this is no HTTP request"), true),
    }
    let (Some(method), Some(target)) = (request.method, request.path) else {
        return (Response::error(400, "this is no HTTP request"), true);
    };
    let is_head = method == "HEAD";
    if !is_head && method != "GET" {
        return (Response::error(405, "only GET and HEAD are understood"), true);
    }
    let host = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("host"));
    let host = host.map_or("", |header| std::str::from_utf8(header.value).unwrap_or("?"));
    // A name of somebody else's that leads here would let a stranger's page read what only this machine may.
    if is_loopback && !is_local(host) {
        return (Response::error(421, "this server is reached as localhost or by its address alone"), !is_head);
    }
    let path = target.split(['?', '#']).next().unwrap_or(target);
    (handler(path), !is_head)
}

/// Whether a Host field names this machine's loopback. HTTP/1.0 has none.
fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name.is_empty() || name.eq_ignore_ascii_case("localhost") || bare.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(path: &str) -> Response {
        if path == "/a" { Response::text(PLAIN, "here") } else { Response::error(404, "nothing") }
    }

    fn status(head: &str) -> u16 {
        answer(head.as_bytes(), &hello, true).0.status
    }

    #[test]
    fn a_request_is_answered_and_what_is_none_is_refused() {
        assert_eq!(status("GET /a HTTP/1.1\r\nHost: localhost:80\r\n\r\n"), 200);
        assert_eq!(status("GET /a?x=1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"), 200);
        assert_eq!(status("GET /a HTTP/1.0\r\n\r\n"), 200);
        assert_eq!(status("GET /b HTTP/1.1\r\nHost: [::1]:9\r\n\r\n"), 404);
        assert_eq!(status("GET /a HTTP/1.1\r\nHost: example.org\r\n\r\n"), 421);
        assert_eq!(status("POST /a HTTP/1.1\r\nHost: localhost\r\n\r\n"), 405);
        assert_eq!(status("\0\0\0\r\n\r\n"), 400);
        assert_eq!(status("GET /a HTTP/1.1\r\nHost"), 431);
        assert_eq!(status(&format!("GET /a HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(HEADERS_MAX + 1))), 431);
        let (_, with_body) = answer(b"HEAD /a HTTP/1.1\r\nHost: localhost\r\n\r\n", &hello, true);
        assert!(!with_body);
        let (response, _) = answer(b"GET /a HTTP/1.1\r\nHost: nas.example\r\n\r\n", &hello, false);
        assert_eq!(response.status, 200, "where others may come, they may come by any name");
    }

    #[test]
    fn readers_come_over_a_socket_and_a_broken_one_harms_nobody() {
        let server = HttpServer::start(([127, 0, 0, 1], 0).into(), false, Arc::new(hello)).expect("a free port");
        let ask = |text: &[u8]| {
            let mut stream = TcpStream::connect(server.tcp().expect("an address")).expect("it listens");
            stream.write_all(text).expect("it reads");
            let mut answer = String::new();
            // One that is refused early may see a reset behind its answer.
            let _ = stream.read_to_string(&mut answer);
            answer
        };
        drop(TcpStream::connect(server.tcp().expect("an address")));
        assert!(ask(&vec![b'x'; HEAD_BYTES_MAX]).starts_with("HTTP/1.1 4"));
        let good = ask(b"GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(good.starts_with("HTTP/1.1 200 OK\r\n") && good.ends_with("\r\n\r\nhere"), "{good}");
        let head = ask(b"HEAD /a HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(head.contains("Content-Length: 4\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    }

    #[test]
    fn it_does_not_listen_for_other_machines_unless_it_is_told() {
        let refused = HttpServer::start(([0, 0, 0, 0], 0).into(), false, Arc::new(hello));
        assert!(matches!(refused, Err(ListenError::Remote { .. })));
        let first = HttpServer::start(([127, 0, 0, 1], 0).into(), false, Arc::new(hello)).expect("a free port");
        let second = HttpServer::start(first.tcp().expect("an address"), false, Arc::new(hello));
        assert!(matches!(second, Err(ListenError::PortTaken(_))));
    }
}
