//! NBD over TLS: with the clients that people use, and with those who have no business here.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use osier_front::nbd::{Config, Limits, Server};
use osier_front::tls::{Clients, Tls};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::clients::each_command;
use super::common::memory::Disk;
use super::common::{export, noise};
use super::raw::{READ, Raw};
use super::{Rig, installed, succeed};

const STARTTLS: u32 = 5;
const ERR_TLS_REQD: u32 = (1 << 31) + 5;

/// Directories of certificates that one authority has signed.
struct Authority {
    directory: tempfile::TempDir,
}

impl Authority {
    /// `server`, `client`, and `bare`, which has nothing but the authority's own certificate.
    fn new() -> Authority {
        let directory = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(DnType::CommonName, "Authority of a test");
        let key = KeyPair::generate().unwrap();
        let own = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        for (name, usage) in [
            ("server", Some(ExtendedKeyUsagePurpose::ServerAuth)),
            ("client", Some(ExtendedKeyUsagePurpose::ClientAuth)),
            ("bare", None),
        ] {
            let place = directory.path().join(name);
            fs::create_dir(&place).unwrap();
            fs::write(place.join("ca-cert.pem"), &own).unwrap();
            let Some(usage) = usage else { continue };
            let mut params = CertificateParams::new(["localhost", "127.0.0.1"].map(str::to_owned)).unwrap();
            params.distinguished_name.push(DnType::CommonName, name);
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.extended_key_usages = vec![usage];
            let key = KeyPair::generate().unwrap();
            let signed = params.signed_by(&key, &issuer).unwrap();
            fs::write(place.join(format!("{name}-cert.pem")), signed.pem()).unwrap();
            fs::write(place.join(format!("{name}-key.pem")), key.serialize_pem()).unwrap();
        }
        Authority { directory }
    }

    fn of(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn server(&self, clients: Clients) -> Tls {
        Tls::of_directory(&self.of("server"), clients).unwrap()
    }

    fn rig(&self, blocks: u64, late: Option<u64>, clients: Clients) -> Rig {
        Rig::with(Disk::new(blocks), late, |config| config.tls = Some(self.server(clients)))
    }
}

fn over_tcp(rig: &Rig, certificates: &Path) -> String {
    format!("nbds://{}/memory?tls-certificates={}", rig.server.tcp().unwrap(), certificates.display())
}

fn over_unix(rig: &Rig, certificates: &Path) -> String {
    format!("nbds+unix:///memory?socket={}&tls-certificates={}", rig.socket().display(), certificates.display())
}

/// What a program says that has to fail.
fn fail(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(!output.status.success(), "{command:?} is served");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn libnbds_programs_copy_both_ways_over_tls() {
    if installed("nbdcopy").is_none() {
        return;
    }
    let authority = Authority::new();
    for (late, clients, certificates) in
        [(None, Clients::Verified, "client"), (Some(7), Clients::Verified, "client"), (None, Clients::Any, "bare")]
    {
        let rig = authority.rig(4096, late, clients);
        let certificates = authority.of(certificates);
        let (tcp, unix) = (over_tcp(&rig, &certificates), over_unix(&rig, &certificates));
        let said = succeed(installed("nbdinfo").unwrap().args(["--json", &tcp]));
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!((&said["TLS"], &said["structured"]), (&true.into(), &true.into()), "{said}");
        let (from, to) = (rig.directory.path().join("from"), rig.directory.path().join("to"));
        fs::write(&from, noise(4096 * 4096, 1)).unwrap();
        let large = ["--connections=4", "--request-size=4194304"];
        succeed(installed("nbdcopy").unwrap().args(large).arg(&from).arg(&tcp));
        assert!(fs::read(&from).unwrap() == *rig.disk.bytes.read().unwrap());
        succeed(installed("nbdcopy").unwrap().arg(&unix).arg(&to));
        assert!(fs::read(&from).unwrap() == fs::read(&to).unwrap());
    }
}

#[test]
fn nbdsh_finds_each_command_over_tls_as_it_should_be() {
    let authority = Authority::new();
    let rig = authority.rig(256, Some(3), Clients::Verified);
    each_command(&over_unix(&rig, &authority.of("client")));
}

#[test]
fn qemu_img_converts_and_compares_over_tls() {
    if installed("qemu-img").is_none() {
        return;
    }
    let authority = Authority::new();
    let rig = authority.rig(2048, None, Clients::Verified);
    let file = rig.directory.path().join("image");
    fs::write(&file, noise(2048 * 4096, 3)).unwrap();
    let credentials = format!("tls-creds-x509,id=t,endpoint=client,dir={}", authority.of("client").display());
    let port = rig.server.tcp().unwrap().port();
    let disk = format!("driver=nbd,host=127.0.0.1,port={port},export=memory,tls-creds=t");
    let image = format!("driver=file,filename={}", file.display());
    let options = ["--object", &credentials, "--image-opts"];
    let mut convert = installed("qemu-img").unwrap();
    succeed(convert.arg("convert").args(options).args(["--target-image-opts", "-n", &image, &disk]));
    assert!(fs::read(&file).unwrap() == *rig.disk.bytes.read().unwrap());
    succeed(installed("qemu-img").unwrap().arg("compare").args(options).args([&image, &disk]));
}

#[test]
fn who_does_not_prove_who_it_is_is_not_served() {
    let authority = Authority::new();
    let rig = authority.rig(1, None, Clients::Verified);
    let mut plain = Raw::connect(&rig.socket());
    for option in [3, 6, 7, 8, 10, 99] {
        let (kind, text) = plain.option(option, &[0; 6]);
        assert!(kind == ERR_TLS_REQD && String::from_utf8_lossy(&text).contains("TLS"), "{kind:#x}");
    }
    assert_eq!(plain.option(STARTTLS, b"?").0, (1 << 31) + 3);
    assert_eq!(plain.option(2, &[]).0, 1, "it may go");
    let mut by_name = Raw::connect(&rig.socket());
    by_name.0.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\x06memory").unwrap();
    assert!(by_name.is_closed());
    if installed("nbdinfo").is_none() {
        return;
    }
    let with = |certificates: &Path| fail(installed("nbdinfo").unwrap().arg(over_unix(&rig, certificates)));
    let said = with(&authority.of("bare"));
    assert!(said.contains("alert"), "{said}");
    // Another authority's client: neither believes the other. One that is asked to believe the server is refused by it.
    let other = Authority::new();
    with(&other.of("client"));
    fs::copy(authority.of("bare").join("ca-cert.pem"), other.of("client").join("ca-cert.pem")).unwrap();
    with(&other.of("client"));
    succeed(installed("nbdinfo").unwrap().arg(over_unix(&rig, &authority.of("client"))));
}

#[test]
fn who_stops_within_the_handshake_is_left_and_who_sends_something_else_is_too() {
    let authority = Authority::new();
    let rig = Rig::with(Disk::new(1), None, |config| {
        config.tls = Some(authority.server(Clients::Verified));
        config.negotiation = Duration::from_millis(200);
    });
    let mut silent = Raw::connect(&rig.socket());
    assert_eq!(silent.option(STARTTLS, &[]).0, 1);
    // The header of a record of a handshake, and no more.
    silent.0.write_all(&[0x16, 3, 1, 2, 0, 1]).unwrap();
    assert!(silent.is_closed());
    let mut wrong = Raw::connect(&rig.socket());
    assert_eq!(wrong.option(STARTTLS, &[]).0, 1);
    wrong.0.write_all(b"IHAVEOPT\0\0\0\x03\0\0\0\0").unwrap();
    let mut heard = Vec::new();
    wrong.0.read_to_end(&mut heard).unwrap();
    assert_eq!(heard.first(), Some(&0x15), "an alert, in the clear: {heard:?}");
}

/// What was decrypted and found no room waits here, and no socket says so.
#[test]
fn what_waits_for_room_is_not_forgotten() {
    let authority = Authority::new();
    let rig = Rig::with(Disk::new(64), None, |config| {
        config.tls = Some(authority.server(Clients::Any));
        config.negotiation = Duration::from_secs(10);
        let tight = Limits { staging_bytes: 9 << 10, option_bytes_max: 1 << 10, ..Limits::default() };
        config.limits = Limits { outstanding_max: 1, buffered_bytes_max: 1, ..tight };
    });
    // How bytes are cut on their way is chance.
    for _ in 0..20 {
        ask_without_waiting(&authority, &rig);
    }
}

fn ask_without_waiting(authority: &Authority, rig: &Rig) {
    let mut raw = Raw::connect(&rig.socket());
    assert_eq!(raw.option(STARTTLS, &[]).0, 1);
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.of("bare").join("ca-cert.pem")).unwrap()).unwrap();
    let provider = rustls::crypto::ring::default_provider().into();
    let config = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]);
    let config = config.unwrap().with_root_certificates(roots).with_no_client_auth();
    let connection = ClientConnection::new(config.into(), "localhost".try_into().unwrap()).unwrap();
    let mut stream = StreamOwned::new(connection, raw.0);
    // More options than are read ahead, and then more requests, without waiting for a reply.
    const OPTIONS: usize = 2000;
    const REQUESTS: u64 = 700;
    stream.write_all(&b"IHAVEOPT\0\0\0\x03\0\0\0\0".repeat(OPTIONS)).unwrap();
    stream.read_exact(&mut vec![0; OPTIONS * (20 + 4 + 6 + 20)]).unwrap();
    stream.write_all(b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0").unwrap();
    stream.read_exact(&mut [0; 20 + 12 + 20]).unwrap();
    let requests: Vec<u8> = (0..REQUESTS).flat_map(|cookie| Raw::request(READ, cookie, 0, 4096)).collect();
    stream.write_all(&requests).unwrap();
    for cookie in 0..REQUESTS {
        let mut reply = [1; 16 + 4096];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[8..16], cookie.to_be_bytes());
    }
}

#[test]
fn certificates_that_are_not_there_or_do_not_fit_are_said_to_be_that() {
    let authority = Authority::new();
    let refused = |directory: &Path, clients| Tls::of_directory(directory, clients).unwrap_err().to_string();
    let said = refused(&authority.of("bare"), Clients::Any);
    assert!(said.contains("server-key.pem") && said.contains("the directory is to have"), "{said}");
    let place = authority.of("server");
    let other = Authority::new();
    fs::copy(other.of("server").join("server-key.pem"), place.join("server-key.pem")).unwrap();
    let said = refused(&place, Clients::Verified);
    assert!(said.contains("cannot use the certificates in"), "{said}");
    fs::write(place.join("ca-cert.pem"), "nothing").unwrap();
    let said = refused(&place, Clients::Verified);
    assert!(said.contains("ca-cert.pem") && said.contains("there is none"), "{said}");
}

#[test]
fn other_machines_may_reach_a_server_that_verifies_its_clients() {
    let authority = Authority::new();
    let start = |tls| {
        let config = Config { tcp: Some(([0, 0, 0, 0], 0).into()), tls, ..Config::default() };
        Server::start(vec![export(&Disk::new(1).into(), None)], config)
    };
    assert!(start(Some(authority.server(Clients::Verified))).is_ok());
    for tls in [None, Some(authority.server(Clients::Any))] {
        let said = start(tls).unwrap_err().to_string();
        assert!(said.contains("--tls-certificates"), "{said}");
    }
}
