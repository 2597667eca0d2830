//! Name of a directory entry: validated once, where bytes become a name.

use std::borrow::Borrow;
use std::ffi::{CStr, CString};
use std::fmt;

use crate::printable::Printable;

/// The longest name of an entry, in bytes.
pub const NAME_MAX: usize = 255;

/// Reason why bytes are not a valid entry name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    /// Empty, `.` or `..`.
    #[error("an entry cannot be called \"\", \".\" or \"..\"")]
    Reserved,
    /// More than [`NAME_MAX`] bytes.
    #[error("a name has at most {NAME_MAX} bytes")]
    TooLong,
    /// A `/` in the name.
    #[error("a name cannot contain '/'")]
    Separator,
    /// A NUL in the name, or a missing one at the end where it is required.
    #[error("a name ends with its first NUL")]
    Nul,
}

/// A name relative to a directory: 1 to 255 bytes, none of them `/` or NUL, and not `.` or `..`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryName<'a>(&'a CStr);

impl<'a> EntryName<'a> {
    /// Checks `raw`.
    pub fn new(raw: &'a CStr) -> Result<Self, BadName> {
        check(raw.to_bytes()).map(|()| Self(raw))
    }

    /// Checks `raw`, which must have one NUL, at its end.
    pub fn from_bytes_with_nul(raw: &'a [u8]) -> Result<Self, BadName> {
        CStr::from_bytes_with_nul(raw).map_err(|_| BadName::Nul).and_then(Self::new)
    }

    /// Returns the name as system calls take it.
    pub fn as_cstr(self) -> &'a CStr {
        self.0
    }

    /// Returns the name without the NUL at its end.
    pub fn to_bytes(self) -> &'a [u8] {
        self.0.to_bytes()
    }

    /// Copies the name.
    pub fn to_owned(self) -> EntryNameBuf {
        EntryNameBuf(self.0.into())
    }
}

fn check(bytes: &[u8]) -> Result<(), BadName> {
    match bytes {
        [] | b"." | b".." => Err(BadName::Reserved),
        long if NAME_MAX < long.len() => Err(BadName::TooLong),
        split if split.contains(&b'/') => Err(BadName::Separator),
        _ => Ok(()),
    }
}

/// An [`EntryName`] that owns its bytes. A map keyed by it is searched with `name.as_cstr()`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryNameBuf(Box<CStr>);

impl EntryNameBuf {
    /// Checks and copies `raw`, which has no NUL at its end.
    pub fn from_bytes(raw: &[u8]) -> Result<Self, BadName> {
        check(raw)?;
        CString::new(raw).map(|name| Self(name.into_boxed_c_str())).map_err(|_| BadName::Nul)
    }

    /// The name, borrowed.
    pub fn as_name(&self) -> EntryName<'_> {
        EntryName(&self.0)
    }

    /// Returns the name as system calls take it.
    pub fn as_cstr(&self) -> &CStr {
        &self.0
    }

    /// Returns the name without the NUL at its end.
    pub fn to_bytes(&self) -> &[u8] {
        self.0.to_bytes()
    }
}

impl Borrow<CStr> for EntryNameBuf {
    fn borrow(&self) -> &CStr {
        &self.0
    }
}

impl fmt::Display for EntryName<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        Printable(self.to_bytes()).fmt(out)
    }
}

impl fmt::Debug for EntryName<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&Printable(self.to_bytes()), out)
    }
}

impl fmt::Display for EntryNameBuf {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_name().fmt(out)
    }
}

impl fmt::Debug for EntryNameBuf {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.as_name(), out)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn reserved_long_and_split_names_are_refused() {
        assert_eq!(EntryName::new(c""), Err(BadName::Reserved));
        assert_eq!(EntryName::new(c"."), Err(BadName::Reserved));
        assert_eq!(EntryName::new(c".."), Err(BadName::Reserved));
        assert_eq!(EntryName::new(c"a/b"), Err(BadName::Separator));
        assert_eq!(EntryNameBuf::from_bytes(&[b'x'; 256]), Err(BadName::TooLong));
        assert_eq!(EntryNameBuf::from_bytes(b"a\0b"), Err(BadName::Nul));
        assert_eq!(EntryName::from_bytes_with_nul(b"ab"), Err(BadName::Nul));
        assert_eq!(EntryName::from_bytes_with_nul(b"a\0b\0"), Err(BadName::Nul));
    }

    #[test]
    fn any_other_bytes_are_a_name() {
        assert!(EntryNameBuf::from_bytes(&[b'x'; 255]).is_ok());
        let odd = EntryName::from_bytes_with_nul(b"...\xff\n\0").unwrap();
        assert_eq!(odd.to_bytes(), b"...\xff\n");
        assert_eq!(odd.to_string(), r"...\377\012");
    }

    #[test]
    fn a_map_of_owned_names_is_asked_with_a_borrowed_one() {
        let name = EntryName::new(c"film.mkv").unwrap();
        let map = HashMap::from([(name.to_owned(), 1)]);
        assert_eq!(map.get(name.as_cstr()), Some(&1));
    }
}
