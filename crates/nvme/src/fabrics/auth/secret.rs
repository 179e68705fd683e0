//! Secrets of hosts and controllers, and which host has which.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use super::hash::Hash;
use crate::fabrics::NQN_BYTES_MAX;

/// Most hosts of one list.
pub const HOSTS_MAX: usize = 4096;

/// A secret, in the form in which it is kept ("DH-HMAC-CHAP security requirements", secret representation).
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// What makes a key of it that is of one name alone, if anything does.
    transform: Option<Hash>,
    key: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// Reads `DHHC-1:tt:base64 of the key and its CRC-32:`, as `nvme gen-dhchap-key` prints it.
    ///
    /// # Errors
    /// What is wrong with it, without a word of it.
    pub fn parse(text: &str) -> Result<Secret, &'static str> {
        let rest = text.strip_prefix("DHHC-1:").ok_or("a secret begins with `DHHC-1:`")?;
        let (transform, rest) = rest.split_once(':').ok_or("a secret has three colons")?;
        let encoded = rest.strip_suffix(':').ok_or("a secret ends with a colon")?;
        let transform = match transform {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err("a secret's second word is 00, 01, 02 or 03"),
        };
        let decoded = STANDARD.decode(encoded).map_err(|_| "a secret's third word is not base64")?;
        let mut key = Zeroizing::new(decoded);
        let Some(length) = key.len().checked_sub(4).filter(|length| [32, 48, 64].contains(length)) else {
            return Err("a secret has 32, 48 or 64 bytes, and a CRC of four");
        };
        let is_whole = crc32fast::hash(&key[..length]).to_le_bytes() == key[length..];
        if !is_whole {
            return Err("a secret's CRC is wrong: it was not copied whole");
        }
        key.truncate(length);
        Ok(Secret { transform, key })
    }

    /// The key that it is for this name.
    pub(super) fn transformed(&self, name: &str) -> Zeroizing<Vec<u8>> {
        match self.transform {
            None => self.key.clone(),
            Some(hash) => hash.mac(&self.key, &[name.as_bytes(), b"NVMe-over-Fabrics"]),
        }
    }
}

/// What a host and a controller prove to each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Secrets {
    /// The host's.
    pub host: Secret,
    /// The controller's, where hosts may ask it to prove itself.
    pub controller: Option<Secret>,
}

/// Hosts that are let in, by their names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hosts(BTreeMap<String, Secrets>);

/// A list of hosts is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}; a line is `HOSTNQN SECRET` or `HOSTNQN SECRET CONTROLLER-SECRET`")]
pub struct HostsError {
    /// The line, from one.
    pub line: usize,
    /// What is wrong there.
    pub why: &'static str,
}

impl Hosts {
    /// Reads a list: a line a host, with its name, its secret, and the controller's if it has one. Empty lines and
    /// those that begin with `#` are nothing.
    ///
    /// # Errors
    /// Where it is wrong.
    pub fn parse(text: &str) -> Result<Hosts, HostsError> {
        let mut hosts = BTreeMap::new();
        let mut last = 0;
        for (line, text) in (1..).zip(text.lines()) {
            last = line;
            let fail = |why| HostsError { line, why };
            let text = text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let words: Vec<&str> = text.split_ascii_whitespace().collect();
            let (name, host, controller) = match *words {
                [name, host] => (name, host, None),
                [name, host, controller] => (name, host, Some(controller)),
                _ => return Err(fail("a line has two or three words")),
            };
            if !name.starts_with("nqn.") || name.len() > NQN_BYTES_MAX {
                return Err(fail("a host's name begins with `nqn.`, and has 223 bytes at most"));
            }
            let host = Secret::parse(host).map_err(fail)?;
            let controller = controller.map(Secret::parse).transpose().map_err(fail)?;
            if hosts.len() >= HOSTS_MAX {
                return Err(fail("there are too many hosts"));
            }
            if hosts.insert(name.to_owned(), Secrets { host, controller }).is_some() {
                return Err(fail("this host has a line already"));
            }
        }
        if hosts.is_empty() {
            return Err(HostsError { line: last, why: "there is no host in it" });
        }
        Ok(Hosts(hosts))
    }

    /// A host's secrets, if it may come.
    #[must_use]
    pub fn of(&self, name: &str) -> Option<&Secrets> {
        self.0.get(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of `nvme gen-dhchap-key`'s manual form: 32 bytes of zeroes to 31, made by hand.
    fn secret(transform: &str, key: &[u8]) -> String {
        let bytes = [key, &crc32fast::hash(key).to_le_bytes()].concat();
        format!("DHHC-1:{transform}:{}:", STANDARD.encode(bytes))
    }

    #[test]
    fn secrets_are_read_or_refused_and_never_shown() {
        let key: Vec<u8> = (0..48).collect();
        for length in [32, 48] {
            let read = Secret::parse(&secret("02", &key[..length])).unwrap();
            assert_eq!((read.transform, &read.key[..]), (Some(Hash::Sha384), &key[..length]));
            assert_eq!(format!("{read:?}"), "Secret");
        }
        let good = secret("00", &key[..32]);
        for (bad, why) in [
            ("DHHC-2:00:".to_owned(), "begins"),
            (good.replace(":00:", ":04:"), "00, 01"),
            (good.replace("DHHC-1:00:", "DHHC-1:00"), "colon"),
            (good[..good.len() - 1].to_owned(), "colon"),
            (good.replace("AAEC", "AAED"), "CRC"),
            (good.replace("AAEC", "A!EC"), "base64"),
            (secret("00", &key[..40]), "32, 48 or 64"),
            ("DHHC-1:00::".to_owned(), "32, 48 or 64"),
        ] {
            let said = Secret::parse(&bad).unwrap_err();
            assert!(said.contains(why), "{bad}: {said}");
        }
    }

    #[test]
    fn a_list_says_which_line_of_it_is_wrong() {
        let one = secret("00", &[1; 32]);
        let hosts = Hosts::parse(&format!("# hosts\n\n nqn.a {one}\nnqn.b  {one} {one}\n")).unwrap();
        assert!(hosts.of("nqn.a").unwrap().controller.is_none() && hosts.of("nqn.b").unwrap().controller.is_some());
        assert!(hosts.of("nqn.c").is_none());
        for (text, line) in [
            (format!("nqn.a {one}\nnqn.a {one}"), 2),
            (format!("nqn.a\nnqn.b {one}"), 1),
            (format!("\nmine {one}"), 2),
            ("#\n#".to_owned(), 2),
            ("nqn.a DHHC-1:00:AAAA:".to_owned(), 1),
        ] {
            let error = Hosts::parse(&text).unwrap_err();
            assert_eq!(error.line, line, "{error}");
            assert!(!error.to_string().contains("DHHC-1:00:AAAA"));
        }
    }
}
