//! How long the two processes waited for a processor around the longest gap between completions, which tells what the
//! machine did from what the model does.

/// Two looks and what lies between them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Waits {
    /// The longest gap so far, and the time waited for in the look that found it and the one before.
    longest: [u64; 2],
    /// Time waited for in all, and since the look before.
    total: Option<u64>,
    recent: u64,
}

impl Waits {
    /// Looks: the longest gap so far, and the time that both processes waited for a processor so far.
    ///
    /// Two looks count, because a gap may have begun before the last one, and the device tells of its time less often.
    pub fn look(&mut self, longest_gap_ns: u64, total_ns: u64) {
        // The device's time begins anew when its process does.
        let waited = total_ns.saturating_sub(self.total.replace(total_ns).unwrap_or(total_ns));
        if longest_gap_ns > self.longest[0] {
            self.longest = [longest_gap_ns, self.recent + waited];
        }
        self.recent = waited;
    }

    /// What was waited for around the longest gap, in nanoseconds.
    pub fn around_longest_gap(&self) -> u64 {
        self.longest[1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_waited_for_is_that_around_the_longest_gap() {
        let mut waits = Waits::default();
        for (gap, total, expected) in
            [(1, 500, 0), (9, 510, 10), (9, 900, 10), (20, 905, 395), (20, 990, 395), (30, 90, 85)]
        {
            waits.look(gap, total);
            assert_eq!(waits.around_longest_gap(), expected, "gap {gap} at {total}");
        }
    }
}
