//! What a cache counts. Every number is exact, and counts since the cache was made.

/// See the fields. Pages are counted, unless a field says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// Requests that read, of whatever outcome but [`crate::Outcome::Wait`].
    pub reads: u64,
    /// Requests that wrote, likewise.
    pub writes: u64,
    /// Requests whose page was resident.
    pub hits: u64,
    /// Requests that began to bring a page in.
    pub misses: u64,
    /// Requests for a page that was already on its way.
    pub merged: u64,
    /// Reads answered by the write log alone.
    pub log_hits: u64,
    /// Writes that the write log took while the page was not resident.
    pub logged: u64,
    /// Answers [`crate::Outcome::Wait`]; one request may get several.
    pub waits: u64,
    /// Uses reported by [`crate::Cache::touch`], which are no requests.
    pub sampled: u64,
    /// Pages that left without being written.
    pub evicted_clean: u64,
    /// Pages that left and had to be written.
    pub evicted_dirty: u64,
    /// Of all that left: those that a command evicted.
    pub evicted_by_command: u64,
    /// Of all that left: those that [`crate::Cache::reclaim`] evicted to keep frames free.
    pub reclaimed: u64,
    /// Fills that failed.
    pub fills_failed: u64,
    /// Victims that the policy named wrongly or not at all, and that the cache chose instead.
    pub policy_faults: u64,
    /// Prefetches begun.
    pub prefetch_issued: u64,
    /// Prefetches not begun because the page was there or on its way.
    pub prefetch_redundant: u64,
    /// Prefetches not begun because there was no frame for them.
    pub prefetch_refused: u64,
    /// Prefetched pages that a request asked for, late ones included.
    pub prefetch_useful: u64,
    /// Prefetched pages that a request asked for before they had arrived.
    pub prefetch_late: u64,
    /// Prefetched pages that left without having been asked for.
    pub prefetch_unused: u64,
    /// Misses of pages that a prefetch had pushed out, among the last of these as the cache has frames.
    pub prefetch_pollution: u64,
}

impl Stats {
    /// Requests answered.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.reads + self.writes
    }

    /// Prefetch accuracy: useful of issued prefetches, in thousandths; nothing before the first.
    #[must_use]
    pub fn accuracy_permille(&self) -> Option<u64> {
        permille(self.prefetch_useful, self.prefetch_issued)
    }

    /// Prefetch coverage: misses that prefetches spared, of those there would have been, in thousandths.
    #[must_use]
    pub fn coverage_permille(&self) -> Option<u64> {
        permille(self.prefetch_useful, self.prefetch_useful + self.misses)
    }

    /// Prefetch timeliness: useful prefetches that had arrived in time, in thousandths.
    #[must_use]
    pub fn timeliness_permille(&self) -> Option<u64> {
        permille(self.prefetch_useful - self.prefetch_late, self.prefetch_useful)
    }
}

fn permille(part: u64, whole: u64) -> Option<u64> {
    (whole > 0).then(|| (u128::from(part) * 1000 / u128::from(whole)) as u64)
}
