//! Prints any bytes of a name or path on one line.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Prints UTF-8 unchanged; control characters and invalid bytes as `\012`, so that no name can forge a log line.
///
/// The escapes are those of the branch grammar and of fstab.
#[derive(Clone, Copy)]
pub struct Printable<'a>(pub &'a [u8]);

impl<'a> Printable<'a> {
    /// The bytes of `path`.
    pub fn path(path: &'a Path) -> Self {
        Self::os(path.as_os_str())
    }

    /// The bytes of `text`.
    pub fn os(text: &'a OsStr) -> Self {
        Self(text.as_bytes())
    }

    /// Like `Display`, with a backslash before each character of `special`.
    pub(crate) fn fmt_escaping(self, special: &[char], out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for character in chunk.valid().chars() {
                if character.is_control() {
                    let mut buffer = [0; 4];
                    write_octal(character.encode_utf8(&mut buffer).as_bytes(), out)?;
                } else if special.contains(&character) {
                    write!(out, "\\{character}")?;
                } else {
                    write!(out, "{character}")?;
                }
            }
            write_octal(chunk.invalid(), out)?;
        }
        Ok(())
    }
}

fn write_octal(bytes: &[u8], out: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(out, "\\{byte:03o}"))
}

impl fmt::Display for Printable<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_escaping(&[], out)
    }
}

impl fmt::Debug for Printable<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "\"{self}\"")
    }
}
