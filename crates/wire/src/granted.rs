//! Grants of a built answer to the kernel: lookups and handles, read back from its bytes.

use crate::abi;

const ENTRY: usize = size_of::<abi::EntryOut>();
/// Inode number, offset, length of the name, type.
const DIRENT: usize = 24;
const NAMELEN: usize = 16;

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The node of an answer that begins with an entry; 0: it says that there is none.
pub fn node(answer: &[u8]) -> Option<u64> {
    word(answer, 0)
}

/// The handle of an answer to OPEN or OPENDIR.
pub fn handle(answer: &[u8]) -> Option<u64> {
    word(answer, 0)
}

/// The handle of an answer to CREATE or TMPFILE.
pub fn handle_of_created(answer: &[u8]) -> Option<u64> {
    word(answer, ENTRY)
}

/// The nodes of an answer to READDIRPLUS; 0 for entries without attributes.
pub fn nodes_listed(answer: &[u8]) -> impl Iterator<Item = u64> {
    let mut rest = answer;
    std::iter::from_fn(move || {
        let node = node(rest)?;
        let name = u32::from_ne_bytes(*rest.get(ENTRY + NAMELEN..)?.first_chunk()?);
        let len = ENTRY + (DIRENT + usize::try_from(name).ok()?).next_multiple_of(8);
        rest = rest.get(len..)?;
        Some(node)
    })
}
