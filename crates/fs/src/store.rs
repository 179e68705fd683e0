//! Keys and values in three layers: what changed since the last commit began, what is being committed, what is
//! committed.
//!
//! Operations change the uppermost layer in memory. A commit freezes it, gives it to `redb` as one transaction while
//! operations go on above, and lets go of it when the transaction is persistent. So the store on the device is at each
//! moment what some operation left, and all operations before it. Between commits the log is told what has changed in
//! the uppermost layer since it was last asked.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use redb::{Database, ReadOnlyTable, ReadableDatabase, TableDefinition};
use rustix::io::Errno;

use crate::log::PAIR_BYTES;

/// The one table; kinds of records differ by their keys' first byte.
const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("osier");

/// A value, or nothing where a key was deleted.
type Change = Option<Vec<u8>>;
/// Values by keys.
pub(crate) type Layer = BTreeMap<Vec<u8>, Change>;
/// A key and its value.
pub(crate) type Pair = (Vec<u8>, Vec<u8>);
/// Keys, and what becomes of them.
pub(crate) type Pairs = Vec<(Vec<u8>, Change)>;

/// What was committed last.
pub(crate) type Committed = ReadOnlyTable<&'static [u8], &'static [u8]>;

/// See the module.
pub(crate) struct Store {
    active: Layer,
    active_bytes: usize,
    /// Keys of the active layer that have changed since they were last logged.
    unlogged: BTreeSet<Vec<u8>>,
    frozen: Option<Arc<Layer>>,
    committed: Committed,
    /// Bytes of all keys and values, as far as what was committed says so: counters may be damaged.
    live_bytes: u64,
    /// What the active layer had before, newest last, and how it was counted.
    undo: Vec<(Vec<u8>, Option<Change>)>,
    undo_counts: (usize, u64),
}

/// An error of the database as the file system's: it is said once, here.
pub(crate) fn failed(error: impl std::fmt::Display) -> Errno {
    tracing::error!(%error, "the file system's store failed");
    Errno::IO
}

/// Commits a layer, to a new database too; what is committed then.
pub(crate) fn apply(database: &Database, layer: &Layer) -> Result<Committed, Errno> {
    let transaction = database.begin_write().map_err(failed)?;
    {
        let mut table = transaction.open_table(TABLE).map_err(failed)?;
        for (key, value) in layer {
            match value {
                Some(value) => drop(table.insert(&key[..], &value[..]).map_err(failed)?),
                None => drop(table.remove(&key[..]).map_err(failed)?),
            }
        }
    }
    transaction.commit().map_err(failed)?;
    committed(database)
}

/// What is committed.
pub(crate) fn committed(database: &Database) -> Result<Committed, Errno> {
    let transaction = database.begin_read().map_err(failed)?;
    transaction.open_table(TABLE).map_err(failed)
}

impl Store {
    pub fn new(committed: Committed, live_bytes: u64) -> Store {
        Store {
            active: Layer::new(),
            active_bytes: 0,
            unlogged: BTreeSet::new(),
            frozen: None,
            committed,
            live_bytes,
            undo: Vec::new(),
            undo_counts: (0, live_bytes),
        }
    }

    /// Bytes of all keys and values.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Bytes of what no commit has begun with.
    pub fn active_bytes(&self) -> usize {
        self.active_bytes
    }

    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
        if let Some(value) = self.active.get(key) {
            return Ok(value.clone());
        }
        if let Some(value) = self.frozen.as_ref().and_then(|frozen| frozen.get(key)) {
            return Ok(value.clone());
        }
        Ok(self.committed.get(key).map_err(failed)?.map(|guard| guard.value().to_vec()))
    }

    pub fn put(&mut self, key: Vec<u8>, value: Vec<u8>) -> Result<(), Errno> {
        let before = self.get(&key)?.map_or(0, |old| key.len() + old.len());
        self.live_bytes = (self.live_bytes + (key.len() + value.len()) as u64).saturating_sub(before as u64);
        self.change(key, Some(value));
        Ok(())
    }

    /// Deletes what may be there.
    pub fn delete(&mut self, key: &[u8]) -> Result<(), Errno> {
        if let Some(old) = self.get(key)? {
            self.live_bytes = self.live_bytes.saturating_sub((key.len() + old.len()) as u64);
            self.change(key.to_vec(), None);
        }
        Ok(())
    }

    /// Puts what [`Store::live_bytes`] does not count.
    pub fn put_uncounted(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.change(key, Some(value));
    }

    /// Puts or deletes what no operation would.
    #[cfg(test)]
    pub fn plant(&mut self, key: &[u8], value: Option<Vec<u8>>) {
        self.change(key.to_vec(), value);
    }

    fn change(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        self.active_bytes += key.len() + value.as_ref().map_or(0, Vec::len);
        if !self.unlogged.contains(&key) {
            self.unlogged.insert(key.clone());
        }
        let before = self.active.insert(key.clone(), value);
        self.undo.push((key, before));
    }

    /// From here on changes can be taken back.
    pub fn begin(&mut self) {
        self.undo.clear();
        self.undo_counts = (self.active_bytes, self.live_bytes);
    }

    /// Whether something has changed since [`Store::begin`].
    pub fn has_changed(&self) -> bool {
        !self.undo.is_empty()
    }

    /// Takes back what has changed since [`Store::begin`].
    pub fn roll_back(&mut self) {
        while let Some((key, before)) = self.undo.pop() {
            match before {
                Some(value) => drop(self.active.insert(key, value)),
                None => drop(self.active.remove(&key)),
            }
        }
        (self.active_bytes, self.live_bytes) = self.undo_counts;
    }

    /// The last pair whose key is in `low..=high`.
    pub fn last(&self, low: &[u8], high: &[u8]) -> Result<Option<Pair>, Errno> {
        let mut high = Bound::Included(high.to_vec());
        loop {
            let bounds = (Bound::Included(low), high.as_ref().map(Vec::as_slice));
            if is_empty(&bounds) {
                return Ok(None);
            }
            let upper = |layer: &Layer| {
                layer.range::<[u8], _>(bounds).next_back().map(|(key, value)| (key.clone(), value.clone()))
            };
            let active = upper(&self.active);
            let frozen = self.frozen.as_ref().and_then(|frozen| upper(frozen));
            let committed = match self.committed.range::<&[u8]>(bounds).map_err(failed)?.next_back() {
                Some(pair) => {
                    let (key, value) = pair.map_err(failed)?;
                    Some((key.value().to_vec(), Some(value.value().to_vec())))
                }
                None => None,
            };
            // Of equal keys the uppermost layer's counts.
            let Some((key, value)) = pick(pick(active, frozen), committed) else { return Ok(None) };
            match value {
                Some(value) => return Ok(Some((key, value))),
                None => high = Bound::Excluded(key),
            }
        }
    }

    /// The pairs whose keys are in `low..high`, in order, at most `limit`.
    pub fn range(&self, low: &[u8], high: &[u8], limit: usize) -> Result<Vec<Pair>, Errno> {
        let bounds = (Bound::Included(low), Bound::Excluded(high));
        let mut pairs = Vec::new();
        if is_empty(&bounds) {
            return Ok(pairs);
        }
        let nothing = Layer::new();
        let mut active = self.active.range::<[u8], _>(bounds).peekable();
        let mut frozen = self.frozen.as_deref().unwrap_or(&nothing).range::<[u8], _>(bounds).peekable();
        let mut committed = self.committed.range::<&[u8]>(bounds).map_err(failed)?;
        let mut advance = || -> Result<Option<Pair>, Errno> {
            let Some(pair) = committed.next() else { return Ok(None) };
            let (key, value) = pair.map_err(failed)?;
            Ok(Some((key.value().to_vec(), value.value().to_vec())))
        };
        let mut below = advance()?;
        while pairs.len() < limit {
            let keys =
                [active.peek().map(|pair| pair.0), frozen.peek().map(|pair| pair.0), below.as_ref().map(|p| &p.0)];
            let Some(least) = keys.into_iter().flatten().min().cloned() else { break };
            let is_active = active.peek().is_some_and(|pair| *pair.0 == least);
            let is_frozen = frozen.peek().is_some_and(|pair| *pair.0 == least);
            let mut value = None;
            if below.as_ref().is_some_and(|pair| pair.0 == least) {
                value = below.take().map(|pair| pair.1);
                below = advance()?;
            }
            if is_frozen {
                value = frozen.next().and_then(|pair| pair.1.clone());
            }
            if is_active {
                value = active.next().and_then(|pair| pair.1.clone());
            }
            pairs.extend(value.map(|value| (least, value)));
        }
        Ok(pairs)
    }

    /// What has changed since it was last logged, if that is at most so many bytes; from here on it is logged.
    pub fn take_unlogged(&mut self, bytes_max: usize) -> Option<Pairs> {
        let (mut pairs, mut bytes) = (Pairs::new(), 0);
        // A key whose only change was taken back is in no layer in memory.
        for (key, value) in self.unlogged.iter().filter_map(|key| self.active.get_key_value(key)) {
            bytes += PAIR_BYTES + key.len() + value.as_ref().map_or(0, Vec::len);
            if bytes > bytes_max {
                return None;
            }
            pairs.push((key.clone(), value.clone()));
        }
        self.unlogged.clear();
        Some(pairs)
    }

    /// Freezes the active layer; [`Store::thaw`] is told when it is committed.
    pub fn freeze(&mut self) -> Arc<Layer> {
        assert!(self.frozen.is_none(), "one commit at a time");
        self.undo.clear();
        self.active_bytes = 0;
        self.unlogged.clear();
        let frozen = Arc::new(std::mem::take(&mut self.active));
        self.frozen = Some(Arc::clone(&frozen));
        frozen
    }

    /// The frozen layer is committed.
    pub fn thaw(&mut self, committed: Committed) {
        self.frozen = None;
        self.committed = committed;
    }
}

type Found = Option<(Vec<u8>, Change)>;

/// The one with the greater key; of equal ones the first.
fn pick(first: Found, second: Found) -> Found {
    match (first, second) {
        (Some(first), Some(second)) => Some(if second.0 > first.0 { second } else { first }),
        (first, second) => first.or(second),
    }
}

/// Maps refuse bounds that are the wrong way round.
fn is_empty(bounds: &(Bound<&[u8]>, Bound<&[u8]>)) -> bool {
    match *bounds {
        (Bound::Included(low), Bound::Included(high)) => low > high,
        (Bound::Included(low) | Bound::Excluded(low), Bound::Excluded(high) | Bound::Included(high)) => low >= high,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database() -> Database {
        redb::Builder::new().create_with_backend(redb::backends::InMemoryBackend::new()).unwrap()
    }

    fn draw(seed: &mut u64, below: u64) -> u64 {
        *seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (*seed >> 33) % below
    }

    fn compare(store: &Store, model: &BTreeMap<Vec<u8>, Vec<u8>>, seed: &mut u64) {
        let (low, high) = (vec![draw(seed, 60) as u8], vec![draw(seed, 60) as u8]);
        let limit = draw(seed, 12) as usize;
        let wanted: Vec<Pair> = model
            .iter()
            .filter(|(key, _)| **key >= low && **key < high)
            .take(limit)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        assert_eq!(store.range(&low, &high, limit).unwrap(), wanted);
        let last = model.iter().rfind(|(key, _)| **key >= low && **key <= high);
        assert_eq!(store.last(&low, &high).unwrap(), last.map(|(key, value)| (key.clone(), value.clone())));
        assert_eq!(store.get(&low).unwrap(), model.get(&low).cloned());
        let bytes: usize = model.iter().map(|(key, value)| key.len() + value.len()).sum();
        assert_eq!(store.live_bytes(), bytes as u64);
    }

    #[test]
    fn three_layers_are_one_map_whatever_is_frozen_or_taken_back() {
        for first in 1..=40_u64 {
            let mut seed = first;
            let database = database();
            let mut store = Store::new(apply(&database, &Layer::new()).unwrap(), 0);
            let mut model = BTreeMap::new();
            let mut frozen: Option<Arc<Layer>> = None;
            // What somebody has who is told only of what is logged.
            let mut log = BTreeMap::new();
            for _ in 0..400 {
                store.begin();
                let mut changed = model.clone();
                for _ in 0..=draw(&mut seed, 3) {
                    let key = vec![draw(&mut seed, 60) as u8];
                    if draw(&mut seed, 3) == 0 {
                        store.delete(&key).unwrap();
                        changed.remove(&key);
                    } else {
                        let value = vec![seed as u8; draw(&mut seed, 5) as usize];
                        store.put(key.clone(), value.clone()).unwrap();
                        changed.insert(key, value);
                    }
                }
                if draw(&mut seed, 4) == 0 {
                    store.roll_back();
                } else {
                    model = changed;
                }
                match frozen.take() {
                    Some(layer) if draw(&mut seed, 4) == 0 => store.thaw(apply(&database, &layer).unwrap()),
                    Some(layer) => frozen = Some(layer),
                    None if draw(&mut seed, 8) == 0 => {
                        frozen = Some(store.freeze());
                        log.clone_from(&model);
                    }
                    None => {}
                }
                if draw(&mut seed, 5) == 0
                    && let Some(pairs) = store.take_unlogged(draw(&mut seed, 200) as usize)
                {
                    for (key, value) in pairs {
                        match value {
                            Some(value) => drop(log.insert(key, value)),
                            None => drop(log.remove(&key)),
                        }
                    }
                    assert_eq!(log, model, "seed {first}");
                }
                compare(&store, &model, &mut seed);
            }
        }
    }
}
