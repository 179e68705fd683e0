//! Constant strides, found for each region of the address space.
//!
//! The reference prediction table of Chen and Baer ("Effective hardware-based data prefetching for high-performance
//! processors", IEEE Transactions on Computers, 1995) tells streams apart by the instruction that loads.
//! A device sees no instructions; as in hardware beside memory, the region of the address stands for the stream.

use super::{DEGREE_MAX, Named, Prefetch, Seen};
use crate::eviction::{Parameter, Parameters};
use crate::table::tag;

/// The greatest confidence, of a two-bit counter.
const CONFIDENCE_MAX: u8 = 3;

/// What is known of one region.
#[derive(Clone, Copy, Debug)]
struct Stream {
    region: u64,
    last_page: u64,
    stride: i64,
    confidence: u8,
}

/// Once requests to a region have kept a stride, the pages that follow in it.
#[derive(Debug)]
pub struct Stride {
    streams: Box<[Option<Stream>]>,
    region_bits: u32,
    confidence_min: u8,
    degree: u64,
}

impl Named for Stride {
    const NAME: &'static str = "stride";
    const SUMMARY: &'static str = "once requests to a region keep a stride, the pages that follow in it";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter {
            name: "streams",
            default: 64,
            min: 1,
            max: 65_536,
            about: "entries of the table, one region each, of 40 bytes (assumed)",
        },
        Parameter {
            name: "region_pages_log2",
            default: 10,
            min: 2,
            max: 40,
            about: "pages of a region, as a power of two (assumed: 2^10 pages of 4 KiB are 4 MiB)",
        },
        Parameter {
            name: "confidence_min",
            default: 2,
            min: 1,
            max: CONFIDENCE_MAX as u64,
            about: "repetitions of a stride before it is believed (Chen and Baer: steady after two)",
        },
        Parameter { name: "degree", default: 4, min: 1, max: DEGREE_MAX, about: "how many pages ahead (assumed)" },
    ];

    fn new(parameters: &Parameters) -> Self {
        Self {
            streams: vec![None; parameters.get("streams") as usize].into(),
            region_bits: parameters.get("region_pages_log2") as u32,
            confidence_min: parameters.get("confidence_min") as u8,
            degree: parameters.get("degree"),
        }
    }
}

impl Prefetch for Stride {
    fn requested(&mut self, page: u64, _: Seen, wanted: &mut Vec<u64>) {
        let region = page >> self.region_bits;
        let place = (u64::from(tag(region)) * self.streams.len() as u64) >> 32;
        let entry = &mut self.streams[place as usize];
        let Some(stream) = entry.as_mut().filter(|stream| stream.region == region) else {
            *entry = Some(Stream { region, last_page: page, stride: 0, confidence: 0 });
            return;
        };
        let stride = page.wrapping_sub(stream.last_page) as i64;
        if stride == 0 {
            return;
        }
        stream.last_page = page;
        if stride == stream.stride {
            stream.confidence = (stream.confidence + 1).min(CONFIDENCE_MAX);
        } else if stream.confidence > 0 {
            stream.confidence -= 1;
        } else {
            stream.stride = stride;
        }
        if stride == stream.stride && stream.confidence >= self.confidence_min {
            let ahead = |step: u64| page.checked_add_signed(stride.checked_mul(step as i64)?);
            wanted.extend((1..=self.degree).map_while(ahead));
        }
    }
}
