//! The parameters of a link, and what follows from them.

use serde::Deserialize;

use crate::planted::Planted;
use crate::tlp::PAGE_BYTES;

/// A link. Every key is required; check with [`LinkConfig::validate`], which [`crate::Link::new`] does.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig {
    /// Generation of PCI Express: 1 to 6, for 2.5, 5, 8, 16, 32 and 64 GT/s. Generation 6 is in flit mode.
    pub generation: u32,
    /// Lanes: 1, 2, 4, 8 or 16.
    pub lanes: u32,
    /// Largest payload of a packet (Max_Payload_Size): a power of two from 128 to 4096.
    pub max_payload_bytes: u32,
    /// Most bytes that one read request asks for (Max_Read_Request_Size): a power of two from 128 to 4096.
    pub max_read_request_bytes: u32,
    /// Where the host may cut completions (Section 2.3.1.1): 64 or 128 bytes. A device cuts at 128.
    pub read_completion_boundary_bytes: u32,
    /// Largest completion that the host sends: a multiple of the boundary, up to `max_payload_bytes`. Hosts differ;
    /// the specification permits any.
    pub completion_bytes_max: u32,
    /// Whether each packet carries an end-to-end checksum (ECRC) of 4 bytes.
    pub ecrc: bool,
    /// After how many packets the receiver acknowledges, outside of flit mode; 0 when that is not to be counted.
    pub ack_every_packets: u32,
    /// After how many packets the receiver returns credits, outside of flit mode; 0 when that is not to be counted.
    pub update_fc_every_packets: u32,
    /// Read requests of the device that can wait for completions at a time: 1 to 768, in flit mode to 15360
    /// (Section 2.2.6.2).
    pub read_tags: u32,
    /// From the last byte on the sender's pins until the receiver's logic has it, one way.
    pub one_way_ns: u64,
    /// What the host takes to answer a read of its memory, from request to completion.
    pub host_read_ns: u64,
    /// What the device takes to answer a read of a register.
    pub device_read_ns: u64,
    /// CXL.mem, and the flits that carry it and the packets; with the 256-byte ones the link is in flit mode.
    pub cxl_flit: CxlFlit,
}

/// Flits of CXL (CXL sections 4.2 and 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "FlitWord")]
pub enum CxlFlit {
    /// `none`: plain PCI Express.
    None,
    /// `68` bytes in four slots: CXL 1.1 and 2.0, generations 3 to 5.
    Bytes68,
    /// `256` bytes in fifteen slots, hierarchy based routing: CXL 3.x, generations 3 to 6.
    Bytes256,
    /// `256-pbr`: 256 bytes in fifteen slots, port based routing, whose messages are longer.
    Bytes256Pbr,
}

/// As it is written: with quotes or, where it is a number, without.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a CXL flit is \"none\", 68, 256 or \"256-pbr\"")]
enum FlitWord {
    Bytes(u32),
    Word(String),
}

impl TryFrom<FlitWord> for CxlFlit {
    type Error = String;

    fn try_from(word: FlitWord) -> Result<CxlFlit, String> {
        let word = match word {
            FlitWord::Bytes(bytes) => bytes.to_string(),
            FlitWord::Word(word) => word,
        };
        match word.as_str() {
            "none" => Ok(CxlFlit::None),
            "68" => Ok(CxlFlit::Bytes68),
            "256" => Ok(CxlFlit::Bytes256),
            "256-pbr" => Ok(CxlFlit::Bytes256Pbr),
            _ => Err(format!("a CXL flit is \"none\", 68, 256 or \"256-pbr\", not `{word}`")),
        }
    }
}

/// A parameter that cannot be, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("link: {key} is {value}, {reason}")]
pub struct ConfigError {
    /// The field of [`LinkConfig`].
    pub key: &'static str,
    /// What it was.
    pub value: u64,
    /// What is wrong, and what can be chosen.
    pub reason: &'static str,
}

impl LinkConfig {
    /// Checks every parameter.
    ///
    /// # Errors
    /// The first parameter that cannot be, with the reason.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let size = |value: u32| value.is_power_of_two() && (128..=PAGE_BYTES).contains(&value);
        let size_reason = "which is not a power of two from 128 to 4096";
        require((1..=6).contains(&self.generation), "generation", self.generation, "choose one from 1 to 6")?;
        let lanes = [1, 2, 4, 8, 16].contains(&self.lanes);
        require(lanes, "lanes", self.lanes, "choose 1, 2, 4, 8 or 16")?;
        require(size(self.max_payload_bytes), "max_payload_bytes", self.max_payload_bytes, size_reason)?;
        let request = self.max_read_request_bytes;
        require(size(request), "max_read_request_bytes", request, size_reason)?;
        let boundary = self.read_completion_boundary_bytes;
        require([64, 128].contains(&boundary), "read_completion_boundary_bytes", boundary, "choose 64 or 128")?;
        let largest = self.completion_bytes_max;
        let fits = largest >= boundary && largest <= self.max_payload_bytes && largest.is_multiple_of(boundary);
        let reason = "which is not a multiple of read_completion_boundary_bytes up to max_payload_bytes";
        require(fits, "completion_bytes_max", largest, reason)?;
        let tags_max = if self.flit_mode() { 15_360 } else { 768 };
        let reason = "outside of 1 to 768, or 15360 in flit mode: tags have no more values";
        require((1..=tags_max).contains(&self.read_tags), "read_tags", self.read_tags, reason)?;
        self.validate_cxl()?;
        for (key, nanos) in [
            ("one_way_ns", self.one_way_ns),
            ("host_read_ns", self.host_read_ns),
            ("device_read_ns", self.device_read_ns),
        ] {
            require(nanos <= 1_000_000_000, key, nanos, "more than a second, which is no link; give nanoseconds")?;
        }
        Ok(())
    }

    fn validate_cxl(&self) -> Result<(), ConfigError> {
        let generations = match self.cxl_flit {
            CxlFlit::None => 1..=6,
            CxlFlit::Bytes68 => 3..=5,
            CxlFlit::Bytes256 | CxlFlit::Bytes256Pbr => 3..=6,
        };
        let reason = "which cannot carry this cxl_flit; 68 needs generation 3 to 5, 256 needs 3 to 6";
        require(generations.contains(&self.generation), "generation", self.generation, reason)
    }

    /// Whether packets travel in flits of 256 bytes, with the headers of flit mode (Section 2.2.1.2).
    #[must_use]
    pub fn flit_mode(&self) -> bool {
        self.generation == 6 || matches!(self.cxl_flit, CxlFlit::Bytes256 | CxlFlit::Bytes256Pbr)
    }

    /// Picoseconds that `bytes` take on the wire, line coding included, rounded up.
    #[must_use]
    pub fn wire_picos(&self, bytes: u64) -> u64 {
        Rules::new(self, Planted::default()).wire_picos(bytes)
    }
}

fn require(fine: bool, key: &'static str, value: impl Into<u64>, reason: &'static str) -> Result<(), ConfigError> {
    if fine { Ok(()) } else { Err(ConfigError { key, value: value.into(), reason }) }
}

/// How packets are put on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Carrier {
    /// Bytes of a flit; 0 where there are none.
    pub(crate) flit_bytes: u64,
    /// Bytes of it that hold packets.
    pub(crate) packet_bytes: u64,
}

/// Flit mode (Section 4.2.3): 236 bytes of packets, 6 of data link payload, 8 of checksum, 6 of error correction.
/// CXL.io has the same 236: flit header and link payload, 2 and 4 bytes, are those 6 in other places (CXL section
/// 6.2.3.1.1).
const FLIT_256: Carrier = Carrier { flit_bytes: 256, packet_bytes: 236 };
/// CXL.io in 68-byte flits (CXL section 6.2.2.2): a protocol identifier, 64 bytes of packets, and 2 bytes unused.
const FLIT_68: Carrier = Carrier { flit_bytes: 68, packet_bytes: 64 };
/// Packets follow each other on the lanes.
const NO_FLIT: Carrier = Carrier { flit_bytes: 0, packet_bytes: 0 };

/// What follows from a valid [`LinkConfig`], ready for use.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) config: LinkConfig,
    pub(crate) flit_mode: bool,
    pub(crate) carrier: Carrier,
    /// Bytes of read requests that go out together.
    pub(crate) request_run_bytes: u32,
    /// Time of a byte in 1/64 ps, times lanes.
    lane_byte_time: u64,
    /// Logarithm of 64 × lanes, both powers of two.
    lane_shift: u32,
    /// Time of a flit that carries packets, and of one that carries slots.
    pub(crate) flit_picos: u64,
    /// [`LinkConfig::one_way_ns`] and [`LinkConfig::host_read_ns`].
    pub(crate) one_way_picos: u64,
    pub(crate) host_read_picos: u64,
    pub(crate) planted: Planted,
}

impl Rules {
    pub(crate) fn new(config: &LinkConfig, planted: Planted) -> Rules {
        let flit_mode = config.flit_mode();
        let carrier = match config.cxl_flit {
            _ if flit_mode => FLIT_256,
            CxlFlit::Bytes68 => FLIT_68,
            _ => NO_FLIT,
        };
        let mut rules = Rules {
            config: config.clone(),
            flit_mode,
            carrier,
            request_run_bytes: (config.max_read_request_bytes * (config.read_tags / 2).max(1)).min(PAGE_BYTES),
            lane_byte_time: lane_byte_time(config.generation),
            lane_shift: (64 * config.lanes).trailing_zeros(),
            flit_picos: 0,
            one_way_picos: config.one_way_ns * 1000,
            host_read_picos: config.host_read_ns * 1000,
            planted,
        };
        rules.flit_picos = rules.wire_picos(carrier.flit_bytes);
        rules
    }

    /// Picoseconds of `bytes` on all lanes, rounded up: a transfer is never faster than the wire.
    pub(crate) fn wire_picos(&self, bytes: u64) -> u64 {
        (bytes * self.lane_byte_time).div_ceil(1 << self.lane_shift)
    }
}

/// Time of a byte on one lane in units of 1/64 ps, in which each is whole: 10 bits for 8 up to 5 GT/s, 130 bits for
/// 128 from 8 to 32 GT/s, 8 bits for 8 at 64 GT/s (Section 4.2; there the flit pays for its checksums in bytes).
const fn lane_byte_time(generation: u32) -> u64 {
    match generation {
        1 => 256_000,
        2 => 128_000,
        3 => 65_000,
        4 => 32_500,
        5 => 16_250,
        _ => 8_000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        generation = 5
        lanes = 4
        max_payload_bytes = 256
        max_read_request_bytes = 512
        read_completion_boundary_bytes = 64
        completion_bytes_max = 256
        ecrc = false
        ack_every_packets = 0
        update_fc_every_packets = 0
        read_tags = 256
        one_way_ns = 100
        host_read_ns = 200
        device_read_ns = 100
        cxl_flit = "none"
    "#;

    fn parse(text: &str) -> Result<LinkConfig, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn every_missing_and_every_unknown_key_is_refused_by_name() {
        parse(TEXT).expect("sound").validate().expect("sound");
        let lines: Vec<&str> = TEXT.lines().filter(|line| line.contains('=')).collect();
        for (index, line) in lines.iter().enumerate() {
            let key = line.split('=').next().expect("a key").trim();
            let cut: Vec<&str> =
                lines.iter().enumerate().filter(|(at, _)| *at != index).map(|(_, line)| *line).collect();
            let error = parse(&cut.join("\n")).expect_err(key);
            assert!(error.contains(&format!("missing field `{key}`")), "{error}");
        }
        let error = parse(&format!("{TEXT}\nspeed = 3")).expect_err("unknown");
        assert!(error.contains("unknown field `speed`"), "{error}");
    }

    #[test]
    fn impossible_values_are_refused_with_key_and_reason() {
        for (key, value) in [
            ("generation", "0"),
            ("generation", "7"),
            ("lanes", "3"),
            ("max_payload_bytes", "64"),
            ("max_payload_bytes", "300"),
            ("max_read_request_bytes", "8192"),
            ("read_completion_boundary_bytes", "32"),
            ("completion_bytes_max", "512"),
            ("completion_bytes_max", "96"),
            ("completion_bytes_max", "0"),
            ("read_tags", "0"),
            ("read_tags", "1024"),
            ("one_way_ns", "2000000000"),
        ] {
            let text: Vec<String> = TEXT
                .lines()
                .map(|line| match line.trim().starts_with(&format!("{key} =")) {
                    true => format!("{key} = {value}"),
                    false => line.to_owned(),
                })
                .collect();
            let error = parse(&text.join("\n")).expect("the type is right").validate().expect_err(key);
            assert_eq!(error.key, key);
            assert!(error.to_string().starts_with(&format!("link: {key} is {value}, ")), "{error}");
        }
    }

    #[test]
    fn flits_are_named_with_quotes_or_as_numbers() {
        let with = |word: &str| parse(&TEXT.replace("\"none\"", word)).map(|config| config.cxl_flit);
        for (word, flit) in [
            ("68", CxlFlit::Bytes68),
            ("\"68\"", CxlFlit::Bytes68),
            ("256", CxlFlit::Bytes256),
            ("\"256-pbr\"", CxlFlit::Bytes256Pbr),
        ] {
            assert_eq!(with(word), Ok(flit));
        }
        for word in ["128", "\"big\"", "true", "-68", "6.8", "[68]"] {
            let error = with(word).expect_err(word);
            assert!(error.contains("cxl_flit = ") && error.contains("is \"none\", 68, 256 or \"256-pbr\""), "{error}");
        }
    }

    #[test]
    fn flits_need_a_generation_that_has_them() {
        let with = |generation, cxl_flit| LinkConfig { generation, cxl_flit, ..parse(TEXT).expect("sound") };
        for (generation, flit, fine) in [
            (2, CxlFlit::Bytes68, false),
            (5, CxlFlit::Bytes68, true),
            (6, CxlFlit::Bytes68, false),
            (6, CxlFlit::Bytes256, true),
            (6, CxlFlit::Bytes256Pbr, true),
            (1, CxlFlit::Bytes256, false),
            (6, CxlFlit::None, true),
        ] {
            assert_eq!(with(generation, flit).validate().is_ok(), fine, "{generation} {flit:?}");
        }
        let tags = LinkConfig { read_tags: 10_000, ..with(6, CxlFlit::None) };
        tags.validate().expect("flit mode has longer tags");
    }

    #[test]
    fn a_byte_takes_what_its_line_coding_says() {
        let with = |generation, lanes| LinkConfig { generation, lanes, ..parse(TEXT).expect("sound") };
        // 10 bits at 2.5 GT/s; 130 bits for 16 bytes at 8 GT/s; 8 bits at 64 GT/s.
        assert_eq!(with(1, 1).wire_picos(1), 4_000);
        assert_eq!(with(2, 4).wire_picos(2), 1_000);
        assert_eq!(with(3, 1).wire_picos(16), 16_250);
        assert_eq!(with(4, 16).wire_picos(1 << 20), 33_280_000);
        assert_eq!(with(5, 4).wire_picos(1), 64);
        assert_eq!(with(6, 16).wire_picos(256), 2_000);
        // Generation 5 with 16 lanes: 32 GT/s × 16 / 8 × 128 / 130, which is 819.2 GB in 13 s.
        assert_eq!(with(5, 16).wire_picos(819_200_000_000), 13_000_000_000_000);
    }
}
