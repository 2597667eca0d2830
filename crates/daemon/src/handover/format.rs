//! The header of a state: a fixed form that every version reads, before anything that another version may have written otherwise.
//!
//! | bytes | |
//! |---|---|
//! | 8 | `fsstkpas` |
//! | 4 | version of the format, little endian |
//! | 4 | zero |
//! | 16 | version of the program that wrote it, text, ended by zeros |
//! | 8 | length of the body, little endian |
//! | 8 | checksum of the body, little endian |
//!
//! The body is in postcard's format, which names no fields (`state.rs`). A change of what is in it, or of what it means, is a new version of the format.

use fsstack_identity::number::mix;

/// The version that this program writes and reads.
pub(crate) const FORMAT: u32 = 7;
const MAGIC: &[u8; 8] = b"fsstkpas";
const HEADER: usize = 48;
const TEXT: usize = 16;

/// Why bytes are no state for this program: one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadState {
    /// Something else.
    #[error("not the state of a pool")]
    Strange,
    /// Another version's.
    #[error(
        "state of format {0}, written by version {1}; this program reads format {FORMAT} only: unmount and mount to change versions"
    )]
    OtherFormat(u32, String),
    /// Its end is missing, or there is more.
    #[error("state is {0} bytes long and should be {1}")]
    Length(usize, u64),
    /// It was changed.
    #[error("state is damaged (checksum)")]
    Checksum,
    /// Its content is wrong.
    #[error("state cannot be read: {0}")]
    Content(String),
}

/// The header before `body`.
pub(crate) fn encode(format: u32, version: &str, body: &[u8]) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&format.to_le_bytes());
    let version = &version.as_bytes()[..version.len().min(TEXT)];
    header[16..16 + version.len()].copy_from_slice(version);
    header[32..40].copy_from_slice(&(body.len() as u64).to_le_bytes());
    header[40..].copy_from_slice(&checksum(body).to_le_bytes());
    header
}

/// The body behind the header of `state`.
///
/// # Errors
/// It is none of this format, or not whole.
pub(crate) fn body(state: &[u8]) -> Result<&[u8], BadState> {
    let (header, body) = state.split_at_checked(HEADER).ok_or(BadState::Strange)?;
    if &header[..8] != MAGIC {
        return Err(BadState::Strange);
    }
    let format = header[8..12].try_into().map_or(0, u32::from_le_bytes);
    if format != FORMAT {
        let text = header[16..16 + TEXT].split(|byte| *byte == 0).next().unwrap_or_default();
        return Err(BadState::OtherFormat(format, fsstack_pool::Printable(text).to_string()));
    }
    let word = |at: usize| header[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
    if body.len() as u64 != word(32) {
        return Err(BadState::Length(body.len(), word(32)));
    }
    if checksum(body) != word(40) {
        return Err(BadState::Checksum);
    }
    Ok(body)
}

/// Differs for any change of few bits; made for damage, not for malice.
fn checksum(body: &[u8]) -> u64 {
    body.chunks(8).fold(mix(body.len() as u64 ^ 0x6673_7374), |sum, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        mix(sum.rotate_left(5) ^ u64::from_le_bytes(word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(format: u32) -> Vec<u8> {
        [&encode(format, "1.2.3", b"content")[..], b"content"].concat()
    }

    #[test]
    fn what_was_written_is_read() {
        assert_eq!(body(&state(FORMAT)), Ok(&b"content"[..]));
    }

    #[test]
    fn every_damage_is_noticed() {
        let whole = state(FORMAT);
        for at in 0..whole.len() {
            // Zeros, and the text of the version, mean nothing.
            if (12..32).contains(&at) {
                continue;
            }
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            assert!(body(&damaged).is_err(), "{at}");
        }
        for len in 0..whole.len() {
            assert!(body(&whole[..len]).is_err(), "{len}");
        }
        assert_eq!(body(&[&whole[..], b"x"].concat()), Err(BadState::Length(8, 7)));
    }

    #[test]
    fn other_formats_are_refused_by_name() {
        for format in [0, FORMAT + 1, u32::MAX] {
            let refused = body(&state(format)).unwrap_err();
            assert_eq!(refused, BadState::OtherFormat(format, "1.2.3".to_owned()));
            let said = refused.to_string();
            assert!(
                said.contains(&format.to_string()) && said.contains("1.2.3") && said.contains("unmount"),
                "{said}"
            );
        }
    }
}
