//! Extensions of a request, after its own fields: supplementary groups, and security contexts, which are skipped.

use zerocopy::FromBytes;

use crate::abi;
use crate::request::Why;

/// Supplementary groups in the request: the parent directory's group, if the caller is in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Groups<'a> {
    gids: &'a [u8],
}

impl<'a> Groups<'a> {
    /// Splits `len` bytes of extensions off the end of `rest`; the remainder is the operation's.
    pub(crate) fn split(rest: &'a [u8], len: usize) -> Result<(&'a [u8], Self), Why> {
        let at = rest.len().checked_sub(len).ok_or(Why::Malformed)?;
        let (rest, mut extensions) = rest.split_at(at);
        let mut groups = Self::default();
        while !extensions.is_empty() {
            let (head, _) = abi::ExtHeader::read_from_prefix(extensions).map_err(|_| Why::Malformed)?;
            let size = usize::try_from(head.size).map_err(|_| Why::Malformed)?;
            let body = extensions.get(size_of::<abi::ExtHeader>()..size).ok_or(Why::Malformed)?;
            if head.kind == abi::EXT_GROUPS {
                groups = Self::parse(body)?;
            }
            let next = size.checked_next_multiple_of(abi::RECORD_ALIGN).ok_or(Why::Malformed)?;
            extensions = extensions.get(next..).ok_or(Why::Malformed)?;
        }
        Ok((rest, groups))
    }

    fn parse(body: &'a [u8]) -> Result<Self, Why> {
        let (count, gids) = u32::read_from_prefix(body).map_err(|_| Why::Malformed)?;
        let len = usize::try_from(count).ok().and_then(|count| count.checked_mul(size_of::<u32>()));
        let gids = len.and_then(|len| gids.get(..len)).ok_or(Why::Malformed)?;
        Ok(Self { gids })
    }
}

impl Iterator for Groups<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let (gid, gids) = u32::read_from_prefix(self.gids).ok()?;
        self.gids = gids;
        Some(gid)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.gids.len() / size_of::<u32>();
        (left, Some(left))
    }
}

impl ExactSizeIterator for Groups<'_> {}
