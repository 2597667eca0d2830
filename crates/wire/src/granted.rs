//! Grants of a reply, read back from its bytes: lookups and handles.

use crate::abi;

const ENTRY: usize = size_of::<abi::EntryOut>();
/// Size of a row's header: inode number, offset, length of the name, type.
const DIRENT: usize = 24;
const NAMELEN: usize = 16;

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Returns the node of a reply that begins with an entry; 0 for a missing name.
pub fn node(answer: &[u8]) -> Option<u64> {
    word(answer, 0)
}

/// Returns the handle in a reply to OPEN or OPENDIR.
pub fn handle(answer: &[u8]) -> Option<u64> {
    word(answer, 0)
}

/// Returns the handle in a reply to CREATE or TMPFILE.
pub fn handle_of_created(answer: &[u8]) -> Option<u64> {
    word(answer, ENTRY)
}

/// Returns the nodes in a reply to READDIRPLUS; 0 for entries without attributes.
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
