//! TLS 1.3 of a server: its certificate, and whose clients it takes.
//!
//! The files have the names that libnbd, nbdkit and QEMU give them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

/// The certificate of the authority that signs clients' certificates; of the server, in the order in which it is
/// presented; and the server's key.
const CA: &str = "ca-cert.pem";
const CERTIFICATE: &str = "server-cert.pem";
const KEY: &str = "server-key.pem";

/// Whose clients are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clients {
    /// Those that have a certificate of the authority's.
    Verified,
    /// Whoever comes; the connection is encrypted all the same.
    Any,
}

/// What a server needs to speak TLS.
#[derive(Debug, Clone)]
pub struct Tls {
    pub(crate) config: Arc<ServerConfig>,
    clients: Clients,
}

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or does not have what it should.
    #[error("cannot take {what} from {}: {why}; {HELP}", .path.display())]
    File {
        /// What was looked for.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// The files do not fit together.
    #[error("cannot use the certificates in {}: {why}; {HELP}", .directory.display())]
    Unfit {
        /// Where they are.
        directory: PathBuf,
        /// Why not.
        why: String,
    },
}

/// What to do about it.
const HELP: &str = "the directory is to have ca-cert.pem, server-cert.pem and server-key.pem, in PEM";

impl Tls {
    /// Reads a directory of certificates. One of the authority is needed only to verify clients.
    ///
    /// # Errors
    /// What is missing, or does not fit.
    pub fn of_directory(directory: &Path, clients: Clients) -> Result<Tls, TlsError> {
        let unfit = |why: String| TlsError::Unfit { directory: directory.to_owned(), why };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| unfit(error.to_string()))?;
        let builder = match clients {
            Clients::Any => builder.with_no_client_auth(),
            Clients::Verified => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(directory, CA)? {
                    roots.add(certificate).map_err(|error| unfit(format!("{CA}: {error}")))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().map_err(|error| unfit(error.to_string()))?)
            }
        };
        let path = directory.join(KEY);
        let key = PrivateKeyDer::from_pem_file(&path).map_err(|error| TlsError::File {
            what: "the server's key",
            path,
            why: error.to_string(),
        })?;
        let config = builder
            .with_single_cert(certificates(directory, CERTIFICATE)?, key)
            .map_err(|error| unfit(error.to_string()))?;
        Ok(Tls { config: Arc::new(config), clients })
    }

    /// Whether only those are served who have proved who they are.
    #[must_use]
    pub fn verifies_clients(&self) -> bool {
        self.clients == Clients::Verified
    }
}

fn certificates(directory: &Path, name: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let path = directory.join(name);
    let read = || CertificateDer::pem_file_iter(&path)?.collect::<Result<Vec<_>, _>>();
    let why = match read() {
        Ok(certificates) if !certificates.is_empty() => return Ok(certificates),
        Ok(_) => "there is none in it".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(TlsError::File { what: "a certificate", path, why })
}
