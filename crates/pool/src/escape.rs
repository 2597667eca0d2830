//! Escapes in texts whose parts are separated by punctuation: SOURCE, and lists of rules.
//!
//! A backslash makes the following punctuation or space literal; `\054` is the literal byte with that octal number.

use std::fmt;

use crate::printable::Printable;

/// A byte of a text, and whether it is literal whatever it means elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// The byte.
    pub byte: u8,
    /// It was escaped.
    pub escaped: bool,
}

impl Symbol {
    /// True if it is one of these separators.
    pub fn means(self, one_of: &[u8]) -> bool {
        !self.escaped && one_of.contains(&self.byte)
    }
}

/// A text with a wrong escape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadEscape {
    /// A backslash before neither punctuation nor three octal digits, with what follows it.
    #[error(
        "`{0}` is not an escape: write `\\\\` for a backslash, `\\:` `\\=` for separators, `\\040` for a byte"
    )]
    Unknown(String),
    /// A NUL byte.
    #[error("a path cannot contain a NUL byte")]
    Nul,
}

/// Resolves the escapes of a text.
///
/// # Errors
/// A wrong escape, or a NUL byte.
pub fn unescape(bytes: &[u8]) -> Result<Vec<Symbol>, BadEscape> {
    let mut symbols = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let [first, after @ ..] = rest {
        let (symbol, length) = match (first, after) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..]) => {
                (Symbol { byte: (a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'), escaped: true }, 4)
            }
            (b'\\', [byte, ..]) if byte.is_ascii_punctuation() || *byte == b' ' => {
                (Symbol { byte: *byte, escaped: true }, 2)
            }
            (b'\\', _) => {
                return Err(BadEscape::Unknown(Printable(&rest[..rest.len().min(4)]).to_string()));
            }
            (byte, _) => (Symbol { byte: *byte, escaped: false }, 1),
        };
        if symbol.byte == 0 {
            return Err(BadEscape::Nul);
        }
        symbols.push(symbol);
        rest = &rest[length..];
    }
    Ok(symbols)
}

/// Splits at the first of `separators`: the part before it, the separator, and the rest.
pub fn cut<'a>(symbols: &'a [Symbol], separators: &[u8]) -> (&'a [Symbol], Option<(u8, &'a [Symbol])>) {
    match symbols.iter().position(|symbol| symbol.means(separators)) {
        Some(at) => (&symbols[..at], Some((symbols[at].byte, &symbols[at + 1..]))),
        None => (symbols, None),
    }
}

/// The parts between separators; at least one, which may be empty.
pub fn split(symbols: &[Symbol], separator: u8) -> impl Iterator<Item = &[Symbol]> {
    symbols.split(move |symbol| symbol.means(&[separator]))
}

/// The bytes without the distinction.
pub fn bytes_of(symbols: &[Symbol]) -> Vec<u8> {
    symbols.iter().map(|symbol| symbol.byte).collect()
}

/// Prints a name or path as a part of a list of rules, which reads it back as the same bytes.
///
/// Backslash, comma and quotation mark are printed as octal numbers, so that a list after `-o` need not quote them.
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a>(pub &'a [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.0.split_inclusive(|byte| br#"\,""#.contains(byte)) {
            let (plain, last) = match part {
                [plain @ .., last @ (b'\\' | b',' | b'"')] => (plain, Some(*last)),
                plain => (plain, None),
            };
            Printable(plain).fmt_escaping(&[':', '=', ';', '@', '+'], out)?;
            if let Some(last) = last {
                write!(out, "\\{last:03o}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_is_printed_so_that_no_byte_of_it_separates() {
        let printed = Escaped(b"a:b=c;d@e+f,g\"h\\i \xff\n").to_string();
        assert_eq!(printed, r"a\:b\=c\;d\@e\+f\054g\042h\134i \377\012");
    }

    proptest! {
        #[test]
        fn printed_bytes_are_read_back(bytes in prop::collection::vec(1_u8..=255, 0..30)) {
            let printed = Escaped(&bytes).to_string();
            let symbols = unescape(printed.as_bytes()).unwrap();
            prop_assert_eq!(bytes_of(&symbols), bytes);
            prop_assert!(!symbols.iter().any(|symbol| symbol.means(b":=;@+,")));
            prop_assert!(!printed.contains([',', '"']));
        }
    }
}
