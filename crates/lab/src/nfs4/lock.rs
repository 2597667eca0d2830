//! Byte-range locks of a client ([RFC 7530](https://www.rfc-editor.org/rfc/rfc7530), sections 16.10 and 16.12).

use super::xdr::{Words, putfh};
use super::{Client, NfsError, Opened, Owner, Told};

const LOCK: u32 = 12;
const LOCKU: u32 = 14;
/// `WRITE_LT`.
const WRITE_LOCK: u32 = 2;

impl NfsError {
    /// Another owner has a lock there.
    pub const DENIED: Self = Self::Status(10010);
}

/// An exclusive lock.
#[derive(Clone, Debug)]
pub struct HeldLock {
    state: [u8; 16],
    offset: u64,
    length: u64,
}

impl Client {
    /// Locks `length` bytes of the file for writing, for an owner who has no lock there yet. It does not wait.
    ///
    /// # Errors
    /// [`NfsError::DENIED`]: another owner has a lock there; or the server's error.
    pub fn lock(&mut self, file: &Opened, (offset, length): (u64, u64)) -> Told<HeldLock> {
        let Owner { client, sequence } = self.next()?;
        let not_reclaimed = 0;
        let lock = Words::of(&[LOCK, WRITE_LOCK, not_reclaimed]).long(offset).long(length);
        let owner = format!("lab {sequence}");
        let by_new_owner = lock.words(&[1, sequence]).raw(&file.state).words(&[0]);
        let lock = by_new_owner.long(client).opaque(owner.as_bytes());
        let state = self.ask(&[putfh(&file.handle), lock], |reply| {
            reply.operations(2)?;
            reply.fixed()
        })?;
        Ok(HeldLock { state, offset, length })
    }

    /// Gives the lock back, once only.
    ///
    /// # Errors
    /// The server's error.
    pub fn unlock(&mut self, file: &Opened, lock: &HeldLock) -> Told<()> {
        let second_call_of_its_owner = 1;
        let unlock = Words::of(&[LOCKU, WRITE_LOCK, second_call_of_its_owner]).raw(&lock.state);
        let unlock = unlock.long(lock.offset).long(lock.length);
        self.ask(&[putfh(&file.handle), unlock], |_| Ok(()))
    }
}
