//! Decisions on a branch that has no room for another record: in an attribute of its root, which a full file system still takes.
//!
//! A record of moves says which copy is the file. Where it cannot be replaced for want of room, the attribute that is named like
//! the record says it. It counts only together with the record that it was made for, which has that checksum, and goes with it.
//!
//! Value, without the format: the checksum of the record's body in 8 bytes, then the decision on each of its intents in their
//! order, a byte each; 255 for one whose file is settled.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fsstack_branch::branch::Branch;
use fsstack_identity::number::{hash_name, mix};
use fsstack_pool::Ino;
use fsstack_sys::file::sync_dir;
use fsstack_sys::{self as sys, Errno, SysError};

use crate::recovery::hidden_folder::own_folder;
use crate::recovery::record::{self, Written};
use crate::recovery::record_kind::{MOVE, NAMES, RecordKind, is_of_several};
use crate::recovery::root_attribute;
use crate::recovery::told::{Decided, intent_in_batch, parse_batch};

/// Format of the attribute: none of a record.
const FORMAT: u16 = 0x0100;
const SUM: usize = 8;
/// In place of a decision: the file is settled, and the record would not have its intent any more.
const SETTLED: u8 = 0xff;

/// Like [`record::replace`]; without room, the decisions of `body` on what the record is about are noted.
///
/// # Errors
/// It is not known what the branch says.
pub(crate) fn replace(
    on: &Branch,
    folder: BorrowedFd<'_>,
    name: &CStr,
    kind: &RecordKind,
    body: &[u8],
) -> Result<(), SysError> {
    match record::replace(on, folder, name, kind, body) {
        Ok(()) => forget(on, name),
        Err(full) => note(on, name, body, full),
    }
}

/// Like [`replace`], of a record in use.
pub(crate) fn replace_in_use(
    on: &Branch,
    record: &mut Written,
    kind: &RecordKind,
    body: &[u8],
) -> Result<(), SysError> {
    match record.replace(on, kind, body) {
        Ok(()) => forget(on, record.name()),
        Err(full) => note(on, record.name(), body, full),
    }
}

/// Removes what was noted beside a record that was replaced since: a later record may have the body that it was noted for.
fn forget(on: &Branch, name: &CStr) -> Result<(), SysError> {
    if root_attribute::get(on, name, FORMAT)?.is_none() {
        return Ok(());
    }
    root_attribute::remove(on, name)?;
    sync_dir(on.root().as_fd())
}

/// Notes the decisions of `now` on what the record `name` is about, which could not be replaced.
///
/// # Errors
/// `refused`, if the reason is another one than that the branch is full, or it takes no attribute either.
fn note(on: &Branch, name: &CStr, now: &[u8], refused: SysError) -> Result<(), SysError> {
    if !matches!(refused.errno, Errno::NOSPC | Errno::DQUOT) {
        return Err(refused);
    }
    let folder = own_folder(on)?.ok_or(refused)?;
    let (kind, body) = record::peek(on, folder.as_fd(), name)?.ok_or(refused)?;
    let value = decisions(kind, &body, now);
    root_attribute::put(on, name, FORMAT, &value).map_err(|_| refused)
}

/// The body of the record `name` with the decisions that its branch noted beside it.
pub(crate) fn with_noted(
    on: &Branch,
    name: &CStr,
    kind: &RecordKind,
    mut body: Vec<u8>,
) -> Result<Vec<u8>, SysError> {
    if kind.suffix == NAMES.suffix {
        return Ok(body);
    }
    let Some(value) = root_attribute::get(on, name, FORMAT)? else { return Ok(body) };
    apply(kind, &mut body, &value);
    Ok(body)
}

/// Removes decisions on the root of `branch` whose record is not there any more.
pub(crate) fn clear(branch: &Branch) -> Result<(), SysError> {
    for name in root_attribute::all(branch, MOVE.suffix)? {
        if root_attribute::get(branch, &name, FORMAT)?.is_none() {
            continue;
        }
        let is_there = |folder: OwnedFd| sys::at::stat(folder.as_fd(), &name).map(drop);
        match own_folder(branch).and_then(|folder| folder.map_or(Ok(()), is_there)) {
            Err(error) if error.errno == Errno::NOENT => root_attribute::remove(branch, &name)?,
            found => found?,
        }
    }
    Ok(())
}

/// Value for the decisions of `now`, beside a record with that body. What `now` is not about is settled, whatever was decided on it.
fn decisions(kind: &RecordKind, body: &[u8], now: &[u8]) -> Vec<u8> {
    let mut now = now.to_vec();
    let mut value = sum(body).to_le_bytes().to_vec();
    let shown = Decided::Shown as u8;
    value.extend(intents(kind, body).map(|(number, before)| {
        let decision = intent(kind, &mut now, number).and_then(|intent| intent.first().copied());
        match decision {
            // How it was shown does not fit in.
            Some(decision) if decision == shown && before.first() != Some(&shown) => Decided::New as u8,
            decision => decision.unwrap_or(SETTLED),
        }
    }));
    value
}

/// Puts the decisions of `value` into the body of a record, if they are for it.
fn apply(kind: &RecordKind, body: &mut [u8], value: &[u8]) {
    let Some((for_sum, decisions)) = value.split_first_chunk::<SUM>() else { return };
    let numbers: Vec<u32> = intents(kind, body).map(|(number, _)| number).collect();
    if u64::from_le_bytes(*for_sum) != sum(body) || numbers.len() != decisions.len() {
        return;
    }
    for (number, decision) in numbers.into_iter().zip(decisions) {
        if let Some(first) = intent(kind, body, number).and_then(<[u8]>::first_mut) {
            *first = *decision;
        }
    }
}

/// The intent with that number in the body of a record; the only one has none.
fn intent<'a>(kind: &RecordKind, body: &'a mut [u8], number: u32) -> Option<&'a mut [u8]> {
    if is_of_several(kind) { intent_in_batch(body, number) } else { Some(body) }
}

/// Numbers and intents in the body of a record of that kind.
fn intents<'a>(kind: &RecordKind, body: &'a [u8]) -> impl Iterator<Item = (u32, &'a [u8])> {
    match is_of_several(kind) {
        true => parse_batch(body).unwrap_or_default(),
        false => vec![(0, body)],
    }
    .into_iter()
}

fn sum(body: &[u8]) -> u64 {
    mix(hash_name(Ino(u64::from(FORMAT)), body))
}

#[cfg(test)]
mod tests {
    use crate::recovery::record_kind::BATCH;
    use crate::recovery::told::{Told, encode_batch};

    use super::*;

    #[test]
    fn decisions_are_put_into_the_record_that_they_were_made_for_and_no_other() {
        let batch = |files: &[(u32, &[u8])]| encode_batch(files.iter().copied());
        let record = batch(&[(0, b"2a"), (7, b"0bb"), (9, b"0c")]);
        // The first file was decided on otherwise, and is settled by then.
        let value = decisions(&BATCH, &record, &batch(&[(7, b"1bb"), (9, b"\x03c")]));
        let mut other = batch(&[(0, b"2a"), (7, b"0bb"), (9, b"0d")]);
        let before = other.clone();
        apply(&BATCH, &mut other, &value);
        assert_eq!(other, before);
        let mut with_noted = record.clone();
        apply(&BATCH, &mut with_noted, &value);
        assert_eq!(with_noted, batch(&[(0, b"\xffa"), (7, b"1bb"), (9, b"\x02c")]));
        assert!(Told::parse(&[&[SETTLED][..], &[0; 256]].concat()).is_none(), "a settled file has no intent");

        let (mut alone, noted) = (b"0film".to_vec(), decisions(&MOVE, b"0film", b"1film"));
        apply(&MOVE, &mut alone, &noted[..noted.len() - 1]);
        assert_eq!(alone, b"0film");
        apply(&MOVE, &mut alone, &noted);
        assert_eq!(alone, b"1film");
    }
}
