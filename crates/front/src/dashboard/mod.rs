//! A device for people who look at it: a page that shows what it does, the same figures for programs, metrics for
//! Prometheus, and whether it is well.
//!
//! | path | what |
//! | --- | --- |
//! | `/` | the page; it asks for nothing from elsewhere |
//! | `/api/status` | [`Status`] as JSON |
//! | `/metrics` | the same as metrics |
//! | `/healthz` | 200 while the device is up and both of its domains serve, else 503 |
//!
//! Who finds the figures is [`Source`]'s business.

mod http;
mod metrics;
mod status;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;

pub use http::HttpServer;
pub use status::{Actor, Client, Dies, DomainProcess, Live, Move, Status, Traffic};

use http::{PLAIN, Response};

use crate::listen::ListenError;

/// Where the figures come from.
pub trait Source: Send + Sync {
    /// What there is to see now.
    ///
    /// # Errors
    /// In words, why nothing can be seen.
    fn look(&self) -> Result<Status, String>;
}

/// Begins to serve; port 0 is any free one. It ends when it is dropped.
///
/// # Errors
/// When the address is one that other machines reach and nobody allowed it, or cannot be had.
pub fn serve(source: Arc<dyn Source>, address: SocketAddr, allow_remote: bool) -> Result<HttpServer, ListenError> {
    HttpServer::start(address, allow_remote, Arc::new(move |path: &str| answer(source.as_ref(), path)))
}

fn answer(source: &dyn Source, path: &str) -> Response {
    let seen = |with: &dyn Fn(&Status) -> Response| match source.look() {
        Ok(status) => with(&status),
        Err(why) => Response::error(503, &why),
    };
    match path {
        "/" => Response::text("text/html; charset=utf-8", include_str!("page/index.html")),
        "/page.js" => Response::text("text/javascript; charset=utf-8", include_str!("page/page.js")),
        "/page.css" => Response::text("text/css; charset=utf-8", include_str!("page/page.css")),
        "/api/status" => seen(&|status| match serde_json::to_vec(status) {
            Ok(body) => Response::text("application/json", body),
            Err(error) => Response::error(503, &format!("the status cannot be written: {error}")),
        }),
        "/metrics" => seen(&|status| Response::text(metrics::KIND, metrics::render(status))),
        "/healthz" => seen(&|status| match &status.live {
            Some(live) if live.serves => Response::text(PLAIN, "ok\n"),
            Some(_) => Response::error(503, "a domain has died and is being recovered"),
            None => Response::error(503, "the device is not up"),
        }),
        _ => Response::error(404, "there is nothing here; try /, /metrics, /healthz or /api/status"),
    }
}
