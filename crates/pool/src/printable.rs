//! Prints any bytes of a name or path on one line.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Prints UTF-8 unchanged; control characters, those of the text's direction, and invalid bytes as `\012`, so that no name can forge a log line.
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
                if character.is_control() || changes_layout(character) {
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

/// Whether the character changes lines or the direction of the text: it shows a name as another one, or a line as two.
fn changes_layout(character: char) -> bool {
    matches!(
        character,
        '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hides_or_turns_text_is_escaped() {
        let shown = |text: &str| Printable(text.as_bytes()).to_string();
        // Shown from right to left it would end in .txt.
        assert_eq!(shown("a\u{202e}txt.exe"), r"a\342\200\256txt.exe");
        for turning in
            ['\u{061c}', '\u{200e}', '\u{200f}', '\u{202a}', '\u{2066}', '\u{2069}', '\u{2028}', '\n']
        {
            assert!(shown(&turning.to_string()).starts_with('\\'), "{turning:?}");
        }
        assert_eq!(shown("\u{5e9}\u{5dc} \u{1f600} \u{200d} a"), "\u{5e9}\u{5dc} \u{1f600} \u{200d} a");
    }
}
