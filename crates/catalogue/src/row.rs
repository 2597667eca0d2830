//! The attributes of a name, in few bytes.

use fsstack_sys::{Kind, Stat};

/// Bit of [`Row::mode`]: the directory has no access ACL, so that its permissions are those of the mode.
pub const WITHOUT_ACL: u32 = 1 << 16;
/// Bit of [`Row::mode`]: the file has, or had, several names.
const SEVERAL_NAMES: u32 = 1 << 17;

/// Attributes of a name on a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Type and permissions, with [`WITHOUT_ACL`] or [`SEVERAL_NAMES`].
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes; 0 for a directory.
    pub size: u64,
    /// Time of last modification: seconds since the epoch.
    pub sec: i64,
    /// Its nanoseconds.
    pub nsec: u32,
    /// Number of a directory, or of a file with several names. That of any other file is not stored.
    pub number: Option<u64>,
}

impl Row {
    /// The row of what `stat` describes, which has this number.
    pub fn of(stat: &Stat, number: u64) -> Self {
        let is_dir = stat.is_dir();
        let several = if is_dir || stat.nlink < 2 { 0 } else { SEVERAL_NAMES };
        let size = if is_dir { 0 } else { stat.size };
        let (sec, nsec) = (stat.mtime.sec, stat.mtime.nsec);
        let (mode, number) = (stat.mode | several, Some(number));
        Self { mode, uid: stat.uid, gid: stat.gid, size, sec, nsec, number }
    }

    /// This row of a file that has several names, though one link was seen.
    #[must_use]
    pub fn of_several(mut self) -> Self {
        if self.kind() != Kind::Dir {
            self.mode |= SEVERAL_NAMES;
        }
        self
    }

    /// Type, and permissions that surely apply: of a directory that may have an access ACL the owner's, as the others depend on that.
    pub fn shown_mode(&self) -> u32 {
        let mode = self.mode & !(WITHOUT_ACL | SEVERAL_NAMES);
        if self.mode_decides() { mode } else { mode & !0o077 }
    }

    /// False for a directory that may have an access ACL.
    pub fn mode_decides(&self) -> bool {
        self.dir().is_none() || self.mode & WITHOUT_ACL != 0
    }

    /// Kind of object.
    pub fn kind(&self) -> Kind {
        Kind::from_mode(self.mode)
    }

    /// Number of the directory. None: it is none.
    pub fn dir(&self) -> Option<u64> {
        self.number.filter(|_| self.kind() == Kind::Dir)
    }

    /// Number of the file, which has or had several names. None: it is a directory, or always had one name.
    pub fn linked(&self) -> Option<u64> {
        self.number.filter(|_| self.mode & SEVERAL_NAMES != 0 && self.kind() != Kind::Dir)
    }

    /// The row to store where the name had the row `before`. A file of which one name is left may be open, and changed, where
    /// that name is not known.
    pub(crate) fn stored_after(mut self, before: Option<&Self>) -> Self {
        if self.number.is_some() && before.is_some_and(|before| before.linked() == self.number) {
            self.mode |= SEVERAL_NAMES;
        }
        self.number = self.dir().or(self.linked());
        self
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(24);
        // Zigzag: small negative numbers are short too.
        let sec = (self.sec << 1 ^ self.sec >> 63).cast_unsigned();
        let numbers = [self.mode.into(), self.uid.into(), self.gid.into(), self.size, sec, self.nsec.into()];
        numbers.into_iter().chain(self.dir().or(self.linked())).for_each(|number| put(&mut bytes, number));
        bytes
    }

    /// None: these bytes are no row.
    pub(crate) fn parse(mut bytes: &[u8]) -> Option<Self> {
        let bytes = &mut bytes;
        let short = |number: u64| u32::try_from(number).ok();
        let (mode, uid, gid) = (short(take(bytes)?)?, short(take(bytes)?)?, short(take(bytes)?)?);
        let (size, sec, nsec) = (take(bytes)?, take(bytes)?, short(take(bytes)?)?);
        let sec = (sec >> 1).cast_signed() ^ -(sec & 1).cast_signed();
        let number = if bytes.is_empty() { None } else { Some(take(bytes)?) };
        bytes.is_empty().then_some(Self { mode, uid, gid, size, sec, nsec, number })
    }
}

/// Appends `number` in groups of seven bits, the lowest first.
fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        bytes.push(0x80 | (number & 0x7f) as u8);
        number >>= 7;
    }
    bytes.push((number & 0x7f) as u8);
}

fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let part = u64::from(byte & 0x7f);
        if part << shift >> shift != part {
            return None;
        }
        number |= part << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_row_is_read_as_it_was_written(
            (mode, uid, gid, nsec) in any::<(u32, u32, u32, u32)>(),
            (size, sec, number) in any::<(u64, i64, Option<u64>)>(),
        ) {
            let row = Row { mode, uid, gid, size, sec, nsec, number }.stored_after(None);
            prop_assert_eq!(Row::parse(&row.encode()), Some(row));
        }

        #[test]
        fn any_bytes_are_a_row_or_none(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some(row) = Row::parse(&bytes) {
                let row = row.stored_after(None);
                prop_assert_eq!(Row::parse(&row.encode()), Some(row));
            }
        }
    }

    #[test]
    fn an_ordinary_file_takes_few_bytes() {
        let row = Row {
            mode: 0o100_644,
            uid: 1000,
            gid: 1000,
            size: 1 << 30,
            sec: 1_796_000_000,
            nsec: 999_999_999,
            number: Some(u64::MAX),
        };
        assert!(row.encode().len() <= 24, "{}", row.encode().len());
    }
}
