//! How much memory a domain's process needs for itself, from `/proc/PID/smaps` (proc(5)).
//!
//! Counted is what is resident of every mapping but two kinds:
//!
//! - the shared region and the media: they are the device's content, which the profile and the image size;
//! - private file mappings that nobody may write, from outside the image: the text of the program and of shared
//!   libraries, which the page cache holds once for all processes and can drop at any time.
//!
//! So the machine code of the actors, which lies in the image, is counted, and so is memory shared in any other way.

use std::path::Path;

/// Bytes that a process needs for itself; `None` where the system does not show it.
pub fn resident_bytes(pid: u64, image: &Path, left_out: &[&Path]) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).ok()?;
    Some(sum(&text, image, left_out))
}

/// One mapping's first line: addresses, permissions, offset, device, inode, and the path if it has one.
struct Mapping<'a> {
    permissions: &'a str,
    path: &'a str,
}

impl<'a> Mapping<'a> {
    fn parse(line: &'a str) -> Option<Mapping<'a>> {
        let (addresses, rest) = line.split_once(' ')?;
        let (begin, end) = addresses.split_once('-')?;
        let is_hexadecimal = |word: &str| u64::from_str_radix(word, 16).is_ok();
        if !is_hexadecimal(begin) || !is_hexadecimal(end) {
            return None;
        }
        let (permissions, rest) = rest.split_once(' ')?;
        // Three columns before the path, which may have blanks in it.
        let path = rest.splitn(4, ' ').nth(3).unwrap_or("").trim_start();
        Some(Mapping { permissions, path })
    }

    fn is_counted(&self, image: &Path, left_out: &[&Path]) -> bool {
        let path = Path::new(self.path);
        let is_file = self.path.starts_with('/');
        let is_text = is_file && !self.permissions.contains('w') && self.permissions.ends_with('p');
        !left_out.contains(&path) && (!is_text || path.starts_with(image))
    }
}

fn sum(smaps: &str, image: &Path, left_out: &[&Path]) -> u64 {
    let (mut kib, mut counted) = (0, false);
    for line in smaps.lines() {
        if let Some(mapping) = Mapping::parse(line) {
            counted = mapping.is_counted(image, left_out);
        } else if let Some(rest) = line.strip_prefix("Rss:").filter(|_| counted) {
            kib += rest.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0);
        }
    }
    kib * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
55d0c0000000-55d0c0400000 r-xp 00001000 fe:00 77 /usr/bin/osier
Size:               4096 kB
Rss:                3000 kB
55d0c0400000-55d0c0410000 rw-p 00400000 fe:00 77 /usr/bin/osier
Rss:                  40 kB
Anonymous:            12 kB
55d0c1000000-55d0c1100000 rw-p 00000000 00:00 0 [heap]
Rss:                 700 kB
7f0000000000-7f0004000000 rw-s 00000000 fe:00 99 /data/a device/pmr
Rss:               65536 kB
7f0005000000-7f0005001000 r-xp 00000000 fe:00 88 /data/a device/code/lz4.bin
Rss:                   4 kB
7f0006000000-7f0006001000 rw-s 00000000 00:01 5 /memfd:scratch (deleted)
Rss:                   8 kB
7f0007000000-7f0007001000 ---p 00000000 00:00 0 
Rss:                   0 kB
";

    #[test]
    fn all_is_counted_but_the_region_and_what_the_page_cache_shares() {
        let image = Path::new("/data/a device");
        let pmr = image.join("pmr");
        assert_eq!(sum(SMAPS, image, &[&pmr]), (40 + 700 + 4 + 8) * 1024);
        assert_eq!(sum(SMAPS, image, &[]), (40 + 700 + 65536 + 4 + 8) * 1024);
        assert_eq!(sum(SMAPS, Path::new("/elsewhere"), &[&pmr]), (40 + 700 + 8) * 1024);
        assert_eq!(sum("", image, &[]), 0);
    }

    /// Against what the kernel itself counts of this process: nothing is mapped twice and nothing missed.
    #[test]
    fn with_nothing_left_out_it_is_what_the_kernel_says() {
        let all = resident_bytes(u64::from(std::process::id()), Path::new("/"), &[]).unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kernel = line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024;
        assert!(all.abs_diff(kernel) <= kernel / 10, "{all} and {kernel}");
    }
}
