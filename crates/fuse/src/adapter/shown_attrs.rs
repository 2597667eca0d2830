//! Attributes that the kernel is sent in place of the branch's.
//!
//! With `page-cache=on` and `writeback` bytes that a program has stored may be in the kernel alone. A file that has none on its branch
//! has no blocks there, and programs that archive sparse files (GNU tar, `-S`) read nothing of it: it is shown with a block.
//!
//! In a pool without extended attributes (`xattr=off`) the kernel knows no ACL and decides by the mode alone, whose group bits are an ACL's mask: it would let in users that
//! an ACL keeps out. So an object with an ACL is shown with a mode that grants each user no more than the ACL does. The mode
//! may grant less.

use fsstack_engine::Union;
use fsstack_engine::answer::{Attr, Entry};
use fsstack_engine::settings::PageCache;
use fsstack_pool::settings::Xattrs;

/// Kind of object among a mode's bits, and a symbolic link.
const KIND: u32 = 0o170_000;
const SYMLINK: u32 = 0o120_000;
/// Bits of group and others, which an ACL is about.
const NOT_OWNER: u32 = 0o077;

/// Makes the attributes that the kernel is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShownAttrs<'a> {
    union: &'a Union,
    xattrs: Xattrs,
}

impl<'a> ShownAttrs<'a> {
    pub(super) fn new(union: &'a Union, xattrs: Xattrs) -> Self {
        Self { union, xattrs }
    }

    /// Returns `attr` with the mode and the number of blocks to be shown.
    pub(super) fn attr(self, mut attr: Attr) -> Attr {
        let mode = attr.stat.mode;
        if self.xattrs == Xattrs::Off && mode & NOT_OWNER != 0 && mode & KIND != SYMLINK {
            attr.stat.mode = self.narrowed(&attr);
        }
        let may_lack_bytes = attr.stat.blocks == 0 && attr.stat.size > 0 && attr.stat.is_file();
        if may_lack_bytes && self.union.pool().settings.page_cache != PageCache::Off {
            attr.stat.blocks = 1;
        }
        attr
    }

    /// Like [`Self::attr`], for a name that was found or made.
    pub(super) fn entry(self, entry: Entry) -> Entry {
        Entry { attr: self.attr(entry.attr), ..entry }
    }

    fn narrowed(self, attr: &Attr) -> u32 {
        let mode = attr.stat.mode;
        let mut acl = [0; 1024];
        match self.union.access_acl(attr.ino, &mut acl) {
            Ok(Some(len)) => acl.get(..len).and_then(|acl| within(mode, acl)).unwrap_or(mode & !NOT_OWNER),
            Ok(None) => mode,
            // An ACL that is too long, or that cannot be read: the owner's rights are certain.
            Err(_) => mode & !NOT_OWNER,
        }
    }
}

/// One entry of an ACL (`struct posix_acl_xattr_entry` of linux/posix_acl_xattr.h).
struct AclEntry {
    tag: u16,
    perm: u32,
}

/// ACL_USER, ACL_GROUP_OBJ, ACL_GROUP, ACL_MASK, ACL_OTHER of linux/posix_acl.h.
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// Returns `mode` with no more for group and others than `acl` grants each user they may be. None: unknown form of ACL.
///
/// The owning group's members may be named as users, and everybody else may be named as user or be in a named group. A member
/// of the owning group who is in a named group too has the rights of either.
fn within(mode: u32, acl: &[u8]) -> Option<u32> {
    const VERSION: u32 = 2;
    let (version, entries) = acl.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != VERSION || entries.len() % 8 != 0 {
        return None;
    }
    let entries = || {
        entries.chunks_exact(8).map(|entry| AclEntry {
            tag: u16::from_le_bytes([entry[0], entry[1]]),
            perm: u32::from(u16::from_le_bytes([entry[2], entry[3]])) & 7,
        })
    };
    let all_of = |tags: &[u16]| {
        entries().filter(|entry| tags.contains(&entry.tag)).fold(7, |all, entry| all & entry.perm)
    };
    let mask = all_of(&[MASK]);
    let group = all_of(&[GROUP_OBJ, USER]) & mask;
    let other = all_of(&[USER, GROUP]) & mask & 7;
    let named = entries().any(|entry| [USER, GROUP].contains(&entry.tag));
    let other = all_of(&[OTHER]) & if named { other } else { 7 };
    Some(mode & (!NOT_OWNER | group << 3 | other))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A user, as access control sees them.
    #[derive(Clone, Debug)]
    struct User {
        uid: u32,
        groups: Vec<u32>,
    }

    const USER_OBJ: u16 = 0x01;
    const OWNER: u32 = 0;
    const OWNING_GROUP: u32 = 0;

    fn as_bytes(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut bytes = 2_u32.to_le_bytes().to_vec();
        for (tag, perm, id) in entries {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(perm.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    /// The access check of acl(5).
    fn acl_grants(entries: &[(u16, u16, u32)], user: &User, wanted: u16) -> bool {
        let mask = entries.iter().find(|entry| entry.0 == MASK).map_or(7, |entry| entry.1);
        let of = |tag: u16| entries.iter().find(|entry| entry.0 == tag).map_or(0, |entry| entry.1);
        if user.uid == OWNER {
            return of(USER_OBJ) & wanted == wanted;
        }
        if let Some(named) = entries.iter().find(|entry| entry.0 == USER && entry.2 == user.uid) {
            return named.1 & mask & wanted == wanted;
        }
        let of_user = |entry: &&(u16, u16, u32)| match entry.0 {
            GROUP_OBJ => user.groups.contains(&OWNING_GROUP),
            GROUP => user.groups.contains(&entry.2),
            _ => false,
        };
        let mut groups = entries.iter().filter(of_user).peekable();
        if groups.peek().is_some() {
            return groups.any(|entry| entry.1 & mask & wanted == wanted);
        }
        of(OTHER) & wanted == wanted
    }

    fn mode_grants(mode: u32, user: &User, wanted: u16) -> bool {
        let shift = match user {
            user if user.uid == OWNER => 6,
            user if user.groups.contains(&OWNING_GROUP) => 3,
            _ => 0,
        };
        mode >> shift & u32::from(wanted) == u32::from(wanted)
    }

    proptest! {
        /// Each right by the shown mode is a right by the ACL.
        #[test]
        fn a_shown_mode_grants_no_more_than_the_acl(
            base in [0_u16..8, 0..8, 0..8, 0..8],
            users in prop::collection::vec((0_u16..8, 1_u32..4), 0..3),
            groups in prop::collection::vec((0_u16..8, 1_u32..4), 0..3),
            user in (0_u32..5, prop::collection::vec(0_u32..4, 1..4)),
            wanted in 1_u16..8,
        ) {
            let [owner, group, mask, other] = base;
            let mut entries = vec![(USER_OBJ, owner, 0), (GROUP_OBJ, group, 0), (MASK, mask, 0), (OTHER, other, 0)];
            entries.extend(users.iter().map(|(perm, id)| (USER, *perm, *id)));
            entries.extend(groups.iter().map(|(perm, id)| (GROUP, *perm, *id)));
            let mode = 0o100_000 | u32::from(owner) << 6 | u32::from(mask) << 3 | u32::from(other);
            let shown = within(mode, &as_bytes(&entries)).unwrap();
            let user = User { uid: user.0, groups: user.1 };
            if mode_grants(shown, &user, wanted) {
                prop_assert!(acl_grants(&entries, &user, wanted), "{shown:o} {entries:?} {user:?}");
            }
            prop_assert_eq!(shown & !NOT_OWNER, mode & !NOT_OWNER);
        }
    }

    #[test]
    fn an_acl_of_another_form_leaves_the_owners_rights_only() {
        assert_eq!(within(0o100_664, &[1, 0, 0, 0]), None);
        assert_eq!(within(0o100_664, &[2, 0, 0, 0, 1]), None);
        assert_eq!(within(0o100_664, &[]), None);
    }
}
