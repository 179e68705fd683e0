//! The shape of the array, and the order in which a stripe of pages visits its parts.
//!
//! A *superblock* is one block from every plane of every die. A *slot* is what one program fills: one page
//! of one plane, or, with multi-plane programs, the pages of one row on all planes of one die. Units of
//! 4 KiB are numbered through the whole array:
//!
//! `unit = ((superblock * rows + row) * stripes + stripe) * slot_units + unit of the slot`
//!
//! The *stripe* number says which die (and plane) a slot lies on; [`Order`] says how.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::ConfigError;
use crate::BLOCK_BYTES;

/// Dimensions of the NAND array. Check with [`Shape::validate`] before use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Independent channels, each with a bus of its own: 1 to 64.
    pub channels: u32,
    /// Packages on one channel: 1 to 64.
    pub chips_per_channel: u32,
    /// Dies of one package, each of which works on its own: 1 to 16.
    pub dies_per_chip: u32,
    /// Planes of one die: 1 to 8.
    pub planes_per_die: u32,
    /// Blocks of one plane, spare ones included: 8 to 65,536.
    pub blocks_per_plane: u32,
    /// Pages of one block: 4 to 4,096.
    pub pages_per_block: u32,
    /// Bytes of one page, without the out-of-band area: a power of two from 4,096 to 65,536.
    pub page_bytes: u32,
}

/// A part of the array that a stripe can step along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// C: the next channel.
    Channel,
    /// W: the next way of the channel, which is a package.
    Chip,
    /// D: the next die of the package.
    Die,
    /// P: the next plane of the die.
    Plane,
}

/// Which part a stripe steps along first, second, third and last: a permutation of the letters C, W, D and
/// P, as the literature names static allocation (Hu and others, ICS 2011; MQSim, FAST 2018).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Order(pub [Level; 4]);

impl FromStr for Order {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Order, ConfigError> {
        let mut levels = [Level::Channel; 4];
        let mut letters: Vec<char> = text.chars().collect();
        if letters.len() == 4 {
            for (level, letter) in levels.iter_mut().zip(&letters) {
                *level = match letter {
                    'W' => Level::Chip,
                    'D' => Level::Die,
                    'P' => Level::Plane,
                    _ => Level::Channel,
                };
            }
        }
        letters.sort_unstable();
        if letters != ['C', 'D', 'P', 'W'] {
            let reason = "give each of the letters C (channel), W (chip), D (die) and P (plane) once, as in \"PCWD\"";
            return Err(ConfigError::new("order", text, reason));
        }
        Ok(Order(levels))
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for level in self.0 {
            f.write_str(match level {
                Level::Channel => "C",
                Level::Chip => "W",
                Level::Die => "D",
                Level::Plane => "P",
            })?;
        }
        Ok(())
    }
}

impl TryFrom<String> for Order {
    type Error = ConfigError;

    fn try_from(text: String) -> Result<Order, ConfigError> {
        text.parse()
    }
}

impl From<Order> for String {
    fn from(order: Order) -> String {
        order.to_string()
    }
}

impl Shape {
    /// Checks every dimension.
    ///
    /// # Errors
    /// Names the first value that cannot work, and what would.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let ranges = [
            ("shape.channels", self.channels, 1, 64),
            ("shape.chips_per_channel", self.chips_per_channel, 1, 64),
            ("shape.dies_per_chip", self.dies_per_chip, 1, 16),
            ("shape.planes_per_die", self.planes_per_die, 1, 8),
            ("shape.blocks_per_plane", self.blocks_per_plane, 8, 65_536),
            ("shape.pages_per_block", self.pages_per_block, 4, 4_096),
            ("shape.page_bytes", self.page_bytes, 4_096, 65_536),
        ];
        for (key, value, min, max) in ranges {
            ConfigError::range(key, u64::from(value), min, max)?;
        }
        if !self.page_bytes.is_power_of_two() {
            let reason = "choose 4096, 8192, 16384, 32768 or 65536";
            return Err(ConfigError::new("shape.page_bytes", self.page_bytes, reason));
        }
        if self.units() > u64::from(u32::MAX) {
            let reason = format!(
                "the array has {} units of 4 KiB, and a map of 4 bytes an entry reaches {} (16 TiB); use fewer blocks",
                self.units(),
                u32::MAX
            );
            return Err(ConfigError::new("shape.blocks_per_plane", self.blocks_per_plane, reason));
        }
        Ok(())
    }

    /// Dies that share one channel.
    #[must_use]
    pub const fn dies_per_channel(&self) -> u32 {
        self.chips_per_channel * self.dies_per_chip
    }

    /// Dies of the whole device.
    #[must_use]
    pub const fn dies(&self) -> u32 {
        self.channels * self.dies_per_channel()
    }

    /// Planes of the whole device.
    #[must_use]
    pub const fn planes(&self) -> u32 {
        self.dies() * self.planes_per_die
    }

    /// Mapping units of 4 KiB in one page.
    #[must_use]
    pub const fn units_per_page(&self) -> u32 {
        self.page_bytes / BLOCK_BYTES
    }

    /// Mapping units of the whole array.
    #[must_use]
    pub const fn units(&self) -> u64 {
        self.planes() as u64 * self.blocks_per_plane as u64 * self.pages_per_block as u64 * self.units_per_page() as u64
    }

    /// The die and plane of each stripe. With multi-plane programs a stripe is a die, and the plane is 0.
    ///
    /// Dies are numbered `(channel * chips_per_channel + chip) * dies_per_chip + die of the chip`.
    #[must_use]
    pub fn stripes(&self, order: Order, multi_plane: bool) -> Vec<(u32, u32)> {
        let planes = if multi_plane { 1 } else { self.planes_per_die };
        (0..self.dies() * planes)
            .map(|stripe| {
                let (mut rest, mut channel, mut chip, mut die, mut plane) = (stripe, 0, 0, 0, 0);
                for level in order.0 {
                    let (part, size) = match level {
                        Level::Channel => (&mut channel, self.channels),
                        Level::Chip => (&mut chip, self.chips_per_channel),
                        Level::Die => (&mut die, self.dies_per_chip),
                        Level::Plane => (&mut plane, planes),
                    };
                    *part = rest % size;
                    rest /= size;
                }
                ((channel * self.chips_per_channel + chip) * self.dies_per_chip + die, plane)
            })
            .collect()
    }
}

/// Division of 32-bit numbers by one that is known late, as a multiplication (Lemire, Kaser and Kurz, 2019):
/// exact for every dividend, and several times faster than the instruction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Divisor {
    divisor: u32,
    reciprocal: u64,
}

impl Divisor {
    pub(crate) fn new(divisor: u32) -> Divisor {
        assert!(divisor > 0, "nothing is divided by zero");
        // 2^64 / divisor, rounded up; a divisor of 1 has no such reciprocal and is handled apart.
        Divisor { divisor, reciprocal: (u64::MAX / u64::from(divisor)).wrapping_add(1) }
    }

    /// Quotient and remainder.
    #[inline]
    pub(crate) fn split(self, dividend: u32) -> (u32, u32) {
        let quotient = self.quotient(dividend);
        (quotient, dividend - quotient * self.divisor)
    }

    #[inline]
    pub(crate) fn quotient(self, dividend: u32) -> u32 {
        if self.divisor == 1 {
            return dividend;
        }
        ((u128::from(self.reciprocal) * u128::from(dividend)) >> 64) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Shape = Shape {
        channels: 2,
        chips_per_channel: 2,
        dies_per_chip: 1,
        planes_per_die: 2,
        blocks_per_plane: 16,
        pages_per_block: 4,
        page_bytes: 4096,
    };

    #[test]
    fn impossible_shapes_are_refused_by_key_and_reason() {
        assert_eq!(SMALL.validate(), Ok(()));
        let cases = [
            (Shape { channels: 0, ..SMALL }, "shape.channels is 0"),
            (Shape { blocks_per_plane: 7, ..SMALL }, "shape.blocks_per_plane is 7"),
            (Shape { page_bytes: 12_288, ..SMALL }, "shape.page_bytes is 12288"),
            (
                Shape { channels: 64, chips_per_channel: 64, blocks_per_plane: 65_536, pages_per_block: 4096, ..SMALL },
                "16 TiB",
            ),
        ];
        for (shape, expected) in cases {
            let error = shape.validate().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn every_order_visits_every_plane_once_and_steps_along_its_first_letter() {
        let letters = ['C', 'W', 'D', 'P'];
        let shape = Shape { dies_per_chip: 3, ..SMALL };
        let mut orders = 0;
        for code in 0..256_usize {
            let text: String =
                [code & 3, code >> 2 & 3, code >> 4 & 3, code >> 6].iter().map(|&i| letters[i]).collect();
            let Ok(order) = text.parse::<Order>() else { continue };
            orders += 1;
            assert_eq!(order.to_string(), text);
            let stripes = shape.stripes(order, false);
            let mut seen = stripes.clone();
            seen.sort_unstable();
            let all: Vec<_> = (0..shape.dies()).flat_map(|die| [(die, 0), (die, 1)]).collect();
            assert_eq!(seen, all, "{text}");
            let step = match order.0[0] {
                Level::Channel => (shape.dies_per_channel(), 0),
                Level::Chip => (shape.dies_per_chip, 0),
                Level::Die => (1, 0),
                Level::Plane => (0, 1),
            };
            assert_eq!(stripes[1], step, "{text}");
        }
        assert_eq!(orders, 24);
        assert!("CCWD".parse::<Order>().unwrap_err().to_string().contains("CCWD"));
    }

    #[test]
    fn reciprocals_divide_exactly() {
        for divisor in [1, 2, 3, 7, 64, 1152, 1000, 294_912, u32::MAX - 1, u32::MAX] {
            for dividend in [0, 1, 2, divisor - 1, divisor, divisor.saturating_add(1), u32::MAX / 2, u32::MAX] {
                let expected = (dividend / divisor, dividend % divisor);
                assert_eq!(Divisor::new(divisor).split(dividend), expected, "{dividend} / {divisor}");
            }
        }
    }
}
