//! Latencies by what they belong to, and where the time went.
//!
//! A latency begins when its request arrives. Time before the model had room for it is a cause of its own, `queue`, so
//! that the causes of a request add up to its latency to the nanosecond.

use osier_device::model::{Causes, Met, Op};

use super::histogram::{Histogram, rank_of};

/// How many causes there are.
pub const CAUSES: usize = Causes::NAMES.len() + 1;

/// Their names, in the order of [`parts_of`].
#[must_use]
pub fn cause_names() -> [&'static str; CAUSES] {
    std::array::from_fn(|index| if index == 0 { "queue" } else { Causes::NAMES[index - 1] })
}

/// The parts of a latency: waiting for room in the device, then the device's own causes.
#[must_use]
pub fn parts_of(queue_ns: u64, causes: &Causes) -> [u64; CAUSES] {
    let parts = causes.parts();
    std::array::from_fn(|index| if index == 0 { queue_ns } else { parts[index - 1] })
}

/// One completed request.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// What it did.
    pub op: Op,
    /// Whose it was.
    pub tenant: u16,
    /// Its size.
    pub bytes: u32,
    /// What it met in the cache.
    pub met: Met,
    /// From its arrival to its completion.
    pub latency_ns: u64,
    /// Where that went.
    pub parts: [u64; CAUSES],
}

/// Latencies of one kind of requests, and what they consist of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// How latencies are distributed.
    pub latency: Histogram,
    /// Nanoseconds of each cause, of all requests.
    pub causes: [u128; CAUSES],
}

impl Group {
    fn add(&mut self, latency_ns: u64, parts: &[u64; CAUSES]) -> usize {
        for (sum, part) in self.causes.iter_mut().zip(parts) {
            *sum += u128::from(*part);
        }
        self.latency.add(latency_ns)
    }

    /// Nanoseconds of each cause a request, rounded down.
    #[must_use]
    pub fn mean_parts(&self) -> [u64; CAUSES] {
        self.causes.map(|sum| mean(sum, self.latency.count()))
    }
}

fn mean(sum: u128, count: u64) -> u64 {
    // A mean of numbers of 64 bits is one.
    sum.checked_div(count.into()).unwrap_or(0) as u64
}

/// What one tenant did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tenant {
    /// Its latencies.
    pub group: Group,
    /// Its requests by [`Op::ALL`].
    pub requests: [u64; Op::ALL.len()],
    /// Their bytes.
    pub bytes: [u64; Op::ALL.len()],
    /// Its requests by what they met, in the order of [`METS`].
    pub met: [u64; METS.len()],
}

/// What a request can meet, in the order in which it is counted.
pub const METS: [Met; 4] = [Met::Nothing, Met::Hit, Met::Merged, Met::Miss];

/// The name in reports.
#[must_use]
pub fn met_name(met: Met) -> &'static str {
    match met {
        Met::Nothing => "no-cache",
        Met::Hit => "hit",
        Met::Merged => "merged",
        Met::Miss => "miss",
    }
}

/// What the slowest requests spent their time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// From which latency on: the lowest value of the percentile's bucket.
    pub from_ns: u64,
    /// How many requests took at least that long.
    pub requests: u64,
    /// Nanoseconds of each cause a request, rounded down.
    pub mean_parts: [u64; CAUSES],
}

/// All latencies of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latencies {
    /// Every request.
    pub all: Group,
    /// By [`Op::ALL`].
    pub by_op: [Group; Op::ALL.len()],
    /// By [`METS`].
    pub by_met: [Group; METS.len()],
    /// What each cause took of the requests that it took anything of.
    pub by_cause: [Histogram; CAUSES],
    /// Nanoseconds of each cause, by bucket of the latency.
    causes_by_bucket: Vec<[u128; CAUSES]>,
    /// By tenant; a table of at most 2^16 pointers.
    tenants: Vec<Option<Box<Tenant>>>,
}

impl Default for Latencies {
    fn default() -> Self {
        Latencies {
            all: Group::default(),
            by_op: std::array::from_fn(|_| Group::default()),
            by_met: std::array::from_fn(|_| Group::default()),
            by_cause: std::array::from_fn(|_| Histogram::default()),
            causes_by_bucket: Vec::new(),
            tenants: Vec::new(),
        }
    }
}

impl Latencies {
    /// Counts a request.
    pub fn add(&mut self, sample: &Sample) {
        let Sample { op, tenant, bytes, met, latency_ns, parts } = sample;
        debug_assert_eq!(parts.iter().sum::<u64>(), *latency_ns, "the causes add up to the latency");
        let bucket = self.all.add(*latency_ns, parts);
        if bucket >= self.causes_by_bucket.len() {
            self.causes_by_bucket.resize(bucket + 1, [0; CAUSES]);
        }
        for (cause, part) in parts.iter().enumerate().filter(|(_, part)| **part > 0) {
            self.causes_by_bucket[bucket][cause] += u128::from(*part);
            self.by_cause[cause].add(*part);
        }
        self.by_op[*op as usize].add(*latency_ns, parts);
        self.by_met[*met as usize].add(*latency_ns, parts);
        let place = usize::from(*tenant);
        if place >= self.tenants.len() {
            self.tenants.resize(place + 1, None);
        }
        let tenant = self.tenants[place].get_or_insert_default();
        tenant.group.add(*latency_ns, parts);
        tenant.requests[*op as usize] += 1;
        tenant.bytes[*op as usize] += u64::from(*bytes);
        tenant.met[*met as usize] += 1;
    }

    /// Tenants that had a request, in the order of their numbers.
    pub fn tenants(&self) -> impl Iterator<Item = (u16, &Tenant)> {
        let numbered = (0..=u16::MAX).zip(&self.tenants);
        numbered.filter_map(|(number, tenant)| Some((number, tenant.as_deref()?)))
    }

    /// What the requests from a percentile on spent their time on; `None` without any request.
    #[must_use]
    pub fn tail(&self, permillion: u32) -> Option<Tail> {
        let first = self.all.latency.bucket_at(permillion)?;
        let (from_ns, _) = super::histogram::bounds_of(first);
        let beyond = self.all.latency.buckets().filter(|(low, ..)| *low >= from_ns);
        let requests: u64 = beyond.map(|(.., count)| count).sum();
        debug_assert!(requests > self.all.latency.count() - rank_of(self.all.latency.count(), permillion));
        let mut sums = [0_u128; CAUSES];
        for causes in &self.causes_by_bucket[first..] {
            sums.iter_mut().zip(causes).for_each(|(sum, part)| *sum += part);
        }
        Some(Tail { from_ns, requests, mean_parts: sums.map(|sum| mean(sum, requests)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;

    fn draw(rng: &mut Rng) -> Sample {
        let mut parts = [0; CAUSES];
        for _ in 0..rng.between(1, 4) {
            parts[rng.below(CAUSES as u64) as usize] += rng.next() >> rng.between(30, 63);
        }
        Sample {
            op: Op::ALL[rng.below(6) as usize],
            tenant: rng.below(3) as u16 * 100,
            bytes: rng.below(9000) as u32,
            met: METS[rng.below(4) as usize],
            latency_ns: parts.iter().sum(),
            parts,
        }
    }

    #[test]
    fn places_in_arrays_are_those_of_the_names() {
        for (index, (op, met)) in Op::ALL.into_iter().zip(METS.into_iter().cycle()).enumerate() {
            assert_eq!((op as usize, met as usize), (index, index % METS.len()));
        }
        let parts = parts_of(1, &Causes { link: 2, program: 3, ..Causes::default() });
        let named: Vec<_> = cause_names().into_iter().zip(parts).filter(|(_, part)| *part > 0).collect();
        assert_eq!(named, [("queue", 1), ("link", 2), ("program", 3)]);
    }

    /// Everything that is counted, worked out again from a list of all requests.
    #[test]
    fn groups_and_tails_are_what_a_list_of_all_requests_says() {
        let mut rng = Rng::new(3);
        let samples: Vec<Sample> = (0..3000).map(|_| draw(&mut rng)).collect();
        let mut latencies = Latencies::default();
        samples.iter().for_each(|sample| latencies.add(sample));
        let check = |group: &Group, of: &dyn Fn(&Sample) -> bool| {
            let chosen: Vec<&Sample> = samples.iter().filter(|sample| of(sample)).collect();
            assert_eq!(group.latency.count(), chosen.len() as u64);
            assert_eq!(group.latency.max(), chosen.iter().map(|sample| sample.latency_ns).max().unwrap());
            for (cause, sum) in group.causes.iter().enumerate() {
                assert_eq!(*sum, chosen.iter().map(|sample| u128::from(sample.parts[cause])).sum::<u128>());
            }
        };
        check(&latencies.all, &|_| true);
        for op in Op::ALL {
            check(&latencies.by_op[op as usize], &|sample| sample.op == op);
        }
        for met in METS {
            check(&latencies.by_met[met as usize], &|sample| sample.met == met);
        }
        let tenants: Vec<u16> = latencies.tenants().map(|(number, _)| number).collect();
        assert_eq!(tenants, [0, 100, 200]);
        for (number, tenant) in latencies.tenants() {
            check(&tenant.group, &|sample| sample.tenant == number);
            let bytes: u64 = samples.iter().filter(|s| s.tenant == number).map(|s| u64::from(s.bytes)).sum();
            assert_eq!(tenant.bytes.iter().sum::<u64>(), bytes);
            assert_eq!(tenant.requests.iter().sum::<u64>(), tenant.met.iter().sum::<u64>());
        }
        for permillion in [500_000, 990_000, 999_000, 1_000_000] {
            let tail = latencies.tail(permillion).unwrap();
            let slow: Vec<&Sample> = samples.iter().filter(|sample| sample.latency_ns >= tail.from_ns).collect();
            assert_eq!(tail.requests, slow.len() as u64);
            let at_least = samples.len() as u64 * u64::from(1_000_000 - permillion) / 1_000_000;
            assert!(tail.requests > at_least && tail.requests <= at_least + 60, "{tail:?}");
            for (cause, mean) in tail.mean_parts.iter().enumerate() {
                let sum: u128 = slow.iter().map(|sample| u128::from(sample.parts[cause])).sum();
                assert_eq!(u128::from(*mean), sum / slow.len() as u128);
            }
        }
        assert_eq!(Latencies::default().tail(500_000), None);
    }
}
