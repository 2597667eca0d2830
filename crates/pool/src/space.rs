//! Space of a branch.

/// Space of a branch from statfs, in bytes and inodes. Arithmetic saturates, because the figures are estimates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Size of the file system.
    pub total: u64,
    /// Unused bytes.
    pub free: u64,
    /// Bytes free for unprivileged users; placement uses these.
    pub available: u64,
    /// Total inodes; 0 if the file system does not count them.
    pub inodes_total: u64,
    /// Free inodes.
    pub inodes_free: u64,
}

impl Space {
    /// Used bytes, as df reports them.
    pub fn used(&self) -> u64 {
        self.total.saturating_sub(self.free)
    }

    /// Bytes that users cannot have: used, or reserved for root. mergerfs calls this "used".
    pub fn taken(&self) -> u64 {
        self.total.saturating_sub(self.available)
    }

    /// Space after `bytes` more were placed here.
    #[must_use]
    pub fn less(self, bytes: u64) -> Self {
        Self {
            free: self.free.saturating_sub(bytes),
            available: self.available.saturating_sub(bytes),
            ..self
        }
    }

    /// Space after `bytes` were freed, at most the total.
    #[must_use]
    pub fn more(self, bytes: u64) -> Self {
        Self {
            free: self.free.saturating_add(bytes).min(self.total),
            available: self.available.saturating_add(bytes).min(self.total),
            ..self
        }
    }

    /// True if at least `least` inodes are free, or the file system does not count them.
    pub fn has_inodes(&self, least: u64) -> bool {
        self.inodes_total == 0 || least <= self.inodes_free
    }
}

/// `part` of `whole` as a fraction of 2^64, for comparing; everything when `whole` is 0.
pub(crate) fn share(part: u64, whole: u64) -> u128 {
    (u128::from(part) << 64).checked_div(u128::from(whole)).unwrap_or(1 << 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        let space = Space { total: 100, free: 30, available: 20, ..Space::default() };
        assert_eq!((space.used(), space.taken()), (70, 80));
        let emptied = space.less(25);
        assert_eq!((emptied.free, emptied.available), (5, 0));
        let given_back = space.more(1000);
        assert_eq!((given_back.free, given_back.available), (100, 100));
        assert_eq!(Space { free: 5, ..Space::default() }.used(), 0);
    }

    #[test]
    fn uncounted_inodes_never_run_out() {
        assert!(Space::default().has_inodes(1000));
        assert!(!Space { inodes_total: 10, inodes_free: 3, ..Space::default() }.has_inodes(4));
    }
}
