//! Objects that only branches out of reach have, and that a pool shows all the same: those that the kernel knows.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use fsstack_pool::BranchId;
use fsstack_sync::Mutex;

/// Copies of a directory: their branches, and their numbers there.
pub type Homes = Vec<(BranchId, u64)>;

/// Where an object is found in the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfflineObject {
    /// The copies of the directory that it is in, on branches out of reach.
    pub homes: Homes,
    /// Its name.
    pub name: Box<[u8]>,
}

/// Objects by their numbers, each with the lookups that the kernel holds.
#[derive(Debug, Default)]
pub struct OfflineTable(Mutex<HashMap<u64, (OfflineObject, u64)>>);

impl OfflineTable {
    /// The kernel looks `object` up once more. False: the number is another object's.
    #[must_use]
    pub fn look_up(&self, number: u64, object: OfflineObject) -> bool {
        match self.0.lock().entry(number) {
            Entry::Occupied(mut known) => {
                let (same, lookups) = known.get_mut();
                if same.name != object.name {
                    return false;
                }
                // The set of branches out of reach may have changed.
                *same = object;
                *lookups = lookups.saturating_add(1);
                true
            }
            Entry::Vacant(free) => {
                free.insert((object, 1));
                true
            }
        }
    }

    /// The object of a number.
    pub fn get(&self, number: u64) -> Option<OfflineObject> {
        self.0.lock().get(&number).map(|(object, _)| object.clone())
    }

    /// The kernel has forgotten `count` lookups.
    pub fn forget(&self, number: u64, count: u64) {
        if let Entry::Occupied(mut known) = self.0.lock().entry(number) {
            let lookups = &mut known.get_mut().1;
            *lookups = lookups.saturating_sub(count);
            if *lookups == 0 {
                known.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_stays_until_its_last_lookup_is_forgotten() {
        let table = OfflineTable::default();
        let object = |name: &str| OfflineObject { homes: Vec::new(), name: name.as_bytes().into() };
        assert!(table.look_up(7, object("a")) && table.look_up(7, object("a")));
        assert!(!table.look_up(7, object("b")), "another object of the same number");
        table.forget(7, 1);
        assert_eq!(table.get(7), Some(object("a")));
        table.forget(7, 1);
        table.forget(7, 1);
        assert_eq!(table.get(7), None);
    }
}
